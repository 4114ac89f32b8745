"""Architectures: frozen graphs of neuron layers that know their own symmetries.

A network is a DAG. Its nodes are *neuron layers* (a linear neuron or a channel each), its edges are *connections*.
Layer t computes, from the post-activations x_s of its sources,

    z_t = sum over connections of  gain * W (pooled x_s)  +  b_t,        x_t = sigma_t(z_t).

Roles, permutation slots and scaling groups follow from the graph and are never passed as flags.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from ..errors import ScaleGMNError
from .activations import Activation, Phi, activation
from .groups import Group, PositiveScale, Sign, Trivial
from .html import html_table

Role = Literal["input", "hidden", "output"]


@dataclass(frozen=True)
class Linear:
    """A matrix. After a flatten, `positions` is the spatial shape that lies on each edge."""

    positions: tuple[int, ...] = ()

    @property
    def kernel(self) -> tuple[int, ...]:
        """The shape of the weights on one edge."""
        return self.positions


@dataclass(frozen=True)
class Conv:
    """A convolution in one or two dimensions, groups = 1."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


@dataclass(frozen=True)
class Skip:
    """A residual connection: neuron i adds to neuron i, with no parameters."""


@dataclass(frozen=True)
class Normalise:
    """LayerNorm over the neurons, then one learned gain per neuron (its shift is the target's bias)."""

    eps: float = 1e-5


@dataclass(frozen=True)
class Pool:
    """Pooling of the source's maps before the map of a connection.

    Arguments:
        kind: `avg` and `max` slide a window; `adaptive_avg` gives maps of shape `size`; `global_avg` and
            `global_max` remove the spatial dimensions.
        size, stride, padding: Of the window.
    """

    kind: Literal["avg", "max", "adaptive_avg", "global_avg", "global_max"]
    size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()

    @property
    def is_max(self) -> bool:
        """Whether it takes a maximum, which commutes with positive factors only."""
        return self.kind in ("max", "global_max")


Map = Linear | Conv | Skip | Normalise


@dataclass(frozen=True)
class Layer:
    """A layer of neurons (or channels).

    Arguments:
        size: Number of neurons.
        activation: Applied to the pre-activation.
        bias: Whether it has a bias.
        offset: A fixed number added after the activation, as the +0.5 of some implicit representations.
    """

    size: int
    activation: Activation = field(default_factory=lambda: Activation("identity"))
    bias: bool = True
    offset: float = 0.0


@dataclass(frozen=True)
class Connection:
    """A connection from layer `source` to layer `target`.

    Arguments:
        source, target: Positions in `Architecture.layers`.
        map: What it does.
        pools: Pooling of the source's maps beforehand.
        gain: A fixed factor on the weights, as in sin(w0 W x + b).
    """

    source: int
    target: int
    map: Map = field(default_factory=Linear)
    pools: tuple[Pool, ...] = ()
    gain: float = 1.0

    @property
    def dense(self) -> bool:
        """Whether every neuron of the source meets every neuron of the target."""
        return isinstance(self.map, Linear | Conv)

    @property
    def kernel_size(self) -> int:
        """Number of weights on one edge."""
        return math.prod(self.map.kernel) if isinstance(self.map, Linear | Conv) else 1


@dataclass(frozen=True)
class Segment:
    """Where one tensor lies in a network's flat parameter vector."""

    kind: Literal["weight", "bias", "slope"]
    index: int
    start: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of parameters."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Architecture:
    """A feed-forward network without its weights.

    Layers stand in topological order: the first is the input, the last the output.

    Arguments:
        layers: The neuron layers.
        connections: The connections, sorted by target.

    >>> siren = Architecture.mlp([2, 32, 32, 1], activation("sine", 30.0))
    >>> siren.groups
    (Trivial, Sign, Sign, Trivial)
    >>> siren.parameters
    1185
    """

    layers: tuple[Layer, ...]
    connections: tuple[Connection, ...]

    def __post_init__(self) -> None:
        if len(self.layers) < 2:
            raise ScaleGMNError(f"architecture: expected at least 2 layers, got {len(self.layers)}")
        for c in self.connections:
            if not 0 <= c.source < c.target < len(self.layers):
                raise ScaleGMNError(
                    f"architecture: connection {c.source} -> {c.target} must run forward between "
                    f"{len(self.layers)} layers"
                )
            if not c.dense and self.layers[c.source].size != self.layers[c.target].size:
                raise ScaleGMNError(
                    f"architecture: elementwise connection {c.source} -> {c.target} needs equal sizes, got "
                    f"{self.layers[c.source].size} and {self.layers[c.target].size}"
                )
            if c.kernel_size < 1:
                raise ScaleGMNError(
                    f"architecture: connection {c.source} -> {c.target} needs at least one weight per edge, got {c.map}"
                )
        for i, layer in enumerate(self.layers):
            if layer.size < 1:
                raise ScaleGMNError(f"architecture: layer {i} needs at least one neuron, got {layer.size}")
            if i and not self.incoming[i]:
                raise ScaleGMNError(f"architecture: layer {i} has no incoming connection")
        if sorted(self.connections, key=lambda c: c.target) != list(self.connections):
            raise ScaleGMNError("architecture: connections must be sorted by target")

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.layers, self.connections))

    def __reduce__(self) -> tuple[object, ...]:
        # What is cached stays here: hashes of names differ from process to process.
        return Architecture, (self.layers, self.connections)

    def __str__(self) -> str:
        sizes = "-".join(str(layer.size) for layer in self.layers)
        hidden = dict.fromkeys(str(layer.activation) for layer in self.layers[1:-1])
        return f"{sizes} [{', '.join(hidden) or 'linear'}]"

    def _repr_html_(self) -> str:
        """For notebooks: one row per layer."""
        rows = {
            f"{i} {self.roles[i]}": f"{layer.size} neurons, {layer.activation}, {self.groups[i].name}"
            for i, layer in enumerate(self.layers)
        }
        return html_table(f"{self}, {self.parameters:,} parameters", rows)

    def beside(self, other: Architecture) -> str:
        """Both in words, with what tells them apart where they read the same.

        >>> Architecture.mlp([2, 1]).beside(Architecture.mlp([2, 3]))
        '2-1 [linear] and 2-3 [linear]'
        >>> Architecture.mlp([2, 1]).beside(Architecture.mlp([2, 1], bias=False))
        '2-1 [linear] and 2-1 [linear]; layer 1 has bias True and False'
        """
        told = f"{self} and {other}"
        if str(self) != str(other):
            return told
        layers = [(f"layer {i}", *pair) for i, pair in enumerate(zip(self.layers, other.layers, strict=True))]
        both = zip(self.connections, other.connections, strict=False)
        connections = [(f"connection {i}", *pair) for i, pair in enumerate(both)]
        found = [
            f"{where} has {name} {value} and {vars(another)[name]}"
            for where, one, another in [*layers, *connections]
            for name, value in vars(one).items()
            if value != vars(another)[name]
        ]
        return f"{told}; {[*found, 'one has more connections'][0]}"

    # -- graph -------------------------------------------------------------------------------------------------

    @cached_property
    def incoming(self) -> tuple[tuple[int, ...], ...]:
        """For every layer, the indices of the connections that end in it."""
        ends = [c.target for c in self.connections]
        return tuple(tuple(i for i, end in enumerate(ends) if end == n) for n in range(len(self.layers)))

    @cached_property
    def outgoing(self) -> tuple[tuple[int, ...], ...]:
        """For every layer, the indices of the connections that start in it."""
        ends = [c.source for c in self.connections]
        return tuple(tuple(i for i, end in enumerate(ends) if end == n) for n in range(len(self.layers)))

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        """The role of every layer."""
        hidden: list[Role] = ["hidden"] * (len(self.layers) - 2)
        return ("input", *hidden, "output")

    @property
    def spatial(self) -> bool:
        """Whether its input is an image or a signal (it begins with a convolution)."""
        return any(isinstance(c.map, Conv) or c.pools for c in self.connections)

    # -- symmetry ----------------------------------------------------------------------------------------------

    @cached_property
    def slots(self) -> tuple[int | None, ...]:
        """The permutation slot of every layer; tied layers share one, layers that may not move have None."""
        return _classes(self, [c for c in self.connections if not c.dense])

    @cached_property
    def scale_slots(self) -> tuple[int | None, ...]:
        """The scaling slot of every layer; layers tied by a residual addition share one."""
        return _classes(self, [c for c in self.connections if isinstance(c.map, Skip)])

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The scaling group of every layer's neurons: what remains of its activation's group in this graph."""
        own = [_own_group(self, i) for i in range(len(self.layers))]
        shared: dict[int, Group] = {}
        for slot, g in zip(self.scale_slots, own, strict=True):
            if slot is not None:
                shared[slot] = shared.get(slot, g) & g
        return tuple(Trivial if slot is None else shared[slot] for slot in self.scale_slots)

    @cached_property
    def phis(self) -> tuple[Phi, ...]:
        """For every layer, the map from the pre-activation's multiplier to the post-activation's."""
        return tuple(layer.activation.phi for layer in self.layers)

    # -- parameters --------------------------------------------------------------------------------------------

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The layout of the flat parameter vector: per layer its incoming weights, its bias, its slope."""
        found: list[Segment] = []
        start = 0

        def add(kind: Literal["weight", "bias", "slope"], index: int, *shape: int) -> None:
            nonlocal start
            found.append(Segment(kind, index, start, shape))
            start += math.prod(shape)

        for i, layer in enumerate(self.layers):
            for c in self.incoming[i]:
                connection = self.connections[c]
                if connection.dense:
                    add("weight", c, layer.size, self.layers[connection.source].size, connection.kernel_size)
                elif isinstance(connection.map, Normalise):
                    add("weight", c, layer.size)
            if i and layer.bias:
                add("bias", i, layer.size)
            if layer.activation.learned_slope:
                add("slope", i, 1)
        return tuple(found)

    @cached_property
    def parameters(self) -> int:
        """Number of parameters of one network."""
        return sum(s.size for s in self.segments)

    # -- construction ------------------------------------------------------------------------------------------

    @staticmethod
    def mlp(
        sizes: Sequence[int],
        hidden: str | Activation | Iterable[str | Activation] = "relu",
        output: str | Activation = "identity",
        *,
        bias: bool = True,
    ) -> Architecture:
        """A multilayer perceptron.

        Arguments:
            sizes: Neurons of each layer, input and output included.
            hidden: The activation of the hidden layers, or one for each.
            output: The activation of the output layer.
            bias: Whether layers have biases.
        """
        if len(sizes) < 2:
            raise ScaleGMNError(f"sizes: expected those of input and output at least, got {list(sizes)}")
        acts = _hidden_activations(hidden, len(sizes) - 2)
        layers = [Layer(sizes[0], bias=False)]
        layers += [Layer(n, a, bias) for n, a in zip(sizes[1:-1], acts, strict=True)]
        layers += [Layer(sizes[-1], activation(output), bias)]
        connections = [Connection(i, i + 1) for i in range(len(sizes) - 1)]
        return Architecture(tuple(layers), tuple(connections))

    @staticmethod
    def cnn(
        channels: Sequence[int],
        classes: int,
        hidden: str | Activation | Iterable[str | Activation] = "relu",
        *,
        kernel: int = 3,
        stride: int = 1,
        padding: int = 0,
        positions: tuple[int, int] | None = None,
    ) -> Architecture:
        """Convolutions, then global average pooling (or a flatten) and a linear layer.

        Arguments:
            channels: Channels of each convolutional layer, input included.
            classes: Output neurons.
            hidden: The activation of the convolutions, or one for each.
            kernel, stride, padding: Of every convolution.
            positions: Height and width of the last maps: if given they are flattened instead of averaged.
        """
        if not channels:
            raise ScaleGMNError("channels: expected those of the input at least, got none")
        acts = _hidden_activations(hidden, len(channels) - 1)
        layers = [Layer(channels[0], bias=False)]
        layers += [Layer(n, a) for n, a in zip(channels[1:], acts, strict=True)]
        conv = Conv((kernel, kernel), (stride, stride), (padding, padding), (1, 1))
        connections = [Connection(i, i + 1, conv) for i in range(len(channels) - 1)]
        last = len(channels) - 1
        if positions is None:
            connections.append(Connection(last, last + 1, pools=(Pool("global_avg"),)))
        else:
            connections.append(Connection(last, last + 1, Linear(tuple(positions))))
        return Architecture((*layers, Layer(classes)), tuple(connections))


def _hidden_activations(
    hidden: str | Activation | Iterable[str | Activation], count: int
) -> list[Activation]:
    if isinstance(hidden, str | Activation):
        return [activation(hidden)] * count
    acts = [activation(a) for a in hidden]
    if len(acts) != count:
        raise ScaleGMNError(f"hidden: expected {count} activation(s), one per hidden layer, got {len(acts)}")
    return acts


def _classes(architecture: Architecture, ties: Sequence[Connection]) -> tuple[int | None, ...]:
    """Number the classes of layers joined by `ties`; a class with the input or the output gets None."""
    parent = list(range(len(architecture.layers)))

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    for c in ties:
        parent[root(c.target)] = root(c.source)
    fixed = {root(0), root(len(parent) - 1)}
    # A layer that may not be permuted may still sit in a scaling class of its own, but then it is fixed as well.
    pinned = {root(i) for i, c in enumerate(_permutation_pins(architecture)) if c}
    numbers: dict[int, int] = {}
    result: list[int | None] = []
    for i in range(len(parent)):
        r = root(i)
        result.append(None if r in fixed or r in pinned else numbers.setdefault(r, len(numbers)))
    return tuple(result)


def _permutation_pins(architecture: Architecture) -> list[bool]:
    """Which layers an elementwise connection ties, directly or not, to the input or the output."""
    pinned = [i in (0, len(architecture.layers) - 1) for i in range(len(architecture.layers))]
    elementwise = [c for c in architecture.connections if not c.dense]
    for _ in architecture.layers:
        for c in elementwise:
            both = pinned[c.source] or pinned[c.target]
            pinned[c.source] = pinned[c.target] = both
    return pinned


def _own_group(architecture: Architecture, index: int) -> Group:
    """The group of one layer, before layers that share a slot are intersected."""
    layer = architecture.layers[index]
    # What is added after the activation does not scale with it.
    g, phi = (layer.activation.group if layer.offset == 0 else Trivial), layer.activation.phi
    for c in (architecture.connections[i] for i in architecture.outgoing[index]):
        if any(p.is_max for p in c.pools) and not phi.even:
            g = g & PositiveScale
        if isinstance(c.map, Normalise):
            g = g & (Sign if phi.even else Trivial)
        if isinstance(c.map, Skip):
            g = g & phi.fixed
    return g
