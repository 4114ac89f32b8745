"""What several tests need: the command line as wide as it is in a pipe, and one thread."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

# pytest-xdist gives its workers the width of the terminal it was started in.
os.environ.pop("COLUMNS", None)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small products gain nothing from threads, and lose much where tests run side by side."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
