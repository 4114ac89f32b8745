r"""The functions of scale equivariant message passing (paper, section 5, A.1.3 and A.1.4).

Each has one scale equivariant form for hidden neurons and separate plain MLPs for input and output neurons, which have
no symmetry.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..native.formula import Edge
from .invariant import GatedProduct
from .scale import RescaleEquivariant, ScaleEquivariant, ScaleInvariants, start_linear
from .style import Style
from .symmetry import Symmetry, Way


class Message(nn.Module):
    r"""\(\mathrm{MSG}_V(y, e) = \mathsf{ScaleEq}(\mathsf{ReScaleEq}(y, e))\), summed over the neighbours.

    The sender's multiplier cancels against the edge's. Messages to input and output neurons are
    \(\mathrm{MLP}(\mathsf{ReScaleEq}(y, e))\).

    Arguments:
        style: What all functions have in common.

    >>> from scalegmn.core.architecture import Architecture
    >>> from scalegmn.core.groups import Sign
    >>> symmetry = Symmetry.full(Architecture.mlp([2, 8, 1], "tanh"))
    >>> message = Message(Style((Sign,), (Sign,), 4))
    >>> message(Way(symmetry, 0), torch.randn(5, 2, 4), Edge(torch.randn(5, 8, 2, 4)), []).shape
    torch.Size([5, 8, 4])
    """

    def __init__(self, style: Style) -> None:
        super().__init__()
        w, nets, contexts = style.width, style.nets, style.along_edge
        self.rescale = RescaleEquivariant(w, w, w)
        self.hidden = ScaleEquivariant(style.vertex_groups, w, w, nets, contexts=contexts, hidden=style.gate)
        self.fixed = nets.mlp(w + sum(contexts), w)

    def forward(self, way: Way, y: Tensor, e: Edge, contexts: Sequence[Tensor]) -> Tensor:
        """The sum of all messages along one connection (B, n, h).

        Arguments:
            way: The edges, and the direction.
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
        style: What all functions have in common.
        messages: Number of messages that are concatenated with x.
        duals: Whether there is a dual state beside x; the invariant nets see both and their product.

    >>> from scalegmn import Architecture
    >>> from scalegmn.core.groups import Sign
    >>> update = Update(Style((Sign,), (Sign,), 4), messages=1)
    >>> x, m = torch.randn(2, 5, 8, 4)
    >>> update(Symmetry.full(Architecture.mlp([2, 8, 1], "tanh")), 1, [x, m], []).shape
    torch.Size([5, 8, 4])
    """

    def __init__(self, style: Style, *, messages: int, duals: bool = False) -> None:
        super().__init__()
        w, nets, inputs, hidden = style.width, style.nets, (1 + messages) * style.width, style.hidden
        companions = [w] if duals else []
        contexts = [*style.along_vertex, *companions]
        self.hidden = ScaleEquivariant(
            style.vertex_groups, inputs, w, nets, contexts=contexts, companions=companions, hidden=hidden
        )
        fixed = inputs + sum(contexts) + sum(companions)
        self.input = nets.mlp(fixed, w, hidden=hidden)
        self.output = nets.mlp(fixed, w, hidden=hidden)

    def ignore(self, columns: slice) -> None:
        """Start with weights of zero for these entries of [x, m]; training can change them."""
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
        style: What all functions have in common.
        duals: Whether there is a dual state d beside x; then their product is a further argument.

    >>> from scalegmn import Architecture
    >>> sine = Architecture.mlp([2, 8, 1], "sine")
    >>> f, x = VertexInvariant(Style(sine.groups[1:2], (), 4)), torch.randn(5, 8, 4)
    >>> torch.allclose(f(Symmetry.full(sine), 1, [-x]), f(Symmetry.full(sine), 1, [x]), atol=1e-5)
    True
    """

    def __init__(self, style: Style, *, duals: bool = False) -> None:
        super().__init__()
        w, nets = style.width, style.nets
        states, contexts = ([w, w], [w]) if duals else ([w], [])
        self.hidden = ScaleInvariants(style.vertex_groups, states, w, nets, contexts=contexts)
        inputs = sum(states) + sum(contexts)
        self.input = nets.mlp(inputs, w)
        self.output = nets.mlp(inputs, w)

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
        style: What all functions have in common; in deeper nets, further layers see e only.
        outer: Whether there are such states d.

    >>> from scalegmn import Architecture
    >>> siren = Symmetry.full(Architecture.mlp([2, 8, 1], "sine"))
    >>> update = EdgeUpdate(Style((), siren.groups[1:2], 4))
    >>> e, ends = Edge(torch.randn(5, 8, 2, 4)), (torch.randn(5, 8, 4), torch.randn(5, 2, 4))
    >>> update(siren, 0, e, ends, []).dense().shape
    torch.Size([5, 8, 2, 4])
    """

    def __init__(self, style: Style, *, outer: bool = False) -> None:
        super().__init__()
        w, nets, groups, hidden = style.width, style.nets, style.edge_groups, style.gate
        self.gamma = nn.Linear(w, w, bias=False)
        self.outer = nn.ModuleList(nn.Linear(w, w, bias=False) for _ in range(2 * outer))
        contexts = [w, w, *style.along_edge]
        self.invariant = ScaleInvariants(groups, [w], w, nets, contexts=contexts, hidden=hidden)
        further = replace(nets, depth=nets.depth - 1)
        self.further = ScaleEquivariant(groups, w, w, further, contexts=contexts, hidden=hidden)
        for linear in (self.gamma, *self.outer):
            start_linear(linear)
        self.invariant.start_at_one()

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
            symmetry, connection: The edges.
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
        group, deep = symmetry.edge_group(connection), len(self.further.gamma) > 0
        first = GatedProduct(self.gamma.weight, e, along, outer=outer, residual=skip and not deep)
        new = self.invariant[group].times(first)
        if deep:
            new = self.further.on_edges(group, Edge(new), along)
        return Edge(new + e.dense() if skip and deep else new)
