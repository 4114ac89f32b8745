"""Bare state dicts: which entry is which parameter, without a module."""

import itertools
import re
from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn

from ..core.activations import Activation
from ..core.architecture import Architecture, Connection, Conv, Layer, Linear
from ..errors import ScaleGMNError
from .feedforward import default_layout
from .layout import Layout, Source

_ASK = "pass the module as `like` (on the command line --arch module:function)"


def infer(state: Mapping[str, Tensor], activation: Activation | None) -> Layout:
    """The layout of a multilayer perceptron that is given by its state dict alone.

    Its matrices must be in the right order in the file, each with its bias next to it; the output is linear.

    Arguments:
        state: A state dict.
        activation: Of the hidden layers; a state dict does not contain it.

    >>> import torch
    >>> state = {"a.weight": torch.zeros(8, 2), "a.bias": torch.zeros(8), "b.weight": torch.zeros(1, 8)}
    >>> print(infer(state, Activation("relu")).architecture)
    2-8-1 [relu]
    """
    keys = _ordered(state)
    maps = [k for k in keys if state[k].dim() > 2]
    if maps:
        raise ScaleGMNError(
            f"state dict: {maps[0]} is a convolution; its stride, padding and pooling are not in a state dict; {_ASK}"
        )
    sizes: list[int] = []
    biases: list[bool] = []
    for key in keys:
        shape = tuple(state[key].shape)
        if len(shape) == 2 and (not sizes or shape[1] == sizes[-1]):
            sizes = [*sizes, shape[0]] if sizes else [shape[1], shape[0]]
            biases.append(False)
        elif len(shape) == 1 and sizes and shape[0] == sizes[-1] and not biases[-1]:
            biases[-1] = True
        else:
            raise ScaleGMNError(
                f"state dict: {key} of shape {shape} does not continue a chain of linear layers "
                f"{'-'.join(map(str, sizes))}; {_ASK}{_parts(keys)}"
            )
    if not sizes:
        raise ScaleGMNError("state dict: expected weights of a network, found none")
    if activation is None and len(sizes) > 2:
        raise ScaleGMNError(
            "state dict: the activation is not in a state dict; give it as `activation` (on the command line "
            f"--activation, with --w0 for a sine), or {_ASK}"
        )
    if activation is not None and activation.learned_slope:
        raise ScaleGMNError(f"state dict: a chain with learned slopes (prelu) is ambiguous; {_ASK}")
    hidden = activation or Activation("identity")
    layers = [Layer(sizes[0], bias=False)]
    layers += [Layer(n, hidden, b) for n, b in zip(sizes[1:-1], biases[:-1], strict=True)]
    layers.append(Layer(sizes[-1], bias=biases[-1]))
    return match(state, Architecture(tuple(layers), tuple(Connection(i, i + 1) for i in range(len(sizes) - 1))))


def _parts(keys: list[str]) -> str:
    """The advice to read one of several networks, if names begin differently."""
    first = list(dict.fromkeys(k.partition(".")[0] for k in keys))
    if len(first) < 2 or all(name.isdigit() for name in first):
        return ""
    return f", or read a part of the file (--prefix {first[0]}; names begin with {', '.join(first[:6])})"


def match(state: Mapping[str, Tensor], architecture: Architecture) -> Layout:
    """The layout of a state dict of a known architecture, whose entries are in the order of its layers."""
    keys = _ordered(state)
    expected = default_layout(architecture).shapes
    if len(keys) != len(expected):
        raise ScaleGMNError(f"state dict: expected {len(expected)} tensors for {architecture}, got {len(keys)}; {_ASK}")
    for segment, key, (_, shape) in zip(architecture.segments, keys, expected, strict=True):
        if tuple(state[key].shape) != shape:
            raise ScaleGMNError(
                f"state dict: expected the {segment.kind} {shape} of {architecture}, got {key} "
                f"{tuple(state[key].shape)}; {_ASK}"
            )
    return Layout(
        architecture,
        tuple(Source(k) for k in keys),
        tuple((k, tuple(state[k].shape)) for k in keys),
    )


def resized(state: Mapping[str, Tensor], architecture: Architecture) -> Architecture | None:
    """The architecture with the sizes of a state dict: other widths and kernels, and in a chain also another depth.

    >>> import torch
    >>> state = {"a.weight": torch.zeros(5, 2), "a.bias": torch.zeros(5), "b.weight": torch.zeros(1, 5)}
    >>> print(resized(state | {"b.bias": torch.zeros(1)}, Architecture.mlp([2, 8, 1], "tanh")))
    2-5-1 [tanh]
    """
    keys = _ordered(state)
    segments = architecture.segments
    if [len(s.shape) == 1 for s in segments] != [state[k].dim() == 1 for k in keys]:
        return _other_depth(state, keys, architecture)
    layers, connections = list(architecture.layers), list(architecture.connections)
    for segment, shape in zip(segments, (tuple(state[k].shape) for k in keys), strict=True):
        if segment.kind == "weight" and len(shape) > 1:
            c = connections[segment.index]
            layers[c.target] = replace(layers[c.target], size=shape[0])
            if c.source == 0:
                layers[0] = replace(layers[0], size=shape[1] // (c.kernel_size if isinstance(c.map, Linear) else 1))
            if isinstance(c.map, Conv):
                connections[segment.index] = replace(c, map=replace(c.map, kernel=shape[2:]))
    try:
        found = Architecture(tuple(layers), tuple(connections))
        match(state, found)
    except ScaleGMNError:
        return None
    return found


def _other_depth(state: Mapping[str, Tensor], keys: list[str], architecture: Architecture) -> Architecture | None:
    """A chain with more or fewer linear layers than a known chain, all of the same kind."""
    first, *hidden, last = architecture.layers
    chain = architecture.connections == tuple(Connection(i, i + 1) for i in range(len(architecture.layers) - 1))
    if not chain or len({replace(layer, size=1) for layer in hidden}) != 1:
        return None
    sizes = [state[k].shape[0] for k in keys if state[k].dim() == 2]
    layers = [first, *(replace(hidden[0], size=n) for n in sizes[:-1]), last]
    found = Architecture(tuple(layers), tuple(Connection(i, i + 1) for i in range(len(sizes))))
    try:
        match(state, found)
    except ScaleGMNError:
        return None
    return found


def _ordered(state: Mapping[str, Tensor]) -> list[str]:
    """Floating-point entries in order; a bias follows the weights of the same module."""
    keys = [k for k, t in state.items() if t.is_floating_point()]
    statistics = [k for k in keys if k.endswith(("running_mean", "running_var"))]
    if statistics:
        raise ScaleGMNError(f"state dict: {statistics[0]} belongs to a BatchNorm; {_ASK}")
    modules: dict[str, list[str]] = {}
    for k in keys:
        module, _, name = k.rpartition(".")
        # A name without a module, and an entry of a list, stand for themselves.
        modules.setdefault(k if name.isdigit() or not module else module, []).append(k)
    return [k for m in modules.values() for k in sorted(m, key=lambda k: _rank(k, state[k].dim()))]


def _rank(key: str, dim: int) -> tuple[int, int]:
    """The place of an entry in its module: matrices, then gains, bias, slope."""
    return -dim, {"bias": 1, "slope": 2}.get(key.rpartition(".")[2], 0)


class Unordered(dict[str, Tensor]):
    """A state dict from a file that keeps no order: sorted by name, with numbers compared as numbers."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        super().__init__((k, state[k]) for k in sorted(state, key=natural))


class Described(dict[str, Tensor]):
    """A state dict from a file that also says how the network computes.

    Arguments:
        state: Names and tensors.
        module: A module with these names; its own weights do not matter.
    """

    def __init__(self, state: Mapping[str, Tensor], module: nn.Module) -> None:
        super().__init__(state)
        self.module = module


def check_order(layout: Layout, *, circular: bool) -> None:
    """Refuse a file without order whose entries are told apart by words alone, such as `first` and `second`.

    Arguments:
        layout: How the file was read.
        circular: Whether entries of different shapes could be swapped as well, as in a chain that ends with the
            size with which it began.
    """
    for (a, shape), (b, other) in itertools.combinations(layout.shapes, 2):
        if (shape == other or circular) and _told_by_words((a, len(shape)), (b, len(other))):
            raise ScaleGMNError(
                f"state dict: safetensors keeps no order, and the names {a} and {b} do not tell which comes first; "
                f"{_ASK}"
            )


def _told_by_words(a: tuple[str, int], b: tuple[str, int]) -> bool:
    """Whether neither a number in the names nor the kind of parameter decides which of two entries comes first."""
    if a[0].rpartition(".")[0] == b[0].rpartition(".")[0] and _rank(*a) != _rank(*b):
        return False
    parts = zip(natural(a[0]), natural(b[0]), strict=False)
    differ = next(((p, q) for p, q in parts if p != q), None)
    return differ is None or not all(isinstance(p[1], int) for p in differ)


def natural(key: str) -> tuple[tuple[int, int | str], ...]:
    """A sort key under which net.2 comes before net.10.

    >>> sorted(["net.10", "net.2"], key=natural)
    ['net.2', 'net.10']
    """
    return tuple((0, int(p)) if p.isdigit() else (1, p) for p in re.split(r"(\d+)", key) if p)
