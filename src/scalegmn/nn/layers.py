r"""One iteration of message passing, in our form, with four kinds of flow (paper, section 5 and A.2).

`ForwardLayer` sends messages along the connections. `SharedLayer` also sends them back along the same edges, which is
legal for signs, where 1/q = q. `ReciprocalLayer` sends them back along edges that start from 1/w, as the paper does for
positive scales. `DualLayer` carries a second state d that moves as 1/q and flows backwards as gradients do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.architecture import Attention
from ..native.formula import SOURCE, Edge
from ..native.net import recomputing
from .message import EdgeUpdate, Message, Update, VertexInvariant
from .states import States, kept
from .style import Style
from .symmetry import Way
from .wires import sent, wire


class PassingLayer(nn.Module, ABC):
    """The functions of one iteration: new states from old ones. A flow refuses kinds of states that it does not have.

    Arguments:
        style: What all layers share.
        edges: Whether edges are updated.

    >>> [flow.duals for flow in (ForwardLayer, DualLayer)]
    [False, True]
    """

    duals = False

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
        """New states of the edges of one connection, plus the old ones if the form says so."""

    def r(self, step: Iteration, connection: int) -> Edge:
        """New reciprocal states of these edges."""
        raise NotImplementedError(f"{type(self).__name__} has no reciprocal edges")

    def summary(self, old: States, layer: int) -> Tensor:
        """An invariant vector of every old vertex (B, n, h), for the edges."""
        raise NotImplementedError(f"{type(self).__name__} has no summaries of vertices")

    @abstractmethod
    def along(self, old: States, way: Way) -> list[Tensor]:
        """Positional encodings along the edges of one connection, if there are any."""

    def gather(
        self,
        old: States,
        layer: int,
        message: Callable[..., Tensor],
        vertex: Callable[[int], Tensor],
        edge: Callable[[int], Edge],
        *,
        back: bool = False,
    ) -> Tensor:
        """Messages (B, n, h) that one layer receives; they move as vertex times edge.

        Arguments:
            old: All states.
            layer: The layer.
            message: Computes their sum along one connection.
            vertex, edge: The states that are sent, and those of the edges.
            back: From the targets of connections to their sources.
        """
        a = old.symmetry.architecture
        found, count = [], 0
        for c in (a.outgoing if back else a.incoming)[layer]:
            way = Way(old.symmetry, c, back)
            y = sent(old, way, vertex)
            if y is None:
                continue
            e = edge(c)
            found.append(self._run(message, way, y, e, self.along(old, way)))
            count += e.edges[1 if way.to == SOURCE else 2]
        if not found:
            return torch.zeros_like(vertex(layer))
        total: Tensor = reduce(torch.add, found)
        return total / count if self.style.aggregate == "mean" else total

    def _run(self, function: Callable[..., Any], *arguments: object) -> Any:
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


class EdgeLayer(PassingLayer, ABC):
    """The edges of one iteration in our form; a subclass has the functions of vertices.

    Arguments:
        style, edges: As in `PassingLayer`.

    >>> issubclass(GraphLayer, EdgeLayer)
    True
    """

    outer = False

    def __init__(self, style: Style, *, edges: bool) -> None:
        super().__init__(style, edges=edges)
        self.make_functions(style)
        if edges:
            self.invariant = VertexInvariant(style, duals=self.duals)
            self.edge_update = EdgeUpdate(style, outer=self.outer)

    @abstractmethod
    def make_functions(self, style: Style) -> None:
        """Make the functions of messages and updates."""

    def e(self, step: Iteration, connection: int) -> Edge:
        return self._edge(step, connection, step.old.e(connection), self.edge_update if self.edges else None)

    def summary(self, old: States, layer: int) -> Tensor:
        y: Tensor = self.invariant(old.symmetry, layer, *self.vertex(old, layer))
        return y

    def vertex(self, old: States, layer: int) -> tuple[list[Tensor], list[Tensor]]:
        """The states of a vertex and their invariants."""
        return [old.x(layer)], []

    def inverse(self, old: States, layer: int) -> Tensor | None:
        """The state of a layer that moves as 1/q, if there is one."""
        return None

    def _edge(self, step: Iteration, connection: int, e: Edge, update: EdgeUpdate | None) -> Edge:
        if update is None:
            # Without edge updates the new state is the old one, which a skip connection adds once more.
            return e.doubled() if self.style.skip else e
        symmetry = step.symmetry
        c = symmetry.architecture.connections[connection]
        inverse = self.inverse(step.old, c.source)
        outer = None if inverse is None else (step.old.x(c.target), inverse)
        invariants = step.summary(c.target), step.summary(c.source)
        along = self.along(step, Way(symmetry, connection))
        new: Edge = self._run(update, symmetry, connection, e, invariants, along, outer, self.style.skip)
        return new

    def along(self, old: States, way: Way) -> list[Tensor]:
        """Encodings of the targets and of the sources of edges, whichever way messages go."""
        if not self.style.positions:
            return []
        connection, p = way.connection, old.positions
        c = old.symmetry.architecture.connections[connection]
        if isinstance(old.symmetry.architecture.layers[c.target].combine, Attention):
            # Queries and keys need not have their target's size, nor meet its neurons one by one.
            size = old.symmetry.ranges(connection)[0].size
            return [p[i][:1].unsqueeze(-2).expand(size, 1, -1) for i in (c.target, c.source)]
        return [old.symmetry.target(connection, p[c.target]), old.symmetry.source(connection, p[c.source])]


class GraphLayer(EdgeLayer):
    """One iteration in our form.

    Arguments:
        style, edges: As in `PassingLayer`.

    >>> from scalegmn.core.groups import Sign
    >>> [name for name, _ in ForwardLayer(Style((Sign,), (Sign,), 4), edges=True).named_children()]
    ['message', 'update', 'invariant', 'edge_update']
    """

    messages = 1

    def make_functions(self, style: Style) -> None:
        self.message = Message(style)
        self.update = Update(style, messages=self.messages, duals=self.duals)


class Iteration(States):
    """The states after one more iteration.

    Arguments:
        layer: The functions of this iteration.
        old: The states before.
        only: The layer of neurons that changes; all of them if omitted.

    >>> from scalegmn.core.architecture import Architecture
    >>> from scalegmn.nn.body import MessagePassing, Start
    >>> from scalegmn.nn.spec import PassingSpec
    >>> from scalegmn.testing import random_networks
    >>> a = Architecture.mlp([2, 8, 1], "tanh")
    >>> body = MessagePassing([a], PassingSpec(width=4, layers=1)).double()
    >>> new = Iteration(body.layers[0], Start(body, random_networks(a, 5)))
    >>> new.found  # nothing yet
    {}
    >>> new.x(2).shape, list(new.found)
    (torch.Size([5, 1, 4]), [('x', 2)])
    """

    def __init__(self, layer: PassingLayer, old: States, only: int | None = None) -> None:
        super().__init__(old.symmetry, old.positions, old.answers, old.edge_positions)
        self.layer = layer
        self.old = old
        self.only = only

    @kept
    def x(self, layer: int) -> Tensor:
        if self.only not in (None, layer):
            return self.old.x(layer)
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

    def settle(self, name: str, index: int) -> None:
        """Let go of the old states of edges that all their readers have read, where no gradient will need them."""
        if torch.is_grad_enabled() or name == "summary":
            return
        a = self.symmetry.architecture
        for c in (index,) if name in ("e", "r") else (*a.incoming[index], *a.outgoing[index]):
            source, target = a.connections[c].source, a.connections[c].target
            readers = [("x", source), ("x", target), *([("d", source)] if self.layer.duals else [])]
            if all(reader in self.found for reader in readers):
                for kind in ("e", "r"):
                    if (kind, c) in self.found:
                        self.old.found.pop((kind, c), None)

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
    r"""Messages in both directions along the same edges: ScaleGMN-B for signs.

    Edges also see \(x_t \otimes x_s\), which for signs moves as they do; a gradient has this form. Updates start as
    those of the forward variant: backward messages are multiplied by zeros at first.

    >>> from scalegmn.nn.forms import Ours
    >>> Ours.layers["shared"] is SharedLayer
    True
    """

    messages = 2
    outer = True

    def __init__(self, style: Style, *, edges: bool) -> None:
        super().__init__(style, edges=edges)
        self.backward_message = Message(style)
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
    """Backward messages along edges that start from 1/w: ScaleGMN-B for positive scales as in the paper.

    >>> from scalegmn.nn.forms import Ours
    >>> Ours.layers["reciprocal"] is ReciprocalLayer
    True
    """

    messages = 2

    def __init__(self, style: Style, *, edges: bool) -> None:
        super().__init__(style, edges=edges)
        self.backward_message = Message(style)
        if edges:
            self.backward_edge_update = EdgeUpdate(style)

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
        self.dual_message = Message(style)
        self.dual_update = Update(style, messages=1, duals=True)
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
