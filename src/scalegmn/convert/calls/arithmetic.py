"""How the tracer handles sums, products and factors."""

import math
from dataclasses import replace

from ...core.activations import activation
from ...core.architecture import Table
from ..layout import Fixed
from ..trace.value import UnsupportedError, Value
from .attention import Scores, causal_mask
from .call import Call, Constant, Parameter, Rows, operand_name


def add(call: Call) -> object:
    """a + b."""
    return _sum(call, call.get(0, "input"), call.get(1, "other"), call.number(2, "alpha", 1.0))


def subtract(call: Call) -> object:
    """a - b."""
    return _sum(call, call.get(0, "input"), call.get(1, "other"), -call.number(2, "alpha", 1.0))


def _sum(call: Call, a: object, b: object, factor: float) -> object:
    """a + factor * b; at least one of them is a value of the network."""
    if isinstance(a, Scores) and isinstance(b, Constant) and causal_mask(b.tensor):
        return replace(a, causal=True)
    if isinstance(b, Value):
        b = _scaled(b, factor)
        if isinstance(a, Value):
            return call.builder.add(a, b)
        a, b, factor = b, a, 1.0
    number = call.scalar(b)
    if isinstance(a, Value) and number is not None:
        return replace(a, offset=a.offset + factor * number)
    if isinstance(a, Value) and isinstance(b, Rows) and factor == 1:
        return call.builder.table(a, b.source, Table((b.positions,)))
    if isinstance(a, Value) and isinstance(b, Parameter) and factor == 1:
        return _added(call, a, b)
    if isinstance(a, Value) and isinstance(b, Constant):
        return _shifted(call, a, b, factor)
    raise UnsupportedError(f"{call.operation} of something that is neither a value, a number nor a bias")


def _added(call: Call, value: Value, p: Parameter) -> Value:
    """A learned bias, or a learned table of positions."""
    if _per_neuron(call, value, p.shape):
        return call.builder.shift(value, call.use(p.source), math.prod(p.shape))
    positions, turned = _per_position(call, value, p.shape)
    return call.builder.table(value, call.use(replace(p.source, transposed=turned)), Table(positions))


def _shifted(call: Call, value: Value, c: Constant, factor: float) -> Value:
    """Added fixed numbers: per neuron, or per neuron and position."""
    shape = tuple(c.tensor.shape)
    if _per_neuron(call, value, shape):
        fixed = call.fix(c)
        return call.builder.table(value, Fixed(tuple(factor * v for v in fixed.values)), Table())
    positions, turned = _per_position(call, value, shape)
    tensor = c.tensor.mT if turned else c.tensor
    call.fix(c)
    return call.builder.table(value, Fixed(tuple((factor * tensor).flatten().tolist())), Table(positions))


def _per_neuron(call: Call, value: Value, shape: tuple[int, ...]) -> bool:
    """Whether a tensor of this shape has one entry per neuron of the value."""
    size = math.prod(shape)
    if call.builder.size(value) not in (None, size):
        return False
    if call.builder.dims(value) is None and value.axes is None and len(shape) > 2 and set(shape[2:]) == {1}:
        call.builder.axes(value, len(shape))  # the input has as many axes as what is added to it
    dims = call.builder.dims(value) or 0
    axes = call.builder.axes(value) if call.builder.ranked(value) else ("b", "c")
    at = len(axes) - 1 - axes.index("c") if "c" in axes else -1
    full = tuple(size if i == at else 1 for i in range(len(axes) - 1, -1, -1))
    while shape and len(shape) < len(full) and full[0] == 1:
        full = full[1:]
    return shape == full or (dims == 0 and shape in ((size,), (1, size)))


def _per_position(call: Call, value: Value, shape: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
    """The positions of a table, and whether its channels come last."""
    size = call.builder.size(value)
    rest = shape[1:] if len(shape) > 2 and shape[0] == 1 else shape
    if call.builder.input_last and len(rest) == 2 and not call.builder.ranked(value):
        call.builder.input_dims = 1
    axes = call.builder.axes(value) if call.builder.ranked(value) else ()
    if size is not None and len(rest) == len(axes) - 1 and len(rest) >= 2:
        if axes[-1] == "c" and rest[-1] == size and len(rest) == 2:
            return rest[:1], True
        if axes[1] == "c" and rest[0] == size:
            return rest[1:], False
    raise UnsupportedError(f"the addition of a tensor of shape {shape}", "one entry per neuron is")


def multiply(call: Call) -> object:
    """a * b."""
    a, b = call.get(0, "input"), call.get(1, "other")
    if isinstance(a, Value) and isinstance(b, Value):
        return square(call) if a is b else call.builder.product([a, b])
    value, other = (a, b) if isinstance(a, Value | Scores) else (b, a)
    number = call.scalar(other)
    if isinstance(value, Scores) and number is not None:
        return replace(value, scale=value.scale * number)
    if not isinstance(value, Value):
        raise UnsupportedError(f"{call.operation} of {operand_name(a)}")
    if number is not None:
        return _scaled(value, number)
    shape: tuple[int, ...] = ()
    if isinstance(other, Parameter | Constant):
        shape = other.shape if isinstance(other, Parameter) else tuple(other.tensor.shape)
    if shape and _per_neuron(call, value, shape) and math.prod(shape) > 1:
        if isinstance(other, Constant):
            fixed = call.fix(other)
            if 0 in fixed.values:
                raise UnsupportedError(f"{operand_name(other)} as a factor, which has zeros")
            return call.builder.scale(value, fixed, math.prod(shape))
        assert isinstance(other, Parameter)
        return call.builder.scale(value, call.use(other.source), math.prod(shape))
    raise UnsupportedError(f"{operand_name(other)} as a factor")


def divide(call: Call) -> object:
    """a / b."""
    if call.kwargs.get("rounding_mode") is not None:
        raise UnsupportedError("a division that rounds")
    found, other = call.get(0, "input"), call.get(1, "other")
    if isinstance(found, Value) and isinstance(other, Constant) and other.tensor.numel() > 1:
        inverse = replace(other, tensor=1 / other.tensor)
        if _per_neuron(call, found, tuple(other.tensor.shape)) and bool(inverse.tensor.isfinite().all()):
            call.fix(other)
            return call.builder.scale(found, Fixed(tuple(inverse.tensor.flatten().tolist())), other.tensor.numel())
    divisor = call.number(1, "other")
    if divisor == 0:
        raise UnsupportedError("a division by zero")
    if isinstance(found, Scores):
        return replace(found, scale=found.scale / divisor)
    return _scaled(call.value(), 1 / divisor)


def negative(call: Call) -> Value:
    """-a."""
    return _scaled(call.value(), -1.0)


def square(call: Call) -> Value:
    """a * a."""
    return call.builder.activate(call.value(), activation("power", 2))


def clamp(call: Call) -> Value:
    """Clamping to an interval, or at zero."""
    low, high = call.get(1, "min"), call.get(2, "max")
    if high is None and call.scalar(low) == 0:
        return call.builder.activate(call.value(), activation("relu"))
    return call.builder.activate(call.value(), activation("hardtanh", call.number(1, "min"), call.number(2, "max")))


def _scaled(value: Value, factor: float) -> Value:
    if factor == 0:
        raise UnsupportedError("a factor of zero")
    return replace(value, factor=value.factor * factor, offset=value.offset * factor)
