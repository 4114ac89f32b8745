"""How the tracer handles views, transpositions and indices: the order of axes, split channels, ranges."""

import math
from dataclasses import replace

from ...core.architecture import Pool
from ..trace.graph import Builder
from ..trace.value import Axes, UnsupportedError, Value
from .call import Call, Constant, Length, Parameter, Rows, Size, operand_name

Entry = int | Length


def entry(builder: Builder, operand: object) -> object:
    """An entry of a shape: a number, or a mark that only the input tells it; other operands are returned unchanged."""
    if isinstance(operand, slice):
        return slice(*(entry(builder, n) for n in (operand.start, operand.stop, operand.step)))
    if isinstance(operand, tuple):
        return tuple(entry(builder, n) for n in operand)
    if not isinstance(operand, Size) or operand.index is None:
        return operand
    value, index = operand.value, operand.index
    if index == 0 and value.axes is None:
        return Length(batch=True)
    if value.dims is None and builder.input_dims is None and operand.rank is None and value.axes is None:
        return Length()
    axes = builder.axes(value, operand.rank)
    name = axes[index]
    if name == "c":
        size = builder.size(value)
        return Length() if size is None else size
    if name.startswith("c"):
        return value.split[int(name[1:])]
    return Length(batch=name == "b")


def ask_size(call: Call) -> object:
    """A size, or a whole shape."""
    index = call.get(1, "dim")
    found = Size(call.value(), index if isinstance(index, int) else None)
    return found if found.index is None else _told(call.builder, found)


def _told(builder: Builder, size: Size) -> object:
    """An entry of a shape, or still the question if the axes of its value are not known yet."""
    return entry(builder, size) if size.index == 0 or builder.ranked(size.value) else size


def reshape(call: Call) -> Value:
    """A view: channels are split or joined, positions are put in a row, or everything is flattened."""
    given = call.args[1:] or (call.kwargs.get("shape"),)
    if len(given) == 1 and isinstance(given[0], tuple):
        given = given[0]
    value = call.value()
    if len(given) == 1 and isinstance(given[0], Size) and given[0].index is None:
        return value
    shape = [entry(call.builder, g) for g in given]
    if not all(isinstance(n, Length) or type(n) is int for n in shape):
        raise UnsupportedError(f"{call.operation} to the shape {given}")
    first, rest = shape[0], [n for n in shape[1:] if isinstance(n, int | Length)]
    if not (first == -1 or isinstance(first, Length)) or (first == -1 and -1 in rest):
        raise UnsupportedError(f"{call.operation} to anything but (batch, ...)")
    if not rest:
        raise UnsupportedError(f"{call.operation} to anything but (batch, ...)")
    if len(rest) == 1 and value.axes is None and not value.split:
        return _flat(call, value, rest[0], together=first == -1)
    if call.builder.dims(value) == 0 and all(n == 1 for n in rest[1:]) and not value.split:
        return value  # positions that a product or a sum spreads
    axes = call.builder.axes(value, len(shape))
    if axes[0] != "b":
        raise UnsupportedError(f"{call.operation} of a tensor whose first axis is not the batch")
    return _match(call, value, list(axes[1:]), rest)


def _flat(call: Call, value: Value, size: Entry, *, together: bool) -> Value:
    last = call.builder.dims(value) is None and call.builder.input_last and together
    known = call.builder.size(value) if call.builder.dims(value) == 0 or last else None
    if known is not None and isinstance(size, int) and size not in (-1, known):
        raise UnsupportedError(f"{call.operation} of {known} neurons to (batch, {size})")
    return call.builder.flatten(value)


def _match(call: Call, value: Value, axes: list[str], shape: list[Entry]) -> Value:
    """Find the entries of the new shape that belong to each run of spatial or channel axes."""
    runs: list[list[str]] = []
    for name in axes:
        if runs and runs[-1][-1][0] == name[0]:
            runs[-1].append(name)
        else:
            runs.append([name])
    sizes = dict(zip((f"c{i}" for i in range(len(value.split))), value.split, strict=True))
    found = _divide(runs, shape, sizes | {"c": call.builder.size(value) or 0})
    if found is None:
        raise UnsupportedError(f"{call.operation} of {tuple(axes)} to {tuple(map(str, shape))}")
    names: list[str] = ["b"]
    split: list[int] = []
    merged = False
    joined = sum(len(parts) for run, parts in found if run[0][0] == "c")
    for run, parts in found:
        if run[0][0] == "c":
            names += [f"c{len(split) + i}" for i in range(len(parts))] if joined > 1 else ["c"]
            split += parts
        else:
            merged |= len(parts) < len(run)
            names += run if len(parts) == len(run) else ["s0"]
    if merged:
        value = call.builder.pool(value, Pool("merge"), 1)
    return replace(value, axes=tuple(names), split=tuple(split) if joined > 1 else (), dims=_count(names))


def _count(names: list[str]) -> int:
    return sum(n[0] == "s" for n in names)


def _divide(
    runs: list[list[str]], shape: list[Entry], sizes: dict[str, int]
) -> list[tuple[list[str], list[int]]] | None:
    """Give every run its entries, in order."""
    if not runs:
        return [] if not shape else None
    run = runs[0]
    for count in range(1, len(shape) - len(runs) + 2):
        taken = shape[:count]
        if run[0][0] == "s":
            fits = count == len(run) or (count == 1 and len(run) > 1)
            parts = [0] * count if fits and not any(isinstance(n, int) and n > 1 for n in taken) else None
        else:
            parts = _split(math.prod(sizes[name] for name in run), taken)
        rest = None if parts is None else _divide(runs[1:], shape[count:], sizes)
        if parts is not None and rest is not None:
            return [(run, parts), *rest]
    return None


def _split(size: int, entries: list[Entry]) -> list[int] | None:
    """Channels into several axes, one of which may be inferred."""
    known = [n for n in entries if isinstance(n, int) and n != -1]
    product = math.prod(known)
    if len(known) == len(entries):
        return known if product == size else None
    if len(known) < len(entries) - 1 or product == 0 or size % product:
        return None
    return [n if isinstance(n, int) and n != -1 else size // product for n in entries]


def flatten(call: Call) -> Value:
    """Some axes into one."""
    value = call.value()
    start, end = call.get(1, "start_dim", 0), call.get(2, "end_dim", -1)
    if not isinstance(start, int) or not isinstance(end, int):
        raise UnsupportedError("a flatten of axes that are not numbers")
    if start == 1 and end == -1 and not value.split and value.axes is None:
        return call.builder.flatten(value)
    if start == 0:
        raise UnsupportedError("a flatten of the batch")
    axes = call.builder.axes(value, 4 if start == 2 else None)
    start, end = start % len(axes), end % len(axes)
    if axes[1 : len(axes)] == axes[start : end + 1] and _count(list(axes)):
        return call.builder.flatten(value)
    kept = [*axes[:start], "joined", *axes[end + 1 :]]
    shape = [_known(call, value, name) for name in kept]
    if {n[0] for n in axes[start : end + 1]} not in ({"s"}, {"c"}):
        raise UnsupportedError("a flatten of channels and positions into one axis")
    return _match(call, value, list(axes[1:]), shape[1:])


def _known(call: Call, value: Value, name: str) -> Entry:
    if name == "c":
        return call.builder.size(value) or Length()
    if name[0] == "c" and name[1:].isdigit():
        return value.split[int(name[1:])]
    return Length()


def permute(call: Call) -> Value:
    """Axes in another order."""
    given = call.args[1:] or (call.kwargs.get("dims"),)
    if len(given) == 1 and isinstance(given[0], tuple):
        given = given[0]
    order = [n for n in given if isinstance(n, int)]
    if len(order) != len(given):
        raise UnsupportedError(f"{call.operation} by {given}")
    axes = call.builder.axes(call.value(), len(order))
    return arranged(call.builder, call.value(), tuple(axes[i] for i in order))


def transpose(call: Call) -> object:
    """Swap two axes, or transpose a parameter matrix."""
    found = call.get(0, "input")
    dims = [d for d in (call.get(1, "dim0"), call.get(2, "dim1")) if isinstance(d, int)]
    if isinstance(found, Parameter):
        if len(found.shape) != 2 or (dims and {d % 2 for d in dims} != {0, 1}):
            raise UnsupportedError(f"{call.operation} of anything but a parameter matrix")
        return transposed(found)
    if isinstance(found, Constant):
        return replace(found, tensor=found.tensor.transpose(*(dims or (0, 1))))
    value = call.value()
    if len(dims) != 2:
        raise UnsupportedError(f"{call.operation} of the values of the network")
    axes = list(call.builder.axes(value, 3))
    i, j = (d % len(axes) for d in dims)
    axes[i], axes[j] = axes[j], axes[i]
    return arranged(call.builder, value, tuple(axes))


def transposed(p: Parameter) -> Parameter:
    """A parameter matrix that multiplies from the other side."""
    return Parameter(replace(p.source, transposed=not p.source.transposed), p.shape[::-1])


def arranged(builder: Builder, value: Value, axes: Axes) -> Value:
    """The same value with its axes in another order; the names of positions follow their new order."""
    if value.flat and builder.dims(value):
        raise UnsupportedError("a transposition after a flatten")
    spatial = [a for a in axes if a[0] == "s"]
    if spatial != sorted(spatial):
        raise UnsupportedError("a transposition of two spatial axes")
    dims = len(spatial)
    plain = axes == ("b", "c", *spatial)
    if value.dims is None and value.node is builder.input:
        # What the input looks like is now settled.
        before = builder.axes(value)
        builder.input_axes, builder.input_last = before, before[-1] == "c"
    return replace(value, axes=None if plain else axes, dims=dims)


def getitem(call: Call) -> object:
    """An entry of a shape or a tuple, some channels, some positions."""
    found, index = call.args
    if isinstance(found, Size):
        if isinstance(index, int) and found.index is None:
            return _told(call.builder, replace(found, index=index))
        return found
    if isinstance(found, tuple) and isinstance(index, int):
        return found[index]
    if isinstance(found, Parameter | Constant | Rows):
        return _sliced_table(call, found, index)
    if isinstance(found, Value):
        return _indexed(call, found, index if isinstance(index, tuple) else (index,))
    raise UnsupportedError(f"indexing {operand_name(found)}")


def _sliced_table(call: Call, found: Parameter | Constant | Rows, index: object) -> object:
    """Positions up to a length that only the input tells; tables are cut to that length during evaluation."""
    parts = index if isinstance(index, tuple) else (index,)
    lengths = (Length, Size)
    for part in parts:
        whole = isinstance(part, slice) and part.start in (None, 0) and part.step is None
        if not (whole and isinstance(part, slice) and (part.stop is None or isinstance(part.stop, lengths))):
            raise UnsupportedError(f"indexing {operand_name(found)}")
    return found


def _indexed(call: Call, value: Value, index: tuple[object, ...]) -> Value:
    everything = slice(None)
    if Ellipsis in index:
        at = index.index(Ellipsis)
        rank = len(call.builder.axes(value)) if call.builder.ranked(value) else len(index)
        index = (*index[:at], *[everything] * (rank - len(index) + 1), *index[at + 1 :])
    if not call.builder.ranked(value) and index[0] == everything and len(index) == 2:
        call.builder.input_dims = 0
    axes = call.builder.axes(value, len(index))
    whole = len(index) > 2 and axes[1] == "c" and all(i == everything for i in index[:2])
    if whole and value.pools and all(isinstance(i, int) and i in (0, -1) for i in index[2:]):
        return _pooled_away(call, value)
    if axes[0] == "b" and index[0] != everything:
        raise UnsupportedError("indexing the batch")
    for name, part in zip(axes, index, strict=False):
        if part != everything:
            value = _one_index(call, value, name, part)
    return value


def _pooled_away(call: Call, value: Value) -> Value:
    if not value.pools or set(value.pools[-1].size) != {1}:
        raise UnsupportedError(f"{call.operation} of maps")
    return call.builder.flatten(value)


def _one_index(call: Call, value: Value, name: str, part: object) -> Value:
    if name == "c":
        if not isinstance(part, slice):
            raise UnsupportedError("taking one channel", "a range keeps the axis: x[:, i:i+1]")
        size = call.builder.known_size(value)
        start, stop, step = part.indices(size)
        if step != 1:
            raise UnsupportedError("taking every second channel")
        return narrowed(call.builder, value, start, stop - start)
    if name == "c0" and isinstance(part, int) and value.split:
        return taken(call.builder, value, part)
    if name[0] == "c":
        raise UnsupportedError("indexing split channels")
    return _positions_of(call, value, int(name[1:]), part)


def _positions_of(call: Call, value: Value, axis: int, part: object) -> Value:
    dims = call.builder.dims(value) or 1
    if isinstance(part, int) and not isinstance(part, bool):
        if dims != 1:
            raise UnsupportedError("taking one row of maps")
        return call.builder.pool(value, Pool("at", (part,)), 0)
    if isinstance(part, slice) and all(isinstance(n, int | None) for n in (part.start, part.stop, part.step)):
        start, stop, step = part.start or 0, part.stop or 0, part.step or 1
        if start >= 0 and stop <= 0 and (part.stop is None or stop < 0):
            margins = [tuple(n if i == axis else 0 for i in range(dims)) for n in (-start, stop)]
            if any(margins[0]) or any(margins[1]):
                value = call.builder.pool(value, Pool("pad", margins[0], margins[1]))
            if step == 1:
                return value
            steps = tuple(step if i == axis else 1 for i in range(dims))
            return call.builder.pool(value, Pool("avg", (1,) * dims, steps, (0,) * dims))
    raise UnsupportedError(f"indexing positions by {part}")


def narrowed(builder: Builder, value: Value, start: int, size: int) -> Value:
    """Some of a value's channels."""
    if value.flat and builder.dims(value):
        raise UnsupportedError("taking channels after a flatten")
    base = 0 if value.part is None else value.part[0]
    if size < 1 or start + size > builder.known_size(value):
        raise UnsupportedError(f"taking channels {start} to {start + size} of {builder.known_size(value)}")
    return replace(builder.closed(value), part=(base + start, size))


def taken(builder: Builder, value: Value, index: int) -> Value:
    """One entry of the first axis into which channels are split."""
    size = math.prod(value.split[1:])
    index = index % value.split[0]
    names = {"c1": "c", "c2": "c1"} if len(value.split) == 2 else {f"c{i}": f"c{i - 1}" for i in range(1, 5)}
    axes = tuple(names.get(a, a) for a in builder.axes(value) if a != "c0")
    found = narrowed(builder, replace(value, split=()), index * size, size)
    return replace(found, axes=axes, split=value.split[1:] if len(value.split) > 2 else ())


def squeeze(call: Call) -> Value:
    """Remove spatial dimensions of size 1 after pooling, or the only neuron of an output."""
    value = call.value()
    if call.builder.dims(value) in (0, None):
        if call.builder.size(value) != 1 and not value.pools:
            raise UnsupportedError(f"{call.operation} of {call.builder.size(value)} neurons")
        return value
    return _pooled_away(call, value)


def unsqueeze(call: Call) -> object:
    """Add a position to values without any, for broadcasting in products and sums; tables stay unchanged."""
    found = call.get(0, "input")
    if isinstance(found, Rows | Length):
        return found
    value = call.value()
    if call.builder.dims(value) != 0 or call.get(1, "dim") == 0:
        raise UnsupportedError(f"{call.operation} of maps")
    return value
