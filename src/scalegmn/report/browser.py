"""Functions of tensors as programs that a browser can run.

A function is traced once to the operations of ATen and lowered to a dozen operations of our own, which `programs.js`
carries out in double precision. Whatever does not depend on the argument is computed here; all that moves entries
about (transpose, slice, expand, ...) becomes one operation that reads with strides. So any model that is made of
common operations can be shown at work on a page, and what the page shows is the model itself.
"""

from __future__ import annotations

import base64
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_aggregate, map_arg

from ..errors import ScaleGMNError
from ..native import library

ELEMENTWISE = frozenset(
    "neg abs sin cos tanh sigmoid silu relu exp log sqrt rsqrt square asinh reciprocal "
    "add sub mul div pow lt maximum where".split()
)
# Their results depend on the shape of the argument alone.
FILL = frozenset("new_full new_zeros new_ones full_like zeros_like ones_like".split())
REDUCE = frozenset(("sum", "mean", "amax"))


def program(function: Callable[[Tensor], Tensor], example: Tensor) -> dict[str, Any]:
    """A function of one tensor as data for `programs.js`.

    Arguments:
        function: Of torch operations, without branches that depend on values.
        example: An argument; the program takes arguments of this shape only.

    Returns:
        The shape of the `output`, the shapes of the `constants` and their `numbers` (base64 of float32, one after the
        other), the `steps`, each [operation, shape of the result, values, options...], and the value that is the
        `result`. Values have numbers: constants count from 0 on, then steps.

    >>> found = program(lambda x: (2 * x.T).sum(0), torch.ones(2, 3))
    >>> [step[0] for step in found["steps"]], found["output"]
    (['strided', 'mul', 'sum'], [2])
    """
    with torch.no_grad(), library.disabled():
        graph = make_fx(function)(example)
    graph.graph.eliminate_dead_code()
    lowering = _Lowering(graph, example)
    return lowering.run()


class _Lowering:
    """Walks a graph in order, with the value of each node for the example at hand.

    Arguments:
        graph: Of ATen operations.
        example: Its argument.
    """

    def __init__(self, graph: fx.GraphModule, example: Tensor) -> None:
        self.graph = graph
        self.example = example.contiguous()
        self.constants: list[Tensor] = []
        self.steps: list[list[Any]] = []
        self.known: dict[fx.Node, Any] = {}
        # Where the value of a node is: the number of a step, or None for what does not depend on the argument.
        self.place: dict[fx.Node, Any] = {}

    def run(self) -> dict[str, Any]:
        """The program."""
        for node in self.graph.graph.nodes:
            if node.op == "placeholder":
                self.known[node], self.place[node] = self.example, self.step("input", self.example, [])
            elif node.op == "get_attr":
                self.known[node], self.place[node] = getattr(self.graph, str(node.target)), None
            elif node.op == "call_function":
                self.call(node)
            else:
                (result,) = node.all_input_nodes
        output = self.value(result)
        flat = [c.detach().reshape(-1).numpy().astype("<f4") for c in self.constants]
        return {
            "output": list(self.known[result].shape),
            "result": self._final(output),
            "constants": [list(c.shape) for c in self.constants],
            "numbers": base64.b64encode(np.concatenate(flat).tobytes() if flat else b"").decode(),
            "steps": [[op, shape, [*map(self._final, values)], *rest] for op, shape, values, *rest in self.steps],
        }

    def _final(self, number: int) -> int:
        """Constants count from -1 downwards while their number is not known."""
        return number + len(self.constants) if number >= 0 else -1 - number

    def step(self, name: str, result: Tensor, values: list[int], *options: Any) -> int:
        """Add a step and return its number."""
        self.steps.append([name, list(result.shape), values, *options])
        return len(self.steps) - 1

    def value(self, argument: Any) -> int:
        """The number of an argument of a node; what is no step becomes a constant."""
        if isinstance(argument, fx.Node) and self.place[argument] is not None:
            return int(self.place[argument])
        given = self.known[argument] if isinstance(argument, fx.Node) else argument
        found = torch.as_tensor(given, dtype=torch.float32)
        for i, c in enumerate(self.constants):
            if c.shape == found.shape and c.equal(found):
                return -1 - i
        self.constants.append(found.contiguous())
        return -len(self.constants)

    def call(self, node: fx.Node) -> None:
        """One node: computed at once where it can be, else a step."""
        function: Any = node.target
        if function is operator.getitem:
            source, index = node.args
            assert isinstance(source, fx.Node)
            place = self.place[source]
            self.known[node] = self.known[source][index]
            self.place[node] = place[index] if isinstance(place, list) else place
            return
        result = function(*map_arg(node.args, self.known.get), **map_arg(node.kwargs, self.known.get))
        name = function._schema.name.removeprefix("aten::")
        if name in FILL or all(self.place[n] is None for n in node.all_input_nodes):
            self.known[node], self.place[node] = result, None
            return
        first = node.args[0]
        if isinstance(first, fx.Node) and _is_view(result, self.known[first]):
            self.place[node] = self._views(first, result)
        else:
            self.place[node] = self._lower(name, list(node.args), result)
        # Results of steps are contiguous, so that strides can be read from the example.
        self.known[node] = map_aggregate(result, lambda t: t.contiguous() if isinstance(t, Tensor) else t)

    def _views(self, source: fx.Node, result: Any) -> Any:
        if isinstance(result, list | tuple):
            return [self._views(source, part) for part in result]
        whole = self.known[source]
        if result.is_contiguous() and result.numel() == whole.numel():
            return self.step("view", result, [self.value(source)])
        offset = result.storage_offset() - whole.storage_offset()
        return self.step("strided", result, [self.value(source)], list(result.stride()), offset)

    def _lower(self, name: str, args: Sequence[Any], result: Any) -> int:
        def given(*arguments: Any) -> list[int]:
            return [self.value(a) for a in arguments]

        if name in ELEMENTWISE:
            return self.step(name, result, given(*args))
        if name in REDUCE:
            rank = self.known[args[0]].dim()
            dims = args[1] if len(args) > 1 and args[1] else list(range(rank))
            return self.step(name, result, given(args[0]), sorted(d % rank for d in dims))
        match name:
            case "clone" | "_to_copy":
                return self.step("view", result, given(args[0]))
            case "mm" | "bmm":
                return self.step("matmul", result, given(*args))
            case "addmm" | "baddbmm":
                product = self.step("matmul", result, given(*args[1:]))
                return self.step("add", result, [*given(args[0]), product])
            case "native_layer_norm" if len(args[1]) == 1:
                x, _, weight, bias, eps = args
                return self.step("norm", result[0], given(x, weight, bias), eps)
            case "cat":
                return self.step("cat", result, given(*args[0]), (args[1] if len(args) > 1 else 0) % result.dim())
            case "stack":
                dim = (args[1] if len(args) > 1 else 0) % result.dim()
                parts = [self.step("view", self.known[a].unsqueeze(dim), given(a)) for a in args[0]]
                return self.step("cat", result, parts, dim)
            case "constant_pad_nd" if result.shape == self.known[args[0]].shape:
                return self.step("view", result, given(args[0]))
            case "masked_fill":
                x, mask, value = args
                return self.step("where", result, given(mask, value, x))
        raise ScaleGMNError(f"browser: expected a model of common operations, got one with {name}; leave it out")


def _is_view(result: Any, source: Any) -> bool:
    first = result[0] if isinstance(result, list | tuple) else result
    if not isinstance(first, Tensor) or not isinstance(source, Tensor):
        return False
    return first.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()
