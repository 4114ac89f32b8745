"""Zoos: collections of trained networks, built, stored and imported."""

from .store.writer import ZooWriter
from .store.zoo import Batch, Batches, Zoo

__all__ = ["Batch", "Batches", "Zoo", "ZooWriter"]
