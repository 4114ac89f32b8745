"""Vectors on edges as one tensor: the plain formula, or compiled code, with the gradient in one step."""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor

from . import library
from .formula import Edge
from .net import NET

# `DenseGradients` of the C++ sources: addresses.
_GRADIENTS = struct.Struct("@4q")


def dense(e: Edge) -> Tensor:
    """The vectors (B, T, S, k) of edges; products of vertices and mapped vectors are computed in one pass.

    >>> e = Edge(torch.randn(2, 3, 4, 16), None, torch.randn(16, 16), torch.randn(2, 4, 16))
    >>> torch.allclose(dense(e), e.dense(), atol=1e-4)
    True
    """
    x, scalar, edge, vertex, by_target = e
    if scalar is not None or edge is None or vertex is None or not _is_plain(x, edge, vertex):
        return e.dense()
    y: Tensor = _Dense.apply(x, edge, vertex, by_target)  # type: ignore[no-untyped-call]
    return y


class _Dense(torch.autograd.Function):
    """m = v * (E x) with its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, edge: Tensor, vertex: Tensor, by_target: bool) -> Tensor:
        ctx.save_for_backward(x, edge, vertex)
        ctx.by_target = by_target
        given = [t.contiguous() for t in (x, edge, vertex)]
        result = x.new_empty(*x.shape[:3], edge.shape[0])
        library.call_net("dense_forward", x.dtype, _structure(given, by_target), result.data_ptr())
        return result

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


def _is_plain(x: Tensor, edge: Tensor, vertex: Tensor) -> bool:
    """Whether compiled code can read these: tensors with memory, whole vectors, and nobody traces."""
    if torch._C._are_functorch_transforms_active() or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    tensors, block = (x, edge, vertex), 64 // x.dtype.itemsize
    whole = not any(size % block for size in edge.shape) and all(t.numel() for t in tensors)
    plain = all(type(t) in (Tensor, torch.nn.Parameter) and t.dtype is x.dtype for t in tensors)
    return whole and plain and not torch._C._len_torch_dispatch_stack() and library.usable(*tensors)


def _structure(given: list[Tensor], by_target: bool) -> bytes:
    """`Net` of the C++ sources with these alone."""
    x, edge, vertex = given
    middle = edge.shape[0]
    sizes = *x.shape, middle, middle, middle, middle
    places = x.data_ptr(), 0, edge.data_ptr(), vertex.data_ptr(), *[0] * 15
    flags = 0, 0, 0, by_target, 0, 0, torch.get_num_threads()
    return NET[x.dtype].pack(*sizes, *places, 0.0, 0.0, 0, *flags)
