"""How the tracer handles linear layers, convolutions, normalisations and embeddings given as functions."""

import math
from dataclasses import replace

from torch import nn

from ...core.architecture import Conv, Normalise
from ..layout import Source
from ..trace.value import UnsupportedError, Value, Weight
from .call import Arange, Call, Constant, Parameter, Rows
from .shapes import each


def linear(call: Call) -> Value:
    """`F.linear`."""
    weight = call.get(1, "weight")
    if not isinstance(weight, Parameter | Constant):
        raise UnsupportedError(f"{call.operation} with a weight that is not a parameter of the module")
    return product(call, weight, call.learned(call.parameter(2, "bias")))


def linear_module(call: Call, value: Value, module: nn.Linear, path: str) -> Value:
    """`nn.Linear`, applied to a value."""
    weight, bias = call.weight_and_bias(module, path)
    assert weight is not None
    return call.builder.linear(value, module.in_features, module.out_features, weight, bias)


def product(call: Call, weight: Parameter | Constant, bias: Source | None) -> Value:
    """A matrix (outputs, inputs), learned or fixed, times a value."""
    shape = weight.shape if isinstance(weight, Parameter) else tuple(weight.tensor.shape)
    if len(shape) != 2:
        raise UnsupportedError(f"{call.operation} with a weight of another shape than (outputs, inputs)")
    return call.builder.linear(call.value(), shape[1], shape[0], _weight(call, weight), bias)


def _weight(call: Call, weight: Parameter | Constant) -> Weight:
    return call.fix(weight) if isinstance(weight, Constant) else call.use(weight.source)


def convolution(
    kernel: tuple[int, ...], stride: object, padding: object, dilation: object, groups: object = 1
) -> Conv:
    """A convolution from the options of torch; padding `same` becomes numbers."""
    d = len(kernel)
    strides, dilations = each(stride, d), each(dilation, d)
    if padding == "same":
        if set(strides) != {1} or any(k % 2 == 0 for k in kernel):
            raise UnsupportedError("padding 'same' with a stride or an even kernel")
        pads = tuple(t * (k - 1) // 2 for k, t in zip(kernel, dilations, strict=True))
    else:
        pads = each(0 if padding == "valid" else padding, d)
    assert isinstance(groups, int)
    return Conv(tuple(kernel), strides, pads, dilations, groups)


def conv_function(call: Call) -> Value:
    """`F.conv1d` and `F.conv2d`, with learned or fixed weights."""
    weight = call.get(1, "weight")
    bias = call.learned(call.parameter(2, "bias"))
    if not isinstance(weight, Parameter | Constant):
        raise UnsupportedError("a convolution without a parameter as its weight")
    outputs, inputs, *kernel = weight.shape if isinstance(weight, Parameter) else tuple(weight.tensor.shape)
    groups = call.get(6, "groups", 1)
    conv = convolution(
        tuple(kernel), call.get(3, "stride", 1), call.get(4, "padding", 0), call.get(5, "dilation", 1), groups
    )
    return call.builder.conv(call.value(), inputs * conv.groups, outputs, conv, _weight(call, weight), bias)


def conv_transpose_function(call: Call) -> Value:
    """`F.conv_transpose1d` and `F.conv_transpose2d`."""
    weight = call.parameter(1, "weight")
    bias = call.learned(call.parameter(2, "bias"))
    if weight is None:
        raise UnsupportedError("a transposed convolution without a parameter as its weight")
    inputs, outputs, *kernel = weight.shape
    groups = call.get(6, "groups", 1)
    conv = convolution(
        tuple(kernel), call.get(3, "stride", 1), call.get(4, "padding", 0), call.get(7, "dilation", 1), groups
    )
    conv = replace(conv, transposed=True, extra=each(call.get(5, "output_padding", 0), len(kernel)))
    source = call.use(replace(weight.source, groups=conv.groups))
    return call.builder.conv(call.value(), inputs, outputs * conv.groups, conv, source, bias)


def normalise(call: Call, shape: tuple[int, ...], norm: Normalise, weight: Source | None, bias: Source | None) -> Value:
    """LayerNorm or RMSNorm over the neurons."""
    if len(shape) != 1:
        raise UnsupportedError(f"a normalisation over {shape}", "over the neurons it is")
    return call.builder.normalise(call.value(), shape[0], norm, weight, bias)


def layer_norm(call: Call) -> Value:
    """`F.layer_norm`."""
    shape = each(call.get(1, "normalized_shape"), 1)
    weight, bias = call.learned(call.parameter(2, "weight")), call.learned(call.parameter(3, "bias"))
    return normalise(call, shape, Normalise(call.number(4, "eps", 1e-5)), weight, bias)


def rms_norm(call: Call) -> Value:
    """`F.rms_norm`."""
    shape = each(call.get(1, "normalized_shape"), 1)
    weight = call.learned(call.parameter(2, "weight"))
    eps = call.rounding if call.get(3, "eps") is None else call.number(3, "eps")
    return normalise(call, shape, Normalise(eps, "rms"), weight, None)


def norm_by_hand(call: Call) -> Value:
    """What `by_hand` has found: a normalisation without gains."""
    norm = Normalise(call.number(1, "eps"), "rms" if call.get(2, "kind") == "rms" else "layer")
    return call.builder.normalise(call.value(), call.builder.known_size(call.value()), norm, None, None)


def group_norm(call: Call) -> Value:
    """`F.group_norm`."""
    groups = call.get(1, "num_groups")
    weight, bias = call.parameter(2, "weight"), call.parameter(3, "bias")
    if not isinstance(groups, int):
        raise UnsupportedError(f"group_norm with {groups} groups")
    norm = Normalise(call.number(4, "eps", 1e-5), "group", groups)
    size = call.builder.known_size(call.value()) if weight is None else math.prod(weight.shape)
    return call.builder.normalise(call.value(), size, norm, call.learned(weight), call.learned(bias))


def embedding(call: Call) -> Value | Rows:
    """A table of vectors: of the input's tokens, or of positions."""
    table = call.parameter(1, "weight")
    if table is None or len(table.shape) != 2:
        raise UnsupportedError("an embedding without a parameter as its table")
    return embedded(call, call.use(replace(table.source, transposed=not table.source.transposed)), *table.shape)


def embedded(call: Call, table: Source, count: int, size: int) -> Value | Rows:
    """A table (count, size) looked up; tokens are input neurons, of which one is 1 and the others 0."""
    if isinstance(call.get(0, "input"), Arange):
        return Rows(table, count, size)
    value = call.value()
    if value.node is not call.builder.input:
        raise UnsupportedError("an embedding of anything but the input")
    return call.builder.linear(value, count, size, table, None)
