"""Sums in the same order everywhere."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _always_one_thread(one_thread: None) -> None:
    """One thread for every test in this folder."""
