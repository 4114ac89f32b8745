"""The torch operators of this package, and which implementation of one runs: its plain formula, or C++."""

from collections.abc import Callable

import torch
from torch import Tensor

from . import library

LIBRARY = torch.library.Library("scalegmn", "DEF")


def runs_compiled(x: Tensor) -> bool:
    """Whether C++ computes an operator of x, not its formula: on the CPU, in float32 or float64, with a compiler.

    Functional transforms hand over tensors without memory, so the formula runs under them.
    """
    return not torch._C._are_functorch_transforms_active() and library.usable(x)


def is_traced(x: Tensor) -> bool:
    """Whether torch.compile is tracing, which must see operators only."""
    return type(x) is not Tensor or torch._C._len_torch_dispatch_stack() > 0


def is_dispatched(x: Tensor) -> bool:
    """Whether a call needs torch's dispatcher; elsewhere one does what this would come to, without its way there."""
    return torch.compiler.is_compiling() or is_traced(x) or torch.is_autocast_enabled("cpu")


def register(
    name: str, formula: Callable[..., Tensor], compiled: Callable[..., Tensor], differentiable: Callable[..., Tensor]
) -> None:
    """Register what an operator does: everywhere, on the CPU, and where gradients are wanted."""
    for key in ("CompositeExplicitAutograd", "AutocastCPU", "AutocastCUDA", "FuncTorchBatched"):
        LIBRARY.impl(name, formula, key)
    LIBRARY.impl(name, compiled, "CPU")
    LIBRARY.impl(name, differentiable, "Autograd")
