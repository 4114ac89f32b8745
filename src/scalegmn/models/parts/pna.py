"""Principal neighbourhood aggregation on blocks of edges, with edge states that are updated too.

Corso et al., Principal neighbourhood aggregation for graph nets, NeurIPS 2020; the modulation by edges and their
update follow Kofinas et al., ICLR 2024.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from ...core.architecture import Architecture
from .neural_graph import EdgeBlock, edge_blocks

AGGREGATORS = 4


@dataclass(frozen=True)
class Round:
    """What one round of message passing computes.

    Arguments:
        messages: Blocks whose messages are needed.
        targets: Layers whose states are needed.
        updates: Blocks whose edge states a later round (or the head) reads; a part of `messages`.

    >>> plan(Architecture.mlp([2, 8, 1]), 2, editing=False)[-1].targets
    (2,)
    """

    messages: tuple[EdgeBlock, ...]
    targets: tuple[int, ...]
    updates: frozenset[EdgeBlock]


@lru_cache(maxsize=256)
def plan(architecture: Architecture, rounds: int, *, editing: bool) -> tuple[Round, ...]:
    """The rounds, each without states that are never read: a classifier reads only the output neurons.

    Arguments:
        architecture: The graph.
        rounds: Number of rounds.
        editing: Whether all biases and all weights are read in the end.
    """
    every = edge_blocks(architecture)
    last = len(architecture.layers) - 1
    targets = set(range(1, last + 1)) if editing else {last}
    updates: frozenset[EdgeBlock] = frozenset()
    steps: list[Round] = []
    for k in reversed(range(rounds)):
        if editing and k == rounds - 2:
            updates |= {b for b in every if not b.reverse}
        targets |= {layer for b in updates for layer in (b.source, b.target)}
        messages = tuple(b for b in every if b.target in targets)
        steps.append(Round(messages, tuple(sorted(targets)), updates))
        updates |= frozenset(messages)
    return tuple(reversed(steps))


def degrees(architecture: Architecture) -> list[int]:
    """Per layer, the number of neighbours of each neuron, in both directions."""
    sizes = [layer.size for layer in architecture.layers]
    found = [0] * len(sizes)
    for b in edge_blocks(architecture):
        found[b.target] += sizes[b.source] if b.dense else 1
    return found


class PNALayer(nn.Module):
    r"""One round: messages modulated by edges, four aggregates at two scales, then new edges.

    \[m_{ij} = \alpha(e_{ij}) \odot (A x_i + B x_j) + \beta(e_{ij}), \qquad
      x_i' = U [x_i, (1, \tfrac{\log(d_i + 1)}{\delta}) \otimes (\text{mean}, \text{std}, \min, \max)_j m_{ij}]\]
    \[e_{ij}' = \text{SiLU}(C e_{ij} + D x_i' + E x_j')\]

    with LayerNorm, SiLU and dropout on x' in every round except the last. Consecutive linear maps of the original are
    merged into one map here, so the edge state is the input of the last of them.

    Arguments:
        width: Size d of node and edge states.
        dropout: On node states.
        last: Whether it is the last round.

    >>> a = Architecture.mlp([2, 8, 1])
    >>> (step,) = plan(a, 1, editing=False)
    >>> x = {i: torch.randn(5, n, 16) for i, n in enumerate((2, 8, 1))}
    >>> e = {b: torch.randn(5, *[x[b.target].shape[1], x[b.source].shape[1]], 16) for b in step.messages}
    >>> layer = PNALayer(16, dropout=0.0, last=True)
    >>> nodes, _ = layer(x, e, step, [1.0, 1.0, 1.0])
    >>> nodes[2].shape
    torch.Size([5, 1, 16])
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
        self, x: dict[int, Tensor], e: dict[EdgeBlock, Tensor], step: Round, amplification: Sequence[float]
    ) -> tuple[dict[int, Tensor], dict[EdgeBlock, Tensor]]:
        """New states of the nodes and edges that the step computes.

        Arguments:
            x: Per layer (B, n, d).
            e: Per block (B, n_t, n_s, d), or (B, n, d).
            step: What to compute.
            amplification: Per layer log(degree + 1) over its mean.
        """
        received = {i: self.receive(x[i]) for i in step.targets}
        sent = {i: self.send(x[i]) for i in {b.source for b in step.messages}}
        partial: dict[int, list[_Partial]] = {i: [] for i in step.targets}
        carried: dict[EdgeBlock, Tensor] = {}
        for b in step.messages:
            rows = (3 if b in step.updates else 2) * self.width
            y = F.linear(e[b], self.edge.weight[:rows], self.edge.bias[:rows])
            part, rest = _messages(b, y, received[b.target], sent[b.source])
            partial[b.target].append(part)
            if b in step.updates:
                carried[b] = rest
        new = {}
        for i in step.targets:
            found = _finish(partial[i])
            new[i] = self.after(self.combine(torch.cat([x[i], found, amplification[i] * found], dim=-1)))
        return new, self._edges(new, carried)

    def _edges(self, x: dict[int, Tensor], carried: dict[EdgeBlock, Tensor]) -> dict[EdgeBlock, Tensor]:
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


def _pair(block: EdgeBlock, target: Tensor, source: Tensor) -> Tensor:
    """A term of the target and one of the source, summed on every edge."""
    return target.unsqueeze(2) + source.unsqueeze(1) if block.dense else target + source


def _messages(block: EdgeBlock, y: Tensor, target: Tensor, source: Tensor) -> tuple[_Partial, Tensor]:
    """Aggregate the messages of a block, and return the rest of y.

    Arguments:
        block: The block.
        y: On every edge, alpha, beta and the input of the edge update (or nothing), concatenated.
        target, source: The terms A x_i (B, n_t, d) and B x_j (B, n_s, d).
    """
    if block.dense:
        *found, carried = _DenseMessages.apply(y, target, source)  # type: ignore[no-untyped-call]
        return _Partial(y.shape[2], *found), carried
    width = target.shape[-1]
    alpha, beta, carried = y.split([width, width, y.shape[-1] - 2 * width], dim=-1)
    m = torch.addcmul(beta, alpha, target + source)
    return _Partial(1, m, m.square(), m, m), carried


class _DenseMessages(Function):
    """`_messages` of a dense block, in fewer passes over the edges than its parts need, and without keeping them."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, target: Tensor, source: Tensor) -> tuple[Tensor, ...]:
        width = target.shape[-1]
        m = torch.addcmul(y[..., width : 2 * width], y[..., :width], target.unsqueeze(2) + source.unsqueeze(1))
        low, high, total = m.amin(2), m.amax(2), m.sum(2)
        squares = m.square_().sum(2)
        ctx.save_for_backward(y, target, source, low, high)
        return total, squares, low, high, y[..., 2 * width :].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, target, source, low, high = ctx.saved_tensors
        total, squares, at_low, at_high, carried = (g.unsqueeze(2) if i < 4 else g for i, g in enumerate(gradients))
        width = target.shape[-1]
        alpha, beta = y[..., :width], y[..., width : 2 * width]
        pair = target.unsqueeze(2) + source.unsqueeze(1)
        m = torch.addcmul(beta, alpha, pair)  # the same operation as before, so that extremes are found again
        g = torch.addcmul(total, m, 2 * squares)
        for extreme, at in ((low, at_low), (high, at_high)):
            hit = torch.eq(m, extreme.unsqueeze(2), out=torch.empty_like(m))
            g.addcmul_(hit, at / hit.sum(2, keepdim=True))  # equal extremes share the gradient
        into = torch.empty_like(y)
        torch.mul(g, pair, out=into[..., :width])
        into[..., width : 2 * width] = g
        into[..., 2 * width :] = carried
        g.mul_(alpha)
        return into, g.sum(2), g.sum(1)


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

    >>> a = Architecture.mlp([2, 8, 1])
    >>> x = [torch.randn(5, n, 16) for n in (2, 8, 1)]
    >>> e = {b: torch.randn(5, x[b.target].shape[1], x[b.source].shape[1], 16) for b in edge_blocks(a)}
    >>> nodes, _ = PNA([a], width=16, layers=2, dropout=0.0)(a, x, e, editing=False)
    >>> nodes[2].shape
    torch.Size([5, 1, 16])
    """

    def __init__(self, architectures: Sequence[Architecture], *, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(PNALayer(width, dropout=dropout, last=k == layers - 1) for k in range(layers))
        logs = [
            math.log(d + 1)
            for a in architectures
            for layer, d in zip(a.layers, degrees(a), strict=True)
            for _ in range(layer.size)
        ]
        self.mean_log_degree = sum(logs) / len(logs)

    def forward(
        self, architecture: Architecture, nodes: Sequence[Tensor], edges: dict[EdgeBlock, Tensor], *, editing: bool
    ) -> tuple[dict[int, Tensor], dict[EdgeBlock, Tensor]]:
        """The states after the last round of those nodes and edges that are read.

        Arguments:
            architecture: The graph.
            nodes: Per layer (B, n, d).
            edges: Per block (B, n_t, n_s, d), or (B, n, d).
            editing: Whether all nodes and edges are read in the end, or the output neurons only.
        """
        amplification = [math.log(d + 1) / self.mean_log_degree for d in degrees(architecture)]
        x, e = dict(enumerate(nodes)), edges
        for layer, step in zip(self.layers, plan(architecture, len(self.layers), editing=editing), strict=True):
            x, updated = layer(x, e, step, amplification)
            e = updated or e
        return x, e
