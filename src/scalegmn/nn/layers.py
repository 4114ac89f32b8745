r"""One iteration of message passing; in our form, four flows (paper, section 5 and A.2).

`ForwardLayer` sends messages along the connections. `SharedLayer` also sends them back along the same edges, which is
legal for signs, where 1/q = q. `ReciprocalLayer` sends them back along edges that start from 1/w, as the paper does for
positive scales. `DualLayer` carries a second state d that moves as 1/q and flows backwards as gradients do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.architecture import Attention
from ..core.groups import Group
from ..native.formula import SOURCE, Edge
from ..native.net import recomputing
from .invariant import Kind, ScaleInvariant, sum_of
from .message import EdgeUpdate, Message, Update, VertexInvariant
from .nets import Nets
from .spec import Aggregate, SignRule
from .states import States, kept
from .symmetry import Way
from .wires import sent, wire


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
        checkpointing: Whether the backward pass computes messages and updates again.
        state_dropout: On vertex states after every iteration.
        depth: Of scale equivariant nets.
        kind: The class of invariant nets.

    >>> from scalegmn.core.groups import PositiveScale
    >>> Style((PositiveScale,), (PositiveScale,), 8).sign
    'symmetrise'
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
    checkpointing: bool = False
    state_dropout: float = 0.0
    depth: int = 1
    kind: Kind = ScaleInvariant

    @property
    def nets(self) -> Nets:
        """What all nets have in common."""
        return Nets(self.sign, self.dropout, self.depth, self.kind)

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
        return Message(self.vertex_groups, self.width, self.nets, contexts=self.along_edge, hidden=self.gate)

    def edge_update(self, *, outer: bool = False) -> EdgeUpdate:
        """An edge update."""
        return EdgeUpdate(
            self.edge_groups, self.width, self.nets, contexts=self.along_edge, outer=outer, hidden=self.gate
        )


class PassingLayer(nn.Module, ABC):
    """The functions of one iteration: new states from old ones. Flows that lack a kind of state refuse it.

    Arguments:
        style: What all layers share.
        edges: Whether edges are updated.

    >>> issubclass(PassingLayer, nn.Module)
    True
    """

    def __init__(self, style: Style, *, edges: bool) -> None:
        super().__init__()
        self.style = style
        self.edges = edges

    @abstractmethod
    def x(self, old: States, layer: int) -> Tensor:
        """New vertex states of one layer (B, n, h)."""

    def d(self, old: States, layer: int) -> Tensor:
        """New dual states of one layer (B, n, h)."""
        raise NotImplementedError(f"{type(self).__name__} has no dual states")

    @abstractmethod
    def e(self, step: Iteration, connection: int) -> Edge:
        """New states of the edges of one connection, the old ones added where the form says so."""

    def r(self, step: Iteration, connection: int) -> Edge:
        """New reciprocal states of these edges."""
        raise NotImplementedError(f"{type(self).__name__} has no reciprocal edges")

    def summary(self, old: States, layer: int) -> Tensor:
        """An invariant vector of every old vertex (B, n, h), for the edges."""
        raise NotImplementedError(f"{type(self).__name__} has no summaries of vertices")

    def _run(self, function: nn.Module, *arguments: object) -> Any:
        if not self.style.checkpointing:
            return function(*arguments)
        with recomputing():
            return function(*arguments)

    def _updated(
        self,
        update: Update,
        old: States,
        layer: int,
        states: Sequence[Tensor],
        products: Sequence[Tensor] = (),
        companions: Sequence[Tensor] = (),
    ) -> Tensor:
        contexts = [old.positions[layer], *products] if self.style.positions else products
        x: Tensor = self._run(update, old.symmetry, layer, states, contexts, companions)
        return x


class GraphLayer(PassingLayer):
    """One iteration in our form.

    Arguments:
        style, edges: As in `PassingLayer`.

    >>> issubclass(GraphLayer, PassingLayer)
    True
    """

    messages = 1
    duals = False
    outer = False

    def __init__(self, style: Style, *, edges: bool) -> None:
        super().__init__(style, edges=edges)
        self.message = style.message()
        self.update = self._update(self.messages)
        if edges:
            states, products = self._widths()
            self.invariant = VertexInvariant(style.vertex_groups, states, style.width, style.nets, contexts=products)
            self.edge_update = style.edge_update(outer=self.outer)

    def e(self, step: Iteration, connection: int) -> Edge:
        return self._edge(step, connection, step.old.e(connection), self.edge_update if self.edges else None)

    def summary(self, old: States, layer: int) -> Tensor:
        y: Tensor = self.invariant(old.symmetry, layer, *self.vertex(old, layer))
        return y

    def vertex(self, old: States, layer: int) -> tuple[list[Tensor], list[Tensor]]:
        """The states of a vertex and the invariants that go with them."""
        return [old.x(layer)], []

    def inverse(self, old: States, layer: int) -> Tensor | None:
        """The state of a layer that moves as 1/q, if there is one."""
        return None

    # -- parts -------------------------------------------------------------------------------------------------

    def gather(
        self,
        old: States,
        layer: int,
        message: Message,
        vertex: Callable[[int], Tensor],
        edge: Callable[[int], Edge],
        *,
        back: bool = False,
    ) -> Tensor:
        """Messages (B, n, h) that one layer receives, along the connections or back; they move as vertex times edge."""
        a = old.symmetry.architecture
        found, count = [], 0
        for c in (a.outgoing if back else a.incoming)[layer]:
            way = Way(old.symmetry, c, back)
            y = sent(old, way, vertex)
            if y is None:
                continue
            e = edge(c)
            found.append(self._run(message, way, y, e, self._along_edge(old, c)))
            count += e.edges[1 if way.to == SOURCE else 2]
        if not found:
            return torch.zeros_like(vertex(layer))
        total = sum_of(found)
        return total / count if self.style.aggregate == "mean" else total

    def _edge(self, step: Iteration, connection: int, e: Edge, update: EdgeUpdate | None) -> Edge:
        if update is None:
            # Without edge updates the new state is the old one, which a skip connection adds once more.
            return e.doubled() if self.style.skip else e
        symmetry = step.symmetry
        c = symmetry.architecture.connections[connection]
        inverse = self.inverse(step.old, c.source)
        outer = None if inverse is None else (step.old.x(c.target), inverse)
        invariants = step.summary(c.target), step.summary(c.source)
        along = self._along_edge(step, connection)
        new: Edge = self._run(update, symmetry, connection, e, invariants, along, outer, self.style.skip)
        return new

    def _widths(self) -> tuple[list[int], list[int]]:
        """Of what `vertex` gives."""
        w = self.style.width
        return ([w, w], [w]) if self.duals else ([w], [])

    def _update(self, messages: int) -> Update:
        (_, *companions), products = self._widths()
        return Update(
            self.style.vertex_groups,
            self.style.width,
            self.style.nets,
            messages=messages,
            contexts=[*self.style.along_vertex, *products],
            companions=companions,
        )

    def _along_edge(self, old: States, connection: int) -> list[Tensor]:
        if not self.style.positions:
            return []
        c, p = old.symmetry.architecture.connections[connection], old.positions
        if isinstance(old.symmetry.architecture.layers[c.target].combine, Attention):
            # Queries and keys need not have their target's size, nor meet its neurons one by one.
            size = old.symmetry.ranges(connection)[0].size
            return [p[i][:1].unsqueeze(-2).expand(size, 1, -1) for i in (c.target, c.source)]
        return [old.symmetry.target(connection, p[c.target]), old.symmetry.source(connection, p[c.source])]


class Iteration(States):
    """The states after one more iteration.

    Arguments:
        layer: The functions of this iteration.
        old: The states before.

    >>> issubclass(Iteration, States)
    True
    """

    def __init__(self, layer: PassingLayer, old: States) -> None:
        super().__init__(old.symmetry, old.positions, old.answers, old.edge_positions)
        self.layer = layer
        self.old = old

    @kept
    def x(self, layer: int) -> Tensor:
        new = self.layer.x(self.old, layer)
        return self._dropped(self.old.x(layer) + new if self.layer.style.skip else new)

    @kept
    def d(self, layer: int) -> Tensor:
        new = self.layer.d(self.old, layer)
        return self._dropped(self.old.d(layer) + new if self.layer.style.skip else new)

    @kept
    def e(self, connection: int) -> Edge:
        found = wire(self, connection)
        return self.layer.e(self, connection) if found is None else found

    @kept
    def r(self, connection: int) -> Edge:
        return self.layer.r(self, connection)

    @kept
    def summary(self, layer: int) -> Tensor:
        """An invariant vector (B, n, h) of every old vertex, for the edges."""
        return self.layer.summary(self.old, layer)

    def _dropped(self, x: Tensor) -> Tensor:
        rate = self.layer.style.state_dropout
        return F.dropout(x, rate) if rate and self.layer.training else x


class ForwardLayer(GraphLayer):
    """Messages along the connections only: ScaleGMN.

    >>> from scalegmn.nn.forms import Ours
    >>> Ours.layers["none"] is ForwardLayer
    True
    """

    def x(self, old: States, layer: int) -> Tensor:
        m = self.gather(old, layer, self.message, old.x, old.e)
        return self._updated(self.update, old, layer, [old.x(layer), m])


class SharedLayer(GraphLayer):
    r"""Messages both ways along the same edges: ScaleGMN-B for signs.

    Edges also see \(x_t \otimes x_s\), which for signs moves as they do; a gradient has this form. Updates begin as
    those of the forward variant: what comes back is multiplied by zeros until training finds a use for it.

    >>> from scalegmn.nn.forms import Ours
    >>> Ours.layers["shared"] is SharedLayer
    True
    """

    messages = 2
    outer = True

    def __init__(self, style: Style, *, edges: bool) -> None:
        super().__init__(style, edges=edges)
        self.backward_message = style.message()
        self.lift = nn.Linear(style.width, style.width, bias=False)
        self.update.ignore(slice(2 * style.width, 3 * style.width))

    def x(self, old: States, layer: int) -> Tensor:
        x, phi = old.x(layer), old.symmetry.phis[layer]
        fw = self.gather(old, layer, self.message, old.x, old.e)
        bw = self.gather(old, layer, self.backward_message, old.x, old.e, back=True)
        if not phi.is_identity:
            bw = bw * phi.derivative(self.lift(x))
        return self._updated(self.update, old, layer, [x, fw, bw])

    def inverse(self, old: States, layer: int) -> Tensor:
        return old.x(layer)


class ReciprocalLayer(GraphLayer):
    """Messages back along edges that start from 1/w: ScaleGMN-B for positive scales as in the paper.

    >>> from scalegmn.nn.forms import Ours
    >>> Ours.layers["reciprocal"] is ReciprocalLayer
    True
    """

    messages = 2

    def __init__(self, style: Style, *, edges: bool) -> None:
        super().__init__(style, edges=edges)
        self.backward_message = style.message()
        if edges:
            self.backward_edge_update = style.edge_update()

    def x(self, old: States, layer: int) -> Tensor:
        fw = self.gather(old, layer, self.message, old.x, old.e)
        bw = self.gather(old, layer, self.backward_message, old.x, old.r, back=True)
        return self._updated(self.update, old, layer, [old.x(layer), fw, bw])

    def r(self, step: Iteration, connection: int) -> Edge:
        return self._edge(step, connection, step.old.r(connection), self.backward_edge_update if self.edges else None)


class DualLayer(GraphLayer):
    r"""Vertex states flow forwards and dual states backwards, with no division anywhere.

    Messages to d are \(\phi'(\Gamma x_s) \odot \sum_t \mathsf{ScaleEq}(\Gamma d_t \odot \Gamma e_{ts})\), which is how
    gradients flow. The invariant nets of both updates see canon(x), canon(d) and asinh(x d).

    >>> from scalegmn.nn.forms import Ours
    >>> Ours.layers["dual"] is DualLayer
    True
    """

    duals = True
    outer = True

    def __init__(self, style: Style, *, edges: bool) -> None:
        super().__init__(style, edges=edges)
        self.dual_message = style.message()
        self.dual_update = self._update(1)
        self.lift = nn.Linear(style.width, style.width, bias=False)

    def x(self, old: States, layer: int) -> Tensor:
        (x, d), products = self.vertex(old, layer)
        m = self.gather(old, layer, self.message, old.x, old.e)
        return self._updated(self.update, old, layer, [x, m], products, [d])

    def d(self, old: States, layer: int) -> Tensor:
        (x, d), products = self.vertex(old, layer)
        m = self.gather(old, layer, self.dual_message, old.d, old.e, back=True)
        phi = old.symmetry.phis[layer]
        if not phi.is_identity:
            m = m * phi.derivative(self.lift(x))
        return self._updated(self.dual_update, old, layer, [d, m], products, [x])

    def vertex(self, old: States, layer: int) -> tuple[list[Tensor], list[Tensor]]:
        x, d = old.x(layer), old.d(layer)
        return [x, d], [pairing(x, d)]

    def inverse(self, old: States, layer: int) -> Tensor:
        return old.d(layer)


def pairing(x: Tensor, d: Tensor) -> Tensor:
    """The invariant asinh(x d): its size varies over many orders of magnitude, hence the asinh."""
    return torch.asinh(x * d)
