"""Every test and every example draws the same numbers each time, whichever ran before it."""

from __future__ import annotations

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def same_draws() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
