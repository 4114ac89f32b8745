"""Unit vectors: the plain formula, with its gradient in one step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .formula import inverse_norm


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
        inverse = inverse_norm(x)
        ctx.save_for_backward(x, inverse)
        return x * inverse

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x: Tensor = ctx.saved_tensors[0]
        if torch.is_grad_enabled():
            return torch.autograd.grad(x * inverse_norm(x), x, grad, create_graph=True)[0]
        inverse: Tensor = ctx.saved_tensors[1]
        y = x * inverse
        return (grad - y * (grad * y).sum(-1, keepdim=True)) * inverse
