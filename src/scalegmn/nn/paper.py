r"""One iteration of message passing as printed in the paper (section 5, A.1.2 to A.1.4 and A.2).

In all equations, p are positional encodings of the receiver, of the sender and of the edge, if there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from ..core.activations import Phi
from ..core.architecture import Architecture
from ..core.groups import Group, Trivial
from ..core.networks import Networks
from ..native.dense import dense
from ..native.formula import TARGET, Edge
from .encoding import AugmentedStates, reciprocal
from .invariant import Along, PaperInvariant
from .kernels import kernel_shape, pad_kernel
from .layers import Iteration, PassingLayer
from .message import Update
from .scale import RescaleEquivariant, ScaleEquivariant, ScaleInvariants
from .spec import EdgeRule, Rescaling
from .states import States
from .style import Nets, Style
from .symmetry import Symmetry, Way


@dataclass(frozen=True)
class PaperStyle:
    """What all functions of all layers have in common in the paper's form.

    Arguments:
        common: What they have in common in every form.
        rescale: How vertices and edges are joined.
        edge_rule: What edges see of their ends.
        neighbours_only: Whether messages leave out the central vertex.
        edge_positions: Whether positional encodings of edges also enter messages and updates.

    >>> from scalegmn.core.groups import Sign
    >>> style = PaperStyle(Style((Sign,), (Sign,), 4))
    >>> style.rescale
    'hadamard'
    """

    common: Style
    rescale: Rescaling = "hadamard"
    edge_rule: EdgeRule = "invariant"
    neighbours_only: bool = False
    edge_positions: bool = False

    @property
    def contexts(self) -> list[int]:
        """Widths of the positional encodings along an edge: of its receiver, its sender and its own."""
        return [*self.common.along_edge, *([self.common.positions] if self.edge_positions else [])]

    def rescaling(self, groups: Sequence[Group]) -> Hadamard | Outer:
        """A net of two vectors whose result moves as their product, which belongs to one of the groups."""
        width = self.common.width
        if self.rescale == "outer":
            return Outer(groups, width, self.common.nets, hidden=self.common.gate)
        return Hadamard(width, width, width)


class Hadamard(RescaleEquivariant):
    """`RescaleEquivariant` with the same interface as `Outer`.

    >>> from scalegmn.core.groups import Sign
    >>> y, e = torch.randn(5, 2, 4), Edge(torch.randn(5, 8, 2, 4))
    >>> Hadamard(4, 4, 4).of(Sign, y, e, lift=Phi(), by_target=False).dense().shape
    torch.Size([5, 8, 2, 4])
    """

    def of(self, group: Group, y: Tensor, e: Edge, *, lift: Phi, by_target: bool) -> Edge:
        """Apply to all edges of a connection; arguments as in `RescaleEquivariant`."""
        joined: Edge = self(y, e, lift=lift, by_target=by_target)
        return joined


class Outer(nn.Module):
    r"""\(\mathsf{ReScaleEq}(y, e) = \mathsf{ScaleEq}(\mathrm{vec}(y \otimes e))\), the general form.

    Law: g(a y, b e) = phi(a) b g(y, e), as long as phi(a) b is in the group.

    Arguments:
        groups: Of the product.
        width: Of y, e and the result.
        nets: What all nets have in common.
        hidden: As in `PaperInvariant`.

    >>> from scalegmn.core.groups import Sign
    >>> sum(p.numel() for p in Outer((Sign,), 4, Nets(), hidden=None).parameters()) > 0
    True
    """

    def __init__(self, groups: Sequence[Group], width: int, nets: Nets, *, hidden: int | None) -> None:
        super().__init__()
        self.product = ScaleEquivariant(groups, width * width, width, nets, hidden=hidden)

    def of(self, group: Group, y: Tensor, e: Edge, *, lift: Phi, by_target: bool) -> Edge:
        """Apply to all edges of a connection; arguments as in `RescaleEquivariant`."""
        laid = lift(y).unsqueeze(-2 if by_target else -3)
        outer = (laid.unsqueeze(-1) * e.dense().unsqueeze(-2)).flatten(-2)
        return Edge(self.product.on_edges(group, Edge(outer)))


class PaperMessage(nn.Module):
    r"""\(\mathrm{MSG}_V(x, y, e, p) = \mathsf{AugScaleEq}([x, \mathsf{ReScaleEq}(y, e)], p)\), summed over neighbours.

    Messages to input and output neurons are \(\mathrm{MLP}(x, \mathsf{ReScaleEq}(y, e), p)\).

    Arguments:
        style: What all functions have in common.

    >>> from scalegmn.core.groups import Sign
    >>> style = PaperStyle(Style((Sign,), (Sign,), 4))
    >>> from scalegmn.core.architecture import Architecture
    >>> way = Way(Symmetry.full(Architecture.mlp([2, 8, 1], "tanh")), 0)
    >>> x, y, e = torch.randn(5, 8, 4), torch.randn(5, 2, 4), Edge(torch.randn(5, 8, 2, 4))
    >>> PaperMessage(style)(x, way, y, e, []).shape
    torch.Size([5, 8, 4])
    """

    def __init__(self, style: PaperStyle) -> None:
        super().__init__()
        self.neighbours_only = style.neighbours_only
        width, groups, nets = style.common.width, style.common.vertex_groups, style.common.nets
        self.rescale = style.rescaling([*groups, Trivial])
        inputs = width if style.neighbours_only else 2 * width
        contexts, gate = style.contexts, style.common.gate
        self.hidden = ScaleEquivariant(groups, inputs, width, nets, contexts=contexts, hidden=gate)
        self.fixed = nets.mlp(inputs + sum(contexts), width)

    def forward(self, x: Tensor, way: Way, y: Tensor, e: Edge, contexts: Sequence[Tensor]) -> Tensor:
        """The sum of all messages along one connection (B, n, h).

        Arguments:
            x: States (B, n, h) of the receiving layer.
            way: The edges, and the direction.
            y: States (B, n, h) of the senders.
            e: Edge states.
            contexts: Positional encodings along the edges.
        """
        hidden = way.symmetry.is_hidden(way.receiver)
        group = way.symmetry.groups[way.receiver] if hidden else Trivial
        joined = self.rescale.of(group, y, e, lift=way.lift, by_target=way.by_target)
        if not self.neighbours_only:
            m = dense(joined)
            joined = Edge(torch.cat([way.receivers(x).expand(*m.shape[:-1], -1), m], -1))
        if hidden:
            return way.arriving(self.hidden.on_edges(group, joined, contexts, reduce=way.to))
        return way.arriving(self.fixed.on_edges(joined, contexts, reduce=way.to))


class InvariantEdgeUpdate(nn.Module):
    r"""\(\mathrm{UPD}_E(x, y, e, p) = \mathsf{AugScaleEq}(e, [\mathsf{ScaleInv}(x, y), p])\).

    Arguments:
        style: What all functions have in common.

    >>> from scalegmn.core.groups import Sign
    >>> style = PaperStyle(Style((Sign,), (Sign,), 4, Nets(kind=PaperInvariant)))
    >>> way = Way(Symmetry.full(Architecture.mlp([2, 8, 1], "tanh")), 0)
    >>> x, y, e = torch.randn(5, 8, 4), torch.randn(5, 2, 4), Edge(torch.randn(5, 8, 2, 4))
    >>> InvariantEdgeUpdate(style)(way, x, y, e, []).dense().shape
    torch.Size([5, 8, 2, 4])
    """

    def __init__(self, style: PaperStyle) -> None:
        super().__init__()
        w, groups, nets, gate = style.common.width, style.common.edge_groups, style.common.nets, style.common.gate
        self.ends = ScaleInvariants(groups, [w, w], w, nets, hidden=gate)
        self.edge = ScaleEquivariant(groups, w, w, nets, contexts=[w, *style.contexts], hidden=gate)

    def forward(self, way: Way, x: Tensor, y: Tensor, e: Edge, contexts: Sequence[Tensor]) -> Edge:
        """The new state (B, n_t, n_s, h) of edges; x and y are the states (B, n, h) of the layers at their ends."""
        group = way.symmetry.edge_group(way.connection)
        ends = self.ends[group]
        assert isinstance(ends, PaperInvariant)
        invariant = Along(ends, [way.receivers(x), way.senders(y)], e.edges)
        # Several layers of the net see the same invariant, dropout included.
        several = len(self.edge.gamma) > 1
        return Edge(self.edge.on_edges(group, e, [ends.along(*invariant[1:]) if several else invariant, *contexts]))


class ReciprocalEdgeUpdate(nn.Module):
    r"""\(\mathrm{UPD}_E(x, y, e, p) = \mathsf{AugScaleEq}([e, \mathsf{ReScaleEq}(x, 1 \oslash y)], p)\), with 1/0 := 0.

    Arguments:
        style: What all functions have in common.

    >>> from scalegmn.core.groups import PositiveScale as Group
    >>> update = ReciprocalEdgeUpdate(PaperStyle(Style((Group,), (Group,), 4)))
    >>> way = Way(Symmetry.full(Architecture.mlp([2, 8, 1], "relu")), 0)
    >>> x, y, e = torch.randn(5, 8, 4), torch.randn(5, 2, 4), Edge(torch.randn(5, 8, 2, 4))
    >>> update(way, x, y, e, []).dense().shape
    torch.Size([5, 8, 2, 4])
    """

    def __init__(self, style: PaperStyle) -> None:
        super().__init__()
        w, groups, nets, gate = style.common.width, style.common.edge_groups, style.common.nets, style.common.gate
        self.rescale = style.rescaling(groups)
        self.edge = ScaleEquivariant(groups, 2 * w, w, nets, contexts=style.contexts, hidden=gate)

    def forward(self, way: Way, x: Tensor, y: Tensor, e: Edge, contexts: Sequence[Tensor]) -> Edge:
        """The new state (B, n_t, n_s, h) of edges; x and y are the states (B, n, h) of the layers at their ends."""
        group = way.symmetry.edge_group(way.connection)
        by_target = way.to == TARGET
        inverse = Edge(reciprocal(way.senders(way.lift(y))).expand(*e.edges, -1))
        ends = way.receivers(x).squeeze(-2 if by_target else -3)
        joined = self.rescale.of(group, ends, inverse, lift=Phi(), by_target=by_target)
        return Edge(self.edge.on_edges(group, Edge(torch.cat([dense(e), dense(joined)], -1)), contexts))


EdgeUpdates = InvariantEdgeUpdate | ReciprocalEdgeUpdate


class PaperLayer(PassingLayer):
    """One iteration in the paper's form: edges have no skip connections.

    Arguments:
        style, edges: As in `PassingLayer`.
        messages: How many messages a vertex receives: 2 if they also go backwards.

    >>> from scalegmn.core.groups import Sign
    >>> style = PaperStyle(Style((Sign,), (Sign,), 4))
    >>> [name for name, _ in PaperForward(style, edges=True).named_children()]
    ['message', 'update', 'edge_update']
    """

    def __init__(self, style: PaperStyle, *, edges: bool, messages: int) -> None:
        common = style.common
        super().__init__(common, edges=edges)
        self.paper = style
        self.message = PaperMessage(style)
        self.update = Update(common, messages=messages)
        self.edge_update = self.update_of_edges()

    def update_of_edges(self) -> EdgeUpdates | None:
        """An edge update, if there are any."""
        if not self.edges:
            return None
        return (InvariantEdgeUpdate if self.paper.edge_rule == "invariant" else ReciprocalEdgeUpdate)(self.paper)

    def e(self, step: Iteration, connection: int) -> Edge:
        return self.updated(step, Way(step.symmetry, connection), step.old.e(connection), self.edge_update)

    def updated(self, step: Iteration, way: Way, e: Edge, update: EdgeUpdates | None) -> Edge:
        """The new states of the edges of one connection."""
        if update is None:
            return e
        old = step.old
        new: Edge = self._run(update, way, old.x(way.receiver), old.x(way.sender), e, self.along(old, way))
        return new

    def along(self, old: States, way: Way) -> list[Tensor]:
        """Positional encodings along edges: of their receivers, of their senders, their own."""
        if not self.style.positions:
            return []
        p = old.positions
        own = [old.edge_positions[way.connection]] if self.paper.edge_positions else []
        return [way.receivers(p[way.receiver]), way.senders(p[way.sender]), *own]


class PaperForward(PaperLayer):
    """Messages along the connections only: ScaleGMN.

    >>> from scalegmn.nn.forms import Paper
    >>> Paper.layers["none"] is PaperForward
    True
    """

    def __init__(self, style: PaperStyle, *, edges: bool) -> None:
        super().__init__(style, edges=edges, messages=1)

    def x(self, old: States, layer: int) -> Tensor:
        m = self.gather(old, layer, partial(self.message, old.x(layer)), old.x, old.e)
        return self._updated(self.update, old, layer, [old.x(layer), m])


class PaperShared(PaperLayer):
    """Messages in both directions along the same edges: ScaleGMN-B for signs, where 1/q = q.

    >>> from scalegmn.nn.forms import Paper
    >>> Paper.layers["shared"] is PaperShared
    True
    """

    def __init__(self, style: PaperStyle, *, edges: bool) -> None:
        super().__init__(style, edges=edges, messages=2)
        self.backward_message = PaperMessage(style)

    def x(self, old: States, layer: int) -> Tensor:
        x = old.x(layer)
        forward = self.gather(old, layer, partial(self.message, x), old.x, old.e)
        backward = self.gather(old, layer, partial(self.backward_message, x), old.x, self.way_back(old), back=True)
        return self._updated(self.update, old, layer, [x, forward, backward])

    def way_back(self, old: States) -> Callable[[int], Edge]:
        """The edges of backward messages."""
        return old.e


class PaperReciprocal(PaperShared):
    """Backward messages along edges of their own, which start from 1/w: ScaleGMN-B for positive scales.

    >>> from scalegmn.nn.forms import Paper
    >>> Paper.layers["reciprocal"] is PaperReciprocal
    True
    """

    def __init__(self, style: PaperStyle, *, edges: bool) -> None:
        super().__init__(style, edges=edges)
        self.backward_edge_update = self.update_of_edges()

    def way_back(self, old: States) -> Callable[[int], Edge]:
        return old.r

    def r(self, step: Iteration, connection: int) -> Edge:
        way = Way(step.symmetry, connection, back=True)
        return self.updated(step, way, step.old.r(connection), self.backward_edge_update)


class PaperInit(AugmentedStates):
    r"""The first states in the paper's form: weights and biases as they are.

    \(\mathrm{INIT}_E(w) = \Gamma_E w\); with edge positions \(\mathrm{INIT}_E(w, p) = \mathsf{AugScaleEq}(w, p)\).

    Arguments:
        architectures, style, features, edge_positions: As in `AugmentedStates`.

    >>> from scalegmn.core.groups import Sign
    >>> a = Architecture.mlp([2, 8, 1], "tanh")
    >>> init = PaperInit([a], Style((Sign,), (Sign,), 8), features=0, edge_positions=True)
    >>> init.encode_edge(Symmetry.full(a), 0, torch.randn(5, 8, 2, 1)).dense().shape
    torch.Size([5, 8, 2, 8])
    """

    def __init__(
        self, architectures: Sequence[Architecture], style: Style, *, features: int, edge_positions: bool
    ) -> None:
        linear = not edge_positions
        super().__init__(architectures, style, features=features, edge_positions=edge_positions, linear=linear)
        w, inputs = style.width, self.kernels.size
        self.edge_net = None if linear else ScaleEquivariant(style.edge_groups, inputs, w, style.nets, contexts=[w])

    def encode_edge(self, symmetry: Symmetry, connection: int, w: Tensor) -> Edge:
        if self.edge_net is None or self.edge_positions is None:
            return self.project(symmetry, connection, w)
        shape = kernel_shape(symmetry.architecture.connections[connection])
        full = pad_kernel(w, shape, self.kernels.shape)
        p = self.edge_positions(symmetry, connection)
        return Edge(self.edge_net.on_edges(symmetry.edge_group(connection), Edge(full), [p]))

    def measure(self, training: Sequence[Networks]) -> None:
        """Does nothing: the paper does not normalise its inputs."""
