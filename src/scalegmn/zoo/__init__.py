"""Zoos: collections of trained networks, and how they are built, stored and imported."""
