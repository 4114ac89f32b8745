"""What the tracer makes of pooling and of changes of shape."""

from __future__ import annotations

from ..core.architecture import Pool
from .call import Call, Size, describe
from .graph import UnsupportedError, Value


def each(number: object, dims: int) -> tuple[int, ...]:
    """One integer per spatial dimension."""
    values = number if isinstance(number, tuple | list) else (number,)
    if not all(isinstance(v, int) for v in values):
        raise UnsupportedError(f"a window given by {number!r}")
    whole = tuple(int(v) for v in values)
    return whole * dims if len(whole) == 1 else whole


def flatten(call: Call) -> Value:
    """Channels and positions into one dimension."""
    if call.get(1, "start_dim", 0) != 1 or call.get(2, "end_dim", -1) != -1:
        raise UnsupportedError("a flatten of other dimensions than all but the first")
    return call.builder.flatten(call.value())


def reshape(call: Call) -> Value:
    """A view or reshape that only flattens."""
    shape = call.args[1:] or (call.kwargs.get("shape"),)
    if len(shape) == 1 and isinstance(shape[0], tuple):
        shape = shape[0]
    batch = len(shape) == 2 and (shape[0] == Size(0) or shape[0] == -1)
    if not batch or not isinstance(shape[1], int) or shape == (-1, -1):
        raise UnsupportedError(f"{call.operation} to anything but (batch, -1)")
    value = call.value()
    size = call.builder.size(value) if call.builder.dims(value) == 0 else None
    if size is not None and shape[1] not in (-1, size):
        raise UnsupportedError(f"{call.operation} of {size} neurons to (batch, {shape[1]})")
    return call.builder.flatten(value)


def squeeze(call: Call) -> Value:
    """Remove what pooling left of the maps, or the only neuron of an output."""
    value = call.value()
    if call.builder.dims(value) == 0:
        if value.node.size != 1 and not value.pools:
            raise UnsupportedError(f"{call.operation} of {value.node.size} neurons")
        return value
    return _pooled_away(call, value)


def _pooled_away(call: Call, value: Value) -> Value:
    if not value.pools or set(value.pools[-1].size) != {1}:
        raise UnsupportedError(f"{call.operation} of maps")
    return call.builder.flatten(value)


def getitem(call: Call) -> object:
    """An entry of a shape, or the only position that pooling left."""
    found, index = call.args
    if isinstance(found, Size):
        return Size(index) if isinstance(index, int) else Size()
    if isinstance(found, Value) and isinstance(index, tuple):
        everything = slice(None)
        if len(index) > 2 and all(i == everything for i in index[:2]) and all(i in (0, -1) for i in index[2:]):
            return _pooled_away(call, found)
    raise UnsupportedError(f"indexing {describe(found)}")


def size_of(call: Call) -> Size:
    """A question about the shape."""
    index = call.get(1, "dim")
    return Size(index if isinstance(index, int) else None)


def mean(call: Call) -> Value:
    """The mean (or maximum, for `amax`) over all positions."""
    value = call.value()
    axes = call.get(1, "dim")
    dims = call.builder.dims(value)
    if dims is None:
        dims = len(axes) if isinstance(axes, tuple) else 1
    axes = axes if isinstance(axes, tuple) else (axes,)
    if {a % (dims + 2) if isinstance(a, int) else a for a in axes} != set(range(2, dims + 2)) or not dims:
        raise UnsupportedError(f"{call.operation} over dimensions {axes}", "over all spatial ones is")
    maximum = call.operation == "amax"
    if maximum and call.get(2, "keepdim", False):
        raise UnsupportedError("amax with keepdim")
    if maximum:
        return _global_max(call, value, dims)
    pooled = call.builder.pool(value, Pool("adaptive_avg", (1,) * dims), dims)
    return pooled if call.get(2, "keepdim", False) else call.builder.flatten(pooled)


def _global_max(call: Call, value: Value, dims: int) -> Value:
    # The size tells the input's dimensions where no convolution does.
    at_input = value.node is call.builder.input
    return call.builder.pool(value, Pool("global_max", (1,) * dims if at_input else ()), 0)


def adaptive(call: Call, kind: str, dims: int) -> Value:
    """Adaptive pooling, `kind` avg or max."""
    wanted = call.get(1, "output_size")
    if isinstance(wanted, tuple) and None in wanted:
        raise UnsupportedError("adaptive pooling that keeps a dimension")
    size = each(wanted, dims)
    if kind == "avg":
        return call.builder.pool(call.value(), Pool("adaptive_avg", size), dims)
    if set(size) != {1}:
        raise UnsupportedError("adaptive max pooling to more than one position")
    return _global_max(call, call.value(), dims)


def window(call: Call, kind: str, dims: int) -> Value:
    """Pooling in a sliding window, `kind` avg or max."""
    size = each(call.get(1, "kernel_size"), dims)
    stride = call.get(2, "stride")
    padding = each(call.get(3, "padding", 0), dims)
    refused = {"ceil_mode": False, "return_indices": False, "count_include_pad": True, "divisor_override": None}
    for name, value in refused.items():
        if call.kwargs.get(name, value) != value:
            raise UnsupportedError(f"pooling with {name} = {call.kwargs[name]}")
    if len(call.args) > 4 or (kind == "max" and set(each(call.kwargs.get("dilation", 1), dims)) != {1}):
        raise UnsupportedError("pooling with other options than window, stride and padding")
    steps = size if stride is None or stride == () else each(stride, dims)
    pool = Pool("max" if kind == "max" else "avg", size, steps, padding)
    return call.builder.pool(call.value(), pool, dims)
