r"""The operator `scalegmn::net`: a scale equivariant net on all edges of a connection, or on all vertices, in one step.

`formula.py` says what it computes; that runs on every device, in every type, and for autocast, functional transforms
and second derivatives. On the CPU `net.cpp` computes the same: two linear maps of one vector are one product,
symmetrisation applies the last map to the sum, LayerNorm's centring is folded into the weights before it, and some rows
at a time go through the whole net, so that what lies between the products never leaves the cache. Who calls never asks
which of the two it is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, get_type_hints

import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import ScaleGMNError
from . import library as kernels
from .formula import NONE, SOURCE, TARGET, Net, formula

RECOMPUTE = 32
"""Up to this width the backward pass computes products again; above it they are stored, which is faster."""


class Gate(NamedTuple):
    """The net rho. Names are those of `Net`; `drop` is 0 outside training."""

    first: Tensor
    offset: Tensor
    weight: Tensor
    bias: Tensor
    last: Tensor
    last_bias: Tensor
    eps: float
    symmetric: bool = False
    canonical: bool = False
    drop: float = 0.0


class Rows(NamedTuple):
    """What a net is applied to. Names are those of `Net`; scalars `by_target` multiply vectors of targets (B, T, k)."""

    x: Tensor
    scalar: Tensor | None = None
    edge: Tensor | None = None
    vertex: Tensor | None = None
    by_target: bool = False


class Ends(NamedTuple):
    """What the two ends of an edge add. Names are those of `Net`."""

    target: Tensor | None = None
    source: Tensor | None = None
    outer_target: Tensor | None = None
    outer_source: Tensor | None = None


def net(
    gamma: Tensor | None,
    gate: Gate,
    rows: Rows,
    ends: Ends = Ends(),  # noqa: B008
    more: Tensor | None = None,
    *,
    reduce: int = NONE,
    residual: bool = False,
) -> Tensor:
    r"""\((\Gamma m + a_t b_s) \odot \rho(m)\) on every edge, or its sum over sources or targets: see `Net`."""
    x, scalar, edge, vertex, by_target = rows
    target, source, outer_target, outer_source = ends
    if scalar is not None and by_target:
        # The same edges, seen from the other end.
        assert reduce != NONE
        scalar, by_target, reduce = scalar.transpose(1, 2), False, TARGET + SOURCE - reduce
        target, source, outer_target, outer_source = source, target, outer_source, outer_target
    first, offset, weight, bias, last, last_bias, eps, symmetric, canonical, drop = gate
    seed = torch.randint(2**31 - 1, ()) if drop else None
    tensors = x, scalar, edge, vertex, gamma, first, offset, target, source, weight, bias, more, last, last_bias
    numbers = eps, drop, symmetric, canonical, by_target, reduce, residual
    y: Tensor = torch.ops.scalegmn.net.default(*tensors, outer_target, outer_source, seed, *numbers)
    return y


# -- the operator ------------------------------------------------------------------------------------------------------

_TYPES: dict[Any, str] = {Tensor: "Tensor", Tensor | None: "Tensor?", float: "float", bool: "bool", int: "int"}
_SCHEMA = ", ".join(f"{_TYPES[kind]} {name}" for name, kind in get_type_hints(Net).items())
_TENSORS = Net._fields[:16]
_LIBRARY = torch.library.Library("scalegmn", "DEF")
_LIBRARY.define(f"net({_SCHEMA}) -> Tensor")
# Gradients come in the order of the arguments; `memory` is what the forward pass has kept, or nothing.
_LIBRARY.define(f"net_backward(Tensor grad, Tensor[] memory, bool wants_x, {_SCHEMA}) -> Tensor[]")


def _plain(*arguments: Any) -> Tensor:
    return formula(Net(*arguments))


def _forward(*arguments: Any) -> Tensor:
    n = Net(*arguments)
    return _native_forward(n, []) if kernels.usable(n.x) else formula(n)


def _differentiable(*arguments: Any) -> Tensor:
    # Functional transforms hand over tensors without memory.
    if torch._C._are_functorch_transforms_active() or not kernels.usable(arguments[0]):
        return formula(Net(*arguments))
    if not torch.is_grad_enabled() and not _is_traced(arguments[0]):
        return _native_forward(Net(*arguments), [])
    y: Tensor = _Net.apply(*arguments)  # type: ignore[no-untyped-call]
    return y


class _Net(torch.autograd.Function):
    """The operator with its gradients."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        memory: list[Tensor] = []
        if _is_traced(arguments[0]):
            with torch._C._AutoDispatchBelowAutograd():
                out: Tensor = torch.ops.scalegmn.net.default(*arguments)
        else:
            n = Net(*arguments)
            if len(n.offset) > RECOMPUTE and any(ctx.needs_input_grad):
                memory = [n.x.new_empty(*n.edges, width) for width in _memory_widths(n) if width]
            out = _native_forward(n, memory)
        ctx.save_for_backward(*arguments[:17], *memory)
        ctx.numbers = arguments[17:]
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        n, memory = Net(*saved[:17], *ctx.numbers), saved[17:]
        if torch.is_grad_enabled():
            return _formula_backward(grad, n, ctx.needs_input_grad)
        wants_x = ctx.needs_input_grad[0]
        run = torch.ops.scalegmn.net_backward.default if _is_traced(grad) else _native_backward
        found = dict(zip(_differentiated(n, wants_x), run(grad, memory, wants_x, *n), strict=True))
        return tuple(found.get(name) for name in Net._fields)


def _is_traced(x: Tensor) -> bool:
    """Whether a compiler looks on, which must see operators only."""
    return type(x) is not Tensor or torch._C._len_torch_dispatch_stack() > 0


def _formula_backward(grad: Tensor, n: Net, needed: Sequence[bool]) -> tuple[Tensor | None, ...]:
    """Gradients that can be differentiated again."""
    wanted = [t for t, need in zip(n, needed, strict=True) if need and isinstance(t, Tensor)]
    found = iter(torch.autograd.grad(formula(n), wanted, grad, create_graph=True, allow_unused=True))
    return tuple(next(found) if need else None for need in needed)


def _differentiated(n: Net, wants_x: bool) -> list[str]:
    found = [name for name, t in zip(_TENSORS, n, strict=False) if t is not None and name != "scalar"]
    return found if wants_x else found[1:]


for key in ("CompositeExplicitAutograd", "AutocastCPU", "AutocastCUDA", "FuncTorchBatched"):
    _LIBRARY.impl("net", _plain, key)
_LIBRARY.impl("net", _forward, "CPU")
_LIBRARY.impl("net", _differentiable, "Autograd")


def _fake_forward(*arguments: Any) -> Tensor:
    n = Net(*arguments)
    return n.x.new_empty(*_result_shape(n), len(n.last))


def _fake_backward(grad: Tensor, memory: Sequence[Tensor], wants_x: bool, *arguments: Any) -> list[Tensor]:
    n = Net(*arguments)
    return [grad.new_empty(getattr(n, name).shape) for name in _differentiated(n, wants_x)]


torch.library.register_fake("scalegmn::net", _fake_forward, lib=_LIBRARY)
torch.library.register_fake("scalegmn::net_backward", _fake_backward, lib=_LIBRARY)


def _result_shape(n: Net) -> tuple[int, ...]:
    """(B, T, S), (B, T) or (B, S)."""
    edges = n.edges
    return edges if n.reduce == NONE else edges[:2] if n.reduce == TARGET else (edges[0], edges[2])


# -- the implementation in C++ -----------------------------------------------------------------------------------------

# What the backward pass adds up over rows, in the order of `Gradients`.
_SUMS = ("edge", "gamma", "first", "last", "offset", "weight", "bias", "last_bias")
_GATHERED = ("vertex", "target", "source", "outer_target", "outer_source")


def _native_forward(n: Net, memory: Sequence[Tensor]) -> Tensor:
    p = _prepared(n)
    shape = *_result_shape(n), len(p.last)
    out = n.x.new_zeros(shape) if n.reduce else n.x.new_empty(shape)
    kernels.call("net_forward", n.x.dtype, _structure(n, p, memory), out)
    return _cut(out, (*shape[:-1], len(n.last)))


def _native_backward(grad: Tensor, memory: Sequence[Tensor], wants_x: bool, *arguments: Any) -> list[Tensor]:
    n = Net(*arguments)
    p = _prepared(n)
    found: dict[str, Tensor | None] = dict.fromkeys(_TENSORS)
    if wants_x:
        found["x"] = torch.empty_like(p.x) if n.scalar is None else torch.zeros_like(p.x)
    if p.more is not None:
        found["more"] = torch.empty_like(p.more)
    for name in _GATHERED:
        like = getattr(p, name)
        found[name] = None if like is None else torch.zeros_like(like)
    sums = {name: like for name in _SUMS if (like := getattr(p, name)) is not None}
    zeros = p.x.new_zeros(sum(like.numel() for like in sums.values()))
    for (name, like), part in zip(sums.items(), zeros.split([s.numel() for s in sums.values()]), strict=True):
        found[name] = part.view_as(like)
    out = _pad(grad, len(p.last))
    gradients = _structures(p.x.dtype)[1](
        _address(out), *(_address(found[name]) for name in ("x", "more", *_GATHERED, *_SUMS))
    )
    kernels.call("net_backward", p.x.dtype, _structure(n, p, memory), gradients)
    return [_cut(t, getattr(n, name).shape) for name in _differentiated(n, wants_x) if (t := found[name]) is not None]


_LIBRARY.impl("net_backward", _native_backward, "CPU")


def _memory_widths(n: Net) -> tuple[int, int, int]:
    """Widths of the products that the backward pass can read: E x, [Gamma m, A m] and rho; 0 where there is none."""
    middle, outputs, hidden = (_padded(width, n.x.dtype) for width in (n.first.shape[1], *n.last.shape))
    linear = 0 if n.gamma is None else outputs
    return 0 if n.edge is None else middle, 0 if n.scalar is not None else linear + hidden, linear


def _prepared(n: Net) -> Net:
    """The same with tensors that C++ can read: checked, contiguous, and padded with zeros to whole vectors."""
    x, scalar, edge, vertex, gamma, first, offset, target, source, weight, bias, more, last, last_bias, *outer = n[:16]
    middle = first.shape[1]
    inputs = middle if edge is None else edge.shape[1]
    if x.shape[-1] != inputs:
        raise ScaleGMNError(f"width: expected vectors of {inputs} numbers, got {x.shape[-1]}")
    assert gamma is None or gamma.shape == (len(last), middle)
    assert edge is None or (len(edge) == middle and vertex is not None)
    dtype = x.dtype
    for t in n[1:16]:
        if t is not None and (t.dtype is not dtype or not t.is_cpu):
            here, there = f"{dtype} on {x.device}", f"{t.dtype} on {t.device}"
            raise ScaleGMNError(f"types: expected inputs and weights alike, got {here} and {there}; use .to(...)")
    k, m, h, o = (_padded(width, dtype) for width in (inputs, middle, last.shape[1], len(last)))
    vectors = _pad(x, k), None if scalar is None else scalar.contiguous(), _pad(edge, k, m), _pad(vertex, m)
    gate = [_pad(t, h) for t in (offset, target, source, weight, bias, more)]
    results = _pad(last, h, o), *(_pad(t, o) for t in (last_bias, *outer))
    return Net._make((*vectors, _pad(gamma, m, o), _pad(first, m, h), *gate, *results, *n[16:]))


def _padded(width: int, dtype: torch.dtype) -> int:
    """The next multiple of two vectors: what C++ takes at once."""
    block = 64 // dtype.itemsize
    return -(-width // block) * block


def _pad(x: Any, columns: int, rows: int | None = None) -> Any:
    """Zeros on the right, and below."""
    if x is None:
        return None
    right, below = columns - x.shape[-1], 0 if rows is None else rows - x.shape[-2]
    if right or below:
        return F.pad(x, (0, right, 0, below) if below else (0, right)).contiguous()
    return x.contiguous()


def _cut(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Without what `_pad` added."""
    if x.shape == shape:
        return x
    if len(shape) > 1:
        x = x[..., : shape[-2], :]
    return x[..., : shape[-1]].contiguous()


@cache
def _structures(dtype: torch.dtype) -> tuple[type[ctypes.Structure], type[ctypes.Structure]]:
    """`Net` and `Gradients` of the C++ sources."""
    real = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}[dtype]
    sizes = ("B", "T", "S", "inputs", "middle", "hidden", "outputs", "channels")
    pointers = (*_TENSORS, "saved_edge", "saved_z", "saved_rho")
    flags = ("symmetric", "canonical", "by_target", "reduce", "residual", "threads")
    fields: list[tuple[str, Any]] = [(n, ctypes.c_int64) for n in sizes]
    fields += [(n, ctypes.c_void_p) for n in pointers]
    fields += [("eps", real), ("drop", real), ("seed", ctypes.c_uint32), *((n, ctypes.c_int) for n in flags)]
    gradients = [(n, ctypes.c_void_p) for n in ("out", "x", "more", *_GATHERED, *_SUMS)]
    return (
        type("Net", (ctypes.Structure,), {"_fields_": fields}),
        type("Gradients", (ctypes.Structure,), {"_fields_": gradients}),
    )


def _address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def _structure(n: Net, p: Net, memory: Sequence[Tensor]) -> ctypes.Structure:
    """Arguments for C++ from those of the operator and from prepared ones."""
    saved: list[int | None] = [None] * 3
    if memory:
        kept = iter(memory)
        saved = [next(kept).data_ptr() if width else None for width in _memory_widths(n)]
    outputs, hidden = p.last.shape
    sizes = *n.edges, p.x.shape[-1], p.first.shape[1], hidden, outputs, len(n.offset)
    seed = 0 if n.seed is None else int(n.seed)
    numbers = n.eps, n.drop, seed, *n[19:], torch.get_num_threads()
    return _structures(n.x.dtype)[0](*sizes, *map(_address, p[:16]), *saved, *numbers)
