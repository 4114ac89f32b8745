"""How the tracer handles concatenation, division into parts, padding and enlarging."""

import math
from dataclasses import replace

from ...core.activations import activation
from ...core.architecture import Pool, Skip, Table
from ..trace.value import Arc, Node, UnsupportedError, Value
from .arrange import narrowed, taken
from .call import Call, Parameter, Rows, operand_name
from .shapes import each


def concatenate(call: Call) -> Value:
    """Concatenate channels, or put learned tokens before those of the input."""
    parts, dim = call.get(0, "tensors"), call.get(1, "dim", 0)
    if not isinstance(parts, tuple) or not isinstance(dim, int):
        raise UnsupportedError("a concatenation of anything but a list")
    values = [p for p in parts if isinstance(p, Value)]
    if not values:
        raise UnsupportedError(f"a concatenation of {operand_name(parts[0])}")
    value = values[0]
    if dim == -1 and not call.builder.ranked(value):
        call.builder.last(value)
        on_channels = True
    else:
        on_channels = call.builder.axes(value, 3 if call.builder.input_last and dim == 2 else 2)[dim] == "c"
    if on_channels and len(values) == len(parts):
        return call.builder.concatenate(values)
    if len(values) == 1 and parts[-1] is value and not on_channels:
        return _tokens(call, value, parts[:-1])
    raise UnsupportedError("a concatenation along anything but channels", "learned tokens before others are")


def _tokens(call: Call, value: Value, tokens: tuple[object, ...]) -> Value:
    rows = [as_rows(call, t, call.builder.known_size(value)) for t in tokens]
    count = sum(r.positions for r in rows)
    value = call.builder.pool(value, Pool("pad", (count,), (0,)))
    start = 0
    for r in rows:
        value = call.builder.table(value, r.source, Table((r.positions,), start))
        start += r.positions
    return value


def as_rows(call: Call, operand: object, size: int) -> Rows:
    """A learned table of tokens (1, positions, channels)."""
    if isinstance(operand, Rows):
        return operand
    fits = isinstance(operand, Parameter) and operand.shape[-1] == size and len(operand.shape) <= 3
    if not isinstance(operand, Parameter) or not fits or (len(operand.shape) == 3 and operand.shape[0] != 1):
        raise UnsupportedError(f"a concatenation of {operand_name(operand)} with positions")
    source = call.use(replace(operand.source, transposed=len(operand.shape) > 1))
    return Rows(source, math.prod(operand.shape[:-1]), size)


def divide_parts(call: Call) -> tuple[Value, ...]:
    """Chunks, splits and unbound parts of the channels."""
    value = call.value()
    name = call.operation
    dim = call.get(1, "dim", 0) if name == "unbind" else call.get(2, "dim", 0)
    if not isinstance(dim, int):
        raise UnsupportedError(f"{name} along {dim}")
    if dim in (1, -1) and not call.builder.ranked(value):
        call.builder.axes(value, 2) if dim == 1 else call.builder.last(value)
        axis = "c"
    else:
        axis = call.builder.axes(value, dim + 1)[dim]
    if name == "unbind" and axis == "c0":
        return tuple(taken(call.builder, value, i) for i in range(value.split[0]))
    if axis != "c" or name == "unbind":
        raise UnsupportedError(f"{name} along anything but channels")
    size = call.builder.known_size(value)
    sizes = call.get(1, "chunks" if name == "chunk" else "split_size_or_sections")
    if isinstance(sizes, int):
        step = math.ceil(size / sizes) if name == "chunk" else sizes
        sizes = tuple(min(step, size - i) for i in range(0, size, step))
    if not isinstance(sizes, tuple) or not all(isinstance(n, int) for n in sizes) or sum(sizes) != size:
        raise UnsupportedError(f"{name} of {size} channels into {sizes}")
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(narrowed(call.builder, value, a, n) for a, n in zip(starts, sizes, strict=True))


def glu(call: Call) -> Value:
    """One half of the channels times the sigmoid of the other."""
    dim = call.get(1, "dim", -1)
    value, gate = divide_parts(replace(call, operation="chunk", args=(call.value(), 2, dim), kwargs={}))
    return call.builder.product([value, call.builder.activate(gate, activation("sigmoid"))])


def pad(call: Call) -> Value:
    """Zeros around maps, or zero channels; negative numbers cut off."""
    value = call.value()
    given = call.get(1, "pad")
    mode, fill = call.get(2, "mode", "constant"), call.get(3, "value", 0)
    if not isinstance(given, tuple) or mode != "constant" or fill not in (None, 0, 0.0):
        raise UnsupportedError("padding with anything but zeros")
    if not all(isinstance(n, int) for n in given):
        raise UnsupportedError("padding by an amount that the input tells")
    pairs = [(given[i], given[i + 1]) for i in range(0, len(given), 2)]
    axes = call.builder.axes(value, len(pairs) + 2)
    around = {axes[-1 - i]: pair for i, pair in enumerate(pairs)}
    dims = call.builder.dims(value) or 0
    margins = [around.pop(f"s{i}", (0, 0)) for i in range(dims)]
    if any(map(any, margins)):
        value = call.builder.pool(value, Pool("pad", tuple(m[0] for m in margins), tuple(m[1] for m in margins)))
    before, after = around.pop("c", (0, 0))
    if any(map(any, around.values())) or before < 0 or after < 0:
        raise UnsupportedError("padding of the batch, or of channels by less than nothing")
    return _more_channels(call, value, before, after) if before or after else value


def _more_channels(call: Call, value: Value, before: int, after: int) -> Value:
    """Zero channels before and after the others."""
    builder = call.builder
    value = builder.settled(value) if value.offset else value
    size = builder.known_size(value)
    read = 0 if value.part is None else value.part[0]
    term = Arc(value.node, Skip(read, before, size), value.pools, value.factor)
    return replace(builder.add_node(Node(before + size + after, value.dims, [term])), axes=value.axes)


def enlarge(call: Call) -> Value:
    """Upsampling by a whole factor."""
    mode = call.get(3, "mode", "nearest")
    factor, size = call.get(2, "scale_factor"), call.get(1, "size")
    corners = call.get(4, "align_corners", None)
    value = call.value()
    dims = call.builder.dims(value)
    if size is not None or factor is None or dims is None:
        raise UnsupportedError("upsampling to a given size", "by a factor it is")
    factors = factor if isinstance(factor, tuple) else (factor,)
    whole = each(tuple(int(f) if isinstance(f, int | float) and f == int(f) else f for f in factors), dims)
    if mode == "nearest":
        return call.builder.pool(value, Pool("nearest", whole))
    if mode in ("linear", "bilinear"):
        return call.builder.pool(value, Pool("bilinear_corners" if corners else "bilinear", whole))
    raise UnsupportedError(f"upsampling with mode = {mode!r}")
