"""Benchmarks of this machine."""
