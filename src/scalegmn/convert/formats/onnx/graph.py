"""ONNX graphs made simple: shapes are numbers, what is fixed is computed, and what exporters take apart is whole."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ....errors import ScaleGMNError
from .operations import OPERATIONS, Step

# Networks in a batch whose size a file leaves open, while shapes are computed; unlike sizes that occur in networks.
_BATCH = 13
_ROUNDS = 40

Arrays = dict[str, Any]


@dataclass(frozen=True)
class Graph:
    """A network of one input and one output.

    Arguments:
        source, target: Their names.
        shape: Of the input.
        steps: The nodes in order.
        tensors: Weights and fixed numbers by name.
    """

    source: str
    target: str
    shape: tuple[int, ...]
    steps: list[Step]
    tensors: Arrays


def simplify(model: Any) -> Graph:
    """Compute what does not depend on the input's values.

    Arguments:
        model: As `onnx.load` gives it; it is changed.
    """
    from onnx import numpy_helper

    graph = model.graph
    tensors = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    inputs = [i for i in graph.input if i.name not in tensors]
    if len(inputs) != 1 or len(graph.output) != 1:
        raise ScaleGMNError(f"expected a network of one input and one output, got {len(inputs)} inputs")
    shape = _fixed_shape(graph, inputs[0])
    names: dict[str, str] = {}
    for _ in range(_ROUNDS):
        shapes = _shapes(model)
        if not _fold(model, tensors, names, shapes):
            break
    steps = [_step(node, shapes) for node in graph.node]
    # Weights for every network of a batch are weights: sums spread what they need.
    spread = {s.outputs[0]: s.inputs[0] for s in steps if s.operation == "Expand" and s.inputs[0] in tensors}
    fused = [replace(s, inputs=tuple(spread.get(n, n) for n in s.inputs)) for s in _fuse(steps, tensors)]
    target = names.get(graph.output[0].name, graph.output[0].name)
    needed = _needed(fused, target)
    for step in needed:
        if step.operation not in OPERATIONS:
            known = ", ".join(sorted(OPERATIONS))
            raise ScaleGMNError(f"the operation {step.operation} is not supported; supported are {known}")
        if any(math.prod(s) < 1 for s in step.shapes) or not step.shapes:
            raise ScaleGMNError(f"{step.operation}: the shape of {step.outputs[0]} is open; export it with fixed sizes")
    return Graph(inputs[0].name, target, shape, needed, tensors)


def _fixed_shape(graph: Any, value: Any) -> tuple[int, ...]:
    dims = value.type.tensor_type.shape.dim
    computed = any(node.op_type in ("Shape", "Size") for node in graph.node)
    for i, d in enumerate(dims):
        if d.HasField("dim_value") and d.dim_value > 0:
            continue
        if i and computed:
            raise ScaleGMNError("the graph computes with sizes that are open; export it with fixed ones but the batch")
        d.dim_value = _BATCH if i == 0 else 32
    del graph.value_info[:]
    for output in graph.output:
        output.type.tensor_type.ClearField("shape")
    return tuple(d.dim_value for d in dims)


def _shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """All shapes that are known."""
    import onnx

    found = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    shapes = {}
    for value in (*found.value_info, *found.input, *found.output):
        kind = value.type.tensor_type
        if kind.HasField("shape") and all(d.HasField("dim_value") for d in kind.shape.dim):
            shapes[value.name] = tuple(d.dim_value for d in kind.shape.dim)
    return shapes


def _fold(model: Any, tensors: Arrays, names: dict[str, str], shapes: dict[str, tuple[int, ...]]) -> bool:
    """Compute nodes that have only fixed inputs, once; whether there were any."""
    from onnx import numpy_helper

    graph, kept, made = model.graph, [], {}
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        if node.op_type == "Shape" and node.input[0] in shapes:
            options = {a.name: a.i for a in node.attribute}
            whole = shapes[node.input[0]][options.get("start", 0) : options.get("end")]
            made[node.output[0]] = np.array(whole, np.int64)
        elif node.op_type == "Identity" and node.input[0] in tensors:
            names[node.output[0]] = node.input[0]  # so that shared weights stay shared
        elif node.op_type == "Expand" and np.asarray(tensors.get(node.input[0], 0)).dtype.kind == "f":
            kept.append(node)
        elif all(name in tensors for name in node.input if name):
            made.update(_computed(model, node, tensors))
        else:
            kept.append(node)
        tensors.update(made)
    changed = len(kept) < len(graph.node)
    del graph.node[:]
    graph.node.extend(kept)
    graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in made.items())
    return changed


def _computed(model: Any, node: Any, tensors: Arrays) -> Arrays:
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    given = [helper.make_tensor_value_info(name, 1, None) for name in dict.fromkeys(node.input) if name]
    wanted = [helper.make_tensor_value_info(name, 1, None) for name in node.output]
    for value in given:
        value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.asarray(tensors[value.name]).dtype)
    alone = helper.make_model(helper.make_graph([node], "one", given, wanted), opset_imports=model.opset_import)
    alone.ir_version = model.ir_version
    try:
        found = ReferenceEvaluator(alone).run(None, {v.name: np.asarray(tensors[v.name]) for v in given})
    except Exception as error:
        # Whatever the evaluator does not know, we do not.
        raise ScaleGMNError(f"the operation {node.op_type} of fixed numbers is not supported") from error
    return dict(zip(node.output, found, strict=True))


def _step(node: Any, shapes: dict[str, tuple[int, ...]]) -> Step:
    from onnx import helper

    options = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    found = tuple(shapes.get(name, (0,)) for name in node.output)
    return Step(node.op_type, tuple(node.input), tuple(node.output), options, found)


def _needed(steps: list[Step], target: str) -> list[Step]:
    """The steps that the output needs."""
    wanted, found = {target}, []
    for step in reversed(steps):
        if wanted & set(step.outputs):
            wanted |= set(step.inputs)
            found.append(step)
    return found[::-1]


# What exporters take apart, by what it was.
_ERF = ("Add", ("Erf", ("Div", "x", math.sqrt(2))), 1.0), ("Add", ("Erf", ("Mul", "x", math.sqrt(0.5))), 1.0)
_VARIANCE = ("Sqrt", ("Add", ("ReduceMean", ("Pow", ("Sub", "x", ("ReduceMean", "x")), 2.0)), "eps"))
_SQUARES = ("Sqrt", ("Add", ("ReduceMean", ("Pow", "x", 2.0)), "eps"))
_PATTERNS: list[tuple[str, Any]] = [
    ("Silu", ("Mul", "x", ("Sigmoid", "x"))),
    *(("Gelu", ("Mul", ("Mul", "x", erf), 0.5)) for erf in _ERF),
    *(("Gelu", ("Mul", ("Mul", "x", 0.5), erf)) for erf in _ERF),
    *(("Gelu", ("Mul", "x", ("Mul", erf, 0.5))) for erf in _ERF),
    ("LayerNormalization", ("Div", ("Sub", "x", ("ReduceMean", "x")), _VARIANCE)),
    ("RMSNormalization", ("Mul", "x", ("Reciprocal", _SQUARES))),
    ("RMSNormalization", ("Div", "x", _SQUARES)),
]


def _fuse(steps: list[Step], tensors: Arrays) -> list[Step]:
    makers = {name: step for step in steps for name in step.outputs}
    found = []
    for step in steps:
        for operation, pattern in _PATTERNS:
            bound = next(_matches(pattern, step.outputs[0], makers, tensors, {}), None)
            if bound is not None:
                options = {"epsilon": bound["eps"]} if "eps" in bound else {}
                step = Step(operation, (bound["x"],), step.outputs, options, step.shapes)
                break
        if step.operation == "InstanceNormalization" and _plain(step, tensors):
            step = replace(step, inputs=step.inputs[:1])
        found.append(step)
    return found


def _matches(pattern: Any, name: str, makers: dict[str, Step], tensors: Arrays, bound: Any) -> Iterator[dict[str, Any]]:
    """The ways in which what makes a tensor has the form of a pattern: names of tensors, or numbers, by variable."""
    if pattern == "eps" or isinstance(pattern, float):
        array = np.asarray(tensors.get(name, np.zeros(0)))
        if array.size == 1 and (pattern == "eps" or math.isclose(float(array), pattern, rel_tol=1e-4)):
            yield bound | ({"eps": float(array.item())} if pattern == "eps" else {})
        return
    if isinstance(pattern, str):
        if bound.get(pattern, name) == name and name not in tensors:
            yield bound | {pattern: name}
        return
    step = makers.get(name)
    if step is None or step.operation != pattern[0]:
        return
    operands = step.inputs[: len(pattern) - 1]
    if step.operation == "ReduceMean":
        axes = step.attributes.get("axes", tensors.get(step.inputs[1]) if len(step.inputs) > 1 else None)
        if axes is None or [int(a) for a in axes] not in ([-1], [len(step.shapes[0]) - 1]):
            return
    for order in {operands, operands[::-1]} if step.operation in ("Add", "Mul") else {operands}:
        found = [bound]
        for part, operand in zip(pattern[1:], order, strict=True):
            found = [more for one in found for more in _matches(part, operand, makers, tensors, one)]
        yield from found


def _plain(step: Step, tensors: Arrays) -> bool:
    gain, shift = (tensors.get(name) for name in step.inputs[1:3])
    return gain is not None and shift is not None and bool((gain == 1).all()) and bool((shift == 0).all())
