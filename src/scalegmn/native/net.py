r"""The operator `scalegmn::net`: a scale equivariant net on all edges of a connection, or on all vertices, in one step.

`formula.py` says what it computes; that runs on every device, in every type, and for autocast, functional transforms
and second derivatives. On the CPU `net.cpp` computes the same: two linear maps of one vector are one product,
symmetrisation applies the last map to the sum, LayerNorm's centring is folded into the weights before it, and some rows
at a time go through the whole net, so that intermediate results never leave the cache. Callers need not know which of
the two runs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, get_type_hints

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ..errors import ScaleGMNError
from . import library
from .formula import NONE, SOURCE, TARGET, Edge, Net, formula
from .operators import LIBRARY, is_dispatched, is_traced, register, runs_compiled

RECOMPUTE = 32
"""Up to this width the backward pass computes products again; above it they are stored, which is faster."""
STORE = 2**29
"""Products of one net that take more bytes than this are computed again."""
_RECOMPUTING: ContextVar[bool] = ContextVar("recomputing", default=False)


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
    absolute: bool = False
    canonical: bool = False
    drop: float = 0.0


class Ends(NamedTuple):
    """The contributions of the two ends of an edge. Names are those of `Net`."""

    target: Tensor | None = None
    source: Tensor | None = None
    outer_target: Tensor | None = None
    outer_source: Tensor | None = None


def net(
    gamma: Tensor | None,
    gate: Gate,
    edge: Edge,
    ends: Ends = Ends(),  # noqa: B008
    more: Tensor | None = None,
    *,
    reduce: int = NONE,
    residual: bool = False,
) -> Tensor:
    r"""\((\Gamma m + a_t b_s) \odot \rho(m)\) on every edge, or its sum over sources or targets: see `Net`."""
    x, scalar, matrix, vertex, by_target = edge
    target, source, outer_target, outer_source = ends
    if scalar is not None and by_target and reduce == NONE:
        x, scalar, by_target = edge.dense(), None, False
    elif scalar is not None and by_target:
        # The same edges, seen from the other end.
        scalar, by_target, reduce = scalar.transpose(1, 2), False, TARGET + SOURCE - reduce
        target, source, outer_target, outer_source = source, target, outer_source, outer_target
        more = None if more is None else more.transpose(1, 2)
    if scalar is not None:
        x = x.expand(scalar.shape[0], scalar.shape[2], -1)
    first, offset, weight, bias, last, last_bias, eps, symmetric, absolute, canonical, drop = gate
    seed = torch.randint(2**31 - 1, ()) if drop else None
    tensors = x, scalar, matrix, vertex, gamma, first, offset, target, source, weight, bias, more, last, last_bias
    numbers = eps, drop, symmetric, absolute, canonical, by_target, reduce, residual
    arguments = *tensors, outer_target, outer_source, seed, *numbers
    y: Tensor = torch.ops.scalegmn.net.default(*arguments) if is_dispatched(x) else _differentiable(*arguments)
    return y


@contextmanager
def recomputing() -> Iterator[None]:
    """Nets that run within this block store nothing: the backward pass computes everything again."""
    token = _RECOMPUTING.set(True)
    try:
        yield
    finally:
        _RECOMPUTING.reset(token)


# -- the operator ------------------------------------------------------------------------------------------------------

_TYPES: dict[Any, str] = {Tensor: "Tensor", Tensor | None: "Tensor?", float: "float", bool: "bool", int: "int"}
_SCHEMA = ", ".join(f"{_TYPES[kind]} {name}" for name, kind in get_type_hints(Net).items())
_TENSORS = Net._fields[:16]
LIBRARY.define(f"net({_SCHEMA}) -> Tensor")
# Gradients come in the order of the arguments; `memory` is what the forward pass has kept, or nothing.
LIBRARY.define(f"net_backward(Tensor grad, Tensor[] memory, bool wants_x, {_SCHEMA}) -> Tensor[]")


def _plain(*arguments: Any) -> Tensor:
    return formula(Net(*arguments))


def _forward(*arguments: Any) -> Tensor:
    n = Net(*arguments)
    return _native_forward(n) if runs_compiled(n.x) else formula(n)


def _differentiable(*arguments: Any) -> Tensor:
    if not runs_compiled(arguments[0]):
        if not _RECOMPUTING.get() or torch._C._are_functorch_transforms_active():
            return formula(Net(*arguments))
        again: Tensor = checkpoint(_plain, *arguments, use_reentrant=False)
        return again
    if not torch.is_grad_enabled() and not is_traced(arguments[0]):
        return _native_forward(Net(*arguments))
    # Torch looks at every argument several times: only those that are there.
    present = [i for i, t in enumerate(arguments[:17]) if t is not None]
    given = (arguments[i] for i in present)
    y: Tensor = _apply(present, arguments[17:], *given)
    return y


class _Net(torch.autograd.Function):
    """The operator with its gradients."""

    @staticmethod
    def forward(ctx: Any, present: list[int], numbers: tuple[Any, ...], *given: Tensor) -> Tensor:
        n, memory, ready = _complete(present, given, numbers), [], False
        if is_traced(n.x):
            with torch._C._AutoDispatchBelowAutograd():
                out: Tensor = torch.ops.scalegmn.net.default(*n)
        else:
            p = _prepared(n)
            ready = p is n
            if n.offset.shape[0] > RECOMPUTE and not _RECOMPUTING.get() and any(ctx.needs_input_grad):
                memory = _memory(n)
            out = _run_forward(n, p, memory)
        ctx.save_for_backward(*given, *memory)
        ctx.arguments = present, numbers, ready
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved, (present, numbers, ready), needed = ctx.saved_tensors, ctx.arguments, ctx.needs_input_grad[2:]
        count = len(present)
        n, memory = _complete(present, saved[:count], numbers), saved[count:]
        if torch.is_grad_enabled():
            return None, None, *_formula_backward(grad, n, saved[:count], needed)
        if is_traced(grad):
            gradients = torch.ops.scalegmn.net_backward.default(grad, memory, needed[0], *n)
            found = dict(zip(_differentiated(n, needed[0]), gradients, strict=True))
        else:
            found = _run_backward(grad, n, n if ready else _prepared(n), memory, needed[0])
        return None, None, *[found.get(_FIELDS[i]) for i in present]


_FIELDS = Net._fields
# Without the look for functional transforms in the `apply` of Python: where this is called there are none.
_apply: Callable[..., Tensor] = super(torch.autograd.Function, _Net).apply


def _complete(present: Sequence[int], given: Sequence[Tensor], numbers: tuple[Any, ...]) -> Net:
    """The full list of arguments of the operator from the given ones and their positions."""
    tensors: list[Any] = [None] * 17
    for i, t in zip(present, given, strict=True):
        tensors[i] = t
    return Net(*tensors, *numbers)


def _formula_backward(
    grad: Tensor, n: Net, given: Sequence[Tensor], needed: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Gradients that can be differentiated again."""
    wanted = [t for t, need in zip(given, needed, strict=True) if need]
    found = iter(torch.autograd.grad(formula(n), wanted, grad, create_graph=True, allow_unused=True))
    return tuple(next(found) if need else None for need in needed)


def _differentiated(n: Net, wants_x: bool) -> list[str]:
    found = [name for name, t in zip(_TENSORS, n, strict=False) if t is not None and name != "scalar"]
    return found if wants_x else found[1:]


register("net", _plain, _forward, _differentiable)


def _fake_forward(*arguments: Any) -> Tensor:
    n = Net(*arguments)
    return n.x.new_empty(*_result_shape(n), len(n.last))


def _fake_backward(grad: Tensor, memory: Sequence[Tensor], wants_x: bool, *arguments: Any) -> list[Tensor]:
    n = Net(*arguments)
    return [grad.new_empty(getattr(n, name).shape) for name in _differentiated(n, wants_x)]


torch.library.register_fake("scalegmn::net", _fake_forward, lib=LIBRARY)
torch.library.register_fake("scalegmn::net_backward", _fake_backward, lib=LIBRARY)


def _edges(n: Net) -> torch.Size:
    """(B, T, S)."""
    return n.x.shape[:3] if n.scalar is None else n.scalar.shape


def _result_shape(n: Net) -> tuple[int, ...]:
    """(B, T, S), (B, T) or (B, S)."""
    edges = _edges(n)
    return edges if n.reduce == NONE else edges[:2] if n.reduce == TARGET else (edges[0], edges[2])


# -- the implementation in C++ -----------------------------------------------------------------------------------------

# What the backward pass adds up over rows, in the order of `Gradients`.
_SUMS = ("edge", "gamma", "first", "last", "offset", "weight", "bias", "last_bias")
_FIRST = _TENSORS.index("first")
_GATHERED = ("vertex", "target", "source", "outer_target", "outer_source")
# `Net` and `Gradients` of the C++ sources: sizes, addresses, numbers and flags.
NET = {
    dtype: struct.Struct(f"@8q{len(_TENSORS) + 3}q2{real}I7i")
    for dtype, real in ((torch.float32, "f"), (torch.float64, "d"))
}
_PLACES = ("x", "more", *_GATHERED, *_SUMS)
_GRADIENTS = struct.Struct(f"@{3 + len(_GATHERED) + len(_SUMS)}q")


def _native_forward(n: Net) -> Tensor:
    return _run_forward(n, _prepared(n), [])


def _run_forward(n: Net, p: Net, memory: Sequence[Tensor]) -> Tensor:
    outputs = p.last.shape[0]
    shape = *_result_shape(n), outputs
    out = n.x.new_zeros(shape) if n.reduce else n.x.new_empty(shape)
    library.call_net("net_forward", n.x.dtype, _structure(n, p, memory), out.data_ptr())
    return out if n.last.shape[0] == outputs else _cut(out, (*shape[:-1], n.last.shape[0]))


def _native_backward(grad: Tensor, memory: Sequence[Tensor], wants_x: bool, *arguments: Any) -> list[Tensor]:
    n = Net(*arguments)
    found = _run_backward(grad, n, _prepared(n), memory, wants_x)
    return [found[name] for name in _differentiated(n, wants_x)]


def _run_backward(grad: Tensor, n: Net, p: Net, memory: Sequence[Tensor], wants_x: bool) -> dict[str, Tensor]:
    """Gradients by name."""
    found: dict[str, Tensor] = {}
    if wants_x:
        found["x"] = torch.empty_like(p.x) if n.scalar is None else torch.zeros_like(p.x)
    if p.more is not None:
        found["more"] = torch.empty_like(p.more)
    for name in _GATHERED:
        if (like := getattr(p, name)) is not None:
            found[name] = torch.zeros_like(like)
    sums = [(name, like, like.numel()) for name in _SUMS if (like := getattr(p, name)) is not None]
    zeros, at = p.x.new_zeros(sum([count for _, _, count in sums])), 0
    for name, like, count in sums:
        found[name] = zeros.as_strided(like.shape, like.stride(), at)
        at += count
    out = _pad(grad, p.last.shape[0])
    places = [found[name].data_ptr() if name in found else 0 for name in _PLACES]
    gradients = _GRADIENTS.pack(out.data_ptr(), *places)
    library.call_net("net_backward", p.x.dtype, _structure(n, p, memory), gradients)
    return found if p is n else {name: _cut(t, getattr(n, name).shape) for name, t in found.items()}


LIBRARY.impl("net_backward", _native_backward, "CPU")


def _memory(n: Net) -> list[Tensor]:
    """Memory for the products that the backward pass reads, one after the other, or none if they are too large."""
    count = _edges(n).numel() * sum(_memory_widths(n))
    return [n.x.new_empty(count)] if 0 < count * n.x.dtype.itemsize <= STORE else []


def _memory_widths(n: Net) -> tuple[int, int, int]:
    """Widths of the products that the backward pass can read: E x, [Gamma m, A m] and rho; 0 if there is none."""
    dtype = n.x.dtype
    outputs, hidden = n.last.shape
    linear = 0 if n.gamma is None else _padded(outputs, dtype)
    middle = 0 if n.edge is None else _padded(n.first.shape[1], dtype)
    gated = _padded(hidden, dtype) if n.first.shape[1] else 0
    return middle, 0 if n.scalar is not None else linear + gated, linear


def _prepared(n: Net) -> Net:
    """The same with tensors that C++ can read: checked, contiguous, and padded with zeros to whole vectors."""
    x, scalar, edge, vertex, gamma, first, offset, target, source, weight, bias, more, last, last_bias, *outer = n[:16]
    hidden, inputs = len(first), (gamma if first.shape[1] == 0 and gamma is not None else first).shape[1]
    middle = inputs
    if edge is not None:
        inputs = edge.shape[1]
    if x.shape[-1] != inputs:
        raise ScaleGMNError(f"width: expected vectors of {inputs} numbers, got {x.shape[-1]}")
    assert gamma is None or gamma.shape == (last.shape[0], middle)
    assert edge is None or (edge.shape[0] == middle and vertex is not None)
    dtype = x.dtype
    given = [t for t in n[:16] if t is not None]
    if wrong := [t for t in given if t.dtype is not dtype or not t.is_cpu]:
        here, there = f"{dtype} on {x.device}", f"{wrong[0].dtype} on {wrong[0].device}"
        raise ScaleGMNError(f"types: expected inputs and weights alike, got {here} and {there}; use .to(...)")
    ready, block = not [t for t in given if not t.is_contiguous()], 64 // dtype.itemsize
    if not (inputs % block or middle % block or hidden % block or last.shape[0] % block):
        return n if ready else Net._make((*(t if t is None else t.contiguous() for t in n[:16]), *n[16:]))
    k, m, h, o = (_padded(width, dtype) for width in (inputs, middle, hidden, last.shape[0]))
    vectors = _pad(x, k), None if scalar is None else scalar.contiguous(), _pad(edge, k, m), _pad(vertex, m)
    gate = [_pad(t, h) for t in (offset, target, source, weight, bias, more)]
    results = _pad(last, h, o), *(_pad(t, o) for t in (last_bias, *outer))
    maps = _pad(gamma, m, o), _pad(first, m if first.shape[1] else 0, h)
    return Net._make((*vectors, *maps, *gate, *results, *n[16:]))


def _padded(width: int, dtype: torch.dtype) -> int:
    """The next multiple of two vectors, which C++ processes at once."""
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


def _structure(n: Net, p: Net, memory: Sequence[Tensor]) -> bytes:
    """Arguments for C++ from those of the operator and from prepared ones."""
    saved = [0, 0, 0]
    if memory:
        at, row = memory[0].data_ptr(), _edges(n).numel() * n.x.dtype.itemsize
        for i, width in enumerate(_memory_widths(n)):
            if width:
                saved[i] = at
                at += width * row
    outputs, hidden = p.last.shape
    middle = p.x.shape[-1] if p.edge is None else p.edge.shape[0]
    sizes = *_edges(n), p.x.shape[-1], middle, hidden, outputs, n.offset.shape[0]
    places = [0 if t is None else t.data_ptr() for t in p[:16]]
    if not p.first.shape[1]:
        places[_FIRST] = 0
    seed = 0 if n.seed is None else int(n.seed)
    return NET[n.x.dtype].pack(*sizes, *places, *saved, n.eps, n.drop, seed, *n[19:], torch.get_num_threads())
