"""NG-GNN: PNA message passing with edge updates on the neural graph.

Kofinas et al., Graph neural networks for learning equivariant representations of neural networks, ICLR 2024.
"""

from torch import Tensor, nn

from ...core.networks import Networks
from ..method import Method
from ..parts.dense import standardised
from ..parts.graph_trunk import PAPER, GraphWriter, NeuralGraphTrunk, SideBySide
from ..parts.neural_graph import EdgeBlock, GraphSpec, NeuralGraph, edge_blocks
from ..parts.pna import PNA
from ..trunk import Pooling


class NGGNNTrunk(NeuralGraphTrunk):
    """Graph neural network on neural graphs (Kofinas et al. 2024).

    >>> from scalegmn import Architecture
    >>> import torch
    >>> a = Architecture.mlp([2, 8, 1], "tanh")
    >>> NGGNN([a], 10)(Networks(a, torch.randn(5, a.parameters))).shape
    torch.Size([5, 10])
    """

    def build(self) -> None:
        spec = self.spec
        self.graph = NeuralGraph(self.architectures, spec, edges=spec.width)
        self.gnn = PNA(self.architectures, width=spec.width, layers=spec.layers, dropout=spec.dropout)

    def _rounds(self, networks: Networks, *, editing: bool) -> tuple[dict[int, Tensor], dict[EdgeBlock, Tensor]]:
        graph, normalised = self.graph, self.normalise(networks)
        nodes, edges = graph.node_states(networks, normalised), graph.edge_states(normalised)
        found: tuple[dict[int, Tensor], dict[EdgeBlock, Tensor]]
        found = self.gnn(networks.architecture, nodes, edges, editing=editing)
        return found

    def output_states(self, networks: Networks) -> Tensor:
        x, _ = self._rounds(networks, editing=False)
        return x[len(networks.architecture.layers) - 1]

    def all_states(self, networks: Networks) -> tuple[dict[int, Tensor], list[Tensor]]:
        x, e = self._rounds(networks, editing=True)
        return x, [e[b] for b in edge_blocks(networks.architecture, reverse=False)]

    def pooling(self) -> Pooling:
        width, one = self.spec.width, SideBySide(self.architectures, self.spec.width)
        return Pooling(one, standardised([one.size, width, width]), width)

    def writing(self, copies: int) -> nn.Module:
        width = self.spec.width
        return GraphWriter(self.architectures, nodes=width, edges=width, copies=copies)


NGGNN = Method("ng-gnn", "NG-GNN", PAPER, ("permutation",), NGGNNTrunk, GraphSpec())
"""The graph network on neural graphs (`ng-gnn`); options as in `GraphSpec`."""
