r"""Scale equivariant and rescale equivariant nets (paper, section 5 and A.1.2).

Groups are those of `scalegmn.core.groups`; every net holds one invariant part per group that it may meet and shares the
rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from ..core.activations import Phi
from ..core.groups import Group
from ..native.formula import NONE, Edge
from .edges import apart, beside
from .invariant import Invariant, Kind, PaperInvariant, Product, ScaleInvariant
from .spec import SignRule


class ScaleInvariants(nn.Module):
    """One scale invariant net per group, chosen by the group of the argument (paper, A.4.2).

    Arguments:
        groups: The groups that it may meet.
        inputs, outputs, contexts, hidden, sign, dropout: As in `ScaleInvariant`.
        kind: Its class, which is that of one of the two forms.

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
        *,
        contexts: Sequence[int] = (),
        hidden: int | None = None,
        sign: SignRule = "symmetrise",
        dropout: float = 0.0,
        kind: Kind = ScaleInvariant,
    ) -> None:
        super().__init__()
        self.of = nn.ModuleDict(
            {
                g.name: kind(g, inputs, outputs, contexts=contexts, hidden=hidden, sign=sign, dropout=dropout)
                for g in sorted(set(groups), key=lambda g: g.name)
            }
        )

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
        companions: Widths of further vectors that inform the invariant nets: they share the sign of x's multiplier.
        hidden, sign, dropout: As in `ScaleInvariant`.
        depth: K.
        kind: As in `ScaleInvariants`.

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
        *,
        contexts: Sequence[int] = (),
        companions: Sequence[int] = (),
        hidden: int | None = None,
        depth: int = 1,
        sign: SignRule = "symmetrise",
        dropout: float = 0.0,
        kind: Kind = ScaleInvariant,
    ) -> None:
        super().__init__()
        groups = tuple(groups)
        widths = [inputs] + [outputs] * depth
        self.gamma = nn.ModuleList(nn.Linear(widths[k], outputs, bias=False) for k in range(depth))
        self.invariant = nn.ModuleList(
            ScaleInvariants(
                groups,
                [widths[k], *companions],
                outputs,
                contexts=contexts,
                hidden=hidden,
                sign=sign,
                dropout=dropout,
                kind=kind,
            )
            for k in range(depth)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start near the linear map: Gamma keeps sizes and the invariant nets begin around 1."""
        for gamma in self.gamma:
            start_linear(gamma)
        for invariants in self.invariant:
            start_at_one(invariants)

    def forward(
        self, group: Group, x: Tensor, contexts: Sequence[Tensor] = (), companions: Sequence[Tensor] = ()
    ) -> Tensor:
        """Apply to vectors (..., n, inputs) of one group, with contexts (..., n, m_i)."""
        y = self.on_edges(group, Edge(beside(x)), list(map(beside, contexts)), list(map(beside, companions)))
        return apart(y, x)

    def on_edges(
        self,
        group: Group,
        x: Edge,
        contexts: Sequence[Tensor] = (),
        companions: Sequence[Tensor] = (),
        *,
        reduce: int = NONE,
    ) -> Tensor:
        """The same on edges (B, n_t, n_s, inputs), with contexts that broadcast; or its sum to one end."""
        for gamma, invariants in zip(self.gamma, self.invariant, strict=True):
            assert isinstance(invariants, ScaleInvariants)
            assert isinstance(gamma, nn.Linear)
            end = reduce if gamma is self.gamma[-1] else NONE
            y = invariants[group].times(Product(gamma.weight, x, contexts, companions, reduce=end))
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


def start_at_one(invariants: nn.Module) -> None:
    """Initialise invariant nets that multiply a state so that they begin around 1."""
    assert isinstance(invariants, ScaleInvariants)
    for invariant in invariants.of.values():
        assert isinstance(invariant, ScaleInvariant | PaperInvariant)
        last = invariant.last if isinstance(invariant, ScaleInvariant) else invariant.rho.last
        nn.init.ones_(last.bias)
