"""NG-T: the relational transformer on the neural graph.

Kofinas et al., Graph neural networks for learning equivariant representations of neural networks, ICLR 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from ..core.architecture import Architecture
from ..core.networks import Networks
from .base import Editor, InvariantModel
from .neural_graph import NeuralGraph
from .neural_graph_heads import OutputReadout, ParameterHead
from .registry import ModelCard, register
from .relational import RelationalLayer

EVERY = slice(None)
# Larger tensors cost the memory allocator of a CPU more than the arithmetic in them.
LARGEST_ON_CPU = 2**22


class NGT(InvariantModel):
    """Relational transformer on neural graphs (Kofinas et al. 2024).

    Every neuron attends to every other, so time and memory grow with the square of the number of neurons. Edges
    have half the width of nodes and attention has twice that width, as in the original.

    Arguments:
        architectures: Every architecture it will meet.
        outputs: Size of the result.
        width: Size of the node states.
        layers: Number of layers.
        probes: Number of probe inputs (0 leaves them out).
        dropout: On what attention and MLPs add.
        heads: Of the attention.
        frequencies: Of the Fourier features of weights and biases (0 leaves them out).

    >>> a = Architecture.mlp([2, 8, 1], "tanh")
    >>> NGT([a], 10)(Networks(a, torch.randn(5, a.parameters))).shape
    torch.Size([5, 10])
    """

    def __init__(
        self,
        architectures: Sequence[Architecture],
        outputs: int,
        *,
        width: int = 64,
        layers: int = 4,
        probes: int = 0,
        dropout: float = 0.0,
        heads: int = 8,
        frequencies: int = 128,
    ) -> None:
        super().__init__(architectures)
        self.width = width
        self.graph = _graph(self.architectures, width, probes, frequencies)
        self.layers = nn.ModuleList(
            RelationalLayer(width, heads=heads, dropout=dropout, edges_too=k < layers - 1) for k in range(layers)
        )
        self.readout = OutputReadout(self.architectures, width, 2 * width, layers=1)
        self.head = nn.Linear(2 * width, outputs)

    def prepare(self, training: Sequence[Networks]) -> None:
        """Take means and spreads of every weight tensor and bias vector."""
        self.graph.normalise.fit(training)

    def embed_one(self, networks: Networks) -> Tensor:
        """The states of the output neurons (B, n_L width)."""
        return torch.cat([self._output_states(part) for part in _portions(networks, self.width)])

    def finish(self, found: Tensor) -> Tensor:
        """The invariant embedding (B, 2 width)."""
        embedding: Tensor = self.readout(found)
        return embedding

    def _output_states(self, networks: Networks) -> Tensor:
        x, e = torch.cat(self.graph.node_states(networks), dim=1), self.graph.dense_edge_states(networks)
        # The output neurons come last. Only they are read, so the last layer needs only their rows.
        read = slice(x.shape[1] - networks.architecture.layers[-1].size, x.shape[1])
        *inner, last = self.layers
        for k, layer in enumerate(inner):
            x, e = layer(x, e, EVERY, read if k == len(inner) - 1 else EVERY)
        x, _ = last(x, e if inner else e[:, read], read, read)
        return self.readout.side_by_side(x)

    def read(self, embedding: Tensor) -> Tensor:
        """The outputs (B, outputs)."""
        outputs: Tensor = self.head(embedding)
        return outputs


class NGTEditor(Editor):
    """The same transformer with a head on every node and edge: new networks from old.

    Arguments:
        architectures: Every architecture it will meet.
        width, layers, probes, dropout, heads: As in `NGT`.
        gamma, copies: As in `Editor`.
    """

    def __init__(
        self,
        architectures: Sequence[Architecture],
        *,
        width: int = 64,
        layers: int = 4,
        probes: int = 0,
        dropout: float = 0.0,
        gamma: float = 0.01,
        copies: int = 1,
        heads: int = 8,
    ) -> None:
        super().__init__(architectures, gamma=gamma, copies=copies)
        self.width = width
        self.graph = _graph(self.architectures, width, probes, 0)
        self.layers = nn.ModuleList(
            RelationalLayer(width, heads=heads, dropout=dropout, edges_too=True) for _ in range(layers)
        )
        self.head = ParameterHead(self.architectures, nodes=width, edges=width // 2, copies=copies)

    def prepare(self, training: Sequence[Networks]) -> None:
        """Take means and spreads of every weight tensor and bias vector."""
        self.graph.normalise.fit(training)
        super().prepare(training)

    def direction(self, networks: Networks) -> Tensor:
        """f(theta) as (B, copies, P)."""
        return torch.cat([self._direction(part) for part in _portions(networks, self.width)])

    def _direction(self, networks: Networks) -> Tensor:
        a = networks.architecture
        x, e = torch.cat(self.graph.node_states(networks), dim=1), self.graph.dense_edge_states(networks)
        for layer in self.layers:
            x, e = layer(x, e, EVERY, EVERY)
        sizes = [layer.size for layer in a.layers]
        ends = list(accumulate(sizes))
        neurons = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        edges = [e[:, neurons[c.target], neurons[c.source]] for c in a.connections]
        edges = [
            b if c.dense else b.diagonal(dim1=1, dim2=2).mT for b, c in zip(edges, a.connections, strict=True)
        ]
        found: Tensor = self.head(a, dict(enumerate(x.split(sizes, dim=1))), edges)
        return found


def _portions(networks: Networks, width: int) -> list[Networks]:
    """The batch in parts whose attention tensors (pairs of neurons x 2 width) are small enough."""
    if networks.device.type != "cpu":
        return [networks]
    neurons = sum(layer.size for layer in networks.architecture.layers)
    count = max(1, LARGEST_ON_CPU // (2 * width * neurons**2))
    return [networks.replace(part) for part in networks.parameters.split(count)]


def _graph(architectures: Sequence[Architecture], width: int, probes: int, frequencies: int) -> NeuralGraph:
    return NeuralGraph(
        architectures,
        nodes=width,
        edges=width // 2,
        reverse=False,
        probes=probes,
        frequencies=frequencies,
        sigma=1.0,
    )


register(
    ModelCard(
        name="ng-t",
        title="NG-T",
        paper="Kofinas et al., Graph neural networks for learning equivariant representations of neural networks, ICLR",
        year=2024,
        symmetries=("permutation",),
        invariant=NGT,
        equivariant=NGTEditor,
    )
)
