"""Zoos: collections of trained networks, built, stored and imported."""

from scalegmn.zoo.store import Batch, Batches, Zoo
from scalegmn.zoo.writer import ZooWriter

__all__ = ["Batch", "Batches", "Zoo", "ZooWriter"]
