"""ONNX files as modules, which are then read like any other (extra `onnx`).

The graph of a file becomes a module whose forward calls the torch function of every node in turn. Weights are its
parameters, under the names of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import ScaleGMNError

Attributes = Mapping[str, Any]
Values = dict[str, Any]
_NORMS = ("BatchNormalization", "LayerNormalization")


def read_onnx(path: str | Path) -> nn.Module:
    """The network in an ONNX file, as a module in evaluation mode.

    Arguments:
        path: The file.
    """
    try:
        import onnx
        from onnx import numpy_helper
    except ImportError as error:
        raise ScaleGMNError("onnx: the package is not installed; pip install 'scalegmn[onnx]'") from error
    try:
        graph = onnx.load(str(path)).graph
    except Exception as error:
        # What a damaged file raises depends on where it breaks off.
        raise ScaleGMNError(f"{path}: cannot be read as ONNX; the file is damaged or of another format") from error
    tensors = {t.name: torch.from_numpy(numpy_helper.to_array(t).copy()) for t in graph.initializer}
    steps = []
    for node in graph.node:
        if node.op_type not in _OPERATIONS and node.op_type != "Constant":
            known = ", ".join(sorted(_OPERATIONS))
            raise ScaleGMNError(f"{path}: the operation {node.op_type} is not supported; supported are {known}")
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "Constant":
            tensors[node.output[0]] = torch.from_numpy(numpy_helper.to_array(attributes["value"]).copy())
            continue
        steps.append(Step(node.op_type, tuple(node.input), node.output[0], attributes))
    inputs = [i.name for i in graph.input if i.name not in tensors]
    if len(inputs) != 1 or len(graph.output) != 1:
        raise ScaleGMNError(f"{path}: expected a network of one input and one output, got {len(inputs)} inputs")
    return OnnxModule(inputs[0], graph.output[0].name, steps, tensors)


class Step:
    """One node of an ONNX graph.

    Arguments:
        operation: Its name.
        inputs, output: Names of tensors.
        attributes: Its options.
    """

    def __init__(self, operation: str, inputs: tuple[str, ...], output: str, attributes: Attributes) -> None:
        self.operation, self.inputs, self.output, self.attributes = operation, inputs, output, attributes

    def __repr__(self) -> str:
        return f"{self.output} = {self.operation}({', '.join(self.inputs)}; {dict(self.attributes)})"


class OnnxModule(nn.Module):
    """The graph of an ONNX file. Floating-point tensors are parameters, single numbers and others are fixed.

    Arguments:
        source, target: Names of the input and the output.
        steps: The nodes in order.
        tensors: Initial values by name.
    """

    def __init__(self, source: str, target: str, steps: list[Step], tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.source, self.target, self.steps = source, target, steps
        self.names: dict[str, str] = {}
        self.fixed: dict[str, float | list[int]] = {}
        statistics = {name for s in steps if s.operation == "BatchNormalization" for name in s.inputs[3:5]}
        for name, tensor in tensors.items():
            if not tensor.is_floating_point() or tensor.dim() == 0:
                self.fixed[name] = tensor.tolist()
                continue
            key = name.replace(".", "_").replace("/", "_").replace(":", "_").lstrip("_") or "tensor"
            self.names[name] = key
            if name in statistics:
                self.register_buffer(key, tensor)
            else:
                self.register_parameter(key, nn.Parameter(tensor))
        self.norms = nn.ModuleDict({s.output.replace(".", "_").replace("/", "_"): self._norm(s) for s in steps
                                    if s.operation in _NORMS})  # fmt: skip

    def _norm(self, step: Step) -> nn.Module:
        """Normalisations are modules, whose sizes and statistics the tracer knows."""
        values = [getattr(self, self.names[name]) for name in step.inputs[1:5]]
        if step.operation == "LayerNormalization":
            if step.attributes.get("axis", -1) != -1:
                raise ScaleGMNError(f"LayerNormalization: expected the axis -1, got {step.attributes['axis']}")
            eps = float(step.attributes.get("epsilon", 1e-5))
            layer = nn.LayerNorm(len(values[0]), eps=eps, bias=len(values) > 1)
            layer.load_state_dict(dict(zip(("weight", "bias"), values, strict=False)))
            return layer
        norm = nn.BatchNorm2d(len(values[0]), eps=float(step.attributes.get("epsilon", 1e-5))).eval()
        norm.load_state_dict(
            {"weight": values[0], "bias": values[1], "running_mean": values[2], "running_var": values[3],
             "num_batches_tracked": torch.tensor(0)}
        )  # fmt: skip
        return norm

    def forward(self, x: Tensor) -> Tensor:
        """The network's output."""
        values: Values = {self.source: x}
        for step in self.steps:
            if step.operation in _NORMS:
                norm = self.norms[step.output.replace(".", "_").replace("/", "_")]
                values[step.output] = norm(values[step.inputs[0]])
                continue
            operands = [self._operand(values, name) for name in step.inputs]
            values[step.output] = _OPERATIONS[step.operation](operands, step.attributes)
        found: Tensor = values[self.target]
        return found

    def _operand(self, values: Values, name: str) -> Any:
        if name in values:
            return values[name]
        if name in self.fixed:
            return self.fixed[name]
        return getattr(self, self.names[name]) if name else None


Operation = Callable[[list[Any], Attributes], Any]


def _gemm(x: list[Any], a: Attributes) -> Any:
    if a.get("alpha", 1.0) != 1.0 or a.get("beta", 1.0) != 1.0 or a.get("transA", 0):
        raise ScaleGMNError("Gemm: alpha, beta and transA are not supported")
    weight = x[1] if a.get("transB", 0) else x[1].t()
    return F.linear(x[0], weight, x[2] if len(x) > 2 else None)


def _pads(a: Attributes) -> tuple[int, ...]:
    pads = tuple(a.get("pads", (0,) * 2 * len(a.get("kernel_shape", (1, 1)))))
    half = len(pads) // 2
    if pads[:half] != pads[half:] or a.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise ScaleGMNError("ONNX: expected the same padding on both sides")
    return pads[:half]


def _conv(x: list[Any], a: Attributes) -> Any:
    dims = len(a["kernel_shape"])
    function = F.conv1d if dims == 1 else F.conv2d
    strides, dilations = tuple(a.get("strides", (1,) * dims)), tuple(a.get("dilations", (1,) * dims))
    return function(x[0], x[1], x[2] if len(x) > 2 else None, strides, _pads(a), dilations, a.get("group", 1))


def _pool(average: bool) -> Operation:
    def apply(x: list[Any], a: Attributes) -> Any:
        size = tuple(a["kernel_shape"])
        strides = tuple(a.get("strides", (1,) * len(size)))
        if average:
            return (F.avg_pool1d if len(size) == 1 else F.avg_pool2d)(x[0], size, strides, _pads(a))
        return (F.max_pool1d if len(size) == 1 else F.max_pool2d)(x[0], size, strides, _pads(a))

    return apply


def _reshape(x: list[Any], a: Attributes) -> Any:
    shape = x[1]
    if len(shape) != 2:
        raise ScaleGMNError(f"Reshape: expected (batch, -1), got {shape}")
    return x[0].flatten(1)


def _conv_transpose(x: list[Any], a: Attributes) -> Any:
    dims = len(a["kernel_shape"])
    function = F.conv_transpose1d if dims == 1 else F.conv_transpose2d
    more = tuple(a.get("output_padding", (0,) * dims))
    strides, dilations = tuple(a.get("strides", (1,) * dims)), tuple(a.get("dilations", (1,) * dims))
    if "output_shape" in a:
        raise ScaleGMNError("ConvTranspose: an output_shape is not supported")
    return function(x[0], x[1], x[2] if len(x) > 2 else None, strides, _pads(a), more, a.get("group", 1), dilations)


def _clip(x: list[Any], a: Attributes) -> Any:
    low, high = (float(x[i]) if len(x) > i and x[i] is not None else a.get(k) for i, k in ((1, "min"), (2, "max")))
    return F.relu6(x[0]) if (low, high) == (0.0, 6.0) else torch.clamp(x[0], low, high)


def _mean(x: list[Any], a: Attributes) -> Any:
    axes = x[1] if len(x) > 1 else a["axes"]
    return x[0].mean(tuple(axes), keepdim=bool(a.get("keepdims", 1)))


_OPERATIONS: dict[str, Operation] = {
    "Clip": _clip,
    "ConvTranspose": _conv_transpose,
    "LayerNormalization": lambda x, a: x[0],
    "ReduceMean": _mean,
    "Transpose": lambda x, a: x[0].permute(*a["perm"]),
    "HardSwish": lambda x, a: F.hardswish(x[0]),
    "Gelu": lambda x, a: F.gelu(x[0], approximate=a.get("approximate", b"none").decode()),
    "Mish": lambda x, a: F.mish(x[0]),
    "Softsign": lambda x, a: F.softsign(x[0]),
    "LogSoftmax": lambda x, a: torch.log_softmax(x[0], a.get("axis", -1)),
    "Gemm": _gemm,
    "MatMul": lambda x, a: x[0] @ x[1],
    "Conv": _conv,
    "BatchNormalization": lambda x, a: x[0],
    "Add": lambda x, a: x[0] + x[1],
    "Sub": lambda x, a: x[0] - x[1],
    "Mul": lambda x, a: x[0] * x[1],
    "Div": lambda x, a: x[0] / x[1],
    "Concat": lambda x, a: torch.cat(x, a["axis"]),
    "MaxPool": _pool(False),
    "AveragePool": _pool(True),
    "GlobalAveragePool": lambda x, a: F.adaptive_avg_pool2d(x[0], 1),
    "Flatten": lambda x, a: x[0].flatten(1),
    "Reshape": _reshape,
    "Identity": lambda x, a: x[0],
    "Dropout": lambda x, a: x[0],
    "Relu": lambda x, a: F.relu(x[0]),
    "LeakyRelu": lambda x, a: F.leaky_relu(x[0], float(a.get("alpha", 0.01))),
    "Elu": lambda x, a: F.elu(x[0], float(a.get("alpha", 1.0))),
    "Tanh": lambda x, a: torch.tanh(x[0]),
    "Sigmoid": lambda x, a: torch.sigmoid(x[0]),
    "Softplus": lambda x, a: F.softplus(x[0]),
    "Sin": lambda x, a: torch.sin(x[0]),
    "Cos": lambda x, a: torch.cos(x[0]),
    "Abs": lambda x, a: torch.abs(x[0]),
    "Neg": lambda x, a: -x[0],
    "Erf": lambda x, a: torch.erf(x[0]),
    "Softmax": lambda x, a: torch.softmax(x[0], a.get("axis", -1)),
}
