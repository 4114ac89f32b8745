r"""Scale invariant nets in both forms (paper, section 5 and A.1.2).

Vectors are the last dimension of tensors; a multiplier q of the group multiplies a whole vector.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.groups import Group
from ..errors import ScaleGMNError
from ..native.dense import dense
from ..native.formula import NONE, Edge, gated, inverse_norm
from ..native.net import Ends, Gate, net
from ..native.unit import unit
from .edges import as_edges, as_vertices, ends, laid
from .mlp import MLP
from .spec import SignRule


class GatedProduct(NamedTuple):
    r"""\((\Gamma x + a_t b_s) \odot \mathsf{ScaleInv}(x, \dots, p)\) on every edge, or the sum at one end.

    Arguments:
        gamma: The matrix Gamma (outputs, k); without it the invariant alone.
        x: Vectors on the edges.
        contexts: Contexts p, broadcasting along the edges, or what they are made of.
        companions: Further vectors (B, n_t, n_s, k_i) that the invariant net sees.
        outer: a (B, n_t, outputs) and b (B, n_s, outputs), if there are any.
        reduce: NONE, or the end to which the result is summed: TARGET or SOURCE.
        residual: Add x to the result.

    >>> e = Edge(torch.randn(5, 8, 2, 3))
    >>> GatedProduct(torch.randn(4, 3), e).of(torch.ones(5, 8, 2, 4), e).shape
    torch.Size([5, 8, 2, 4])
    """

    gamma: Tensor | None
    x: Edge
    contexts: Sequence[Tensor | Along] = ()
    companions: Sequence[Tensor] = ()
    outer: tuple[Tensor, Tensor] | None = None
    reduce: int = NONE
    residual: bool = False

    def of(self, rho: Tensor, x: Edge) -> Tensor:
        """The product with given values of the invariant net and of x."""
        linear = None if self.gamma is None else x.mapped(self.gamma).dense()
        return gated(linear, rho, self.outer, self.reduce, x.dense() if self.residual else None)


class Invariant(nn.Module, ABC):
    """A net that does not see multipliers from one group. The equations use it only as a factor.

    >>> from scalegmn.core.groups import Sign
    >>> net, x = ScaleInvariant(Sign, [3], 4), Edge(torch.randn(5, 8, 2, 3))
    >>> product = GatedProduct(torch.randn(4, 3), x)
    >>> net.times(product).shape  # Gamma x times the net
    torch.Size([5, 8, 2, 4])
    """

    @abstractmethod
    def times(self, p: GatedProduct) -> Tensor:
        """The product of x with this net (`GatedProduct`)."""


class LearnedInvariant(Invariant):
    """An invariant net with parameters, in one of the two forms.

    Arguments:
        group: The group.
        inputs: Widths of the x.
        outputs: Width of the result.
        contexts: Widths of the p.
        hidden: Width of the hidden layers; that of the result if omitted.
        sign: How signs are removed.
        dropout: In the MLPs.

    >>> from scalegmn.core.groups import Sign
    >>> [kind(Sign, [3], 4).group for kind in (ScaleInvariant, PaperInvariant)]
    [Sign, Sign]
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
        self.group, self.sign = group, sign
        self.build(inputs, contexts, hidden or outputs, outputs, dropout)

    @abstractmethod
    def build(self, inputs: Sequence[int], contexts: Sequence[int], hidden: int, outputs: int, dropout: float) -> None:
        """Make the parts."""

    @abstractmethod
    def start_at_one(self) -> None:
        """Start near 1, for a net that multiplies a state."""

    def extra_repr(self) -> str:
        return f"{self.group}, {self.sign}" if self.group.signs else f"{self.group}"

    def forward(self, xs: Sequence[Tensor], contexts: Sequence[Tensor] = ()) -> Tensor:
        """Apply to vectors (..., n, k_i) and contexts (..., n, m_i)."""
        x, *others = map(as_edges, xs)
        return as_vertices(self.times(GatedProduct(None, Edge(x), list(map(as_edges, contexts)), others)), xs[0])


class ScaleInvariant(LearnedInvariant):
    r"""A net that does not see multipliers from one group, in our form: a single hidden layer.

    \(\mathsf{ScaleInv}(x_1, \dots, x_n, p) = \rho(\tilde x_1, \dots, \tilde x_n, p)\), where \(\rho\) is an MLP and
    \(\tilde x = x / \|x\|\) for positive scales, \(|x|\) or the symmetrisation \(\rho(x) + \rho(-x)\) for signs, both
    for non-zero scales, and \(x\) itself for the trivial group. All x share the sign of their multipliers, each has its
    own magnitude; the contexts p have no symmetry (augmented form).

    Law: f(q_1 x_1, ..., q_n x_n, p) = f(x_1, ..., x_n, p) for q_i in the group with equal signs.

    >>> from scalegmn.core.groups import Sign
    >>> f, x = ScaleInvariant(Sign, [3], 4), torch.randn(5, 3)
    >>> torch.allclose(f([-x]), f([x]))
    True
    """

    def build(self, inputs: Sequence[int], contexts: Sequence[int], hidden: int, outputs: int, dropout: float) -> None:
        self.first = nn.ModuleList(nn.Linear(n, hidden, bias=False) for n in inputs)
        self.contexts = nn.ModuleList(nn.Linear(n, hidden, bias=False) for n in contexts)
        self.offset = nn.Parameter(torch.zeros(hidden))
        self.norm = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(hidden, outputs)

    def start_at_one(self) -> None:
        nn.init.ones_(self.last.bias)

    def times(self, p: GatedProduct) -> Tensor:
        contexts = [f(c) for f, c in zip(self.contexts, p.contexts, strict=True)]
        companions = [c.abs() for c in p.companions] if self._absolute else p.companions
        maps = zip(list(self.first)[1:], companions, strict=True)
        more = [f(c) * inverse_norm(c) if self.group.scales else f(c) for f, c in maps]
        return net(
            p.gamma,
            self._gate(),
            p.x,
            ends(contexts, p.x.edges, p.outer),
            reduce(torch.add, more) if more else None,
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


class PaperInvariant(LearnedInvariant):
    r"""A net that does not see multipliers from one group, as printed in the paper.

    \(\mathsf{ScaleInv}(x_1, \dots, x_n, p) = \rho(\tilde x_1, \dots, \tilde x_n, p)\), where \(\rho\) is an MLP and
    \(\tilde x\) is \(\mathsf{canon}(x) = x / \|x\|\) for positive scales,
    \(\mathsf{symm}(x) = \mathrm{MLP}(x) + \mathrm{MLP}(-x)\) or \(|x|\) for signs, both for non-zero scales, and x
    itself for the trivial group. Every x has a multiplier of its own.

    Law: f(q_1 x_1, ..., q_n x_n, p) = f(x_1, ..., x_n, p) for all q_i in the group.

    >>> from scalegmn.core.groups import Sign
    >>> f, x, y = PaperInvariant(Sign, [3, 2], 4), torch.randn(5, 3), torch.randn(5, 2)
    >>> torch.allclose(f([-x, y]), f([x, y]))
    True
    """

    def build(self, inputs: Sequence[int], contexts: Sequence[int], hidden: int, outputs: int, dropout: float) -> None:
        symmetrised = self.group.signs and self.sign == "symmetrise"
        self.symm = nn.ModuleList(MLP(n, hidden, dropout=dropout) for n in inputs if symmetrised)
        self.widths = [hidden if symmetrised else n for n in inputs] + list(contexts)
        self.rho = MLP(sum(self.widths), outputs, hidden=hidden, dropout=dropout)

    def start_at_one(self) -> None:
        nn.init.ones_(self.rho.last.bias)

    def mapped(self, index: int, x: Edge, matrix: Tensor) -> Tensor:
        """A linear map of the invariant form of an argument (B, n_t, n_s, k), for rho."""
        if len(self.symm):
            mlp = self.symm[index]
            assert isinstance(mlp, MLP)
            gate = mlp.gate()
            # Both terms have the bias of the last map, the operator adds it once.
            gate = gate._replace(last_bias=2 * gate.last_bias, symmetric=True, canonical=self.group.scales)
            return _mapped_net(gate, x, matrix)
        y = unit(dense(x)) if self.group.scales else dense(x)
        return F.linear(y.abs() if self.group.signs else y, matrix)

    def times(self, p: GatedProduct) -> Tensor:
        first, *maps = self._maps()
        others, contexts = maps[: len(p.companions)], maps[len(p.companions) :]
        along = [self.mapped(i, Edge(c), m) for i, (c, m) in enumerate(zip(p.companions, others, strict=True), 1)]
        along += [_mapped(c, m) for c, m in zip(p.contexts, contexts, strict=True)]
        x, gate = p.x, self.rho.gate()
        if len(self.symm):
            # Read twice: products of vertex and edge states are computed before, what is factored stays so.
            x = Edge(dense(x)) if x.scalar is None else x
            along.append(self.mapped(0, x, first))
            gate = gate._replace(first=first[:, :0])
            x = _nothing(first, p.x.edges) if p.gamma is None else x
        else:
            gate = gate._replace(first=first, absolute=self.group.signs, canonical=self.group.scales)
        target, source, more = laid(along, p.x.edges)
        both = Ends(target, source, *(p.outer or ()))
        return net(p.gamma, gate, x, both, more, reduce=p.reduce, residual=p.residual)

    def along(self, xs: Sequence[Tensor], edges: Sequence[int], matrix: Tensor | None = None) -> Tensor:
        """Apply to vectors that broadcast along edges (B, n_t, n_s), such as those of their ends.

        Arguments:
            xs: The vectors.
            edges: The shape.
            matrix: A linear map to apply to the result, if any.
        """
        # Ends are transformed once each, not once per edge; what is left of the first map is a sum.
        terms = [self.mapped(i, Edge(x), m) for i, (x, m) in enumerate(zip(xs, self._maps(), strict=True))]
        target, source, more = laid(terms, edges)
        gate = self.rho.gate()
        gate, nothing = gate._replace(first=gate.first[:, :0]), _nothing(gate.first, edges)
        return _mapped_net(gate, nothing, matrix, Ends(target, source), more)

    def _maps(self) -> Sequence[Tensor]:
        """The first map of rho, argument by argument."""
        weight = self.rho.first.weight
        return weight.split(self.widths, 1) if len(self.widths) > 1 else [weight]


class Along(NamedTuple):
    """The output of a net on vectors that broadcast along edges, as a context.

    It is not computed by itself: a linear map of it is merged with the last map of the net.

    Arguments:
        invariant: The net.
        xs, edges: As in `PaperInvariant.along`.

    >>> from scalegmn.core.groups import Sign
    >>> f, x, matrix = PaperInvariant(Sign, [3], 4), torch.randn(5, 8, 1, 3), torch.randn(6, 4)
    >>> context = Along(f, [x], (5, 8, 2))
    >>> torch.allclose(context.mapped(matrix), F.linear(f.along(*context[1:]), matrix), atol=1e-5)
    True
    """

    invariant: PaperInvariant
    xs: Sequence[Tensor]
    edges: Sequence[int]

    def mapped(self, matrix: Tensor) -> Tensor:
        """A linear map (m, outputs) of the output."""
        return self.invariant.along(self.xs, self.edges, matrix)


def _mapped_net(
    gate: Gate,
    x: Edge,
    matrix: Tensor | None,
    ends: Ends = Ends(),  # noqa: B008
    more: Tensor | None = None,
) -> Tensor:
    """A net on edges with a linear map after it, if there is one: two in a row are one, unless there are few edges."""
    if matrix is None:
        return net(None, gate, x, ends, more)
    if not torch.compiler.is_compiling() and x.edges.numel() < gate.last.shape[1]:
        return F.linear(net(None, gate, x, ends, more), matrix)
    gate = gate._replace(last=matrix @ gate.last, last_bias=matrix.mv(gate.last_bias))
    return net(None, gate, x, ends, more)


def _nothing(like: Tensor, edges: Sequence[int]) -> Edge:
    """Edges without vectors, for nets that see contexts only."""
    return Edge(like.new_empty(*edges, 0))


def _mapped(context: Tensor | Along, matrix: Tensor) -> Tensor:
    return context.mapped(matrix) if isinstance(context, Along) else F.linear(context, matrix)
