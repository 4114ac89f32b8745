r"""One iteration of message passing, in four flows (paper, section 5 and A.2).

`ForwardLayer` sends messages along the connections. `SharedLayer` also sends them back along the same edges, which is
legal for signs, where 1/q = q. `ReciprocalLayer` sends them back along edges that start from 1/w, as the paper does for
positive scales. `DualLayer` carries a second state d that moves as 1/q and flows backwards as gradients do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from ..core.groups import Group
from .edges import Edge, shape, twice
from .message import EdgeUpdate, Message, Update, VertexInvariant
from .scale import sum_of
from .spec import Aggregate, SignRule
from .symmetry import Symmetry

Key = tuple[Literal["x", "d", "e", "r"], int]


@dataclass
class States:
    """What message passing carries.

    Arguments:
        x: Per layer, vertex states (B, n, h), moving as q.
        d: Per layer, dual states (B, n, h), moving as 1/q.
        e: Per connection, edge states (B, n_t, n_s, h), or (B, n, 1, h) if elementwise, moving as q_t / phi(q_s).
        r: Per connection, reciprocal edge states, moving as phi(q_s) / q_t.
        answers: What the networks themselves say to the probes (B, n_L, P), not moving at all, if there are probes.
    """

    x: dict[int, Tensor] = field(default_factory=dict)
    d: dict[int, Tensor] = field(default_factory=dict)
    e: dict[int, Edge] = field(default_factory=dict)
    r: dict[int, Edge] = field(default_factory=dict)
    answers: Tensor | None = None

    def plus(self, other: States) -> States:
        """Add vertex states to those of the next iteration (skip connection); edges have been added by their update."""
        x = {k: self.x[k] + v for k, v in other.x.items()}
        d = {k: self.d[k] + v for k, v in other.d.items()}
        return States(x, d, other.e, other.r)


@dataclass(frozen=True)
class Style:
    """What all functions of all layers have in common.

    Arguments:
        vertex_groups: Groups of hidden neurons.
        edge_groups: Groups of edges.
        width: Of all states.
        positions: Width of the positional encodings that enter messages and updates, 0 for none.
        gate: Width of the hidden layer in invariant nets on edges; that of all states where omitted.
        sign: How invariant nets remove signs.
        aggregate: How messages are gathered.
        dropout: In all MLPs.
        skip: Whether new states are added to old ones.
    """

    vertex_groups: tuple[Group, ...]
    edge_groups: tuple[Group, ...]
    width: int
    positions: int = 0
    gate: int | None = None
    sign: SignRule = "symmetrise"
    aggregate: Aggregate = "sum"
    dropout: float = 0.0
    skip: bool = False

    @property
    def along_vertex(self) -> list[int]:
        """Widths of the positional encodings of a vertex."""
        return [self.positions] if self.positions else []

    @property
    def along_edge(self) -> list[int]:
        """Widths of the positional encodings of an edge: of its target and of its source."""
        return [self.positions, self.positions] if self.positions else []

    def message(self) -> Message:
        """A message function."""
        return Message(
            self.vertex_groups,
            self.width,
            contexts=self.along_edge,
            hidden=self.gate,
            sign=self.sign,
            dropout=self.dropout,
        )

    def edge_update(self, *, outer: bool = False) -> EdgeUpdate:
        """An edge update."""
        return EdgeUpdate(
            self.edge_groups,
            self.width,
            contexts=self.along_edge,
            outer=outer,
            hidden=self.gate,
            sign=self.sign,
            dropout=self.dropout,
        )


class GraphLayer(nn.Module, ABC):
    """One iteration: new states from old, only those that are wanted.

    Arguments:
        style: What all layers share.
        edges: Whether edges are updated.
    """

    messages = 1
    duals = False
    # The state that moves as 1/q, if there is one.
    inverse: Literal["x", "d"] | None = None

    def __init__(self, style: Style, *, edges: bool) -> None:
        super().__init__()
        self.style = style
        w, s, p = style.width, style.sign, style.dropout
        states, products = ([w, w], [w]) if self.duals else ([w], [])
        self.message = style.message()
        self.update = Update(
            style.vertex_groups,
            w,
            messages=self.messages,
            contexts=[*style.along_vertex, *products],
            companions=states[1:],
            sign=s,
            dropout=p,
        )
        self.edges = edges
        if edges:
            self.invariant = VertexInvariant(style.vertex_groups, states, w, contexts=products, sign=s, dropout=p)
            self.edge_update = style.edge_update(outer=self.inverse is not None)

    @abstractmethod
    def needs(self, symmetry: Symmetry, wanted: set[Key]) -> set[Key]:
        """The old states that the new ones in `wanted` depend on."""

    @abstractmethod
    def forward(self, symmetry: Symmetry, old: States, wanted: set[Key], positions: Sequence[Tensor]) -> States:
        """The new states in `wanted`."""

    # -- parts -------------------------------------------------------------------------------------------------

    def gather_forward(
        self, symmetry: Symmetry, layer: int, old: States, positions: Sequence[Tensor]
    ) -> Tensor:
        """Messages (B, n, h) that one layer receives along the connections."""
        a = symmetry.architecture
        found = []
        for c in a.incoming[layer]:
            source = a.connections[c].source
            along = self._along_edge(symmetry, c, positions)
            lift = symmetry.phis[source]
            found.append(self.message(symmetry, c, old.x[source], old.e[c], along, lift=lift))
        if not found:
            return torch.zeros_like(old.x[layer])
        total = sum_of(found)
        if self.style.aggregate == "mean":
            total = total / sum(shape(old.e[c])[2] for c in a.incoming[layer])
        return total

    def gather_backward(
        self,
        symmetry: Symmetry,
        layer: int,
        message: Message,
        vertices: dict[int, Tensor],
        edges: dict[int, Edge],
        positions: Sequence[Tensor],
    ) -> Tensor:
        """Messages (B, n, h) that one layer receives against the connections; they move as vertex times edge."""
        a = symmetry.architecture
        found = []
        for c in a.outgoing[layer]:
            along = self._along_edge(symmetry, c, positions)
            found.append(message(symmetry, c, vertices[a.connections[c].target], edges[c], along, backward=True))
        if not found:
            return torch.zeros_like(vertices[layer])
        total = sum_of(found)
        if self.style.aggregate == "mean":
            total = total / sum(shape(edges[c])[1] if a.connections[c].dense else 1 for c in a.outgoing[layer])
        return total

    def update_edges(
        self,
        symmetry: Symmetry,
        old: States,
        edges: dict[int, Edge],
        wanted: Sequence[int],
        positions: Sequence[Tensor],
        update: EdgeUpdate | None = None,
    ) -> dict[int, Edge]:
        """New states of the wanted connections, the old ones added; each layer's invariants are computed once."""
        if not self.edges:
            return self._unchanged(edges, wanted)
        update = self.edge_update if update is None else update
        a = symmetry.architecture
        layers = {i for c in wanted for i in (a.connections[c].source, a.connections[c].target)}
        inv = {i: self.invariant(symmetry, i, *self._vertex(old, i)) for i in layers}
        new: dict[int, Edge] = {}
        for c in wanted:
            s, t = a.connections[c].source, a.connections[c].target
            outer = (old.x[t], getattr(old, self.inverse)[s]) if self.inverse else None
            along = self._along_edge(symmetry, c, positions)
            new[c] = update(symmetry, c, edges[c], (inv[t], inv[s]), along, outer, skip=self.style.skip)
        return new

    def _unchanged(self, edges: dict[int, Edge], wanted: Sequence[int]) -> dict[int, Edge]:
        """Without edge updates the new state is the old one, which a skip connection adds once more."""
        return {c: twice(edges[c]) if self.style.skip else edges[c] for c in wanted}

    def _vertex(self, old: States, layer: int) -> tuple[list[Tensor], list[Tensor]]:
        """The states of a vertex and the invariants that go with them."""
        x = old.x[layer]
        if not self.duals:
            return [x], []
        d = old.d[layer]
        return [x, d], [pairing(x, d)]

    def _along_vertex(self, layer: int, positions: Sequence[Tensor]) -> list[Tensor]:
        return [positions[layer]] if self.style.positions else []

    def _along_edge(self, symmetry: Symmetry, connection: int, positions: Sequence[Tensor]) -> list[Tensor]:
        if not self.style.positions:
            return []
        c = symmetry.architecture.connections[connection]
        return [
            symmetry.target(connection, positions[c.target]),
            symmetry.source(connection, positions[c.source]),
        ]


class ForwardLayer(GraphLayer):
    """Messages along the connections only: ScaleGMN."""

    def needs(self, symmetry: Symmetry, wanted: set[Key]) -> set[Key]:
        return _forward_needs(symmetry, wanted)

    def forward(self, symmetry: Symmetry, old: States, wanted: set[Key], positions: Sequence[Tensor]) -> States:
        new = States()
        for i in _wanted("x", wanted):
            m = self.gather_forward(symmetry, i, old, positions)
            new.x[i] = self.update(symmetry, i, [old.x[i], m], self._along_vertex(i, positions))
        new.e = self.update_edges(symmetry, old, old.e, _wanted("e", wanted), positions)
        return new


class SharedLayer(GraphLayer):
    r"""Messages both ways along the same edges: ScaleGMN-B for signs.

    Edges also see \(x_t \otimes x_s\), which for signs moves as they do; a gradient has this form. Updates begin as
    those of the forward variant: what comes back is multiplied by zeros until training finds a use for it.
    """

    messages = 2
    inverse = "x"

    def __init__(self, style: Style, *, edges: bool) -> None:
        super().__init__(style, edges=edges)
        self.backward_message = style.message()
        self.lift = nn.Linear(style.width, style.width, bias=False)
        self.update.ignore(slice(2 * style.width, 3 * style.width))

    def needs(self, symmetry: Symmetry, wanted: set[Key]) -> set[Key]:
        return _forward_needs(symmetry, wanted) | _backward_needs(symmetry, _wanted("x", wanted), "x", "e")

    def forward(self, symmetry: Symmetry, old: States, wanted: set[Key], positions: Sequence[Tensor]) -> States:
        new = States()
        for i in _wanted("x", wanted):
            fw = self.gather_forward(symmetry, i, old, positions)
            bw = self.gather_backward(symmetry, i, self.backward_message, old.x, old.e, positions)
            if not symmetry.phis[i].is_identity:
                bw = bw * symmetry.phis[i].derivative(self.lift(old.x[i]))
            new.x[i] = self.update(symmetry, i, [old.x[i], fw, bw], self._along_vertex(i, positions))
        new.e = self.update_edges(symmetry, old, old.e, _wanted("e", wanted), positions)
        return new


class ReciprocalLayer(GraphLayer):
    """Messages back along edges that start from 1/w: ScaleGMN-B for positive scales as in the paper."""

    messages = 2

    def __init__(self, style: Style, *, edges: bool) -> None:
        super().__init__(style, edges=edges)
        self.backward_message = style.message()
        if edges:
            self.backward_edge_update = style.edge_update()

    def needs(self, symmetry: Symmetry, wanted: set[Key]) -> set[Key]:
        back = _backward_needs(symmetry, _wanted("x", wanted), "x", "r")
        ends = _ends(symmetry, _wanted("r", wanted))
        return _forward_needs(symmetry, wanted) | back | ends | {k for k in wanted if k[0] == "r"}

    def forward(self, symmetry: Symmetry, old: States, wanted: set[Key], positions: Sequence[Tensor]) -> States:
        new = States()
        for i in _wanted("x", wanted):
            fw = self.gather_forward(symmetry, i, old, positions)
            bw = self.gather_backward(symmetry, i, self.backward_message, old.x, old.r, positions)
            new.x[i] = self.update(symmetry, i, [old.x[i], fw, bw], self._along_vertex(i, positions))
        new.e = self.update_edges(symmetry, old, old.e, _wanted("e", wanted), positions)
        back = self.backward_edge_update if self.edges else None
        new.r = self.update_edges(symmetry, old, old.r, _wanted("r", wanted), positions, back)
        return new


class DualLayer(GraphLayer):
    r"""Vertex states flow forwards and dual states backwards, with no division anywhere.

    Messages to d are \(\phi'(\Gamma x_s) \odot \sum_t \mathsf{ScaleEq}(\Gamma d_t \odot \Gamma e_{ts})\), which is how
    gradients flow. The invariant nets of both updates see canon(x), canon(d) and asinh(x d).
    """

    duals = True
    inverse = "d"

    def __init__(self, style: Style, *, edges: bool) -> None:
        super().__init__(style, edges=edges)
        w, s, p = style.width, style.sign, style.dropout
        self.dual_message = style.message()
        self.dual_update = Update(
            style.vertex_groups,
            w,
            messages=1,
            contexts=[*style.along_vertex, w],
            companions=[w],
            sign=s,
            dropout=p,
        )
        self.lift = nn.Linear(w, w, bias=False)

    def needs(self, symmetry: Symmetry, wanted: set[Key]) -> set[Key]:
        found = _forward_needs(symmetry, wanted)
        duals = _wanted("d", wanted)
        found |= _backward_needs(symmetry, duals, "d", "e")
        paired: set[Key] = {("x", i) for i in duals} | {("d", i) for i in duals}
        paired |= {("d", i) for i in _wanted("x", wanted)}
        paired |= {("d", i) for _, i in _ends(symmetry, _wanted("e", wanted))}
        return found | paired

    def forward(self, symmetry: Symmetry, old: States, wanted: set[Key], positions: Sequence[Tensor]) -> States:
        new = States()
        for i in _wanted("x", wanted):
            m = self.gather_forward(symmetry, i, old, positions)
            contexts = [*self._along_vertex(i, positions), pairing(old.x[i], old.d[i])]
            new.x[i] = self.update(symmetry, i, [old.x[i], m], contexts, [old.d[i]])
        for i in _wanted("d", wanted):
            m = self.gather_backward(symmetry, i, self.dual_message, old.d, old.e, positions)
            if not symmetry.phis[i].is_identity:
                m = m * symmetry.phis[i].derivative(self.lift(old.x[i]))
            contexts = [*self._along_vertex(i, positions), pairing(old.x[i], old.d[i])]
            new.d[i] = self.dual_update(symmetry, i, [old.d[i], m], contexts, [old.x[i]])
        new.e = self.update_edges(symmetry, old, old.e, _wanted("e", wanted), positions)
        return new


def pairing(x: Tensor, d: Tensor) -> Tensor:
    """The invariant asinh(x d): its size varies over many orders of magnitude, hence the asinh."""
    return torch.asinh(x * d)


def _wanted(kind: Literal["x", "d", "e", "r"], wanted: set[Key]) -> list[int]:
    return sorted(i for k, i in wanted if k == kind)


def _ends(symmetry: Symmetry, connections: Sequence[int]) -> set[Key]:
    a = symmetry.architecture
    return {("x", i) for c in connections for i in (a.connections[c].source, a.connections[c].target)}


def _forward_needs(symmetry: Symmetry, wanted: set[Key]) -> set[Key]:
    a = symmetry.architecture
    found: set[Key] = {k for k in wanted if k[0] in ("x", "e")}
    for i in _wanted("x", wanted):
        for c in a.incoming[i]:
            found |= {("x", a.connections[c].source), ("e", c)}
    return found | _ends(symmetry, _wanted("e", wanted))


def _backward_needs(
    symmetry: Symmetry, layers: Sequence[int], vertex: Literal["x", "d"], edge: Literal["e", "r"]
) -> set[Key]:
    a = symmetry.architecture
    found: set[Key] = {(vertex, i) for i in layers}
    for i in layers:
        for c in a.outgoing[i]:
            found |= {(vertex, a.connections[c].target), (edge, c)}
    return found
