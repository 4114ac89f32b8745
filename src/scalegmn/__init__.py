"""Metanetworks that respect the permutation and scaling symmetries of the networks they read."""

__version__ = "0.1.0"
