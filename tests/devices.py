"""A device that exists in no machine: it has no double precision, as Apple's has none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from scalegmn.core import doubles


class _NoDouble(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for t in tree_leaves(result):
            assert not (isinstance(t, Tensor) and t.device.type == "meta" and t.dtype == torch.float64), func
        return result


@contextmanager
def without_double(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a device on which float64 fails, and so does mixing its tensors with others."""
    monkeypatch.setattr(doubles, "WITHOUT_DOUBLE", ("meta",))
    with FakeTensorMode(), _NoDouble():
        yield "meta"
