"""Functions of tensors as programs that a browser can run.

A function is run once while its ATen operations are recorded, and each becomes one of a dozen operations of our own,
which `programs.js` carries out in double precision. Whatever does not depend on the argument is a constant; operations
that only move entries (transpose, slice, expand, ...) become one operation that reads with strides. So any model made
of common operations can run on a page, and what the page shows is the model itself.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import ScaleGMNError
from ..native import library

# fmt: off
ELEMENTWISE = frozenset([
    "neg", "abs", "sin", "cos", "tanh", "sigmoid", "silu", "relu", "exp", "log", "sqrt", "rsqrt", "square", "asinh",
    "reciprocal", "add", "sub", "mul", "div", "pow", "lt", "maximum", "where",
])
# fmt: on
REDUCE = frozenset(["sum", "mean", "amax"])
# Their results depend on the shape of the argument alone.
FILL = frozenset(["new_full", "new_zeros", "new_ones", "full_like", "zeros_like", "ones_like"])


def program(function: Callable[[Tensor], Tensor], example: Tensor) -> dict[str, Any]:
    """A function of one tensor as data for `programs.js`.

    Arguments:
        function: Made of torch operations, without branches that depend on values.
        example: An argument; the program takes arguments of this shape only.

    Returns:
        The shape of the `output`, the shapes of the `constants` and their `numbers` (base64 of float32, one after the
        other), the `steps`, each [operation, shape of the result, values, options...], and the value that is the
        `result`. Values are numbered: first constants, from 0 on, then steps.

    >>> found = program(lambda x: (2 * x.T).sum(0), torch.ones(2, 3))
    >>> [step[0] for step in found["steps"]], found["output"]
    (['input', 'strided', 'mul', 'sum'], [2])
    """
    watch = _Watch(example.contiguous())
    with torch.no_grad(), library.disabled(), watch:
        result = function(watch.example)
    return watch.program(result)


class _Watch(TorchDispatchMode):
    """Records the operations that depend on one tensor.

    Arguments:
        example: The tensor.
    """

    def __init__(self, example: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.example = example
        self.constants: list[Tensor] = []
        self.steps: list[list[Any]] = []
        # Which step made a tensor. Tensors are kept, since the id of one that is gone may be given to another.
        self.made: dict[int, tuple[int, Tensor]] = {}
        self._keep(example, self._step("input", example, []))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if name in FILL or not any(map(self._depends, args)):
            return result
        view = _is_view(result, args[0])
        if isinstance(result, Tensor):
            return self._keep(result, self._view(args[0], result) if view else self._lower(name, args, result))
        if view:
            return [self._keep(part, self._view(args[0], part)) for part in result]
        return self._keep(result[0], self._lower(name, args, result[0])), *result[1:]

    def program(self, result: Tensor) -> dict[str, Any]:
        """The recorded program, without steps that the result does not need."""
        last = self._value(result)
        needed = {last}
        for i in range(len(self.steps) - 1, -1, -1):
            if i in needed:
                needed.update(self.steps[i][2])
        constants, steps = sorted(-1 - n for n in needed if n < 0), sorted(n for n in needed if n >= 0)
        final = {-1 - c: i for i, c in enumerate(constants)} | {s: len(constants) + i for i, s in enumerate(steps)}
        kept = [self.constants[c] for c in constants]
        flat = np.concatenate([np.zeros(0, "<f4"), *(c.reshape(-1).numpy().astype("<f4") for c in kept)])
        return {
            "output": list(result.shape),
            "result": final[last],
            "constants": [list(c.shape) for c in kept],
            "numbers": base64.b64encode(flat.astype("<f4").tobytes()).decode(),
            "steps": [
                [op, shape, [final[v] for v in values], *options]
                for op, shape, values, *options in map(self.steps.__getitem__, steps)
            ],
        }

    def _depends(self, argument: Any) -> bool:
        if isinstance(argument, list | tuple):
            return any(map(self._depends, argument))
        return isinstance(argument, Tensor) and id(argument) in self.made

    def _keep(self, result: Tensor, number: int) -> Tensor:
        """Record which step made a tensor; results are contiguous, so that strides can be read from the next view."""
        result = result.contiguous()
        self.made[id(result)] = number, result
        return result

    def _step(self, name: str, result: Tensor, values: list[int], *options: Any) -> int:
        self.steps.append([name, list(result.shape), values, *options])
        return len(self.steps) - 1

    def _value(self, argument: Any) -> int:
        """The number of an argument: of a step from 0 on, of a constant from -1 downwards."""
        if id(argument) in self.made:
            return self.made[id(argument)][0]
        found = torch.as_tensor(argument, dtype=torch.float32).detach()
        for i, c in enumerate(self.constants):
            if c.shape == found.shape and c.equal(found):
                return -1 - i
        self.constants.append(found.contiguous())
        return -len(self.constants)

    def _view(self, source: Tensor, result: Tensor) -> int:
        if result.is_contiguous() and result.numel() == source.numel():
            return self._step("view", result, [self._value(source)])
        offset = int(result.storage_offset() - source.storage_offset())
        return self._step("strided", result, [self._value(source)], list(result.stride()), offset)

    def _lower(self, name: str, args: Sequence[Any], result: Tensor) -> int:
        def given(*arguments: Any) -> list[int]:
            return [self._value(a) for a in arguments]

        if name in ELEMENTWISE:
            return self._step(name, result, given(*args))
        if name in REDUCE:
            rank = args[0].dim()
            dims = args[1] if len(args) > 1 and args[1] else range(rank)
            return self._step(name, result, given(args[0]), sorted(d % rank for d in dims))
        match name:
            case "clone" | "_to_copy":
                return self._step("view", result, given(args[0]))
            case "mm" | "bmm":
                return self._step("matmul", result, given(*args))
            case "addmm" | "baddbmm":
                product = self._step("matmul", result, given(*args[1:]))
                return self._step("add", result, [*given(args[0]), product])
            case "native_layer_norm" if len(args[1]) == 1:
                x, shape, weight, bias, eps = args
                weight = torch.ones(shape) if weight is None else weight
                bias = torch.zeros(shape) if bias is None else bias
                return self._step("norm", result, given(x, weight, bias), eps)
            case "cat":
                return self._step("cat", result, given(*args[0]), (args[1] if len(args) > 1 else 0) % result.dim())
            case "stack":
                dim = (args[1] if len(args) > 1 else 0) % result.dim()
                parts = [self._step("view", a.unsqueeze(dim), given(a)) for a in args[0]]
                return self._step("cat", result, parts, dim)
            case "constant_pad_nd" if result.shape == args[0].shape:
                return self._step("view", result, given(args[0]))
            case "masked_fill":
                x, mask, value = args
                return self._step("where", result, given(mask, value, x))
        raise ScaleGMNError(f"browser: expected a model of common operations, got one with {name}; leave it out")


def _is_view(result: Any, source: Any) -> bool:
    first = result[0] if isinstance(result, list | tuple) else result
    if not isinstance(first, Tensor) or not isinstance(source, Tensor):
        return False
    return first.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()
