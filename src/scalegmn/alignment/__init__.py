"""Comparing, aligning, merging and balancing networks up to their symmetries; nothing here is trained."""
