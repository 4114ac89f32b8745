"""What the tracer makes of functions and tensor methods."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import replace

import torch
from torch.nn import functional as F

from ..core.activations import Activation, activation, is_activation_function
from ..core.architecture import Conv
from .call import Call, Parameter, Size, describe
from .graph import UnsupportedError, Value
from .layout import Source
from .shape_calls import adaptive, each, flatten, getitem, mean, reshape, size_of, squeeze, window

Handler = Callable[[Call], object]


def call_function(call: Call, function: object) -> object:
    """Apply a function."""
    handler = _FUNCTIONS.get(function) if isinstance(function, Callable) else None  # type: ignore[arg-type]
    if handler is not None:
        return handler(call)
    if is_activation_function(function):
        return _activation_function(call, activation(function))  # type: ignore[arg-type]
    raise UnsupportedError(f"the function {call.operation}")


def call_method(call: Call) -> object:
    """Apply a method of a tensor: the function of the same name, where there is one."""
    name = call.operation.removesuffix("_")
    if name in _METHODS:
        return _METHODS[name](call)
    function = getattr(torch, name, None)
    if function in _FUNCTIONS or is_activation_function(function):
        return call_function(call, function)
    raise UnsupportedError(f"the method {call.operation}")


_ARGUMENTS = {
    "leaky_relu": ("negative_slope",),
    "hardtanh": ("min_val", "max_val"),
    "softplus": ("beta", "threshold"),
    "elu": ("alpha",),
    "softshrink": ("lambd",),
    "hardshrink": ("lambd",),
}


def _activation_function(call: Call, act: Activation) -> Value:
    if act.name == "gelu" and call.kwargs.get("approximate", "none") != "none":
        raise UnsupportedError("gelu with approximate = 'tanh'")
    if act.across_neurons:
        check_softmax(call, call.get(1, "dim"))
    names = _ARGUMENTS.get(act.name, ())
    numbers = [call.number(i + 1, n, act.parameters[i]) for i, n in enumerate(names)]
    return call.builder.activate(call.value(), Activation(act.name, tuple(numbers)) if names else act)


def check_softmax(call: Call, dim: object) -> None:
    """Complain unless a softmax runs over the neurons."""
    dims = call.builder.dims(call.value())
    if dim == 1 or (dim in (-1, None) and dims == 0):
        return
    where = " of an input whose dimensions are not known yet" if dims is None else ""
    raise UnsupportedError(f"{call.operation} over dimension {dim}{where}", "over the neurons it is: dim=1")


def _power(call: Call) -> Value:
    exponent = call.number(1, "exponent")
    if exponent < 1 or exponent != int(exponent):
        raise UnsupportedError(f"the power {exponent:g}", "positive integers are")
    return call.builder.activate(
        call.value(), activation("power", exponent) if exponent != 1 else activation("identity")
    )


def _square(call: Call) -> Value:
    return call.builder.activate(call.value(), activation("power", 2))


def _clamp(call: Call) -> Value:
    low, high = call.get(1, "min"), call.get(2, "max")
    if high is None and call.scalar(low) == 0:
        return call.builder.activate(call.value(), activation("relu"))
    return call.builder.activate(call.value(), activation("hardtanh", call.number(1, "min"), call.number(2, "max")))


def _prelu(call: Call) -> Value:
    slope = call.parameter(1, "weight")
    if slope is None or math.prod(slope.shape) != 1:
        raise UnsupportedError("prelu with more than one slope")
    return call.builder.activate(call.value(), activation("prelu"), call.learned(slope))


def _linear(call: Call) -> Value:
    weight = call.parameter(1, "weight")
    return _product(call, weight, call.learned(call.parameter(2, "bias")))


def _product(call: Call, weight: Parameter | None, bias: Source | None) -> Value:
    if weight is None or len(weight.shape) != 2:
        raise UnsupportedError(f"{call.operation} with a weight of another shape than (outputs, inputs)")
    outputs, inputs = weight.shape
    source = call.learned(weight)
    assert source is not None
    return call.builder.linear(call.value(), inputs, outputs, source, bias)


def _matmul(call: Call) -> Value:
    weight = call.get(1, "other")
    if not isinstance(weight, Parameter):
        raise UnsupportedError(f"{call.operation} with anything but a parameter on the right")
    return _product(call, _transposed(weight), None)


def _transposed(p: Parameter) -> Parameter:
    return Parameter(replace(p.source, transposed=not p.source.transposed), p.shape[::-1])


def _transpose(call: Call) -> Parameter:
    p = call.get(0, "input")
    dims = [d for d in (call.get(1, "dim0"), call.get(2, "dim1")) if isinstance(d, int)]
    if not isinstance(p, Parameter) or len(p.shape) != 2 or (dims and {d % 2 for d in dims} != {0, 1}):
        raise UnsupportedError(f"{call.operation} of anything but a parameter matrix")
    return _transposed(p)


def convolution(kernel: tuple[int, ...], stride: object, padding: object, dilation: object) -> Conv:
    """A convolution from the options of torch; padding `same` becomes numbers."""
    d = len(kernel)
    strides, dilations = each(stride, d), each(dilation, d)
    if padding == "same":
        if set(strides) != {1} or any(k % 2 == 0 for k in kernel):
            raise UnsupportedError("padding 'same' with a stride or an even kernel")
        pads = tuple(t * (k - 1) // 2 for k, t in zip(kernel, dilations, strict=True))
    else:
        pads = each(0 if padding == "valid" else padding, d)
    return Conv(tuple(kernel), strides, pads, dilations)


def normalise(call: Call, shape: tuple[int, ...], weight: Source | None, bias: Source | None, eps: float) -> Value:
    """LayerNorm over the neurons, with gains."""
    if len(shape) != 1 or weight is None:
        raise UnsupportedError(f"LayerNorm over {shape} {'without gains' if weight is None else ''}".rstrip())
    return call.builder.normalise(call.value(), shape[0], eps, weight, bias)


def _conv_function(call: Call) -> Value:
    weight = call.parameter(1, "weight")
    bias = call.learned(call.parameter(2, "bias"))
    if weight is None or call.get(6, "groups", 1) != 1:
        raise UnsupportedError("a convolution with groups or without a parameter as its weight")
    outputs, inputs, *kernel = weight.shape
    conv = convolution(tuple(kernel), call.get(3, "stride", 1), call.get(4, "padding", 0), call.get(5, "dilation", 1))
    source = call.learned(weight)
    assert source is not None
    return call.builder.conv(call.value(), inputs, outputs, conv, source, bias)


def _layer_norm(call: Call) -> Value:
    shape = call.get(1, "normalized_shape")
    weight, bias = call.learned(call.parameter(2, "weight")), call.learned(call.parameter(3, "bias"))
    return normalise(call, each(shape, 1), weight, bias, call.number(4, "eps", 1e-5))


# -- arithmetic --------------------------------------------------------------------------------------------------


def _add(call: Call) -> Value:
    return _sum(call, call.get(0, "input"), call.get(1, "other"), call.number(2, "alpha", 1.0))


def _subtract(call: Call) -> Value:
    return _sum(call, call.get(0, "input"), call.get(1, "other"), -call.number(2, "alpha", 1.0))


def _sum(call: Call, a: object, b: object, factor: float) -> Value:
    """a + factor * b, of which at least one is a value of the network."""
    if isinstance(b, Value):
        b = _scaled(b, factor)
        if isinstance(a, Value):
            return call.builder.add(a, b)
        a, b, factor = b, a, 1.0
    number = call.scalar(b)
    if isinstance(a, Value) and number is not None:
        return replace(a, offset=a.offset + factor * number)
    if isinstance(a, Value) and isinstance(b, Parameter) and factor == 1:
        size = math.prod(b.shape)
        if b.shape not in _vector_shapes(size, call.builder.dims(a) or 0):
            raise UnsupportedError(f"the addition of a parameter of shape {b.shape}", "one entry per neuron is")
        source = call.learned(b)
        assert source is not None
        return call.builder.shift(a, source, size)
    raise UnsupportedError(f"{call.operation} of something that is neither a value, a number nor a bias")


def _vector_shapes(size: int, dims: int) -> list[tuple[int, ...]]:
    tail = (1,) * dims
    return [(size, *tail), (1, size, *tail)]


def _multiply(call: Call) -> Value:
    a, b = call.get(0, "input"), call.get(1, "other")
    if isinstance(a, Value) and isinstance(b, Value):
        if a is b:
            return _square(call)
        raise UnsupportedError("a product of two values of the network (gating)")
    value, other = (a, b) if isinstance(a, Value) else (b, a)
    number = call.scalar(other)
    if not isinstance(value, Value):
        raise UnsupportedError(f"{call.operation} of {describe(a)}")
    if number is None:
        raise UnsupportedError(f"{describe(other)} as a factor")
    return _scaled(value, number)


def _divide(call: Call) -> Value:
    if call.kwargs.get("rounding_mode") is not None:
        raise UnsupportedError("a division that rounds")
    divisor = call.number(1, "other")
    if divisor == 0:
        raise UnsupportedError("a division by zero")
    return _scaled(call.value(), 1 / divisor)


def _negative(call: Call) -> Value:
    return _scaled(call.value(), -1.0)


def _scaled(value: Value, factor: float) -> Value:
    if factor == 0:
        raise UnsupportedError("a factor of zero")
    return replace(value, factor=value.factor * factor, offset=value.offset * factor)


# -- attributes and tables ----------------------------------------------------------------------------------------


def _getattr(call: Call) -> object:
    found, name = call.args
    if name == "shape" and isinstance(found, Value):
        return Size()
    if name in ("T", "mT"):
        return _transpose(replace(call, args=(found,)))
    raise UnsupportedError(f"the attribute {name}")


def _same(call: Call) -> Value:
    return call.value()


_FUNCTIONS: dict[object, Handler] = {
    **dict.fromkeys((operator.add, operator.iadd, torch.add), _add),
    **dict.fromkeys((operator.sub, operator.isub, torch.sub, torch.subtract), _subtract),
    **dict.fromkeys((operator.mul, operator.imul, torch.mul, torch.multiply), _multiply),
    **dict.fromkeys((operator.truediv, operator.itruediv, torch.div, torch.true_divide, torch.divide), _divide),
    **dict.fromkeys((operator.neg, torch.neg, torch.negative), _negative),
    **dict.fromkeys((operator.pow, torch.pow), _power),
    **dict.fromkeys((operator.matmul, torch.matmul, torch.mm), _matmul),
    **dict.fromkeys((F.dropout, F.dropout1d, F.dropout2d), _same),
    **dict.fromkeys((F.conv1d, F.conv2d), _conv_function),
    **dict.fromkeys((torch.clamp, torch.clip), _clamp),
    **dict.fromkeys((torch.mean, torch.amax), mean),
    **dict.fromkeys((torch.t, torch.transpose), _transpose),
    **dict.fromkeys((F.prelu, torch.prelu), _prelu),
    **dict.fromkeys((F.max_pool1d, torch.max_pool1d), lambda call: window(call, "max", 1)),
    **dict.fromkeys((F.max_pool2d, torch.max_pool2d), lambda call: window(call, "max", 2)),
    F.avg_pool1d: lambda call: window(call, "avg", 1),
    F.avg_pool2d: lambda call: window(call, "avg", 2),
    F.adaptive_avg_pool1d: lambda call: adaptive(call, "avg", 1),
    F.adaptive_avg_pool2d: lambda call: adaptive(call, "avg", 2),
    F.adaptive_max_pool1d: lambda call: adaptive(call, "max", 1),
    F.adaptive_max_pool2d: lambda call: adaptive(call, "max", 2),
    torch.square: _square,
    F.linear: _linear,
    F.layer_norm: _layer_norm,
    torch.flatten: flatten,
    torch.reshape: reshape,
    torch.squeeze: squeeze,
    operator.getitem: getitem,
    getattr: _getattr,
}

_METHODS: dict[str, Handler] = {
    **dict.fromkeys(("view", "reshape"), reshape),
    **dict.fromkeys(("contiguous", "clone", "float", "double", "to", "detach"), _same),
    **dict.fromkeys(("__add__", "__radd__"), _add),
    **dict.fromkeys(("__mul__", "__rmul__"), _multiply),
    "size": size_of,
    "squeeze": squeeze,
}
