"""The operator `scalegmn::unit`: unit vectors, in plain torch operations or in C++, with the gradient in one step."""

import struct
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import library
from .formula import inverse_norm
from .operators import LIBRARY, is_dispatched, is_traced, register, runs_compiled

# `Units` of the C++ sources: sizes and addresses.
_UNITS = struct.Struct("@6q")


def unit(x: Tensor) -> Tensor:
    r"""Canonical representative under positive scaling, \(\mathsf{canon}(x) = x / \|x\|\), and 0 for x = 0.

    Law: unit(q x) = unit(x) for every q > 0.

    >>> unit(torch.tensor([3e-30, 4e-30]))
    tensor([0.6000, 0.8000])
    """
    y: Tensor = torch.ops.scalegmn.unit.default(x) if is_dispatched(x) else _differentiable(x)
    return y


def _formula(x: Tensor) -> Tensor:
    # Contiguous whatever the strides of x are, as the result of compiled code is.
    return (x * inverse_norm(x)).contiguous()


def _forward(x: Tensor) -> Tensor:
    return _compiled(x) if x.shape[-1] and runs_compiled(x) else _formula(x)


def _backward(grad: Tensor, x: Tensor) -> Tensor:
    if runs_compiled(x):
        return _compiled(x, grad)
    inverse = inverse_norm(x)
    y = x * inverse
    return ((grad - y * (grad * y).sum(-1, keepdim=True)) * inverse).contiguous()


def _differentiable(x: Tensor) -> Tensor:
    if torch._C._are_functorch_transforms_active() or (is_traced(x) and not runs_compiled(x)):
        return _formula(x)
    return _apply(x)


class _Unit(torch.autograd.Function):
    """The operator with its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        if not is_traced(x):
            return _forward(x)
        with torch._C._AutoDispatchBelowAutograd():
            y: Tensor = torch.ops.scalegmn.unit.default(x)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x: Tensor = ctx.saved_tensors[0]
        if torch.is_grad_enabled():
            return torch.autograd.grad(_formula(x), x, grad, create_graph=True)[0]
        if not is_traced(grad):
            return _backward(grad, x)
        gradient: Tensor = torch.ops.scalegmn.unit_backward.default(grad, x)
        return gradient


# Without the look for functional transforms in the `apply` of Python: where this is called there are none.
_apply: Callable[[Tensor], Tensor] = super(torch.autograd.Function, _Unit).apply

LIBRARY.define("unit(Tensor x) -> Tensor")
LIBRARY.define("unit_backward(Tensor grad, Tensor x) -> Tensor")
register("unit", _formula, _forward, _differentiable)
LIBRARY.impl("unit_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("scalegmn::unit", lambda x: x.new_empty(x.shape), lib=LIBRARY)
torch.library.register_fake("scalegmn::unit_backward", lambda grad, x: x.new_empty(x.shape), lib=LIBRARY)


def _compiled(x: Tensor, grad: Tensor | None = None) -> Tensor:
    """Unit vectors, or from the gradient at these that at x."""
    x, grad = x.contiguous(), None if grad is None else grad.contiguous()
    result = torch.empty_like(x)
    width, places = x.shape[-1], (x.data_ptr(), 0 if grad is None else grad.data_ptr(), result.data_ptr())
    library.call_net("units", x.dtype, _UNITS.pack(x.numel() // width, width, torch.get_num_threads(), *places))
    return result
