"""NG-GNN: PNA message passing with edge updates on the neural graph.

Kofinas et al., Graph neural networks for learning equivariant representations of neural networks, ICLR 2024;
Corso et al., Principal neighbourhood aggregation for graph nets, NeurIPS 2020.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..architecture import Architecture
from ..networks import Networks
from .base import Editor, InvariantModel
from .neural_graph import Block, NeuralGraph, OutputReadout, ParameterHead, blocks
from .registry import ModelCard, register

AGGREGATORS = 4


@dataclass(frozen=True)
class Step:
    """What one round of message passing has to compute.

    Arguments:
        messages: Blocks whose messages are wanted.
        targets: Layers whose states are wanted.
        updates: Blocks whose edge states a later round (or the head) reads; a part of `messages`.
    """

    messages: tuple[Block, ...]
    targets: tuple[int, ...]
    updates: frozenset[Block]


@lru_cache(maxsize=256)
def plan(architecture: Architecture, rounds: int, *, editing: bool) -> tuple[Step, ...]:
    """The rounds, each without what nobody reads: a classifier reads the output neurons only.

    Arguments:
        architecture: The graph.
        rounds: Number of rounds.
        editing: Whether all biases and all weights are read in the end.
    """
    every = blocks(architecture)
    last = len(architecture.layers) - 1
    targets = set(range(1, last + 1)) if editing else {last}
    updates: frozenset[Block] = frozenset()
    steps: list[Step] = []
    for k in reversed(range(rounds)):
        if editing and k == rounds - 2:
            updates |= {b for b in every if not b.reverse}
        targets |= {layer for b in updates for layer in (b.source, b.target)}
        messages = tuple(b for b in every if b.target in targets)
        steps.append(Step(messages, tuple(sorted(targets)), updates))
        updates |= frozenset(messages)
    return tuple(reversed(steps))


def degrees(architecture: Architecture) -> list[int]:
    """Per layer, the number of neighbours of each neuron, before and behind it."""
    sizes = [layer.size for layer in architecture.layers]
    found = [0] * len(sizes)
    for b in blocks(architecture):
        found[b.target] += sizes[b.source] if b.dense else 1
    return found


class PNALayer(nn.Module):
    r"""One round: messages modulated by edges, four aggregates at two scales, then new edges.

    \[m_{ij} = \alpha(e_{ij}) \odot (A x_i + B x_j) + \beta(e_{ij}), \qquad
      x_i' = U [x_i, (1, \tfrac{\log(d_i + 1)}{\delta}) \otimes (\text{mean}, \text{std}, \min, \max)_j m_{ij}]\]
    \[e_{ij}' = \text{SiLU}(C e_{ij} + D x_i' + E x_j')\]

    with LayerNorm, SiLU and dropout on x' in every round but the last. Linear maps that follow one another in the
    original are one map here, so the edge state is what comes before the last of them.

    Arguments:
        width: Size d of node and edge states.
        dropout: On node states.
        last: Whether it is the last round.
    """

    def __init__(self, width: int, *, dropout: float, last: bool) -> None:
        super().__init__()
        self.width = width
        self.edge = nn.Linear(width, 2 * width if last else 3 * width)
        self.receive = nn.Linear(width, width)
        self.send = nn.Linear(width, width, bias=False)
        self.combine = nn.Linear((1 + 2 * AGGREGATORS) * width, width)
        self.after = nn.Identity() if last else nn.Sequential(nn.LayerNorm(width), nn.SiLU(), nn.Dropout(dropout))
        self.ends = None if last else nn.Linear(width, 2 * width)

    def forward(
        self, x: dict[int, Tensor], e: dict[Block, Tensor], step: Step, amplification: Sequence[float]
    ) -> tuple[dict[int, Tensor], dict[Block, Tensor]]:
        """New states of the nodes and edges that the step wants.

        Arguments:
            x: Per layer (B, n, d).
            e: Per block (B, n_t, n_s, d), or (B, n, d).
            step: What to compute.
            amplification: Per layer log(degree + 1) over its mean.
        """
        received = {i: self.receive(x[i]) for i in step.targets}
        sent = {i: self.send(x[i]) for i in {b.source for b in step.messages}}
        partial: dict[int, list[_Partial]] = {i: [] for i in step.targets}
        carried: dict[Block, Tensor] = {}
        for b in step.messages:
            channels = 3 if b in step.updates else 2
            rows = channels * self.width
            y = F.linear(e[b], self.edge.weight[:rows], self.edge.bias[:rows]).chunk(channels, dim=-1)
            m = torch.addcmul(y[1], y[0], _pair(b, received[b.target], sent[b.source]))
            partial[b.target].append(_aggregate(b, m))
            if b in step.updates:
                carried[b] = y[2]
        new = {}
        for i in step.targets:
            found = _finish(partial[i])
            new[i] = self.after(self.combine(torch.cat([x[i], found, amplification[i] * found], dim=-1)))
        return new, self._edges(new, carried)

    def _edges(self, x: dict[int, Tensor], carried: dict[Block, Tensor]) -> dict[Block, Tensor]:
        if self.ends is None or not carried:
            return {}
        layers = {i for b in carried for i in (b.source, b.target)}
        ends = {i: self.ends(x[i]).chunk(2, dim=-1) for i in layers}
        return {b: F.silu(c + _pair(b, ends[b.target][0], ends[b.source][1])) for b, c in carried.items()}


@dataclass(frozen=True)
class _Partial:
    """What one block's messages contribute to the aggregates of its targets, each (B, n_t, d)."""

    count: int
    total: Tensor
    squares: Tensor
    low: Tensor
    high: Tensor


def _pair(block: Block, target: Tensor, source: Tensor) -> Tensor:
    """A term of the target and one of the source, summed on every edge."""
    return target.unsqueeze(2) + source.unsqueeze(1) if block.dense else target + source


def _aggregate(block: Block, m: Tensor) -> _Partial:
    if not block.dense:
        return _Partial(1, m, m.square(), m, m)
    return _Partial(m.shape[2], m.sum(2), m.square().sum(2), m.amin(2), m.amax(2))


def _finish(parts: Sequence[_Partial]) -> Tensor:
    """Mean, standard deviation, minimum and maximum (B, n, 4d) over all blocks that meet in a layer."""
    count = sum(p.count for p in parts)
    mean = torch.stack([p.total for p in parts]).sum(0) / count
    variance = torch.stack([p.squares for p in parts]).sum(0) / count - mean.square()
    low = torch.stack([p.low for p in parts]).amin(0)
    high = torch.stack([p.high for p in parts]).amax(0)
    return torch.cat([mean, (variance.clamp(min=0) + 1e-5).sqrt(), low, high], dim=-1)


class PNA(nn.Module):
    """Rounds of message passing between all neighbours, forwards and backwards.

    Arguments:
        architectures: They set the mean of log(degree + 1).
        width: Size of node and edge states.
        layers: Number of rounds.
        dropout: On node states.
        editing: Whether all nodes and edges are read in the end, or the output neurons only.
    """

    def __init__(
        self, architectures: Sequence[Architecture], *, width: int, layers: int, dropout: float, editing: bool
    ) -> None:
        super().__init__()
        self.editing = editing
        self.layers = nn.ModuleList(
            PNALayer(width, dropout=dropout, last=k == layers - 1) for k in range(layers)
        )
        logs = [
            math.log(d + 1)
            for a in architectures
            for layer, d in zip(a.layers, degrees(a), strict=True)
            for _ in range(layer.size)
        ]
        self.mean_log_degree = sum(logs) / len(logs)

    def forward(
        self, architecture: Architecture, nodes: Sequence[Tensor], edges: dict[Block, Tensor]
    ) -> tuple[dict[int, Tensor], dict[Block, Tensor]]:
        """The states after the last round of those nodes and edges that are read."""
        amplification = [math.log(d + 1) / self.mean_log_degree for d in degrees(architecture)]
        x, e = dict(enumerate(nodes)), edges
        for layer, step in zip(self.layers, plan(architecture, len(self.layers), editing=self.editing), strict=True):
            x, updated = layer(x, e, step, amplification)
            e = updated or e
        return x, e


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
        """The invariant embedding (B, width)."""
        x, _ = self.gnn(networks.architecture, self.graph.node_states(networks), self.graph.edge_states(networks))
        embedding: Tensor = self.readout(x[len(networks.architecture.layers) - 1])
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

    def direction(self, networks: Networks) -> Tensor:
        """f(theta) as (B, copies, P)."""
        a = networks.architecture
        x, e = self.gnn(a, self.graph.node_states(networks), self.graph.edge_states(networks))
        forward = [e[b] for b in blocks(a, reverse=False)]
        # The input neurons have no parameters and no state by now.
        nodes = [x[i] if i in x else x[len(a.layers) - 1] for i in range(len(a.layers))]
        found: Tensor = self.head(a, nodes, forward)
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
