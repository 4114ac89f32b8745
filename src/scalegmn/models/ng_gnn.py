"""NG-GNN: PNA message passing with edge updates on the neural graph.

Kofinas et al., Graph neural networks for learning equivariant representations of neural networks, ICLR 2024.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from ..core.architecture import Architecture
from ..core.networks import Networks
from .base import Editor, InvariantModel
from .neural_graph import NeuralGraph, blocks
from .neural_graph_heads import OutputReadout, ParameterHead
from .pna import PNA
from .registry import ModelCard, register


class NGGNN(InvariantModel):
    """Graph neural network on neural graphs (Kofinas et al. 2024).

    Arguments:
        architectures: Every architecture it will meet.
        outputs: Size of the result.
        width: Size of node and edge states.
        layers: Rounds of message passing.
        probes: Number of probe inputs (0 leaves them out).
        dropout: On node states.
        frequencies, sigma: Of the Fourier features of weights and biases (0 frequencies leave them out).

    >>> import torch
    >>> a = Architecture.mlp([2, 8, 1], "tanh")
    >>> NGGNN([a], 10)(Networks(a, torch.randn(5, a.parameters))).shape
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
        frequencies: int = 128,
        sigma: float = 3.0,
    ) -> None:
        super().__init__(architectures)
        self.graph = NeuralGraph(
            self.architectures, nodes=width, edges=width, probes=probes, frequencies=frequencies, sigma=sigma
        )
        self.gnn = PNA(self.architectures, width=width, layers=layers, dropout=dropout, editing=False)
        self.readout = OutputReadout(self.architectures, width, width, layers=2)
        self.head = nn.Linear(width, outputs)

    def prepare(self, training: Sequence[Networks]) -> None:
        """Take means and spreads of every weight tensor and bias vector."""
        self.graph.normalise.fit(training)

    def embed_one(self, networks: Networks) -> Tensor:
        """The states of the output neurons (B, n_L width)."""
        x, _ = self.gnn(networks.architecture, self.graph.node_states(networks), self.graph.edge_states(networks))
        return self.readout.side_by_side(x[len(networks.architecture.layers) - 1])

    def finish(self, found: Tensor) -> Tensor:
        """The invariant embedding (B, width)."""
        embedding: Tensor = self.readout(found)
        return embedding

    def read(self, embedding: Tensor) -> Tensor:
        """The outputs (B, outputs)."""
        outputs: Tensor = self.head(embedding)
        return outputs


class NGGNNEditor(Editor):
    """The same graph network with a head on every node and edge: new networks from old.

    Arguments:
        architectures: Every architecture it will meet.
        width, layers, probes, dropout: As in `NGGNN`.
        gamma, copies: As in `Editor`.
        frequencies: Of the Fourier features; none in the original's editing experiments.
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
        frequencies: int = 0,
    ) -> None:
        super().__init__(architectures, gamma=gamma, copies=copies)
        self.graph = NeuralGraph(
            self.architectures, nodes=width, edges=width, probes=probes, frequencies=frequencies
        )
        self.gnn = PNA(self.architectures, width=width, layers=layers, dropout=dropout, editing=True)
        self.head = ParameterHead(self.architectures, nodes=width, edges=width, copies=copies)

    def prepare(self, training: Sequence[Networks]) -> None:
        """Take means and spreads of every weight tensor and bias vector."""
        self.graph.normalise.fit(training)
        super().prepare(training)

    def direction(self, networks: Networks) -> Tensor:
        """f(theta) as (B, copies, P)."""
        a = networks.architecture
        x, e = self.gnn(a, self.graph.node_states(networks), self.graph.edge_states(networks))
        forward = [e[b] for b in blocks(a, reverse=False)]
        found: Tensor = self.head(a, x, forward)
        return found


register(
    ModelCard(
        name="ng-gnn",
        title="NG-GNN",
        paper="Kofinas et al., Graph neural networks for learning equivariant representations of neural networks, ICLR",
        year=2024,
        symmetries=("permutation",),
        invariant=NGGNN,
        equivariant=NGGNNEditor,
    )
)
