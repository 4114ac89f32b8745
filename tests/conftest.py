"""What several tests need: the command line as wide as it is in a pipe, one thread, and zoos that train in a blink."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from tiny_zoos import digits_zoo, mixed_zoo

from scalegmn.zoo.store.zoo import Zoo

# pytest-xdist gives its workers the width of the terminal it was started in.
os.environ.pop("COLUMNS", None)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small products gain nothing from threads, and lose much where tests run side by side."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    return digits_zoo(tmp_path_factory.mktemp("zoo") / "digits")


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    return mixed_zoo(tmp_path_factory.mktemp("zoo") / "mixed")
