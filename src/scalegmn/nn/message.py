r"""The functions of scale equivariant message passing (paper, section 5, A.1.3 and A.1.4).

Each has one scale equivariant form for hidden neurons and separate plain MLPs for input and output neurons, which have
no symmetry.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from ..core.groups import Group
from ..native.formula import Edge
from .mlp import MLP
from .scale import Product, RescaleEquivariant, ScaleEquivariant, ScaleInvariants, start_at_one, start_linear
from .spec import SignRule
from .symmetry import Symmetry, Way


class Message(nn.Module):
    r"""\(\mathrm{MSG}_V(y, e) = \mathsf{ScaleEq}(\mathsf{ReScaleEq}(y, e))\), summed over the neighbours.

    The sender's multiplier cancels against the edge's. Messages to input and output neurons are
    \(\mathrm{MLP}(\mathsf{ReScaleEq}(y, e))\).

    Arguments:
        groups: Groups of the receivers.
        width: Of all states.
        contexts: Widths of positional encodings.
        hidden, sign, dropout: As in `ScaleInvariant`.
    """

    def __init__(
        self,
        groups: Iterable[Group],
        width: int,
        *,
        contexts: Sequence[int],
        hidden: int | None = None,
        sign: SignRule,
        dropout: float,
    ) -> None:
        super().__init__()
        self.rescale = RescaleEquivariant(width, width, width)
        self.hidden = ScaleEquivariant(
            groups, width, width, contexts=contexts, hidden=hidden, sign=sign, dropout=dropout
        )
        self.fixed = MLP(width + sum(contexts), width, dropout=dropout)

    def forward(self, way: Way, y: Tensor, e: Edge, contexts: Sequence[Tensor]) -> Tensor:
        """The sum of all messages along one connection (B, n, h).

        Arguments:
            way: Which edges, and which way.
            y: States of the senders (B, n, h).
            e: Edge states.
            contexts: Positional encodings along the edges.
        """
        m = self.rescale(y, e, lift=way.lift, by_target=way.by_target)
        if way.symmetry.is_hidden(way.receiver):
            return way.arriving(self.hidden.on_edges(way.symmetry.groups[way.receiver], m, contexts, reduce=way.to))
        return way.arriving(self.fixed.on_edges(m, contexts, reduce=way.to))


class Update(nn.Module):
    r"""\(\mathrm{UPD}_V(x, m, p) = \mathsf{AugScaleEq}([x, m], p)\); plain MLPs for input and output neurons.

    Arguments:
        groups: Groups of the hidden neurons.
        width: Of all states.
        messages: Number of messages that are concatenated with x.
        contexts: Widths of positional encodings and other invariants.
        companions: Widths of further states with the same sign, such as the dual state.
        sign, dropout: As in `ScaleInvariant`.
    """

    def __init__(
        self,
        groups: Iterable[Group],
        width: int,
        *,
        messages: int,
        contexts: Sequence[int],
        companions: Sequence[int] = (),
        sign: SignRule,
        dropout: float,
    ) -> None:
        super().__init__()
        inputs = (1 + messages) * width
        self.hidden = ScaleEquivariant(
            groups, inputs, width, contexts=contexts, companions=companions, sign=sign, dropout=dropout
        )
        fixed = inputs + sum(contexts) + sum(companions)
        self.input = MLP(fixed, width, dropout=dropout)
        self.output = MLP(fixed, width, dropout=dropout)

    def ignore(self, columns: slice) -> None:
        """Begin as if these entries of [x, m] were not there; training brings them in."""
        maps = ("hidden.gamma.0.weight", ".first.0.weight", "input.first.weight", "output.first.weight")
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if name.endswith(maps):
                    weight[:, columns] = 0

    def forward(
        self,
        symmetry: Symmetry,
        layer: int,
        states: Sequence[Tensor],
        contexts: Sequence[Tensor],
        companions: Sequence[Tensor] = (),
    ) -> Tensor:
        """The new state (B, n, h) of one layer from its state and messages."""
        x = torch.cat(list(states), -1)
        if symmetry.is_hidden(layer):
            y: Tensor = self.hidden(symmetry.groups[layer], x, contexts, companions)
        else:
            rest = [c.expand(*x.shape[:-1], -1) for c in (*contexts, *companions)]
            mlp = self.input if layer == 0 else self.output
            y = mlp(torch.cat([x, *rest], -1))
        return y


class VertexInvariant(nn.Module):
    r"""An invariant vector per neuron: \(\mathsf{ScaleInv}(x)\), and an MLP of x for input and output neurons.

    Arguments:
        groups: Groups of the hidden neurons.
        states: Widths of the states: x, and d where there is a dual stream.
        width: Of the result.
        contexts: Widths of further invariants.
        sign, dropout: As in `ScaleInvariant`.
    """

    def __init__(
        self,
        groups: Iterable[Group],
        states: Sequence[int],
        width: int,
        *,
        contexts: Sequence[int] = (),
        sign: SignRule,
        dropout: float,
    ) -> None:
        super().__init__()
        self.hidden = ScaleInvariants(groups, states, width, contexts=contexts, sign=sign, dropout=dropout)
        inputs = sum(states) + sum(contexts)
        self.input = MLP(inputs, width, dropout=dropout)
        self.output = MLP(inputs, width, dropout=dropout)

    def forward(
        self, symmetry: Symmetry, layer: int, states: Sequence[Tensor], contexts: Sequence[Tensor] = ()
    ) -> Tensor:
        """Invariants (B, n, width) of one layer."""
        if symmetry.is_hidden(layer):
            y: Tensor = self.hidden(symmetry.groups[layer], states, contexts)
        else:
            rest = [c.expand(*states[0].shape[:-1], -1) for c in contexts]
            mlp = self.input if layer == 0 else self.output
            y = mlp(torch.cat([*states, *rest], -1))
        return y


class EdgeUpdate(nn.Module):
    r"""\(\mathrm{UPD}_E(x, y, e) = \mathsf{AugScaleEq}(e, \mathsf{ScaleInv}(x, y))\), the paper's invariant form.

    With states d that move as 1/q (a dual stream; for signs, x itself) the linear part also sees
    \(x_t \otimes d_s\), which moves as an edge:
    \((\Gamma e + \Gamma_x x_t \odot \phi(\Gamma_d d_s)) \odot \rho(\tilde e, \mathsf{ScaleInv}(x_t, x_s))\).

    Arguments:
        groups: Groups of the edges.
        width: Of all states.
        contexts: Widths of positional encodings.
        outer: Whether there are such states.
        hidden, sign, dropout: As in `ScaleInvariant`.
    """

    def __init__(
        self,
        groups: Iterable[Group],
        width: int,
        *,
        contexts: Sequence[int],
        outer: bool = False,
        hidden: int | None = None,
        sign: SignRule,
        dropout: float,
    ) -> None:
        super().__init__()
        self.gamma = nn.Linear(width, width, bias=False)
        self.outer = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(2 * outer))
        self.invariant = ScaleInvariants(
            groups, [width], width, contexts=[width, width, *contexts], hidden=hidden, sign=sign, dropout=dropout
        )
        for linear in (self.gamma, *self.outer):
            start_linear(linear)
        start_at_one(self.invariant)

    def forward(
        self,
        symmetry: Symmetry,
        connection: int,
        e: Edge,
        invariants: tuple[Tensor, Tensor],
        contexts: Sequence[Tensor],
        outer: tuple[Tensor, Tensor] | None = None,
        skip: bool = False,
    ) -> Edge:
        """The new state (B, n_t, n_s, h) of the edges of one connection.

        Arguments:
            symmetry, connection: Which edges.
            e: Their state.
            invariants: Of the target (B, n_t, h) and of the source (B, n_s, h).
            contexts: Positional encodings along the edges.
            outer: States x_t (B, n_t, h) and d_s (B, n_s, h).
            skip: Add the old state.
        """
        along = [symmetry.target(connection, invariants[0]), symmetry.source(connection, invariants[1]), *contexts]
        if outer is not None:
            lift = symmetry.phis[symmetry.architecture.connections[connection].source]
            outer = symmetry.outer(connection, self.outer[0](outer[0]), lift(self.outer[1](outer[1])))
        net = self.invariant[symmetry.edge_group(connection)]
        return Edge(net.times(Product(self.gamma.weight, e, along, outer=outer, residual=skip)))
