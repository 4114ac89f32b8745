r"""The fast path: a scale equivariant net on all edges of a connection, or on all vertices, in one step each way.

It is the same function as in `scale.py`, `message.py` and `mlp.py`. Two linear maps of one vector are one product,
symmetrisation applies the last map to the sum, canonicalisation commutes with linear maps,
\(A (x / \|x\|) = (A x) / \|x\|\), and LayerNorm's centring is folded into the weights before it. `net.cpp` takes some
rows at a time through the whole net, so that what lies between the products never leaves the cache.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from ..errors import ScaleGMNError
from . import library as kernels

Reduce = Literal["target", "source"] | None

RECOMPUTE = 32
"""Up to this width the backward pass computes products again; above it they are stored, which is faster."""


@dataclass(frozen=True)
class Gate:
    """The net rho: its first map, LayerNorm, SiLU, dropout and its last map.

    Arguments:
        first, offset: The first map (hidden, k) and its bias (hidden).
        weight, bias: LayerNorm's.
        last, last_bias: The last map (outputs, hidden) and its bias (outputs).
        eps: LayerNorm's.
        symmetric: Whether signs are removed, by silu(LN(p + z)) + silu(LN(p - z)).
        drop, seed: Dropout, as `dropout_seed` gives them.
    """

    first: Tensor
    offset: Tensor
    weight: Tensor
    bias: Tensor
    last: Tensor
    last_bias: Tensor
    eps: float
    symmetric: bool = False
    drop: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Rows:
    """What a net is applied to: vectors m on the edges of a block (B, T, S).

    Arguments:
        x: Vectors (B, T, S, k); with `scalar` they are scalar[b, t, s] x[b, s], and x is (B, S, k).
        scalar: (B, T, S), without gradient.
        edge, vertex: If given, m = vertex * (edge x), with a matrix (m, k) and states (B, n, m).
        by_target: Whether `vertex` belongs to the targets.
        target, source: Contexts (B, T, hidden) and (B, S, hidden), already mapped.
        canonical: Whether the net sees m / |m|.
        more: Added to the first map's result (B, T, S, hidden).
        outer: x_t (B, T, outputs) and d_s (B, S, outputs), whose product is added to Gamma m.
    """

    x: Tensor
    scalar: Tensor | None = None
    edge: Tensor | None = None
    vertex: Tensor | None = None
    by_target: bool = False
    target: Tensor | None = None
    source: Tensor | None = None
    canonical: bool = False
    more: Tensor | None = None
    outer: tuple[Tensor, Tensor] | None = None


def usable(*tensors: Tensor | None) -> bool:
    """Whether the fast path can take these tensors."""
    return kernels.usable(*tensors)


def dropout_seed(drop: float, training: bool) -> tuple[float, int]:
    """The dropout to apply and a seed from torch's generator, so that runs repeat."""
    if not training or drop == 0:
        return 0.0, 0
    return drop, int(torch.randint(2**31 - 1, ()).item())


def net(gamma: Tensor | None, gate: Gate, rows: Rows, *, reduce: Reduce = None, residual: bool = False) -> Tensor:
    r"""\((\Gamma m + x_t d_s) \odot \rho(m)\) on every edge, or its sum over sources or targets.

    Arguments:
        gamma: The matrix Gamma (outputs, m); without it the result is rho alone.
        gate: The net rho.
        rows: The edges.
        reduce: Sum the result to targets (B, T, outputs) or to sources (B, S, outputs).
        residual: Add x to the result.
    """
    _check_widths(gamma, gate, rows)
    outputs, hidden = gate.last.shape
    k, m, h, o = (_padded(n, rows.x.dtype) for n in (rows.x.shape[-1], gate.first.shape[1], hidden, outputs))
    outer = rows.outer or (None, None)
    tensors = (
        _pad(rows.x, k),
        None if rows.scalar is None else rows.scalar.contiguous(),
        _pad(rows.edge, k, m),
        _pad(rows.vertex, m),
        _pad(gamma, m, o),
        _pad(gate.first, m, h),
        *(_pad(t, h) for t in (gate.offset, rows.target, rows.source, gate.weight, gate.bias, rows.more)),
        _pad(gate.last, h, o),
        *(_pad(t, o) for t in (gate.last_bias, *outer)),
    )
    for t in tensors:
        if t is not None and (t.dtype, t.device) != (rows.x.dtype, rows.x.device):
            here, there = f"{rows.x.dtype} on {rows.x.device}", f"{t.dtype} on {t.device}"
            raise ScaleGMNError(f"types: expected inputs and weights alike, got {here} and {there}; use .to(...)")
    flags = (gate.symmetric, rows.canonical, rows.by_target, (None, "target", "source").index(reduce), residual)
    store = torch.is_grad_enabled() and hidden > RECOMPUTE
    y = _apply(*tensors, _Options(hidden, gate.eps, gate.drop, gate.seed, flags, store))
    return y if o == outputs else y[..., :outputs]


def _check_widths(gamma: Tensor | None, gate: Gate, rows: Rows) -> None:
    """Kernels take widths on trust."""
    middle = gate.first.shape[1]
    inputs = middle if rows.edge is None else rows.edge.shape[1]
    if rows.x.shape[-1] != inputs:
        raise ScaleGMNError(f"width: expected vectors of {inputs} numbers, got {rows.x.shape[-1]}")
    assert gamma is None or gamma.shape == (len(gate.last), middle)
    assert rows.edge is None or (len(rows.edge) == middle and rows.vertex is not None)


def _padded(width: int, dtype: torch.dtype) -> int:
    """The next multiple of two vectors: what kernels take at once."""
    block = 64 // dtype.itemsize
    return -(-width // block) * block


def _pad(x: Tensor | None, columns: int, rows: int | None = None) -> Tensor | None:
    """Zeros on the right, and below."""
    if x is None:
        return None
    right, below = columns - x.shape[-1], 0 if rows is None else rows - x.shape[-2]
    if right or below:
        return F.pad(x, (0, right, 0, below) if below else (0, right)).contiguous()
    return x.contiguous()


class _Tensors(NamedTuple):
    """The arguments of the kernel, in its order."""

    x: Tensor
    scalar: Tensor | None
    edge: Tensor | None
    vertex: Tensor | None
    gamma: Tensor | None
    first: Tensor
    offset: Tensor
    target: Tensor | None
    source: Tensor | None
    weight: Tensor
    bias: Tensor
    more: Tensor | None
    last: Tensor
    last_bias: Tensor
    outer_target: Tensor | None
    outer_source: Tensor | None
    saved_edge: Tensor | None = None
    saved_z: Tensor | None = None
    saved_rho: Tensor | None = None

    @property
    def edges(self) -> tuple[int, ...]:
        """(B, T, S)."""
        return tuple(self.x.shape[:3] if self.scalar is None else self.scalar.shape)

    def with_memory(self) -> _Tensors:
        """The same with room for products that the backward pass reads."""
        gamma = 0 if self.gamma is None else len(self.gamma)
        dense = self.scalar is None
        return self._replace(
            saved_edge=None if self.edge is None else self.x.new_empty(*self.edges, len(self.edge)),
            saved_z=self.x.new_empty(*self.edges, gamma + len(self.first)) if dense else None,
            saved_rho=self.x.new_empty(*self.edges, gamma) if gamma else None,
        )


class _Options(NamedTuple):
    channels: int
    eps: float
    drop: float
    seed: int
    flags: tuple[int, ...]
    store: bool


_SUMS = ("edge", "gamma", "first", "last", "offset", "weight", "bias", "last_bias")
_GATHERED = ("vertex", "target", "source", "outer_target", "outer_source")


@cache
def _structures(dtype: torch.dtype) -> tuple[type[ctypes.Structure], type[ctypes.Structure]]:
    """`Net` and `Gradients` of the C++ sources."""
    real = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}[dtype]
    sizes = ("B", "T", "S", "inputs", "middle", "hidden", "outputs", "channels")
    flags = ("symmetric", "canonical", "by_target", "reduce", "residual", "threads")
    fields: list[tuple[str, Any]] = [(n, ctypes.c_int64) for n in sizes]
    fields += [(n, ctypes.c_void_p) for n in _Tensors._fields]
    fields += [("eps", real), ("drop", real), ("seed", ctypes.c_uint32), *((n, ctypes.c_int) for n in flags)]
    gradients = [(n, ctypes.c_void_p) for n in ("out", "x", "more", *_GATHERED, *_SUMS)]
    return (
        type("Net", (ctypes.Structure,), {"_fields_": fields}),
        type("Gradients", (ctypes.Structure,), {"_fields_": gradients}),
    )


def _address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def _arguments(t: _Tensors, o: _Options) -> ctypes.Structure:
    outputs, hidden = t.last.shape
    widths = t.x.shape[-1], t.first.shape[1], hidden, outputs, o.channels
    numbers = o.eps, o.drop, o.seed, *o.flags, torch.get_num_threads()
    return _structures(t.x.dtype)[0](*t.edges, *widths, *map(_address, t), *numbers)


class _Net(torch.autograd.Function):
    """`net` on padded, contiguous tensors."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *tensors, options = arguments
        t = _Tensors(*tensors)
        if options.store:
            t = t.with_memory()
        ctx.save_for_backward(*t)
        ctx.options = options
        batch, targets, sources = t.edges
        reduce = options.flags[3]
        if reduce:
            out = t.x.new_zeros(batch, targets if reduce == 1 else sources, len(t.last))
        else:
            out = t.x.new_empty(*t.edges, len(t.last))
        kernels.call("net_forward", t.x.dtype, _arguments(t, options), out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        t = _Tensors(*ctx.saved_tensors)
        found: dict[str, Tensor | None] = dict.fromkeys(t._fields)
        if ctx.needs_input_grad[0]:
            found["x"] = torch.empty_like(t.x) if t.scalar is None else torch.zeros_like(t.x)
        if t.more is not None:
            found["more"] = torch.empty_like(t.more)
        for name in _GATHERED:
            like = getattr(t, name)
            found[name] = None if like is None else torch.zeros_like(like)
        sums = {name: like for name in _SUMS if (like := getattr(t, name)) is not None}
        zeros = t.x.new_zeros(sum(like.numel() for like in sums.values()))
        for (name, like), part in zip(sums.items(), zeros.split([s.numel() for s in sums.values()]), strict=True):
            found[name] = part.view_as(like)
        grad = grad.contiguous()
        gradients = _structures(t.x.dtype)[1](
            grad.data_ptr(), *(_address(found[name]) for name in ("x", "more", *_GATHERED, *_SUMS))
        )
        kernels.call("net_backward", t.x.dtype, _arguments(t, ctx.options), gradients)
        return (*list(found.values())[: len(ctx.needs_input_grad) - 1], None)


# torch does not annotate `apply`.
_apply: Callable[..., Tensor] = _Net.apply
