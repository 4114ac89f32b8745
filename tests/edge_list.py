"""A batch of networks as one long edge list, for the literal implementation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from scalegmn.core.architecture import Architecture, Connection, Conv, Linear


@dataclass(frozen=True)
class Graph:
    """A batch of networks as one graph: vertices (b, layer, i) and edges (b, connection, i, j) in long lists.

    Arguments:
        layer: Of every vertex (V,).
        place: Of every vertex within its layer (V,).
        source, target: Vertices of every edge (E,).
        connection: Of every edge (E,).
        counts: Edges of one network per connection.
    """

    layer: Tensor
    place: Tensor
    source: Tensor
    target: Tensor
    connection: Tensor
    counts: tuple[int, ...]


@cache
def graph_of(a: Architecture, batch: int) -> Graph:
    """The graph of a batch."""
    starts = [sum(layer.size for layer in a.layers[:i]) for i in range(len(a.layers) + 1)]
    layer = [i for i, neurons in enumerate(a.layers) for _ in range(neurons.size)]
    place = [k for neurons in a.layers for k in range(neurons.size)]
    edges, counts = [], []
    for index, c in enumerate(a.connections):
        n_t, n_s = a.layers[c.target].size, a.layers[c.source].size
        pairs = [(i, j) for i in range(n_t) for j in range(n_s)] if c.dense else [(i, i) for i in range(n_t)]
        edges += [(starts[c.source] + j, starts[c.target] + i, index) for i, j in pairs]
        counts.append(len(pairs))
    source, target, connection = torch.tensor(edges).T
    shift = starts[-1] * torch.arange(batch).repeat_interleave(len(edges))
    return Graph(
        torch.tensor(layer).repeat(batch),
        torch.tensor(place).repeat(batch),
        source.repeat(batch) + shift,
        target.repeat(batch) + shift,
        connection.repeat(batch),
        tuple(counts),
    )


def kernel_shape(c: Connection) -> tuple[int, int]:
    """Height and width of the weights on an edge."""
    kernel = c.map.kernel if isinstance(c.map, Linear | Conv) else ()
    return (*kernel, 1, 1)[0], (*kernel, 1, 1)[1]
