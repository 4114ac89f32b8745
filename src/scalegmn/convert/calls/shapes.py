"""How the tracer handles pooling and changes of shape."""

from dataclasses import replace

from ...core.architecture import Pool
from ..trace.value import UnsupportedError, Value
from .call import Call, Length, Size


def each(number: object, dims: int) -> tuple[int, ...]:
    """One integer per spatial dimension."""
    values = number if isinstance(number, tuple | list) else (number,)
    if not all(isinstance(v, int) for v in values):
        raise UnsupportedError(f"a window given by {number!r}")
    whole = tuple(int(v) for v in values)
    return whole * dims if len(whole) == 1 else whole


def mean(call: Call) -> Value:
    """The mean (or maximum, for `amax`) over all positions."""
    value = call.value()
    given = call.get(1, "dim")
    wanted = given if isinstance(given, tuple) else (given,)
    if call.builder.input_last and not call.builder.ranked(value):
        call.builder.input_dims = len(wanted)
    names = call.builder.axes(value, len(wanted) + 2)
    positions = {i for i, name in enumerate(names) if name[0] == "s"}
    dims = len(positions)
    if {a % len(names) if isinstance(a, int) else a for a in wanted} != positions or not dims or value.split:
        raise UnsupportedError(f"{call.operation} over dimensions {wanted}", "over all spatial ones is")
    keep = bool(call.get(2, "keepdim", False))
    if call.operation == "amax":
        if keep:
            raise UnsupportedError("amax with keepdim")
        return _global_max(call, value, dims)
    if not keep and value.node is not call.builder.input:
        return call.builder.pool(value, Pool("global_avg", _told(value, dims)), 0)
    pooled = call.builder.pool(value, Pool("adaptive_avg", (1,) * dims), dims)
    return pooled if keep else call.builder.flatten(pooled)


def _global_max(call: Call, value: Value, dims: int) -> Value:
    return call.builder.pool(value, Pool("global_max", _told(value, dims)), 0)


def _told(value: Value, dims: int) -> tuple[int, ...]:
    """The size of a pool over everything, which tells the input's dimensions where no convolution does."""
    return (1,) * dims if value.dims is None else ()


def maximum(call: Call) -> object:
    """The maximum over all positions with their places, which nothing may read, or of two values."""
    if isinstance(call.get(1, "dim"), Value):
        raise UnsupportedError("the maximum of two values")
    return mean(replace(call, operation="amax")), None


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
    given = call.get(1, "kernel_size")
    if isinstance(given, Size | Length) or (isinstance(given, tuple) and any(isinstance(n, Length) for n in given)):
        # A window as large as the maps.
        pooled = adaptive(replace(call, args=call.args[:1], kwargs={"output_size": 1}), "avg", dims)
        return pooled if kind == "avg" else _global_max(call, call.value(), dims)
    size = each(given, dims)
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
