"""How the tracer handles functions and tensor methods."""

import math
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional as F

from ...core.activations import ARGUMENTS, Activation, activation, is_activation_function
from ..trace.by_hand import unit
from ..trace.value import UnsupportedError, Value
from .arithmetic import add, clamp, divide, multiply, negative, square, subtract
from .arrange import (
    ask_size,
    entry,
    flatten,
    getitem,
    permute,
    reshape,
    squeeze,
    transpose,
    unsqueeze,
)
from .attention import Scores, attend, masked, scores, weighted
from .call import Arange, Call, Constant, Length, Parameter, Rows, Size
from .dense import (
    conv_function,
    conv_transpose_function,
    embedding,
    group_norm,
    layer_norm,
    linear,
    norm_by_hand,
    product,
    rms_norm,
)
from .join import concatenate, enlarge, glu, pad
from .join import divide_parts as divide_channels
from .shapes import adaptive, maximum, mean, window

Handler = Callable[[Call], object]


def call_function(call: Call, function: object) -> object:
    """Apply a function."""
    call = _resolved(call)
    handler = _FUNCTIONS.get(function) if isinstance(function, Callable) else None  # type: ignore[arg-type]
    known = getattr(function, "__module__", "") in ("math", "_operator") and function is not operator.getitem
    if known and call.args and all(isinstance(a, int | float | Length) for a in call.args):
        return _computed(function, call.args)
    if handler is not None:
        return handler(call)
    if is_activation_function(function):
        return _activation_function(call, activation(function))  # type: ignore[arg-type]
    raise UnsupportedError(f"the function {call.operation}")


def call_method(call: Call) -> object:
    """Apply a method of a tensor: the function of the same name, if there is one."""
    call = _resolved(call)
    name = call.operation.removesuffix("_") if not call.operation.endswith("__") else call.operation
    if name in _METHODS:
        return _METHODS[name](call)
    function = getattr(torch, name, None)
    if function in _FUNCTIONS or is_activation_function(function):
        return call_function(call, function)
    raise UnsupportedError(f"the method {call.operation}")


def _activation_function(call: Call, act: Activation) -> Value:
    if act.name == "gelu" and call.kwargs.get("approximate", "none") == "tanh":
        act = activation("gelu_tanh")
    if act.across_neurons:
        check_softmax(call, call.get(1, "dim"))
    names = ARGUMENTS.get(act.name, ())
    numbers = [call.number(i + 1, n, act.parameters[i]) for i, n in enumerate(names)]
    return call.builder.activate(call.value(), Activation(act.name, tuple(numbers)) if names else act)


def _resolved(call: Call) -> Call:
    """The same call with entries of shapes as numbers, if they are known."""
    args = tuple(entry(call.builder, a) for a in call.args)
    return replace(call, args=args, kwargs={k: entry(call.builder, a) for k, a in call.kwargs.items()})


def _computed(function: Any, numbers: tuple[object, ...]) -> object:
    """Arithmetic with entries of shapes."""
    return Length() if any(isinstance(n, Length) for n in numbers) else function(*numbers)


def check_softmax(call: Call, dim: object) -> None:
    """Refuse a softmax that does not run over the neurons."""
    value = call.value()
    if isinstance(dim, int | None):
        known = call.builder.ranked(value)
        if not known and dim in (-1, None) and call.builder.input_last:
            return
        if not known and dim == 1 and call.builder.input_last:
            call.builder.input_dims = 0
            return
        if not known and dim == 1:
            call.builder.first(value)
            return
        if known and call.builder.axes(value)[-1 if dim is None else dim] == "c":
            return
    known = call.builder.dims(value) is not None
    where = "" if known else " of an input whose dimensions are not known yet"
    raise UnsupportedError(f"{call.operation} over dimension {dim}{where}", "over the neurons it is: dim=1")


def _softmax(call: Call) -> object:
    found, dim = call.get(0, "input"), call.get(1, "dim")
    if isinstance(found, Scores):
        if dim not in (-1, 3):
            raise UnsupportedError(f"a softmax of scores over dimension {dim}")
        return replace(found, normalised=True)
    return _activation_function(call, activation("softmax"))


def _power(call: Call) -> Value:
    exponent = call.number(1, "exponent")
    if exponent < 1 or exponent != int(exponent):
        raise UnsupportedError(f"the power {exponent:g}", "positive integers are")
    return call.builder.activate(
        call.value(), activation("power", exponent) if exponent != 1 else activation("identity")
    )


def _prelu(call: Call) -> Value:
    slope = call.parameter(1, "weight")
    if slope is None or math.prod(slope.shape) != 1:
        raise UnsupportedError("prelu with more than one slope")
    return call.builder.activate(call.value(), activation("prelu"), call.learned(slope))


def _matmul(call: Call) -> object:
    first, second = call.get(0, "input"), call.get(1, "other")
    if isinstance(first, Scores) and isinstance(second, Value):
        return weighted(call, first, second)
    if isinstance(first, Value) and isinstance(second, Value):
        return scores(call, first, second)
    if not isinstance(second, Parameter | Constant):
        raise UnsupportedError(f"{call.operation} with anything but a parameter on the right")
    turned = transpose(replace(call, args=(second,), kwargs={}))
    assert isinstance(turned, Parameter | Constant)
    return product(call, turned, None)


def _arange(call: Call) -> object:
    numbers = [a for a in call.args if isinstance(a, int)]
    if any(isinstance(a, Length | Size) for a in call.args) and not any(numbers):
        return Arange()
    raise UnsupportedError("arange of anything but the number of positions")


def _compared(call: Call) -> object:
    mask, number = call.args
    if isinstance(mask, Constant) and isinstance(number, int | float):
        return replace(mask, tensor=mask.tensor == number)
    raise UnsupportedError(f"{call.operation} of values of the network")


def _getattr(call: Call) -> object:
    found, name = call.args
    if name == "shape" and isinstance(found, Value):
        return Size(found)
    if name in ("T", "mT"):
        axes = (-2, -1) if name == "mT" else ()
        return transpose(replace(call, args=(found, *axes)))
    if name in ("device", "dtype"):
        return None
    if name == "values" and isinstance(found, tuple):
        return found[0]
    raise UnsupportedError(f"the attribute {name}")


def _same(call: Call) -> object:
    found = call.get(0, "input")
    return found if isinstance(found, Scores | Rows | Arange | Parameter | Constant) else call.value()


_FUNCTIONS: dict[object, Handler] = {
    **dict.fromkeys((operator.add, operator.iadd, torch.add), add),
    **dict.fromkeys((operator.sub, operator.isub, torch.sub, torch.subtract), subtract),
    **dict.fromkeys((operator.mul, operator.imul, torch.mul, torch.multiply), multiply),
    **dict.fromkeys((operator.truediv, operator.itruediv, torch.div, torch.true_divide, torch.divide), divide),
    **dict.fromkeys((operator.neg, torch.neg, torch.negative), negative),
    **dict.fromkeys((operator.pow, torch.pow), _power),
    **dict.fromkeys((operator.matmul, torch.matmul, torch.mm, torch.bmm), _matmul),
    **dict.fromkeys((F.dropout, F.dropout1d, F.dropout2d), _same),
    **dict.fromkeys((F.conv1d, F.conv2d), conv_function),
    **dict.fromkeys((F.conv_transpose1d, F.conv_transpose2d), conv_transpose_function),
    **dict.fromkeys((torch.clamp, torch.clip), clamp),
    **dict.fromkeys((torch.mean, torch.amax), mean),
    torch.max: maximum,
    F.glu: glu,
    unit: norm_by_hand,
    **dict.fromkeys((torch.t, torch.transpose, torch.swapaxes), transpose),
    **dict.fromkeys((F.prelu, torch.prelu), _prelu),
    **dict.fromkeys((F.max_pool1d, torch.max_pool1d), lambda call: window(call, "max", 1)),
    **dict.fromkeys((F.max_pool2d, torch.max_pool2d), lambda call: window(call, "max", 2)),
    **dict.fromkeys((torch.cat, torch.concat, torch.concatenate), concatenate),
    **dict.fromkeys((torch.chunk, torch.split, torch.unbind), divide_channels),
    **dict.fromkeys((F.softmax, torch.softmax), _softmax),
    **dict.fromkeys((operator.eq, torch.eq), _compared),
    F.avg_pool1d: lambda call: window(call, "avg", 1),
    F.avg_pool2d: lambda call: window(call, "avg", 2),
    F.adaptive_avg_pool1d: lambda call: adaptive(call, "avg", 1),
    F.adaptive_avg_pool2d: lambda call: adaptive(call, "avg", 2),
    F.adaptive_max_pool1d: lambda call: adaptive(call, "max", 1),
    F.adaptive_max_pool2d: lambda call: adaptive(call, "max", 2),
    F.pad: pad,
    F.interpolate: enlarge,
    F.embedding: embedding,
    F.group_norm: group_norm,
    F.rms_norm: rms_norm,
    F.scaled_dot_product_attention: attend,
    torch.square: square,
    torch.permute: permute,
    torch.unsqueeze: unsqueeze,
    torch.arange: _arange,
    F.linear: linear,
    F.layer_norm: layer_norm,
    torch.flatten: flatten,
    torch.reshape: reshape,
    torch.squeeze: squeeze,
    operator.getitem: getitem,
    getattr: _getattr,
}

_METHODS: dict[str, Handler] = {
    **dict.fromkeys(("view", "reshape"), reshape),
    **dict.fromkeys(("contiguous", "clone", "float", "double", "to", "detach", "type_as", "expand_as"), _same),
    **dict.fromkeys(("expand", "repeat"), _same),
    **dict.fromkeys(("__add__", "__radd__"), add),
    **dict.fromkeys(("__mul__", "__rmul__"), multiply),
    "size": ask_size,
    "squeeze": squeeze,
    "masked_fill": masked,
    "split": divide_channels,
    "bool": _same,
}
