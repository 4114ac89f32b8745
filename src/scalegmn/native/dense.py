"""The operator `scalegmn::dense`: vectors on edges as one tensor, in plain torch operations or in C++."""

import struct
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import library
from .formula import Edge
from .net import NET
from .operators import LIBRARY, is_dispatched, is_traced, register, runs_compiled

# `DenseGradients` of the C++ sources: addresses.
_GRADIENTS = struct.Struct("@4q")


def dense(e: Edge) -> Tensor:
    """The vectors (B, T, S, k) of edges; products of vertices and mapped vectors are computed in one pass.

    >>> e = Edge(torch.randn(2, 3, 4, 16), None, torch.randn(16, 16), torch.randn(2, 4, 16))
    >>> torch.allclose(dense(e), e.dense(), atol=1e-4)
    True
    """
    x, scalar, edge, vertex, by_target = e
    if scalar is not None or edge is None or vertex is None:
        return e.dense()
    operator = torch.ops.scalegmn.dense.default if is_dispatched(x) else _differentiable
    y: Tensor = operator(x, edge, vertex, by_target)
    return y


def _formula(x: Tensor, edge: Tensor, vertex: Tensor, by_target: bool) -> Tensor:
    return Edge(x, None, edge, vertex, by_target).dense()


def _forward(x: Tensor, edge: Tensor, vertex: Tensor, by_target: bool) -> Tensor:
    if not _is_whole(x, edge, vertex):
        return _formula(x, edge, vertex, by_target)
    given = [t.contiguous() for t in (x, edge, vertex)]
    result = x.new_empty(*x.shape[:3], edge.shape[0])
    library.call_net("dense_forward", x.dtype, _structure(given, by_target), result.data_ptr())
    return result


def _differentiable(x: Tensor, edge: Tensor, vertex: Tensor, by_target: bool) -> Tensor:
    if is_traced(x) or not _is_whole(x, edge, vertex):
        return _formula(x, edge, vertex, by_target)
    return _apply(x, edge, vertex, by_target)


class _Dense(torch.autograd.Function):
    """m = v * (E x) with its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, edge: Tensor, vertex: Tensor, by_target: bool) -> Tensor:
        ctx.save_for_backward(x, edge, vertex)
        ctx.by_target = by_target
        return _forward(x, edge, vertex, by_target)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved: tuple[Tensor, ...] = ctx.saved_tensors
        x, edge, vertex = saved
        wants_x, *others = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled() or not all(others):
            wanted = [t for t, need in zip(saved, ctx.needs_input_grad, strict=False) if need]
            with torch.enable_grad():
                y = Edge(x, None, edge, vertex, ctx.by_target).dense()
            found = iter(torch.autograd.grad(y, wanted, grad, create_graph=torch.is_grad_enabled()))
            return *[next(found) if need else None for need in ctx.needs_input_grad[:3]], None
        given, grad = [t.contiguous() for t in saved], grad.contiguous()
        of_x = torch.empty_like(given[0]) if wants_x else None
        gradients = of_x, torch.zeros_like(given[1]), torch.zeros_like(given[2])
        places = _GRADIENTS.pack(grad.data_ptr(), *(0 if t is None else t.data_ptr() for t in gradients))
        library.call_net("dense_backward", x.dtype, _structure(given, ctx.by_target), places)
        return *gradients, None


# Without the look for functional transforms in the `apply` of Python: where this is called there are none.
_apply: Callable[..., Tensor] = super(torch.autograd.Function, _Dense).apply

LIBRARY.define("dense(Tensor x, Tensor edge, Tensor vertex, bool by_target) -> Tensor")
register("dense", _formula, _forward, _differentiable)


def _is_whole(x: Tensor, edge: Tensor, vertex: Tensor) -> bool:
    """Whether compiled code runs and can read these: whole vectors of one type."""
    tensors, block = (x, edge, vertex), 64 // x.dtype.itemsize
    whole = not any(size % block for size in edge.shape) and all(t.numel() for t in tensors)
    return whole and all(t.dtype is x.dtype and t.device == x.device for t in tensors) and runs_compiled(x)


def _structure(given: list[Tensor], by_target: bool) -> bytes:
    """`Net` of the C++ sources with these alone."""
    x, edge, vertex = given
    middle = edge.shape[0]
    sizes = *x.shape, middle, middle, middle, middle
    places = x.data_ptr(), 0, edge.data_ptr(), vertex.data_ptr(), *[0] * 15
    flags = 0, 0, 0, by_target, 0, 0, torch.get_num_threads()
    return NET[x.dtype].pack(*sizes, *places, 0.0, 0.0, 0, *flags)
