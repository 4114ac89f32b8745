"""Tracing a user's module into an architecture, by torch.fx (Reed et al., MLSys 2022)."""

import copy
import inspect
import operator
from dataclasses import replace

import torch
from torch import Tensor, fx, nn
from torch.nn.parameter import is_lazy

from ...core.architecture import Architecture
from ...errors import ScaleGMNError
from ..calls.call import Call, Constant, Parameter, Size
from ..calls.functions import call_function, call_method
from ..calls.modules import call_module
from ..feedforward import Feedforward, default_layout
from ..formats.onnx.module import OnnxModule
from ..layout import Fold, Layout, Source
from .by_hand import join_norms
from .graph import Builder
from .in_place import Tracer, asks_shape, check_in_place
from .plain import materialised
from .value import UnknownSizeError, UnsupportedError, Value

SUPPORTED = (
    "linear layers, convolutions, activations, additions, products, concatenation, pooling, padding, normalisations, "
    "embeddings and self-attention (docs/networks.md)"
)


# The most input neurons that are tried where no layer tells their number in time.
_LARGEST_GUESS = 256


class Interpreter:
    """Walks a traced graph and feeds its operations to a `Builder`."""

    def __init__(self, root: nn.Module, graph: fx.Graph, input_size: int | None = None) -> None:
        self.root = root
        self.graph = graph
        self.builder = Builder(input_size)
        if isinstance(root, OnnxModule) and len(root.graph.shape) > 2:
            self.builder.input_dims = len(root.graph.shape) - 2
        self.state = root.state_dict(keep_vars=True)
        self.used: dict[int, str] = {}
        self.constants: set[str] = set()
        self.found: dict[fx.Node, object] = {}

    def run(self) -> tuple[Architecture, tuple[Source | Fold, ...]]:
        """The architecture, and where each of its segments comes from."""
        for node in self.graph.nodes:
            try:
                if node.op == "output":
                    return self._finish(node)
                found = self._visit(node)
            except UnknownSizeError:
                raise
            except UnsupportedError as error:
                raise ScaleGMNError(f"{self._where(node)}: {error}; supported are {SUPPORTED}") from None
            except ScaleGMNError as error:
                raise ScaleGMNError(f"{self._where(node)}: {error}") from None
            if isinstance(found, Size) and found.index is None:
                found = replace(found, rank=_unpacked(node))
            if isinstance(found, Value) and _readers(node) > 1:
                found = self.builder.closed(found)
            self.found[node] = found
        raise AssertionError("a traced graph has an output")

    def use(self, source: Source) -> Source:
        """Remember that a parameter is used, under its first name if it has several."""
        key = self.used.setdefault(id(self.state[source.key]), source.key)
        return replace(source, key=key)

    def _finish(self, node: fx.Node) -> tuple[Architecture, tuple[Source | Fold, ...]]:
        value = self._operand(node.args[0])
        if not isinstance(value, Value):
            raise ScaleGMNError("output: expected forward to return one tensor; wrap the module so that it does")
        return self.builder.finish(value)

    def _visit(self, node: fx.Node) -> object:
        target = node.target
        if node.op == "placeholder":
            return self.builder.start() if not self.found else None
        if node.op == "get_attr":
            return self._attribute(str(target))
        args = tuple(self._operand(a) for a in node.args)
        kwargs = {k: self._operand(a) for k, a in node.kwargs.items()}
        if node.op == "call_module":
            module = self.root.get_submodule(str(target))
            return call_module(self._call(type(module).__name__, args, kwargs), module, str(target))
        name = target if isinstance(target, str) else getattr(target, "__name__", repr(target))
        call = self._call(name, args, kwargs)
        return call_method(call) if isinstance(target, str) else call_function(call, target)

    def _call(self, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Call:
        if not args and "input" in kwargs:
            args = (kwargs["input"],)
        precision = next((p.dtype for p in self.root.parameters() if p.is_floating_point()), torch.float32)
        return Call(self.builder, name, args, kwargs, self.use, self.constants, torch.finfo(precision).eps)

    def _operand(self, a: object) -> object:
        if isinstance(a, fx.Node):
            return self.found[a]
        if isinstance(a, tuple | list):
            return tuple(self._operand(i) for i in a)
        if isinstance(a, slice):
            return slice(*(self._operand(i) for i in (a.start, a.stop, a.step)))
        return a

    def _attribute(self, target: str) -> Parameter | Constant:
        found: object = self.root
        for name in target.split("."):
            found = getattr(found, name)
        assert isinstance(found, Tensor)
        if isinstance(found, nn.Parameter) and target in self.state:
            if not found.requires_grad and not found.dtype.is_floating_point:
                return Constant(target, found)
            return Parameter(Source(target), tuple(found.shape))
        if found.requires_grad:
            raise ScaleGMNError("a tensor computed from parameters is not supported; use the parameters themselves")
        return Constant(target, found)

    def _where(self, node: fx.Node) -> str:
        """The path of the module that contains a node."""
        if node.op == "call_module":
            module = self.root.get_submodule(str(node.target))
            return f"{node.target} ({type(module).__name__})"
        stack = node.meta.get("nn_module_stack") or {}
        path = list(stack)[-1] if stack else ""
        inside = type(self.root.get_submodule(path)).__name__ if path in dict(self.root.named_modules()) else ""
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "?")
        return f"{path or 'forward'} ({inside or type(self.root).__name__}), {name}"


def trace(module: nn.Module) -> tuple[Architecture, Layout]:
    """The architecture of a module in evaluation mode, and where its parameters are in the state dict.

    Arguments:
        module: Any module whose `forward` torch.fx can trace. It is not changed.

    >>> architecture, layout = trace(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)))
    >>> print(architecture, [key for key, _ in layout.shapes])
    2-8-1 [tanh] ['0.weight', '0.bias', '2.weight', '2.bias']
    """
    if isinstance(module, Feedforward):
        return module.architecture, default_layout(module.architecture)
    module = materialised(module)
    check_module(module)
    template = _copied(module)
    # The copy is what is traced: torch.fx leaves attributes on its root, and modes differ in training.
    root = copy.deepcopy(template).eval()
    interpreter, (architecture, entries) = _interpreted(root, _graph(root))
    state = template.state_dict()
    used = set(interpreter.used.values())
    by_tensor = {id(t): k for k, t in interpreter.state.items() if k in used}
    aliases = tuple((k, by_tensor[id(t)]) for k, t in interpreter.state.items() if id(t) in by_tensor and k not in used)
    layout = Layout(
        architecture,
        entries,
        tuple((k, tuple(t.shape)) for k, t in state.items()),
        aliases,
        tuple((k, tuple(t.flatten().tolist())) for k, t in state.items() if k in interpreter.constants),
        template,
    )
    return architecture, layout


def _interpreted(
    root: nn.Module, graph: fx.Graph
) -> tuple[Interpreter, tuple[Architecture, tuple[Source | Fold, ...]]]:
    """Run the interpreter; if the number of inputs is needed before a layer determines it, try the likely ones."""
    try:
        interpreter = Interpreter(root, graph)
        return interpreter, interpreter.run()
    except UnknownSizeError as error:
        for size in range(1, _LARGEST_GUESS + 1):
            interpreter = Interpreter(root, graph, size)
            try:
                return interpreter, interpreter.run()
            except ScaleGMNError:
                continue
        raise ScaleGMNError(f"forward ({type(root).__name__}): {error}; supported are {SUPPORTED}") from None


def _unpacked(node: fx.Node) -> int | None:
    """The number of entries into which a shape is unpacked."""
    indices = [user.args[1] for user in node.users if user.target is operator.getitem]
    whole = [i for i in indices if isinstance(i, int)]
    return len(set(whole)) if len(set(whole)) > 2 and set(whole) == set(range(len(set(whole)))) else None


def _readers(node: fx.Node) -> int:
    """How many operations read the values of a node; one that reads them twice counts twice."""
    return sum(
        sum(a is node for a in (*user.args, *user.kwargs.values())) if user.op == "call_module" else 1
        for user in node.users
        if not asks_shape(user)
    )


def _copied(module: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(module).cpu()
    except Exception as error:
        # What a copy raises is up to the person's own attributes.
        raise ScaleGMNError(
            f"{type(module).__name__}: cannot be copied ({_reason(error)}); remove the attribute that cannot"
        ) from error


def _reason(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _graph(root: nn.Module) -> fx.Graph:
    try:
        rest = list(inspect.signature(root.forward).parameters.values())[1:]
        optional = {p.name: p.default for p in rest if p.default is not inspect.Parameter.empty}
        graph = Tracer().trace(root, concrete_args=optional or None)
    except ScaleGMNError:
        raise
    except Exception as error:
        # Whatever a person's forward raises on symbolic values, the cause is that it cannot be traced.
        raise ScaleGMNError(
            f"{type(root).__name__}: torch.fx cannot trace its forward ({_reason(error)}); forward must not depend on "
            "the values or shapes of its input"
        ) from error
    check_in_place(root, graph)
    join_norms(graph)
    for node in reversed(list(graph.nodes)):
        if not node.users and node.op not in ("placeholder", "output"):
            graph.erase_node(node)
    return graph


def check_module(module: object) -> None:
    """Refuse what is not a module, or a module that can neither be copied nor traced."""
    if not isinstance(module, nn.Module):
        got = f"the class {module.__name__}" if isinstance(module, type) else type(module).__name__
        raise ScaleGMNError(f"module: expected an nn.Module (as `like` also an Architecture), got {got}")
    for path, m in module.named_modules():
        where = path or type(module).__name__
        if isinstance(m, torch.jit.ScriptModule):
            raise ScaleGMNError(f"{where}: a scripted module is not supported; give the module it was made from")
        for name, tensor in (*m._parameters.items(), *m._buffers.items()):
            if is_lazy(tensor) or (tensor is not None and tensor.is_meta):
                raise ScaleGMNError(f"{where}: expected a {name} with values, got a lazy or meta one; initialise it")
        if m._forward_hooks or m._forward_pre_hooks:
            raise ScaleGMNError(
                f"{where}: forward hooks are not supported; remove them first"
            )
