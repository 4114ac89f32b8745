r"""Scale invariant, scale equivariant and rescale equivariant nets (paper, section 5 and A.1.2).

Vectors are the last dimension of tensors; a multiplier q of the group multiplies a whole vector. Groups are those of
`scalegmn.core.groups`; every net holds one invariant part per group that it may meet and shares the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.groups import Group
from ..errors import ScaleGMNError
from ..native import net as fused
from .spec import SignRule


def inverse_norm(x: Tensor) -> Tensor:
    r"""\(1 / \|x\|\) over the last dimension, which is kept, and 0 for x = 0.

    There is no epsilon: the vector is divided by its largest entry first, so that no square over- or underflows.
    """
    largest = x.detach().abs().amax(-1, keepdim=True)
    # Subnormal numbers have lost their digits and their inverse may be infinite: they count as 0.
    zero = largest < torch.finfo(x.dtype).tiny
    unit = 1 / largest.masked_fill(zero, 1)
    square = (x * unit).square().sum(-1, keepdim=True)
    return torch.where(zero, 0, unit * square.masked_fill(zero, 1).rsqrt())


def unit(x: Tensor) -> Tensor:
    r"""Canonical representative under positive scaling, \(\mathsf{canon}(x) = x / \|x\|\), and 0 for x = 0.

    Law: unit(q x) = unit(x) for every q > 0.

    >>> unit(torch.tensor([3e-30, 4e-30], dtype=torch.float64)).tolist()
    [0.6, 0.8]
    """
    return x * inverse_norm(x)


class ScaleInvariant(nn.Module):
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

    @property
    def takes_absolute_values(self) -> bool:
        """Whether signs are removed by |x|."""
        return self.group.signs and self.sign == "absolute"

    @property
    def symmetrises(self) -> bool:
        """Whether signs are removed by rho(x) + rho(-x)."""
        return self.group.signs and self.sign == "symmetrise"

    def forward(self, xs: Sequence[Tensor], contexts: Sequence[Tensor] = ()) -> Tensor:
        """Apply to vectors (..., n_i) and contexts (..., m_i) whose leading dimensions broadcast."""
        if self.takes_absolute_values:
            xs = [x.abs() for x in xs]
        if fused.usable(xs[0]):
            return self.times(None, xs, contexts)
        # Canonicalisation commutes with linear maps: A (x / |x|) = (A x) / |x|.
        z = sum_of(f(x) * inverse_norm(x) if self.group.scales else f(x) for f, x in zip(self.first, xs, strict=True))
        p = sum_of([self.offset, *self.along(contexts)])
        h = F.silu(self.norm(p + z))
        if self.symmetrises:
            h = h + F.silu(self.norm(p - z))
        y: Tensor = self.last(self.dropout(h))
        return y

    def times(self, gamma: Tensor | None, xs: Sequence[Tensor], contexts: Sequence[Tensor] = ()) -> Tensor:
        """Gamma x_1 times the net, or the net alone, on the fast path; absolute values are the caller's."""
        x, *others = xs
        more = None
        if others:
            maps = zip(list(self.first)[1:], others, strict=True)
            more = sum_of(f(o) * inverse_norm(o) if self.group.scales else f(o) for f, o in maps)
            more = _as_rows(more, x.shape)
        p = [c.expand(*x.shape[:-1], -1) for c in self.along(contexts)]
        target = sum_of(p).reshape(x.shape[:-1].numel(), 1, p[0].shape[-1]) if p else None
        rows = fused.Rows(_as_rows(x, x.shape), target=target, canonical=self.group.scales, more=more)
        return fused.net(gamma, self.gate(), rows).view(*x.shape[:-1], self.last.out_features)

    def along(self, contexts: Sequence[Tensor]) -> list[Tensor]:
        """The linear maps of the contexts."""
        return [f(c) for f, c in zip(self.contexts, contexts, strict=True)]

    def gate(self) -> fused.Gate:
        """What the fast path needs to know."""
        first = self.first[0]
        assert isinstance(first, nn.Linear)
        drop, seed = fused.dropout_seed(self.dropout.p, self.training)
        return fused.Gate(
            first.weight,
            self.offset,
            self.norm.weight,
            self.norm.bias,
            self.last.weight,
            self.last.bias,
            self.norm.eps,
            self.symmetrises,
            drop,
            seed,
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

    def __getitem__(self, group: Group) -> ScaleInvariant:
        """The net of `group`."""
        net = self.of[group.name]
        assert isinstance(net, ScaleInvariant)
        return net


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

    @property
    def gamma_weight(self) -> Tensor:
        """The matrix Gamma of the first layer."""
        gamma = self.gamma[0]
        assert isinstance(gamma, nn.Linear)
        return gamma.weight

    @property
    def first_weights(self) -> list[Tensor]:
        """What the invariant nets of the first layer multiply x with, by group."""
        invariants = self.invariant[0]
        assert isinstance(invariants, ScaleInvariants)
        return [p for name, p in invariants.named_parameters() if name.endswith(".first.0.weight")]

    def net(self, group: Group) -> ScaleInvariant:
        """The invariant net of `group` in the first layer."""
        invariants = self.invariant[0]
        assert isinstance(invariants, ScaleInvariants)
        return invariants[group]

    def forward(
        self, group: Group, x: Tensor, contexts: Sequence[Tensor] = (), companions: Sequence[Tensor] = ()
    ) -> Tensor:
        """Apply to vectors (..., inputs) of one group."""
        for gamma, invariants in zip(self.gamma, self.invariant, strict=True):
            assert isinstance(invariants, ScaleInvariants)
            assert isinstance(gamma, nn.Linear)
            net = invariants.of[group.name]
            # `proof.py` puts given functions in the place of nets.
            if isinstance(net, ScaleInvariant) and fused.usable(x) and not net.takes_absolute_values:
                x = net.times(gamma.weight, [x, *companions], contexts)
            else:
                x = gamma(x) * net([x, *companions], contexts)
        return x


class RescaleEquivariant(nn.Module):
    r"""A net whose result is multiplied by the product of all multipliers.

    By default the Hadamard form \(\mathsf{ReScaleEq}(x_1, \dots, x_n) = \odot_i \Gamma_i x_i\). With `outer=True` it is
    linear in the full outer product \(x_1 \otimes \dots \otimes x_n\), for small widths.

    Law: g(q_1 x_1, ..., q_n x_n) = (q_1 ... q_n) g(x_1, ..., x_n) for all real q_i.

    Arguments:
        inputs: Widths of the x.
        outputs: Width of the result.
        outer: Use the outer product.
    """

    def __init__(self, inputs: Sequence[int], outputs: int, *, outer: bool = False) -> None:
        super().__init__()
        self.outer = outer
        size = 1
        for n in inputs:
            size *= n
        widths = [size] if outer else inputs
        self.gamma = nn.ModuleList(nn.Linear(n, outputs, bias=False) for n in widths)
        for gamma in self.gamma:
            start_linear(gamma)

    def forward(self, *xs: Tensor) -> Tensor:
        """Apply to vectors (..., n_i) whose leading dimensions broadcast."""
        if not self.outer:
            return product_of(f(x) for f, x in zip(self.gamma, xs, strict=True))
        tensor = xs[0]
        for x in xs[1:]:
            tensor = (tensor[..., :, None] * x[..., None, :]).flatten(-2)
        y: Tensor = self.gamma[0](tensor)
        return y


def start_linear(linear: nn.Module) -> None:
    """Initialise a linear map so that it keeps the size of random vectors."""
    assert isinstance(linear, nn.Linear)
    nn.init.normal_(linear.weight, std=linear.in_features**-0.5)


def start_at_one(invariants: nn.Module) -> None:
    """Initialise invariant nets that multiply a state so that they begin around 1."""
    assert isinstance(invariants, ScaleInvariants)
    for net in invariants.of.values():
        assert isinstance(net, ScaleInvariant)
        nn.init.ones_(net.last.bias)


def sum_of(terms: Iterable[Tensor]) -> Tensor:
    """The sum of one or more tensors."""
    iterator = iter(terms)
    total = next(iterator)
    for t in iterator:
        total = total + t
    return total


def product_of(factors: Iterable[Tensor]) -> Tensor:
    """The product of one or more tensors."""
    iterator = iter(factors)
    total = next(iterator)
    for t in iterator:
        total = total * t
    return total


def _as_rows(x: Tensor, shape: torch.Size) -> Tensor:
    """Vectors (..., k) as a block of networks with one edge each (R, 1, 1, k)."""
    return x.expand(*shape[:-1], -1).reshape(shape[:-1].numel(), 1, 1, x.shape[-1])
