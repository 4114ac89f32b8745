"""Trunks on neural graphs, and what heads read: output neurons, or a value for every parameter."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.architecture import Architecture, Connection
from ...core.networks import Networks
from ...nn.kernels import crop_kernel, kernel_shape, kind, largest_kernels
from ..trunk import EditingTrunk
from .neural_graph import GraphSpec, NeuralGraph

PAPER = "Kofinas et al., Graph neural networks for learning equivariant representations of neural networks, ICLR 2024"


class NeuralGraphTrunk(EditingTrunk, ABC):
    """A trunk on neural graphs (Kofinas et al., ICLR 2024).

    States are computed when a head asks for them: those of the output neurons need only a part of the graph.

    >>> from scalegmn.models.peers.ng_gnn import NGGNN
    >>> trunk = NGGNN([Architecture.mlp([2, 8, 1])], 10).trunk
    >>> [name for name, _ in trunk.named_children()]
    ['normalise', 'graph', 'gnn']
    """

    spec: GraphSpec
    graph: NeuralGraph

    def measure(self, training: Sequence[Networks]) -> None:
        """Bring answers to probes to a common size."""
        self.graph.measure(training)

    def forward(self, networks: Networks) -> GraphStates:
        """States that are computed when they are needed."""
        return GraphStates(self, networks)

    @abstractmethod
    def output_states(self, networks: Networks) -> Tensor:
        """The states (B, n_L, d) of the output neurons."""

    @abstractmethod
    def all_states(self, networks: Networks) -> Any:
        """The states of all nodes and edges, in the form that the trunk's own `writing` takes."""


@dataclass(frozen=True)
class GraphStates:
    """The states of a neural graph.

    Arguments:
        trunk: Computes them.
        networks: The networks.

    >>> from scalegmn.models.peers.ng_gnn import NGGNN
    >>> a = Architecture.mlp([2, 8, 1])
    >>> trunk = NGGNN([a], 10).trunk
    >>> states = trunk(Networks(a, torch.randn(5, a.parameters)))
    >>> states.trunk is trunk
    True
    """

    trunk: NeuralGraphTrunk
    networks: Networks


class SideBySide(nn.Module):
    """The concatenated states of the output neurons: they have an order, so nothing is pooled.

    Heads standardise them, which the original does not: they are means over many neighbours and differ little between
    networks at first; without it small runs stay at chance for hundreds of steps.

    Arguments:
        architectures: The one with the most output neurons sets the size.
        nodes: Size of the node states.

    >>> from scalegmn.models.peers.ng_gnn import NGGNN
    >>> a = Architecture.mlp([2, 8, 1])
    >>> trunk = NGGNN([a], 10).trunk
    >>> states = trunk(Networks(a, torch.randn(5, a.parameters)))
    >>> SideBySide([a], trunk.spec.width)(states).shape == (5, trunk.spec.width)
    True
    """

    def __init__(self, architectures: Sequence[Architecture], nodes: int) -> None:
        super().__init__()
        self.size = nodes * max(a.layers[-1].size for a in architectures)

    def forward(self, states: GraphStates) -> Tensor:
        """The concatenated states (B, size)."""
        flat = states.trunk.output_states(states.networks).flatten(1)
        return F.pad(flat, (0, self.size - flat.shape[1]))


class GraphWriter(nn.Module):
    """States to a value for every parameter: two-layer MLPs on edges (one per kind of connection) and on nodes.

    Arguments:
        architectures: Every architecture it will meet.
        nodes, edges: Sizes of the states.
        copies: Number of parameter sets.

    >>> from scalegmn.models.peers.ng_gnn import NGGNN
    >>> a = Architecture.mlp([2, 8, 1])
    >>> trunk = NGGNN([a], 10).trunk
    >>> states = trunk(Networks(a, torch.randn(5, a.parameters)))
    >>> trunk.writing(2)(states).shape
    torch.Size([5, 2, 33])
    """

    def __init__(self, architectures: Sequence[Architecture], *, nodes: int, edges: int, copies: int) -> None:
        super().__init__()
        self.copies = copies
        self.kernels = largest_kernels(architectures)
        self.edge_maps = nn.ModuleDict(
            {name: _two_layers(edges, copies * math.prod(shape)) for name, shape in self.kernels.items()}
        )
        self.node_map = _two_layers(nodes, copies)
        self.slope_map = _two_layers(nodes, copies)

    def forward(self, states: GraphStates) -> Tensor:
        """One value (B, copies, P) for every parameter."""
        return self.values(states.networks.architecture, *states.trunk.all_states(states.networks))

    def values(self, architecture: Architecture, x: Mapping[int, Tensor], e: Sequence[Tensor]) -> Tensor:
        """One value (B, copies, P) for every parameter, from states that are already computed.

        Arguments:
            architecture: Of the networks.
            x: Node states per layer (B, n, d), for those that have parameters.
            e: Edge states per connection (B, n_t, n_s, d), or (B, n, d).
        """
        parts = []
        for s in architecture.segments:
            if s.kind == "weight":
                parts.append(self._weights(architecture.connections[s.index], e[s.index]))
            elif s.kind == "bias":
                parts.append(self.node_map(x[s.index]).transpose(1, 2))
            else:
                parts.append(self.slope_map(x[s.index].mean(1)).unsqueeze(2))
        return torch.cat(parts, dim=2)

    def _weights(self, connection: Connection, e: Tensor) -> Tensor:
        largest = self.kernels[kind(connection)]
        flat = self.edge_maps[kind(connection)](e).unflatten(-1, (self.copies, math.prod(largest)))
        weights = crop_kernel(flat, kernel_shape(connection), largest)
        return weights.movedim(-2, 1).flatten(2)


def _two_layers(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, inputs), nn.ReLU(), nn.Linear(inputs, outputs))
