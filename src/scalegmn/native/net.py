r"""The operator `scalegmn::net`: a scale equivariant net on all edges of a connection, or on all vertices, in one step.

`formula.py` says what it computes; that runs on every device, in every type, under autocast, functional transforms and
second derivatives. On the CPU `net.cpp` computes the same: two linear maps of one vector are one product, symmetrisation
applies the last map to the sum, LayerNorm's centring is folded into the weights before it, and some rows at a time go
through the whole net, so that what lies between the products never leaves the cache. Who calls never asks which it is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, NamedTuple, get_type_hints

import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import ScaleGMNError
from . import library as kernels
from .formula import NONE, SOURCE, TARGET, Net, formula

Reduce = Literal["target", "source"] | None

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
    """What a net is applied to. Names are those of `Net`."""

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
    *,
    more: Tensor | None = None,
    reduce: Reduce = None,
    residual: bool = False,
) -> Tensor:
    r"""\((\Gamma m + a_t b_s) \odot \rho(m)\) on every edge, or its sum over sources or targets: see `Net`."""
    seed = torch.randint(2**31 - 1, ()) if gate.drop else None
    store = len(gate.offset) > RECOMPUTE and torch.is_grad_enabled()
    x, scalar, edge, vertex, by_target = rows
    target, source, *outer = ends
    first, offset, weight, bias, last, last_bias, eps, symmetric, canonical, drop = gate
    y: Tensor = torch.ops.scalegmn.net.default(
        *(x, scalar, edge, vertex, gamma, first, offset, target, source, weight, bias, more, last, last_bias, *outer),
        *(seed, eps, drop, symmetric, canonical, by_target, _REDUCE[reduce], residual, store),
    )[0]
    return y


_REDUCE: dict[Reduce, int] = {None: NONE, "target": TARGET, "source": SOURCE}


# -- the operator --------------------------------------------------------------------------------------------------------

_TYPES: dict[Any, str] = {Tensor: "Tensor", Tensor | None: "Tensor?", float: "float", bool: "bool", int: "int"}
_SCHEMA = ", ".join(f"{_TYPES[kind]} {name}" for name, kind in get_type_hints(Net).items())
_TENSORS = Net._fields[:16]
# What the backward pass adds up over rows, in the order of `Gradients`.
_SUMS = ("edge", "gamma", "first", "last", "offset", "weight", "bias", "last_bias")
_GATHERED = ("vertex", "target", "source", "outer_target", "outer_source")

# The result comes first, then what is kept for the backward pass. Gradients come in the order of the arguments.
_LIBRARY = torch.library.Library("scalegmn", "DEF")
_LIBRARY.define(f"net({_SCHEMA}) -> Tensor[]")
_LIBRARY.define(f"net_backward(Tensor grad, Tensor[] memory, bool wants_x, {_SCHEMA}) -> Tensor[]")


def _plain(*arguments: Any) -> list[Tensor]:
    return [formula(Net(*arguments))]


def _forward(*arguments: Any) -> list[Tensor]:
    n = Net(*arguments)
    return _native_forward(n) if kernels.usable(n.x) else [formula(n)]


def _differentiable(*arguments: Any) -> Sequence[Tensor]:
    x = arguments[0]
    # Functional transforms hand over tensors without memory.
    if torch._C._are_functorch_transforms_active() or not kernels.usable(x):
        return _plain(*arguments)
    if torch.is_grad_enabled():
        return list(_Net.apply(*arguments))  # type: ignore[no-untyped-call]
    return _below(*arguments)


def _below(*arguments: Any) -> list[Tensor]:
    with torch._C._AutoDispatchBelowAutograd():
        found: list[Tensor] = torch.ops.scalegmn.net.default(*arguments)
    return found


class _Net(torch.autograd.Function):
    """The operator with its gradients."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        found = _below(*arguments)
        ctx.save_for_backward(*arguments[:17], *found[1:])
        ctx.numbers = arguments[17:]
        ctx.mark_non_differentiable(*found[1:])
        ctx.set_materialize_grads(False)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        tensors, memory = ctx.saved_tensors[:17], ctx.saved_tensors[17:]
        arguments = Net(*tensors, *ctx.numbers)
        if grad is None:
            return (None,) * len(arguments)
        if torch.is_grad_enabled():
            return _backward_of_formula(grad, arguments, ctx.needs_input_grad)
        wants_x = ctx.needs_input_grad[0]
        found = iter(torch.ops.scalegmn.net_backward.default(grad, memory, wants_x, *arguments))
        present = dict(zip(_differentiated(arguments, wants_x), found, strict=True))
        return tuple(present.get(name) for name in Net._fields)


def _backward_of_formula(grad: Tensor, n: Net, needed: Sequence[bool]) -> tuple[Tensor | None, ...]:
    """Gradients that can be differentiated again."""
    wanted = [name for name, need in zip(Net._fields, needed, strict=True) if need]
    inputs = [getattr(n, name) for name in wanted]
    found = torch.autograd.grad(formula(n), inputs, grad, create_graph=True, allow_unused=True)
    present = dict(zip(wanted, found, strict=True))
    return tuple(present.get(name) for name in Net._fields)


def _differentiated(n: Net, wants_x: bool) -> list[str]:
    found = [name for name in _TENSORS if name != "scalar" and getattr(n, name) is not None]
    return found if wants_x else found[1:]


for key in ("CompositeExplicitAutograd", "AutocastCPU", "AutocastCUDA", "FuncTorchBatched"):
    _LIBRARY.impl("net", _plain, key)
_LIBRARY.impl("net", _forward, "CPU")
_LIBRARY.impl("net", _differentiable, "Autograd")


@torch.library.register_fake("scalegmn::net", lib=_LIBRARY)
def _fake_forward(*arguments: Any) -> list[Tensor]:
    n = Net(*arguments)
    return [n.x.new_empty(_result_shape(n)), *(n.x.new_empty(*n.edges, w) for w in _memory_widths(n) if w)]


@torch.library.register_fake("scalegmn::net_backward", lib=_LIBRARY)
def _fake_backward(grad: Tensor, memory: Sequence[Tensor], wants_x: bool, *arguments: Any) -> list[Tensor]:
    n = Net(*arguments)
    return [grad.new_empty(getattr(n, name).shape) for name in _differentiated(n, wants_x)]


def _result_shape(n: Net) -> tuple[int, ...]:
    batch, targets, sources = n.edges
    ends = {NONE: (targets, sources), TARGET: (targets,), SOURCE: (sources,)}[n.reduce]
    return (batch, *ends, len(n.last))


def _memory_widths(n: Net) -> tuple[int, int, int]:
    """Widths of the products that the backward pass reads: E x, [Gamma m, A m] and rho; 0 where they are not kept."""
    middle, outputs, hidden = (_padded(k, n.x.dtype) for k in (n.first.shape[1], *n.last.shape))
    linear = 0 if n.gamma is None else outputs
    if not n.store:
        return 0, 0, 0
    return 0 if n.edge is None else middle, 0 if n.scalar is not None else linear + hidden, linear


# -- the implementation in C++ -----------------------------------------------------------------------------------------


def _native_forward(n: Net) -> list[Tensor]:
    p = _prepared(n)
    memory = [n.x.new_empty(*n.edges, width) for width in _memory_widths(n) if width]
    shape = (*_result_shape(n)[:-1], len(p.last))
    out = n.x.new_zeros(shape) if n.reduce else n.x.new_empty(shape)
    kernels.call("net_forward", n.x.dtype, _structure(n, p, memory), out)
    return [_cut(out, _result_shape(n)), *memory]


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


def _prepared(n: Net) -> Net:
    """The same with tensors that C++ can read: checked, contiguous, and padded with zeros to whole vectors."""
    middle = n.first.shape[1]
    inputs = middle if n.edge is None else n.edge.shape[1]
    if n.x.shape[-1] != inputs:
        raise ScaleGMNError(f"width: expected vectors of {inputs} numbers, got {n.x.shape[-1]}")
    assert n.gamma is None or n.gamma.shape == (len(n.last), middle)
    assert n.edge is None or (len(n.edge) == middle and n.vertex is not None)
    like = n.x.dtype, n.x.device
    for t in n[1:16]:
        if t is not None and (t.dtype, t.device) != like:
            here, there = f"{n.x.dtype} on {n.x.device}", f"{t.dtype} on {t.device}"
            raise ScaleGMNError(f"types: expected inputs and weights alike, got {here} and {there}; use .to(...)")
    k, m, h, o = (_padded(width, n.x.dtype) for width in (n.x.shape[-1], middle, n.last.shape[1], len(n.last)))
    return n._replace(
        x=_pad(n.x, k),
        scalar=n.scalar if n.scalar is None else n.scalar.contiguous(),
        edge=_pad(n.edge, k, m),
        vertex=_pad(n.vertex, m),
        gamma=_pad(n.gamma, m, o),
        first=_pad(n.first, m, h),
        last=_pad(n.last, h, o),
        **{name: _pad(getattr(n, name), h) for name in ("offset", "target", "source", "weight", "bias", "more")},
        **{name: _pad(getattr(n, name), o) for name in ("last_bias", "outer_target", "outer_source")},
    )


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
    kept = iter(memory)
    saved = [next(kept).data_ptr() if width else None for width in _memory_widths(n)]
    outputs, hidden = p.last.shape
    sizes = *n.edges, p.x.shape[-1], p.first.shape[1], hidden, outputs, len(n.offset)
    seed = 0 if n.seed is None else int(n.seed)
    numbers = n.eps, n.drop, seed, *n[19:24], torch.get_num_threads()
    return _structures(n.x.dtype)[0](*sizes, *map(_address, p[:16]), *saved, *numbers)
