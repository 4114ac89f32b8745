"""What the operations of ONNX are in torch, on tensors whose views are remembered (`axes`)."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ....errors import ScaleGMNError
from .axes import Arranged, Atom, Laid


@dataclass(frozen=True)
class Step:
    """One node of a graph.

    Arguments:
        operation: Its name.
        inputs, outputs: Names of tensors; an input that is left out is empty.
        attributes: Its options.
        shapes: Of the outputs.
    """

    operation: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    shapes: tuple[tuple[int, ...], ...] = ()

    @property
    def key(self) -> str:
        """A name for its module."""
        return "node_" + "".join(c if c.isalnum() else "_" for c in self.outputs[0])


@dataclass(frozen=True)
class OnnxCall:
    """A step with its operands: `Laid` values, learned tensors, or fixed numbers and lists.

    Arguments:
        step: The node of the graph.
        operands: In the order of its inputs.
        norm: The module of a BatchNormalization.
    """

    step: Step
    operands: list[Any]
    norm: nn.Module | None = None

    def get(self, name: str, default: Any = None) -> Any:
        """An option."""
        return self.step.attributes.get(name, default)

    def operand(self, index: int) -> Any:
        """An operand, or None where it is left out."""
        return self.operands[index] if index < len(self.operands) else None

    @property
    def value(self) -> Laid:
        """The first operand, which must be a value of the network."""
        if not isinstance(self.operands[0], Laid):
            raise ScaleGMNError(f"{self.step.operation} of weights alone is not supported")
        return self.operands[0]

    def given(self, index: int, name: str) -> Any:
        """What is an operand in newer files and an option in older ones."""
        found = self.operand(index)
        return self.get(name) if found is None else found

    def like(self, arranged: Arranged, tensor: Any, *, without: Sequence[int] = ()) -> Laid:
        """The output, with the dimensions of an input."""
        return arranged.result(tensor, self.step.shapes[0], without=without)


Operation = Callable[[OnnxCall], Laid | list[Laid]]
One = Callable[[OnnxCall], Laid]


def entrywise(function: Callable[[Any, OnnxCall], Any]) -> One:
    """A function of single entries."""
    return lambda n: n.value.mapped(function(n.value.tensor, n))


def _single(function: Callable[[Any], Any]) -> One:
    return entrywise(lambda x, _: function(x))


def whole(function: Callable[[Any, OnnxCall], Any]) -> One:
    """A function of a tensor in the order of the graph."""

    def apply(n: OnnxCall) -> Laid:
        found = n.value.arranged()
        return n.like(found, function(found.tensor, n))

    return apply


def _binary(function: Callable[[Any, Any], Any]) -> One:
    def apply(n: OnnxCall) -> Laid:
        found = [o.arranged() if isinstance(o, Laid) else o for o in n.operands]
        values = [f for f in found if isinstance(f, Arranged)]
        like = max(values, key=lambda v: (len(v.dims), math.prod(a.size for d in v.dims for a in d)))
        return n.like(like, function(*(f.tensor if isinstance(f, Arranged) else f for f in found)))

    return apply


def _matmul(n: OnnxCall) -> Laid:
    first = n.value.arranged()
    if not isinstance(n.operands[1], Laid):
        return n.like(first, first.tensor @ n.operands[1])
    second = n.operands[1].arranged()
    made = n.like(first, first.tensor @ second.tensor)
    last = (Atom(n.step.shapes[0][-1]),)  # the positions of the keys are not those of the queries
    return Laid(made.tensor, (*made.axes[:-1], last), (*made.dims[:-1], last))


def _gemm(n: OnnxCall) -> Laid:
    if n.get("alpha", 1.0) != 1.0 or n.get("beta", 1.0) != 1.0 or n.get("transA", 0):
        raise ScaleGMNError("Gemm: alpha, beta and transA are not supported")
    weight = n.operands[1] if n.get("transB", 0) else n.operands[1].t()
    found = n.value.arranged()
    return n.like(found, F.linear(found.tensor, weight, n.operand(2)))


def _pads(n: OnnxCall, dims: int) -> tuple[tuple[int, ...], list[int]]:
    """Padding that both sides share, and what one side has more, as `F.pad` takes it."""
    pads = tuple(n.get("pads", (0,) * 2 * dims))
    if n.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise ScaleGMNError(f"{n.step.operation}: auto_pad is not supported; give the padding as numbers")
    low, high = pads[:dims], pads[dims:]
    if low == high:
        return low, []
    return (0,) * dims, [p for pair in reversed(list(zip(low, high, strict=True))) for p in pair]


def _conv(x: Any, n: OnnxCall) -> Any:
    dims = len(n.step.shapes[0]) - 2
    function = F.conv1d if dims == 1 else F.conv2d
    strides, dilations = tuple(n.get("strides", (1,) * dims)), tuple(n.get("dilations", (1,) * dims))
    padding, more = _pads(n, dims)
    x = F.pad(x, more) if more else x
    return function(x, n.operands[1], n.operand(2), strides, padding, dilations, n.get("group", 1))


def _conv_transpose(x: Any, n: OnnxCall) -> Any:
    dims = len(n.step.shapes[0]) - 2
    function = F.conv_transpose1d if dims == 1 else F.conv_transpose2d
    more = tuple(n.get("output_padding", (0,) * dims))
    strides, dilations = tuple(n.get("strides", (1,) * dims)), tuple(n.get("dilations", (1,) * dims))
    padding, uneven = _pads(n, dims)
    if "output_shape" in n.step.attributes or uneven:
        raise ScaleGMNError("ConvTranspose: an output_shape and uneven padding are not supported")
    return function(x, n.operands[1], n.operand(2), strides, padding, more, n.get("group", 1), dilations)


def _pool(average: bool) -> One:
    def apply(x: Any, n: OnnxCall) -> Any:
        size = tuple(n.get("kernel_shape"))
        strides = tuple(n.get("strides", (1,) * len(size)))
        padding, uneven = _pads(n, len(size))
        padded = any(padding) and average and not n.get("count_include_pad", 0)
        dilated = set(n.get("dilations", (1,))) != {1}
        if uneven or padded or n.get("ceil_mode", 0) or dilated or len(n.step.outputs) > 1:
            raise ScaleGMNError(f"{n.step.operation}: only windows, strides and even padding with zeros are supported")
        if average:
            return (F.avg_pool1d if len(size) == 1 else F.avg_pool2d)(x, size, strides, padding)
        return (F.max_pool1d if len(size) == 1 else F.max_pool2d)(x, size, strides, padding)

    return whole(apply)


def _global_pool(x: Any, n: OnnxCall) -> Any:
    return (F.adaptive_avg_pool1d if len(n.step.shapes[0]) == 3 else F.adaptive_avg_pool2d)(x, 1)


def _mean(n: OnnxCall) -> Laid:
    found, axes = n.value.arranged(), n.given(1, "axes")
    kept = bool(n.get("keepdims", 1))
    made = found.tensor.mean(tuple(found.axis(a) for a in axes), keepdim=kept)
    return n.like(found, made, without=() if kept else axes)


def _gather(n: OnnxCall) -> Laid:
    data, index, axis = n.operands[0], n.operands[1], n.get("axis", 0)
    if isinstance(index, Laid):
        found, last = index.arranged(), (Atom(n.step.shapes[0][-1]),)
        made = found.result(F.embedding(found.tensor, data), n.step.shapes[0][:-1])
        return Laid(made.tensor, (*made.axes, last), (*made.dims, last))
    found = n.value.arranged()
    at = found.axis(axis)
    if isinstance(index, list) and len(index) == 1:
        taken = slice(index[0], index[0] + 1 or None)
        return n.like(found, found.tensor[(*[slice(None)] * at, taken)])
    if not isinstance(index, int):
        raise ScaleGMNError(f"Gather: expected one index, got {index}")
    return n.like(found, found.tensor[(*[slice(None)] * at, index)], without=[axis])


def _slice(n: OnnxCall) -> Laid:
    found, shape = n.value.arranged(), n.value.shape
    starts, ends = n.given(1, "starts"), n.given(2, "ends")
    axes = n.given(3, "axes") or list(range(len(starts)))
    parts = [slice(None)] * len(found.order)
    for axis, start, end, step in zip(axes, starts, ends, n.operand(4) or [1] * len(axes), strict=True):
        size = shape[axis]
        first, last, stride = slice(start, end, step).indices(size)
        # From the end, as positions are counted whose number only an input tells.
        stop = None if last == size else last - size
        parts[found.axis(axis)] = slice(first or None, stop, None if stride == 1 else stride)
    return n.like(found, found.tensor[tuple(parts)])


def _split(n: OnnxCall) -> list[Laid]:
    found, axis = n.value.arranged(), n.get("axis", 0)
    at = found.axis(axis)
    parts = found.tensor.split([shape[axis] for shape in n.step.shapes], dim=at)
    return [found.result(parts[i], shape) for i, shape in enumerate(n.step.shapes)]


def _concat(n: OnnxCall) -> Laid:
    found = [o.arranged() if isinstance(o, Laid) else o for o in n.operands]
    like = next(f for f in found if isinstance(f, Arranged))
    tensors = [f.tensor if isinstance(f, Arranged) else f for f in found]
    return n.like(like, torch.cat(tensors, dim=like.axis(n.get("axis"))))


def _pad(x: Any, n: OnnxCall) -> Any:
    pads, axes, fill = n.given(1, "pads"), n.operand(3), n.operand(2)
    if n.get("mode", b"constant") != b"constant" or (fill not in (None, 0, 0.0)):
        raise ScaleGMNError("Pad: padding with anything but zeros is not supported")
    rank = len(n.step.shapes[0])
    pairs = {(axes[i] if axes else i) % rank: (pads[i], pads[i + len(pads) // 2]) for i in range(len(pads) // 2)}
    flat = [p for i in range(rank - 1, -1, -1) for p in pairs.get(i, (0, 0))]
    while flat[-2:] == [0, 0]:
        flat = flat[:-2]
    return F.pad(x, flat) if flat else x


def _resize(x: Any, n: OnnxCall) -> Any:
    before, after = n.value.shape, n.step.shapes[0]
    factors = [b / a for a, b in zip(before[2:], after[2:], strict=True)]
    mode, where = n.get("mode", b"nearest").decode(), n.get("coordinate_transformation_mode", b"half_pixel").decode()
    if mode == "nearest" and where in ("asymmetric", "half_pixel") and all(f == int(f) for f in factors):
        return F.interpolate(x, scale_factor=tuple(map(int, factors)), mode="nearest")
    if mode == "linear" and where in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        name = "linear" if len(factors) == 1 else "bilinear"
        return F.interpolate(x, scale_factor=tuple(factors), mode=name, align_corners=where == "align_corners")
    raise ScaleGMNError(f"Resize: {mode} with {where} by {factors} is not supported")


def _where(n: OnnxCall) -> Laid:
    mask, one, two = n.operands
    value = one if isinstance(one, Laid) else two
    if isinstance(mask, Laid) or not isinstance(value, Laid):
        raise ScaleGMNError("Where: a choice that depends on values is not supported")
    fill = two if value is one else one
    found = value.arranged()
    number = float(fill) if isinstance(fill, int | float) else -math.inf
    return n.like(found, found.tensor.masked_fill(~mask if value is one else mask, number))


def _softmax(function: Callable[..., Any]) -> One:
    def apply(n: OnnxCall) -> Laid:
        found = n.value.arranged()
        axis, rank = found.axis(n.get("axis", -1)), len(found.order)
        return n.like(found, function(found.tensor, -1 if axis == rank - 1 else axis))

    return apply


def _clip(x: Any, n: OnnxCall) -> Any:
    low, high = (n.given(i, k) for i, k in ((1, "min"), (2, "max")))
    return F.relu6(x) if (low, high) == (0.0, 6.0) else torch.clamp(x, low, high)


def _instance_norm(n: OnnxCall) -> Laid:
    """Of channels; of the groups that a reshape has made of them it is a GroupNorm."""
    eps = float(n.get("epsilon", 1e-5))
    groups, channels = n.value.dims[1], n.value.axes[1] if len(n.value.axes) > 1 else ()
    if channels[: len(groups)] == groups and len(channels) > len(groups) and n.operand(1) is None:
        return n.value.mapped(F.group_norm(n.value.tensor, n.value.shape[1], None, None, eps))
    return whole(lambda x, node: F.group_norm(x, node.value.shape[1], node.operand(1), node.operand(2), eps))(n)


def _layer_norm(x: Any, n: OnnxCall) -> Any:
    if n.get("axis", -1) not in (-1, len(n.step.shapes[0]) - 1):
        raise ScaleGMNError(f"LayerNormalization: expected the last axis, got {n.get('axis')}")
    return F.layer_norm(x, (n.step.shapes[0][-1],), n.operand(1), n.operand(2), float(n.get("epsilon", 1e-5)))


def _rms_norm(x: Any, n: OnnxCall) -> Any:
    return F.rms_norm(x, (n.step.shapes[0][-1],), n.operand(1), float(n.get("epsilon", 1e-5)))


_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "Abs": torch.abs, "Cos": torch.cos, "Erf": torch.erf, "HardSwish": F.hardswish, "Mish": F.mish, "Relu": F.relu,
    "Sigmoid": torch.sigmoid, "Silu": F.silu, "Sin": torch.sin, "Softplus": F.softplus, "Softsign": F.softsign,
    "Tanh": torch.tanh,
}  # fmt: skip

OPERATIONS: dict[str, Operation] = {
    **{name: _single(function) for name, function in _FUNCTIONS.items()},
    "Add": _binary(lambda a, b: a + b),
    "AveragePool": _pool(True),
    "BatchNormalization": whole(lambda x, n: n.norm(x)),  # type: ignore[misc]
    "Clip": entrywise(_clip),
    "Concat": _concat,
    "Conv": whole(_conv),
    "ConvTranspose": whole(_conv_transpose),
    "Div": _binary(lambda a, b: a / b),
    "Elu": entrywise(lambda x, n: F.elu(x, float(n.get("alpha", 1.0)))),
    "Expand": lambda n: n.value,  # sums and products spread what they need
    "Gather": _gather,
    "Gelu": entrywise(lambda x, n: F.gelu(x, approximate=n.get("approximate", b"none").decode())),
    "Gemm": _gemm,
    "GlobalAveragePool": whole(_global_pool),
    "GroupNormalization": whole(
        lambda x, n: F.group_norm(x, n.get("num_groups"), n.operand(1), n.operand(2), float(n.get("epsilon", 1e-5)))
    ),
    **dict.fromkeys(("Cast", "Dropout", "Identity"), entrywise(lambda x, n: x)),
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": whole(_layer_norm),
    "LeakyRelu": entrywise(lambda x, n: F.leaky_relu(x, float(n.get("alpha", 0.01)))),
    "LogSoftmax": _softmax(torch.log_softmax),
    "MatMul": _matmul,
    "MaxPool": _pool(False),
    "Mul": _binary(lambda a, b: a * b),
    "Neg": entrywise(lambda x, n: -x),
    "Pad": whole(_pad),
    "Pow": entrywise(lambda x, n: x ** n.operands[1]),
    "PRelu": entrywise(lambda x, n: F.prelu(x, n.operands[1])),
    **dict.fromkeys(("Resize", "Upsample"), whole(_resize)),
    "RMSNormalization": whole(_rms_norm),
    "ReduceMean": _mean,
    **dict.fromkeys(("Flatten", "Reshape"), lambda n: n.value.reshape(n.step.shapes[0])),
    "Slice": _slice,
    "Softmax": _softmax(torch.softmax),
    "Split": _split,
    "Squeeze": lambda n: n.value.squeeze(n.given(1, "axes") or ()),
    "Sub": _binary(lambda a, b: a - b),
    "Transpose": lambda n: n.value.transpose(n.get("perm", range(len(n.value.dims))[::-1])),
    "Unsqueeze": lambda n: n.value.unsqueeze(n.given(1, "axes")),
    "Where": _where,
}
