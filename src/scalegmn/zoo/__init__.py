"""Zoos: collections of trained networks, built, stored and imported."""
