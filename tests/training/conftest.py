"""Zoos that train in a blink."""

from __future__ import annotations

import pytest
import torch
from tiny_zoos import digits_zoo, mixed_zoo

from scalegmn.zoo.store.zoo import Zoo


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    return digits_zoo(tmp_path_factory.mktemp("zoo") / "digits")


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    return mixed_zoo(tmp_path_factory.mktemp("zoo") / "mixed")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Sums in the same order everywhere."""
    torch.set_num_threads(1)
