"""ONNX files as modules, which are then read like any other (extra `onnx`).

The graph of a file is simplified (`graph`) and becomes a module whose forward calls the torch function of every
node in turn (`operations`). Weights are its parameters, under the names of the file.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ....errors import ScaleGMNError
from .axes import Laid
from .graph import Graph, simplify
from .operations import OPERATIONS, OnnxCall, Step

# Operations whose operands of that number are fixed: they are not weights.
_FIXED = {"Sub": (1,), "Div": (1,), "Where": (0, 1, 2), "Pow": (1,), "Clip": (1, 2), "Pad": (1, 2, 3)}


def read_onnx(path: str | Path) -> nn.Module:
    """The network in an ONNX file, as a module in evaluation mode.

    Arguments:
        path: The file.
    """
    try:
        import onnx
    except ImportError as error:
        raise ScaleGMNError("onnx: the package is not installed; pip install 'scalegmn[onnx]'") from error
    try:
        model = onnx.load(str(path))
    except Exception as error:
        # What a damaged file raises depends on where it breaks off.
        raise ScaleGMNError(f"{path}: cannot be read as ONNX; the file is damaged or of another format") from error
    try:
        return OnnxModule(simplify(model)).eval()
    except ScaleGMNError as error:
        raise ScaleGMNError(f"{path}: {error}") from None
    except Exception as error:
        # The same holds for a graph that contradicts itself.
        raise ScaleGMNError(f"{path}: its graph is not valid ONNX ({type(error).__name__})") from error


class OnnxModule(nn.Module):
    """The graph of an ONNX file. Floating-point tensors are parameters, single numbers and others are fixed.

    Arguments:
        graph: What it computes.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph
        self.names: dict[str, str] = {}
        self.fixed: dict[str, Any] = {}
        self.norms = nn.ModuleDict()
        for step in graph.steps:
            if step.operation == "BatchNormalization":
                self.norms[step.key] = _batch_norm(step, graph.tensors)
                continue
            for i, name in enumerate(step.inputs):
                if name in graph.tensors:
                    self._keep(name, graph.tensors[name], step, i)

    def _keep(self, name: str, array: Any, step: Step, index: int) -> None:
        """Remember a tensor as a number, a list, a buffer or a parameter, whatever its reader takes."""
        array = np.asarray(array)
        batch = array.ndim == len(step.shapes[0]) and array.shape[:1] == self.graph.shape[:1]
        if step.operation == "Concat" and batch and (array == array[:1]).all():
            array = array[:1]  # learned tokens, the same for all of a batch
        fixed = index in _FIXED.get(step.operation, ()) or array.dtype.kind != "f"
        single = array.ndim == 0 or (array.size == 1 and (fixed or step.operation == "Mul"))
        if step.operation == "Add" and array.size > 1 and (array < -1e8).any():
            fixed = True  # a mask of scores
        if single or array.dtype.kind in "iu":
            self.fixed[name] = array.item() if single else array.tolist()
            if array.ndim == 1 and array.dtype.kind in "iu":
                self.fixed[name] = array.tolist()
            return
        if name in self.names:
            return
        key = "".join(c if c.isalnum() else "_" for c in name).strip("_") or "tensor"
        while hasattr(self, key):
            key += "_"
        self.names[name] = key
        tensor = torch.from_numpy(np.array(array))
        if fixed:
            self.register_buffer(key, tensor)
        else:
            self.register_parameter(key, nn.Parameter(tensor))

    def forward(self, x: Tensor) -> Tensor:
        """The network's output."""
        values: dict[str, Laid] = {self.graph.source: Laid.start(x, self.graph.shape)}
        for step in self.graph.steps:
            norm = self.norms[step.key] if step.operation == "BatchNormalization" else None
            names = step.inputs[:1] if norm is not None else step.inputs
            found = OPERATIONS[step.operation](OnnxCall(step, [self._operand(values, n) for n in names], norm))
            outputs = found if isinstance(found, list) else [found]
            values.update(zip(step.outputs, outputs, strict=True))
        result: Tensor = values[self.graph.target].arranged().tensor
        return result

    def _operand(self, values: dict[str, Laid], name: str) -> Any:
        if name in values:
            return values[name]
        if name in self.fixed:
            return self.fixed[name]
        return getattr(self, self.names[name]) if name else None


def _batch_norm(step: Step, tensors: dict[str, Any]) -> nn.Module:
    """A module, whose statistics the tracer knows."""
    gain, shift, mean, variance = (torch.from_numpy(np.array(tensors[name])) for name in step.inputs[1:5])
    norm = nn.BatchNorm2d(len(gain), eps=float(step.attributes.get("epsilon", 1e-5)))
    norm.load_state_dict(
        {"weight": gain, "bias": shift, "running_mean": mean, "running_var": variance,
         "num_batches_tracked": torch.tensor(0)}
    )  # fmt: skip
    return norm
