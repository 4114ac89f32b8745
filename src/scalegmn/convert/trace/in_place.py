"""In-place operations, which change what other names of the same memory refer to."""

import dis
import inspect
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from ...errors import ScaleGMNError

_IN_PLACE = (operator.iadd, operator.isub, operator.imul, operator.itruediv)
_VIEW_MODULES = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Flatten)
_VIEW_FUNCTIONS = (
    F.dropout, F.dropout1d, F.dropout2d, torch.flatten, torch.reshape, torch.squeeze, torch.detach,
    operator.getitem, getattr,
)  # fmt: skip
_VIEW_METHODS = ("view", "reshape", "flatten", "squeeze", "contiguous", "to", "float", "double", "detach")


class _Proxy(fx.Proxy):
    def __iadd__(self, other: object) -> fx.Proxy:
        return self._record(operator.iadd, other)

    def __isub__(self, other: object) -> fx.Proxy:
        return self._record(operator.isub, other)

    def __imul__(self, other: object) -> fx.Proxy:
        return self._record(operator.imul, other)

    def __itruediv__(self, other: object) -> fx.Proxy:
        return self._record(operator.itruediv, other)

    def _record(self, function: Callable[[Any, Any], Any], other: object) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", function, (self, other), {})


class Tracer(fx.Tracer):
    """A tracer that records `z += y` as an in-place operation; torch's own records `z = z + y`."""

    # Buffers are operands like parameters, so that a mask may be cut to the length of the input.
    proxy_buffer_attributes = True

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Assertions about symbolic values, such as their shape, are taken as true."""
        frame = inspect.currentframe()
        while frame is not None and frame.f_globals.get("__name__", "").startswith(("torch.", __name__)):
            frame = frame.f_back
        if frame is not None:
            after = [i.opname for i in dis.get_instructions(frame.f_code) if i.offset > frame.f_lasti]
            if "LOAD_ASSERTION_ERROR" in after[:2]:
                return True
        found: bool = super().to_bool(obj)
        return found

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """The proxy for the value of a node."""
        return _Proxy(node, self)


def check_in_place(root: nn.Module, graph: fx.Graph) -> None:
    """Refuse an in-place operation whose memory is read again, which a graph of values cannot express.

    Arguments:
        root: The module in evaluation mode.
        graph: Its traced forward.
    """
    memory: dict[fx.Node, fx.Node] = {}
    order = {node: i for i, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        operand = _operand(node)
        in_place = _works_in_place(root, node)
        shared = in_place or _is_view(root, node)
        memory[node] = memory[operand] if operand is not None and shared else node
        if not in_place:
            continue
        names = [n for n, m in memory.items() if m is memory[node] and n is not node]
        read = any(order[user] > order[node] and not asks_shape(user) for n in names for user in n.users)
        if read or memory[node].op == "get_attr":
            raise ScaleGMNError(
                f"forward: {node.name} works in place on a tensor that is read again later; use the version "
                "that returns a new tensor"
            )


def asks_shape(node: fx.Node) -> bool:
    """Whether a node only looks at a tensor's shape."""
    if node.op == "call_method":
        return node.target in ("size", "dim")
    return node.op == "call_function" and node.target is getattr and node.args[1] in ("shape", "ndim")


def _operand(node: fx.Node) -> fx.Node | None:
    found = node.kwargs.get("out", node.args[0] if node.args else node.kwargs.get("input"))
    return found if isinstance(found, fx.Node) else None


def _works_in_place(root: nn.Module, node: fx.Node) -> bool:
    if node.op == "call_module":
        return bool(root.get_submodule(str(node.target)).__dict__.get("inplace", False))
    if not node.op.startswith("call"):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    named = name.endswith("_") and not name.endswith("__")
    return named or node.target in _IN_PLACE or "out" in node.kwargs or bool(node.kwargs.get("inplace"))


def _is_view(root: nn.Module, node: fx.Node) -> bool:
    """Whether the result may share the memory of the operand."""
    if node.op == "call_module":
        return isinstance(root.get_submodule(str(node.target)), _VIEW_MODULES)
    names = _VIEW_METHODS if node.op == "call_method" else _VIEW_FUNCTIONS
    return node.target in names and not asks_shape(node)
