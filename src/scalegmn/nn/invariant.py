r"""Scale invariant nets in both forms (paper, section 5 and A.1.2).

Vectors are the last dimension of tensors; a multiplier q of the group multiplies a whole vector.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.groups import Group
from ..errors import ScaleGMNError
from ..native.formula import NONE, Edge, gated, inverse_norm
from ..native.net import Ends, Gate, net
from .edges import apart, beside, ends, laid
from .mlp import MLP
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

    >>> e = Edge(torch.randn(5, 8, 2, 3))
    >>> Product(torch.randn(4, 3), e).of(torch.ones(5, 8, 2, 4), e).shape
    torch.Size([5, 8, 2, 4])
    """

    gamma: Tensor | None
    x: Edge
    contexts: Sequence[Tensor] = ()
    companions: Sequence[Tensor] = ()
    outer: tuple[Tensor, Tensor] | None = None
    reduce: int = NONE
    residual: bool = False

    def of(self, rho: Tensor, x: Edge) -> Tensor:
        """The product with given values of the invariant net, and x, perhaps computed before."""
        linear = None if self.gamma is None else x.mapped(self.gamma).dense()
        return gated(linear, rho, self.outer, self.reduce, x.dense() if self.residual else None)


class Invariant(nn.Module, ABC):
    """A net that does not see multipliers from one group: all that equations ask of it is a product.

    >>> from scalegmn.core.groups import Sign
    >>> isinstance(ScaleInvariant(Sign, [3], 4), Invariant)
    True
    """

    @abstractmethod
    def times(self, p: Product) -> Tensor:
        """The product."""


class ScaleInvariant(Invariant):
    r"""A net that does not see multipliers from one group, in our form: one hidden layer in all.

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
        _check_sign(sign)
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
        return on_vertices(self, xs, contexts)

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


class PaperInvariant(Invariant):
    r"""A net that does not see multipliers from one group, as the paper prints it.

    \(\mathsf{ScaleInv}(x_1, \dots, x_n, p) = \rho(\tilde x_1, \dots, \tilde x_n, p)\), where \(\rho\) is an MLP and
    \(\tilde x\) is \(\mathsf{canon}(x) = x / \|x\|\) for positive scales,
    \(\mathsf{symm}(x) = \mathrm{MLP}(x) + \mathrm{MLP}(-x)\) or \(|x|\) for signs, both for non-zero scales, and x
    itself for the trivial group. Every x has a multiplier of its own.

    Law: f(q_1 x_1, ..., q_n x_n, p) = f(x_1, ..., x_n, p) for all q_i in the group.

    Arguments:
        group, inputs, outputs, contexts, sign: As in `ScaleInvariant`.
        hidden: Width of all hidden layers and of symm(x); that of the result where omitted.
        dropout: In all MLPs.

    >>> from scalegmn.core.groups import Sign
    >>> f, x, y = PaperInvariant(Sign, [3, 2], 4), torch.randn(5, 3), torch.randn(5, 2)
    >>> torch.allclose(f([-x, y]), f([x, y]))
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
        _check_sign(sign)
        hidden = hidden or outputs
        self.group, self.sign = group, sign
        symmetrised = group.signs and sign == "symmetrise"
        self.symm = nn.ModuleList(MLP(n, hidden, dropout=dropout) for n in inputs if symmetrised)
        self.widths = [hidden if symmetrised else n for n in inputs] + list(contexts)
        self.rho = MLP(sum(self.widths), outputs, hidden=hidden, dropout=dropout)

    def extra_repr(self) -> str:
        return f"{self.group}, {self.sign}" if self.group.signs else f"{self.group}"

    def forward(self, xs: Sequence[Tensor], contexts: Sequence[Tensor] = ()) -> Tensor:
        """Apply to vectors (..., n, k_i) and contexts (..., n, m_i)."""
        return on_vertices(self, xs, contexts)

    def canonical(self, index: int, x: Edge) -> Tensor:
        """What stands for an argument (B, n_t, n_s, k) in rho."""
        if len(self.symm):
            mlp = self.symm[index]
            assert isinstance(mlp, MLP)
            gate = mlp.gate()
            # Both terms have the bias of the last map, the operator adds it once.
            both = gate._replace(last_bias=2 * gate.last_bias, symmetric=True, canonical=self.group.scales)
            return net(None, both, x)
        y = unit(x.dense()) if self.group.scales else x.dense()
        return y.abs() if self.group.signs else y

    def times(self, p: Product) -> Tensor:
        others = [self.canonical(i, Edge(c)) for i, c in enumerate(p.companions, 1)]
        first, *maps = self.rho.first.weight.split(self.widths, 1)
        along = [F.linear(c, m) for c, m in zip((*others, *p.contexts), maps, strict=True)]
        target, source, more = laid(along, p.x.edges)
        gate = self.rho.gate()._replace(first=first)
        if len(self.symm):
            # Read twice: products of vertex and edge states are computed before, what is factored stays so.
            x = Edge(p.x.dense()) if p.x.scalar is None else p.x
            rho = net(None, gate, Edge(self.canonical(0, x)), Ends(target, source), more)
            return p.of(rho, x)
        gate = gate._replace(absolute=self.group.signs, canonical=self.group.scales)
        both = Ends(target, source, *(p.outer or ()))
        return net(p.gamma, gate, p.x, both, more, reduce=p.reduce, residual=p.residual)

    def along(self, xs: Sequence[Tensor], edges: Sequence[int]) -> Tensor:
        """Apply to vectors that broadcast along edges (B, n_t, n_s), such as those of their ends."""
        maps = self.rho.first.weight.split(self.widths, 1)
        canonical = (self.canonical(i, Edge(x)) for i, x in enumerate(xs))
        # Ends are transformed once each, not once per edge; what is left of the first map is a sum.
        target, source, more = laid([F.linear(x, m) for x, m in zip(canonical, maps, strict=True)], edges)
        gate = self.rho.gate()._replace(first=xs[0].new_zeros(self.rho.first.out_features, 1))
        return net(None, gate, Edge(xs[0].new_zeros(1, 1), xs[0].new_ones(*edges)), Ends(target, source), more)


class Kind(Protocol):
    """How a scale invariant net is made: the classes above.

    >>> from scalegmn.core.groups import Sign
    >>> kinds: list[Kind] = [ScaleInvariant, PaperInvariant]
    >>> [kind(Sign, [3], 4).group for kind in kinds]
    [Sign, Sign]
    """

    def __call__(
        self,
        group: Group,
        inputs: Sequence[int],
        outputs: int,
        *,
        contexts: Sequence[int] = (),
        hidden: int | None = None,
        sign: SignRule = "symmetrise",
        dropout: float = 0.0,
    ) -> Invariant:
        """A net."""


def on_vertices(invariant: Invariant, xs: Sequence[Tensor], contexts: Sequence[Tensor]) -> Tensor:
    """Apply a net to vectors (..., n, k_i) and contexts (..., n, m_i)."""
    x, *others = map(beside, xs)
    return apart(invariant.times(Product(None, Edge(x), list(map(beside, contexts)), others)), xs[0])


def sum_of(terms: Iterable[Tensor]) -> Tensor:
    """The sum of one or more tensors."""
    iterator = iter(terms)
    total = next(iterator)
    for t in iterator:
        total = total + t
    return total


def _check_sign(sign: str) -> None:
    if sign not in ("symmetrise", "absolute"):
        raise ScaleGMNError(f"sign: expected 'symmetrise' or 'absolute', got {sign!r}")
