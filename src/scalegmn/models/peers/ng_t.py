"""NG-T: the relational transformer on the neural graph.

Kofinas et al., Graph neural networks for learning equivariant representations of neural networks, ICLR 2024.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

from ...core.architecture import Architecture
from ...core.networks import Networks
from ...core.spec import Count
from ..method import Method
from ..parts.dense import standardised
from ..parts.graph_trunk import PAPER, GraphStates, GraphWriter, NeuralGraphTrunk, SideBySide
from ..parts.neural_graph import GraphSpec, NeuralGraph
from ..parts.relational import PairUpdate, RelationalLayer
from ..trunk import Pooling

EVERY = slice(None)
# Larger tensors cost the memory allocator of a CPU more than the arithmetic in them.
LARGEST_ON_CPU = 2**22


@dataclass(frozen=True, repr=False)
class NGTSpec(GraphSpec):
    """The options of the relational transformer.

    Arguments:
        heads: Of the attention.

    >>> NGTSpec(heads=4)
    NGTSpec(heads=4)
    """

    heads: Count = 8


class NGTTrunk(NeuralGraphTrunk):
    """Relational transformer on neural graphs (Kofinas et al. 2024).

    Every neuron attends to every other, so time and memory grow with the square of the number of neurons. Edges
    have half the width of nodes and attention has twice that width, as in the original. The edges are updated after
    every layer except the last, whose update is part of the editor, since nothing else reads it.

    >>> a = Architecture.mlp([2, 8, 1], "tanh")
    >>> NGT([a], 10)(Networks(a, torch.randn(5, a.parameters))).shape
    torch.Size([5, 10])
    """

    spec: NGTSpec

    def build(self) -> None:
        spec = self.spec
        self.graph = NeuralGraph(self.architectures, spec, edges=spec.width // 2, reverse=False)
        self.layers = nn.ModuleList(
            RelationalLayer(spec.width, heads=spec.heads, dropout=spec.dropout, edges_too=k < spec.layers - 1)
            for k in range(spec.layers)
        )

    def _start(self, networks: Networks) -> tuple[Tensor, Tensor]:
        normalised = self.normalise(networks)
        nodes = torch.cat(self.graph.node_states(networks, normalised), dim=1)
        return nodes, self.graph.dense_edge_states(normalised)

    def output_states(self, networks: Networks) -> Tensor:
        return torch.cat([self._output_states(part) for part in portions(networks, self.spec.width)])

    def _output_states(self, networks: Networks) -> Tensor:
        x, e = self._start(networks)
        # The output neurons come last. Only they are read, so the last layer needs only their rows.
        read = slice(x.shape[1] - networks.architecture.layers[-1].size, x.shape[1])
        *inner, last = self.layers
        for k, layer in enumerate(inner):
            x, e = layer(x, e, EVERY, read if k == len(inner) - 1 else EVERY)
        outputs: Tensor = last(x, e if inner else e[:, read], read, read)[0]
        return outputs

    def all_states(self, networks: Networks) -> tuple[Tensor, Tensor]:
        x, e = self._start(networks)
        for layer in self.layers:
            x, e = layer(x, e, EVERY, EVERY)
        return x, e

    def pooling(self) -> Pooling:
        one, size = SideBySide(self.architectures, self.spec.width), 2 * self.spec.width
        return Pooling(one, standardised([one.size, size]), size)

    def writing(self, copies: int) -> nn.Module:
        return NGTWriter(self.architectures, self.spec, copies)


class NGTWriter(nn.Module):
    """The last update of the edges, then `GraphWriter`.

    Arguments:
        architectures: Every architecture it will meet.
        spec: Of the trunk.
        copies: Number of parameter sets.

    >>> a = Architecture.mlp([2, 8, 1])
    >>> trunk = NGT([a], 10).trunk
    >>> trunk.writing(2)(trunk(Networks(a, torch.randn(5, a.parameters)))).shape
    torch.Size([5, 2, 33])
    """

    def __init__(self, architectures: Sequence[Architecture], spec: NGTSpec, copies: int) -> None:
        super().__init__()
        width = spec.width
        self.width = width
        self.update = PairUpdate(width, width // 2, hidden=width, dropout=spec.dropout)
        self.writer = GraphWriter(architectures, nodes=width, edges=width // 2, copies=copies)

    def forward(self, states: GraphStates) -> Tensor:
        """One value (B, copies, P) for every parameter."""
        parts = portions(states.networks, self.width)
        return torch.cat([self._values(part.architecture, *states.trunk.all_states(part)) for part in parts])

    def _values(self, a: Architecture, x: Tensor, e: Tensor) -> Tensor:
        e = self.update(x, e, EVERY)
        sizes = [layer.size for layer in a.layers]
        ends = list(accumulate(sizes))
        neurons = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        edges = [e[:, neurons[c.target], neurons[c.source]] for c in a.connections]
        edges = [b if c.dense else b.diagonal(dim1=1, dim2=2).mT for b, c in zip(edges, a.connections, strict=True)]
        return self.writer.values(a, dict(enumerate(x.split(sizes, dim=1))), edges)


def portions(networks: Networks, width: int) -> list[Networks]:
    """The batch in parts whose attention tensors (pairs of neurons x 2 width) are small enough."""
    if networks.device.type != "cpu":
        return [networks]
    neurons = sum(layer.size for layer in networks.architecture.layers)
    count = max(1, LARGEST_ON_CPU // (2 * width * neurons**2))
    return [networks.replace(part) for part in networks.parameters.split(count)]


NGT = Method("ng-t", "NG-T", PAPER, ("permutation",), NGTTrunk, NGTSpec(sigma=1.0))
"""The transformer on neural graphs (`ng-t`); options as in `NGTSpec`."""
