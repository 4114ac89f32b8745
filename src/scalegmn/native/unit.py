"""Unit vectors: the plain formula, or compiled code, with the gradient in one step."""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor

from . import library
from .formula import inverse_norm

# `Units` of the C++ sources: sizes and addresses.
_UNITS = struct.Struct("@6q")


def unit(x: Tensor) -> Tensor:
    r"""Canonical representative under positive scaling, \(\mathsf{canon}(x) = x / \|x\|\), and 0 for x = 0.

    Law: unit(q x) = unit(x) for every q > 0.

    >>> unit(torch.tensor([3e-30, 4e-30], dtype=torch.float64)).tolist()
    [0.6, 0.8]
    """
    # Functional transforms hand over tensors that a function of ours cannot take.
    if torch._C._are_functorch_transforms_active() or torch.compiler.is_compiling():
        return x * inverse_norm(x)
    y: Tensor = _Unit.apply(x)  # type: ignore[no-untyped-call]
    return y


class _Unit(torch.autograd.Function):
    """The same with its gradient in one step."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return _compiled(x) if _is_plain(x) else x * inverse_norm(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x: Tensor = ctx.saved_tensors[0]
        if torch.is_grad_enabled():
            return torch.autograd.grad(x * inverse_norm(x), x, grad, create_graph=True)[0]
        if _is_plain(x):
            return _compiled(x, grad)
        inverse = inverse_norm(x)
        y = x * inverse
        return (grad - y * (grad * y).sum(-1, keepdim=True)) * inverse


def _is_plain(x: Tensor) -> bool:
    """Whether compiled code can read it: a tensor with memory, that nobody traces."""
    return type(x) is Tensor and not torch._C._len_torch_dispatch_stack() and library.usable(x) and x.shape[-1] > 0


def _compiled(x: Tensor, grad: Tensor | None = None) -> Tensor:
    """Unit vectors, or from the gradient at these that at x."""
    x, grad = x.contiguous(), None if grad is None else grad.contiguous()
    result = torch.empty_like(x)
    width, places = x.shape[-1], (x.data_ptr(), 0 if grad is None else grad.data_ptr(), result.data_ptr())
    library.call_net("units", x.dtype, _UNITS.pack(x.numel() // width, width, torch.get_num_threads(), *places))
    return result
