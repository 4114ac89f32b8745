"""Architectures: frozen graphs of neuron layers that know their own symmetries.

A network is a DAG. Its nodes are *neuron layers* (of linear neurons or channels), its edges are *connections*.
Layer t computes, from the post-activations x_s of its sources,

    z_t = sum over connections of  gain * W (pooled x_s)  +  b_t,        x_t = sigma_t(z_t),

or combines them in another way (`Product`, `Attention`). Roles, blocks of neurons, their permutation slots and their
multipliers follow from the graph and are never passed as flags (`scalegmn.core.blocks`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from ..errors import ScaleGMNError
from .activations import Activation, Phi, activation
from .blocks import Block, find_blocks
from .groups import Group, group
from .html import html_table
from .maps import LATER, Attention, Combine, Conv, Linear, Map, Normalise, Pool, Product, Scale, Skip, Sum, Table
from .parts import Connection, Kind, Layer, Segment, Shared
from .wiring import check_graph

__all__ = [
    "Architecture", "Attention", "Combine", "Connection", "Conv", "Kind", "Layer", "Linear", "Map", "Normalise", "Pool",
    "Product", "Role", "Scale", "Segment", "Shared", "Skip", "Sum", "Table",
]  # fmt: skip

Role = Literal["input", "hidden", "output"]


@dataclass(frozen=True)
class Architecture:
    """A feed-forward network without its weights.

    Layers are in topological order: the first is the input, the last the output.

    Arguments:
        layers: The neuron layers.
        connections: The connections, sorted by target.
        shared: The tensors that are used more than once.

    >>> siren = Architecture.mlp([2, 32, 32, 1], activation("sine", 30.0))
    >>> siren.groups
    (Trivial, Sign, Sign, Trivial)
    >>> siren.parameters
    1185
    """

    layers: tuple[Layer, ...]
    connections: tuple[Connection, ...]
    shared: tuple[Shared, ...] = field(default=(), metadata={LATER: True})

    def __post_init__(self) -> None:
        check_graph(self)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.layers, self.connections, self.shared))

    def __reduce__(self) -> tuple[object, ...]:
        # What is cached stays here: hashes of names differ from process to process.
        return Architecture, (self.layers, self.connections, self.shared)

    def __str__(self) -> str:
        sizes = "-".join(str(layer.size) for layer in self.layers)
        hidden = dict.fromkeys(str(layer.activation) for layer in self.layers[1:-1])
        return f"{sizes} [{', '.join(hidden) or 'linear'}]"

    def _repr_html_(self) -> str:
        """A table for notebooks: one row per layer."""
        rows = {
            f"{i} {self.roles[i]}": f"{layer.size} neurons, {layer.activation}, {self.groups[i].name}"
            for i, layer in enumerate(self.layers)
        }
        return html_table(f"{self}, {self.parameters:,} parameters", rows)

    def beside(self, other: Architecture) -> str:
        """Descriptions of both, with the difference added if they would read the same.

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
        return f"{told}; {[*found, 'one has more connections or shared weights'][0]}"

    @cached_property
    def incoming(self) -> tuple[tuple[int, ...], ...]:
        """For every layer, the indices of the connections that end in it."""
        return _by_end([c.target for c in self.connections], len(self.layers))

    @cached_property
    def outgoing(self) -> tuple[tuple[int, ...], ...]:
        """For every layer, the indices of the connections that start in it."""
        return _by_end([c.source for c in self.connections], len(self.layers))

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        """The role of every layer."""
        hidden: list[Role] = ["hidden"] * (len(self.layers) - 2)
        return ("input", *hidden, "output")

    @property
    def spatial(self) -> bool:
        """Whether its input is an image or a signal (it begins with a convolution)."""
        return any(isinstance(c.map, Conv) or c.pools for c in self.connections) or any(
            isinstance(layer.combine, Attention) for layer in self.layers
        )

    @cached_property
    def plain(self) -> bool:
        """Whether every layer is one block that adds what arrives, and every connection is dense or one to one."""
        one = all(len(b) == 1 and b[0].heads == 1 for b in self.blocks)
        sums = all(isinstance(layer.combine, Sum) for layer in self.layers)
        wires = all(c.dense or isinstance(c.map, Skip | Normalise) for c in self.connections)
        fed = all(self.incoming[1:]) and not any(c.constant or isinstance(c.map, Table) for c in self.connections)
        return one and sums and wires and fed and not self.shared

    @cached_property
    def blocks(self) -> tuple[tuple[Block, ...], ...]:
        """For every layer, its blocks of neurons with their permutation slots and multipliers."""
        return find_blocks(self)

    @cached_property
    def slots(self) -> tuple[int | None, ...]:
        """The permutation slot of every layer; None if its neurons may not be permuted, or if it has several blocks."""
        return tuple(b[0].slot if len(b) == 1 and b[0].heads == 1 else None for b in self.blocks)

    @cached_property
    def scale_slots(self) -> tuple[int | None, ...]:
        """For every layer the number of its multiplier, which tied layers share; None if it may not be scaled."""
        numbers: dict[object, int] = {}
        found: list[int | None] = []
        for blocks in self.blocks:
            key = tuple((b.scales, b.signs) for b in blocks)
            trivial = not any(b.scales or b.signs for b in blocks)
            found.append(None if trivial else numbers.setdefault(key, len(numbers)))
        return tuple(found)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The scaling group of every layer's neurons: the part of its activation's group that this graph allows."""
        return tuple(
            group(signs=any(b.signs for b in blocks), scales=any(b.scales for b in blocks)) for blocks in self.blocks
        )

    @cached_property
    def phis(self) -> tuple[Phi, ...]:
        """For every layer, the map from the pre-activation's multiplier to the post-activation's."""
        return tuple(layer.activation.phi for layer in self.layers)

    def weight_shape(self, connection: int) -> tuple[int, ...]:
        """The shape of a connection's weights: (n_t, n_s / groups, K), or (n,) where there is one per neuron."""
        c = self.connections[connection]
        size = self.layers[c.target].size
        if isinstance(c.map, Normalise | Scale):
            return (size,)
        return size, self.layers[c.source].size // c.groups, c.kernel_size

    def owner(self, segment: Segment) -> int:
        """The layer that a part of the parameters belongs to: the target of weights, the layer of a bias or slope."""
        return self.connections[segment.index].target if segment.kind == "weight" else segment.index

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The layout of the flat parameter vector: per layer its incoming weights, its bias, its slope."""
        found: list[Segment] = []
        start = 0
        again = {(s.kind, s.index) for s in self.shared}

        def add(kind: Kind, index: int, *shape: int) -> None:
            nonlocal start
            if (kind, index) not in again:
                found.append(Segment(kind, index, start, shape))
                start += math.prod(shape)

        for i, layer in enumerate(self.layers):
            for c in self.incoming[i]:
                if self.connections[c].has_weights and not self.connections[c].constant:
                    add("weight", c, *self.weight_shape(c))
            if i and layer.bias:
                add("bias", i, layer.size)
            if layer.activation.learned_slope:
                add("slope", i, 1)
        return tuple(found)

    @cached_property
    def parameters(self) -> int:
        """Number of parameters of one network."""
        return sum(s.size for s in self.segments)

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
            positions: Height and width of the last maps; if given, they are flattened instead of averaged.
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


def _by_end(ends: Sequence[int], layers: int) -> tuple[tuple[int, ...], ...]:
    found: list[list[int]] = [[] for _ in range(layers)]
    for i, end in enumerate(ends):
        found[end].append(i)
    return tuple(map(tuple, found))


def _hidden_activations(hidden: str | Activation | Iterable[str | Activation], count: int) -> list[Activation]:
    if isinstance(hidden, str | Activation):
        return [activation(hidden)] * count
    acts = [activation(a) for a in hidden]
    if len(acts) != count:
        raise ScaleGMNError(f"hidden: expected {count} activation(s), one per hidden layer, got {len(acts)}")
    return acts
