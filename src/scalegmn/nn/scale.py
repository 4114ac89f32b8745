r"""Scale equivariant and rescale equivariant nets (paper, section 5 and A.1.2).

Groups are those of `scalegmn.core.groups`; every net has one invariant part for each group that may occur, and shares
the rest.
"""

from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from ..core.activations import Phi
from ..core.groups import Group
from ..native.formula import NONE, Edge
from .edges import as_edges, as_vertices
from .invariant import Along, GatedProduct, Invariant, LearnedInvariant
from .style import Nets


class ScaleInvariants(nn.Module):
    """One scale invariant net per group, chosen by the group of the argument (paper, A.4.2).

    Arguments:
        groups: The groups that it may meet.
        inputs, outputs, contexts, hidden: As in `LearnedInvariant`.
        nets: What all nets have in common.

    >>> import torch
    >>> from scalegmn.core.groups import Sign
    >>> f, x = ScaleInvariants([Sign], [3], 4), torch.randn(5, 3)
    >>> torch.allclose(f(Sign, [-x]), f(Sign, [x]), atol=1e-5)
    True
    """

    def __init__(
        self,
        groups: Iterable[Group],
        inputs: Sequence[int],
        outputs: int,
        nets: Nets = Nets(),  # noqa: B008
        *,
        contexts: Sequence[int] = (),
        hidden: int | None = None,
    ) -> None:
        super().__init__()
        ordered = sorted(set(groups), key=lambda g: g.name)
        self.of = nn.ModuleDict(
            {g.name: nets.invariant(g, inputs, outputs, contexts=contexts, hidden=hidden) for g in ordered}
        )

    def start_at_one(self) -> None:
        """Start near 1, for nets that multiply a state."""
        for invariant in self.of.values():
            assert isinstance(invariant, LearnedInvariant)
            invariant.start_at_one()

    def forward(self, group: Group, xs: Sequence[Tensor], contexts: Sequence[Tensor] = ()) -> Tensor:
        """Apply the net of `group`."""
        y: Tensor = self.of[group.name](xs, contexts)
        return y

    def __getitem__(self, group: Group) -> Invariant:
        """The net of `group`."""
        found = self.of[group.name]
        assert isinstance(found, Invariant)
        return found


class ScaleEquivariant(nn.Module):
    r"""A net that keeps multipliers: K layers of linear maps times invariant nets.

    \(\mathsf{ScaleEq} = f^K \circ \dots \circ f^1\) with
    \(f^k(x, p) = \Gamma^k x \odot \mathsf{ScaleInv}^k(x, p)\).

    Law: f(q x, p) = q f(x, p) for q in the group.

    Arguments:
        groups: The groups that it may meet; the maps Gamma are shared between them.
        inputs: Width of x.
        outputs: Width of the result.
        contexts: Widths of the p.
        companions: Widths of further vectors for the invariant nets, which share the sign of x's multiplier.
        hidden: As in `LearnedInvariant`.
        nets: What all nets have in common; K is their depth.

    >>> import torch
    >>> from scalegmn.core.groups import Sign
    >>> f, x = ScaleEquivariant([Sign], 3, 4), torch.randn(5, 3)
    >>> torch.allclose(f(Sign, -x), -f(Sign, x), atol=1e-5)
    True
    """

    def __init__(
        self,
        groups: Iterable[Group],
        inputs: int,
        outputs: int,
        nets: Nets = Nets(),  # noqa: B008
        *,
        contexts: Sequence[int] = (),
        companions: Sequence[int] = (),
        hidden: int | None = None,
    ) -> None:
        super().__init__()
        groups = tuple(groups)
        widths = [inputs, *[outputs] * (nets.depth - 1)][: nets.depth]
        self.gamma = nn.ModuleList(nn.Linear(width, outputs, bias=False) for width in widths)
        self.invariant = nn.ModuleList(
            ScaleInvariants(groups, [width, *companions], outputs, nets, contexts=contexts, hidden=hidden)
            for width in widths
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start near a linear map: Gamma keeps sizes and the invariant nets start near 1."""
        for gamma in self.gamma:
            start_linear(gamma)
        for invariants in self.invariant:
            assert isinstance(invariants, ScaleInvariants)
            invariants.start_at_one()

    def forward(
        self, group: Group, x: Tensor, contexts: Sequence[Tensor] = (), companions: Sequence[Tensor] = ()
    ) -> Tensor:
        """Apply to vectors (..., n, inputs) of one group, with contexts (..., n, m_i)."""
        y = self.on_edges(group, Edge(as_edges(x)), list(map(as_edges, contexts)), list(map(as_edges, companions)))
        return as_vertices(y, x)

    def on_edges(
        self,
        group: Group,
        x: Edge,
        contexts: Sequence[Tensor | Along] = (),
        companions: Sequence[Tensor] = (),
        *,
        reduce: int = NONE,
    ) -> Tensor:
        """The same on edges (B, n_t, n_s, inputs), with contexts that broadcast, or the sum at one end."""
        for gamma, invariants in zip(self.gamma, self.invariant, strict=True):
            assert isinstance(invariants, ScaleInvariants)
            assert isinstance(gamma, nn.Linear)
            end = reduce if gamma is self.gamma[-1] else NONE
            y = invariants[group].times(GatedProduct(gamma.weight, x, contexts, companions, reduce=end))
            x = Edge(y)
        return y


class RescaleEquivariant(nn.Module):
    r"""A net of a vertex and an edge whose result is multiplied by the product of their multipliers.

    \(\mathsf{ReScaleEq}(y, e) = \phi(\Gamma_y y) \odot \Gamma_e e\), where the lift \(\phi\) of the vertex's activation
    makes y move as its post-activation.

    Law: g(a y, b e) = phi(a) b g(y, e) for all real a and b.

    Arguments:
        vertex, edge: Widths of y and e.
        outputs: Width of the result.

    >>> import torch
    >>> g, y, e = RescaleEquivariant(3, 3, 4), torch.randn(5, 2, 3), torch.randn(5, 8, 2, 3)
    >>> torch.allclose(g(2 * y, Edge(3 * e)).dense(), 6 * g(y, Edge(e)).dense(), atol=1e-4)
    True
    """

    def __init__(self, vertex: int, edge: int, outputs: int) -> None:
        super().__init__()
        self.vertex = nn.Linear(vertex, outputs, bias=False)
        self.edge = nn.Linear(edge, outputs, bias=False)
        start_linear(self.vertex)
        start_linear(self.edge)

    def forward(self, y: Tensor, e: Edge, *, lift: Phi = Phi(), by_target: bool = False) -> Edge:  # noqa: B008
        """Apply to all edges of a connection.

        Arguments:
            y: States of the sources (B, n_s, h), or of the targets (B, n_t, h) if `by_target`.
            e: Edge states.
            lift: The map phi.
            by_target: See above.
        """
        # Vertices are transformed once each, not once per edge.
        return e.rescaled(self.edge.weight, lift(self.vertex(y)), by_target=by_target)


def start_linear(linear: nn.Module) -> None:
    """Initialise a linear map so that it keeps the size of random vectors."""
    assert isinstance(linear, nn.Linear)
    nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
