r"""Scale invariant, scale equivariant and rescale equivariant nets (paper, section 5 and A.1.2).

Vectors are the last dimension of tensors; a multiplier q of the group multiplies a whole vector. Groups are those of
`scalegmn.core.groups`; every net holds one invariant part per group that it may meet and shares the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..core.activations import Phi
from ..core.groups import Group
from ..errors import ScaleGMNError
from ..native.formula import NONE, Edge, gated, inverse_norm
from ..native.net import Gate, net
from .edges import beside, ends
from .spec import SignRule


def unit(x: Tensor) -> Tensor:
    r"""Canonical representative under positive scaling, \(\mathsf{canon}(x) = x / \|x\|\), and 0 for x = 0.

    Law: unit(q x) = unit(x) for every q > 0.

    >>> unit(torch.tensor([3e-30, 4e-30], dtype=torch.float64)).tolist()
    [0.6, 0.8]
    """
    return x * inverse_norm(x)


class Product(NamedTuple):
    r"""\((\Gamma x + a_t b_s) \odot \mathsf{ScaleInv}(x, \dots, p)\) on every edge, or its sum to one end.

    Arguments:
        gamma: The matrix Gamma (outputs, k); without it the invariant alone.
        x: Vectors on the edges.
        contexts: Contexts p, broadcasting along the edges.
        companions: Further vectors (B, n_t, n_s, k_i) that the invariant net sees.
        outer: a (B, n_t, outputs) and b (B, n_s, outputs), if there are any.
        reduce: NONE, or the end to which the result is summed: TARGET or SOURCE.
        residual: Add x to the result.
    """

    gamma: Tensor | None
    x: Edge
    contexts: Sequence[Tensor] = ()
    companions: Sequence[Tensor] = ()
    outer: tuple[Tensor, Tensor] | None = None
    reduce: int = NONE
    residual: bool = False

    def of(self, rho: Tensor, x: Tensor) -> Tensor:
        """The product with given values of the invariant net, and x as a tensor."""
        return gated(self.gamma, x, rho, self.outer, self.reduce, x if self.residual else None)


class Invariant(nn.Module, ABC):
    """A net that does not see multipliers from one group: all that equations ask of it is a product."""

    @abstractmethod
    def times(self, p: Product) -> Tensor:
        """The product."""


class ScaleInvariant(Invariant):
    r"""A net that does not see multipliers from one group.

    \(\mathsf{ScaleInv}(x_1, \dots, x_n, p) = \rho(\tilde x_1, \dots, \tilde x_n, p)\), where \(\rho\) is an MLP and
    \(\tilde x = x / \|x\|\) for positive scales, \(|x|\) or the symmetrisation \(\rho(x) + \rho(-x)\) for signs, both
    for non-zero scales, and \(x\) itself for the trivial group. All x share the sign of their multipliers, each has its
    own magnitude; the contexts p have no symmetry (augmented form).

    Law: f(q_1 x_1, ..., q_n x_n, p) = f(x_1, ..., x_n, p) for q_i in the group with equal signs.

    Arguments:
        group: The group.
        inputs: Widths of the x.
        outputs: Width of the result.
        contexts: Widths of the p.
        hidden: Width of the hidden layer; that of the result where omitted.
        sign: How signs are removed.
        dropout: In the MLP.

    >>> from scalegmn.core.groups import Sign
    >>> f, x = ScaleInvariant(Sign, [3], 4), torch.randn(5, 3)
    >>> torch.allclose(f([-x]), f([x]))
    True
    """

    def __init__(
        self,
        group: Group,
        inputs: Sequence[int],
        outputs: int,
        *,
        contexts: Sequence[int] = (),
        hidden: int | None = None,
        sign: SignRule = "symmetrise",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if sign not in ("symmetrise", "absolute"):
            raise ScaleGMNError(f"sign: expected 'symmetrise' or 'absolute', got {sign!r}")
        hidden = hidden or outputs
        self.group = group
        self.sign = sign
        self.first = nn.ModuleList(nn.Linear(n, hidden, bias=False) for n in inputs)
        self.contexts = nn.ModuleList(nn.Linear(n, hidden, bias=False) for n in contexts)
        self.offset = nn.Parameter(torch.zeros(hidden))
        self.norm = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(hidden, outputs)

    def extra_repr(self) -> str:
        return f"{self.group}, {self.sign}" if self.group.signs else f"{self.group}"

    def forward(self, xs: Sequence[Tensor], contexts: Sequence[Tensor] = ()) -> Tensor:
        """Apply to vectors (..., n, k_i) and contexts (..., n, m_i)."""
        x, *others = map(beside, xs)
        return _apart(self.times(Product(None, Edge(x), list(map(beside, contexts)), others)), xs[0])

    def times(self, p: Product) -> Tensor:
        contexts = [f(c) for f, c in zip(self.contexts, p.contexts, strict=True)]
        companions = [c.abs() for c in p.companions] if self._absolute else p.companions
        maps = zip(list(self.first)[1:], companions, strict=True)
        more = [f(c) * inverse_norm(c) if self.group.scales else f(c) for f, c in maps]
        return net(
            p.gamma,
            self._gate(),
            p.x,
            ends(contexts, p.x.edges, p.outer),
            sum_of(more) if more else None,
            reduce=p.reduce,
            residual=p.residual,
        )

    @property
    def _absolute(self) -> bool:
        return self.group.signs and self.sign == "absolute"

    def _gate(self) -> Gate:
        first, norm, last = self.first[0], self.norm, self.last
        assert isinstance(first, nn.Linear)
        return Gate(
            *(first.weight, self.offset, norm.weight, norm.bias, last.weight, last.bias, norm.eps),
            symmetric=self.group.signs and self.sign == "symmetrise",
            absolute=self._absolute,
            canonical=self.group.scales,
            drop=self.dropout.p if self.training else 0.0,
        )


class ScaleInvariants(nn.Module):
    """One `ScaleInvariant` per group, chosen by the group of the argument (paper, A.4.2).

    Arguments:
        groups: The groups that it may meet.
        inputs, outputs, contexts, hidden, sign, dropout: As in `ScaleInvariant`.
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
    ) -> None:
        super().__init__()
        self.of = nn.ModuleDict(
            {
                g.name: ScaleInvariant(
                    g, inputs, outputs, contexts=contexts, hidden=hidden, sign=sign, dropout=dropout
                )
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
        return _apart(y, x)

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
        assert isinstance(invariant, ScaleInvariant)
        nn.init.ones_(invariant.last.bias)


def sum_of(terms: Iterable[Tensor]) -> Tensor:
    """The sum of one or more tensors."""
    iterator = iter(terms)
    total = next(iterator)
    for t in iterator:
        total = total + t
    return total


def _apart(y: Tensor, x: Tensor) -> Tensor:
    """Undo `beside` for results: (B, n, 1, k) to the leading dimensions of x."""
    return y.view(*x.shape[:-1], y.shape[-1])
