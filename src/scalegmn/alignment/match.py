r"""Matching the neurons of pairs of networks: linear assignments, one family after another, until none gets better.

For pairs (A, B) of balanced networks the search minimises

    sum over tensors of  c |A - g B|^2

over permutations, signs and phases g, which leave the norms as they are. With all but one family of layers in place,
the sum is a linear assignment problem of its neurons, in which each candidate pair of neurons takes its best sign and
phase; so no step makes the sum larger (weight matching, Ainsworth et al. 2023, extended to signs, phases and ties).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from ..core.architecture import Architecture
from ..core.networks import Networks
from .phases import nearest
from .states import States
from .structure import Family, Term, families, mirrors, split, terms, turns

_SWEEPS = 100
_LESS = 1e-12  # what counts as smaller
_SMALLEST = 1e-3  # of a tensor beside others that enter its layer, such as a bias beside weights
_SIZES = 0.05  # how much sizes count beside answers and gradients


@dataclass(frozen=True)
class Likeness:
    """How well neuron i of A and neuron j of B go together, per layer, each (B, n, n).

    Arguments:
        into: Inner products of what enters them.
        out: Inner products of what leaves them.
        apart: For layers with phases, for equal and opposite signs, how far their phases are from whole turns, in
            half turns; with the weight (B, 1, 1) of its square.
        still: What no sign or phase changes.
    """

    into: dict[int, Tensor]
    out: dict[int, Tensor]
    apart: dict[int, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)
    still: dict[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Move:
    """What happens to the neurons of a family, each (B, n).

    Arguments:
        order: The old position of the neuron that is now at position i.
        sign: Per layer, the sign of the neuron.
        turn: Per layer with phases, how many half turns its phase makes.
    """

    order: Tensor
    sign: dict[int, Tensor]
    turn: dict[int, Tensor]


class Search:
    """Pairs of networks that are being matched.

    Arguments:
        a, b: The networks, in float64, balanced, phases in range.
        signs: Whether neurons may change sign; without it phases stay as they are too.
        answers: Per layer, vectors (B, n, h) of both networks' neurons to match beside the parameters.
        weight: The share of these vectors in the sum.
    """

    def __init__(
        self,
        a: Networks,
        b: Networks,
        *,
        signs: bool = True,
        answers: tuple[Sequence[Tensor], Sequence[Tensor]] | None = None,
        weight: float = 0.0,
    ) -> None:
        self.architecture: Architecture = a.architecture
        self.signs = signs
        self.terms: tuple[Term, ...] = terms(a.architecture)
        self.left, self.right = split(a), [x.clone() for x in split(b)]
        self.norms = _norms(self.terms, self.left, self.right)
        sizes = [t.segment.size * (1 - weight) / a.architecture.parameters for t in self.terms]
        self.weights = [share / norm for share, norm in zip(sizes, self.norms, strict=True)]
        self.answers: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        if answers is not None:
            inner = [i for f in families(a.architecture) for i in f.layers if f.permuted]
            for i in inner:
                x, y = answers[0][i], answers[1][i].clone()
                self.answers[i] = x, y, weight / len(inner) / _both(x, y)
        count, sizes_of = len(a), [layer.size for layer in a.architecture.layers]
        self.order = [torch.arange(n, device=a.device).expand(count, -1).clone() for n in sizes_of]
        self.sign = [torch.ones(count, n, dtype=torch.float64, device=a.device) for n in sizes_of]

    def __len__(self) -> int:
        return self.order[0].shape[0]

    def at(self, rows: Tensor) -> Search:
        """Some of the pairs, to search further on their own."""
        found = copy(self)
        found.left, found.right = [x[rows] for x in self.left], [x[rows] for x in self.right]
        found.weights, found.norms = [w[rows] for w in self.weights], [w[rows] for w in self.norms]
        found.answers = {i: (x[rows], y[rows], w[rows]) for i, (x, y, w) in self.answers.items()}
        found.order, found.sign = [p[rows] for p in self.order], [s[rows] for s in self.sign]
        return found

    def put(self, rows: Tensor, other: Search) -> None:
        """Take over the state of some of the pairs."""
        for mine, theirs in zip(
            (*self.right, *self.order, *self.sign), (*other.right, *other.order, *other.sign), strict=True
        ):
            mine[rows] = theirs
        for i, (_, y, _) in self.answers.items():
            y[rows] = other.answers[i][1]

    def residuals(self) -> Tensor:
        """Per term (B, terms), |A - B| relative to (|A|^2 + |B|^2)^1/2 as it was at first."""
        found = [
            ((x - y).square().flatten(1).sum(1) / norm).sqrt()
            for x, y, norm in zip(self.left, self.right, self.norms, strict=True)
        ]
        return torch.stack(found, dim=1)

    def objective(self, layers: Sequence[int] | None = None) -> Tensor:
        """The sum (B,); with `layers`, of the terms that these move."""
        total = torch.zeros_like(self.sign[0][:, 0])
        for term, x, y, w in zip(self.terms, self.left, self.right, self.weights, strict=True):
            if layers is None or any(i in layers for i in term.layers):
                total = total + w * (x - y).square().flatten(1).sum(1)
        for i, (x, y, w) in self.answers.items():
            if layers is None or i in layers:
                total = total + w * (x - y).square().flatten(1).sum(1)
        return total

    # -- starts ------------------------------------------------------------------------------------------------

    def start_from_states(self, a: States, b: States) -> None:
        """Match neurons by their answers and their gradients."""
        for family in families(self.architecture):
            into = {i: a.gradients[i] @ b.gradients[i].mT for i in family.layers}
            out = {i: a.answers[i] @ b.answers[i].mT for i in family.layers}
            still = {i: -_SIZES * torch.cdist(a.sizes[i], b.sizes[i]).square() for i in family.layers}
            self.move(family, self._choose(family, Likeness(into, out, still=still)))

    def start_from_weights(self, *, backwards: bool = False) -> None:
        """Match family after family from one end, by the tensors whose other end is in place."""
        order = families(self.architecture)
        placed = {i for i in range(len(self.architecture.layers)) if all(i not in f.layers for f in order)}
        for family in reversed(order) if backwards else order:
            self.move(family, self._choose(family, self._likeness(family, placed)))
            placed |= set(family.layers)

    # -- search ------------------------------------------------------------------------------------------------

    def refine(self) -> None:
        """Go through the families until no pair gets better."""
        rows = torch.arange(len(self), device=self.order[0].device)
        for _ in range(_SWEEPS):
            part = self.at(rows)
            better = part._sweep()
            self.put(rows, part)
            rows = rows[better]
            if not len(rows):
                return

    def _sweep(self) -> Tensor:
        """One step per family; which pairs (B,) got better."""
        better = torch.zeros_like(self.order[0][:, 0], dtype=torch.bool)
        everywhere = set(range(len(self.architecture.layers)))
        for family in families(self.architecture):
            before, old = self.objective(family.layers), self._snapshot()
            self.move(family, self._choose(family, self._likeness(family, everywhere)))
            smaller = self.objective(family.layers) < before - _LESS
            self._restore(old, ~smaller)
            better |= smaller
        return better

    def _snapshot(self) -> Search:
        """What there is now; moves replace tensors and never write into them."""
        found = copy(self)
        found.right, found.order, found.sign = list(self.right), list(self.order), list(self.sign)
        found.answers = dict(self.answers)
        return found

    def _restore(self, old: Search, rows: Tensor) -> None:
        """Undo what was done since a snapshot, for the pairs of a mask (B,)."""
        for mine, theirs in ((self.right, old.right), (self.order, old.order), (self.sign, old.sign)):
            for n, (x, y) in enumerate(zip(mine, theirs, strict=True)):
                if x is not y:
                    mine[n] = torch.where(rows.reshape(-1, *[1] * (x.dim() - 1)), y, x)
        for i, (x, y, w) in old.answers.items():
            self.answers[i] = x, torch.where(rows[:, None, None], y, self.answers[i][1]), w

    def _likeness(self, family: Family, placed: set[int]) -> Likeness:
        a = self.architecture
        shape = (len(self), *[a.layers[family.layers[0]].size] * 2)
        into = {i: self.weights[0].new_zeros(shape) for i in family.layers}
        out = {i: self.weights[0].new_zeros(shape) for i in family.layers}
        apart = {}
        for term, x, y, w in zip(self.terms, self.left, self.right, self.weights, strict=True):
            t, s, c = term.target, term.source, w[:, None, None]
            if t in into:
                half = self._half(t)
                if term.segment.kind == "bias" and half is not None:
                    apart[t] = _apart(x, y, half), _apart(x, -y, half), 0.5 * half**2 * c
                elif s is None or s in placed:
                    into[t] = torch.baddbmm(into[t], _rows(x * c.reshape(-1, *[1] * (x.dim() - 1))), _rows(y).mT)
            if s in out and t in placed:
                out[s] = torch.baddbmm(out[s], _rows(x.transpose(1, 2)) * c, _rows(y.transpose(1, 2)).mT)
        for i in family.layers:
            if i in self.answers:
                x, y, w = self.answers[i]
                out[i] = torch.baddbmm(out[i], x * w[:, None, None], y.mT)
        return Likeness(into, out, apart)

    def _choose(self, family: Family, like: Likeness) -> Move:
        """The best neuron of B for each of A, with the best sign and phase of each pair."""
        a = self.architecture
        totals: dict[tuple[int, ...], list[Tensor]] = {}
        for members in family.classes:
            signs = (1.0, -1.0) if self.signs and a.groups[members[0]].signs else (1.0,)
            totals[members] = [_total([self._gain(i, like, s) for i in members]) for s in signs]
        best = _total([*(_largest(t) for t in totals.values()), *like.still.values()])
        order = _assign(best) if family.permuted else torch.arange(best.shape[1]).expand(best.shape[0], -1)
        order = order.to(best.device)
        sign, turn = {}, {}
        for members, total in totals.items():
            picked = [_picked(t, order) for t in total]
            chosen = 1.0 - 2.0 * (picked[-1] > picked[0] + _LESS).double()
            for i in members:
                sign[i] = chosen
                if self._half(i) is not None:
                    turn[i] = self._turn(i, like, order, chosen)
        return Move(order, sign, turn)

    def _half(self, layer: int) -> float | None:
        """Half a turn of a layer's biases, if they may turn."""
        return turns(self.architecture, layer) if self.signs else None

    def _gain(self, i: int, like: Likeness, sign: float) -> Tensor:
        """What each pair (B, n, n) of neurons of a layer gains under a sign, with its best phase."""
        a = self.architecture
        sent = -1.0 if sign < 0 and not a.phis[i].even else 1.0
        gain = sign * like.into[i]
        if i in like.apart:
            equal, opposite, c = like.apart[i]
            equal, opposite = (equal, opposite) if sign > 0 else (opposite, equal)
            gain = gain - c * equal.square()
            if mirrors(a, i):
                gain = torch.maximum(gain, -sign * like.into[i] - c * (1 - opposite).square())
        elif self._half(i) is not None and mirrors(a, i):
            gain = gain.abs()
        return gain + sent * like.out[i]

    def _turn(self, i: int, like: Likeness, order: Tensor, sign: Tensor) -> Tensor:
        """How many half turns (B, n) the neurons of a layer take once order and signs are chosen."""
        half = self._half(i)
        assert half is not None
        n = next(n for n, t in enumerate(self.terms) if t.target == i and t.segment.kind == "bias")
        x, y, into = self.left[n], self.right[n].gather(1, order), _picked(like.into[i], order)
        options = []
        for odd in (0, 1) if mirrors(self.architecture, i) else (0,):
            factor = sign * (1 - 2 * odd)
            apart = x - factor * y
            count = nearest(apart / half, odd)
            c = 0.5 * self.weights[n][:, None] if i in like.apart else 0.0
            options.append((factor * into - c * (apart - count * half).square(), count))
        (gain, count), (other, odd_count) = options[0], options[-1]
        return torch.where(other > gain + _LESS, odd_count, count)

    def move(self, family: Family, move: Move) -> None:
        """Carry out a move."""
        a = self.architecture
        entering, leaving = {}, {}
        for i in family.layers:
            odd = move.turn[i].remainder(2) if i in move.turn else torch.zeros_like(move.sign[i])
            entering[i] = move.sign[i] * (1 - 2 * odd)
            leaving[i] = a.phis[i](move.sign[i])
            self.sign[i] = move.sign[i] * self.sign[i].gather(1, move.order)
            self.order[i] = self.order[i].gather(1, move.order)
        for n, term in enumerate(self.terms):
            x = self.right[n]
            if term.target in entering:
                x = _taken(x, move.order, 1) * _along(entering[term.target], x, 1)
                if term.segment.kind == "bias" and term.target in move.turn:
                    half = turns(a, term.target)
                    assert half is not None
                    x = x + half * move.turn[term.target]
            if term.source in leaving:
                x = _taken(x, move.order, 2) * _along(leaving[term.source], x, 2)
            self.right[n] = x
        for i in family.layers:
            if i in self.answers:
                x, y, w = self.answers[i]
                self.answers[i] = x, _taken(y, move.order, 1) * _along(leaving[i], y, 1), w


def _apart(x: Tensor, y: Tensor, half: float) -> Tensor:
    """How far (B, n, n) phases (B, n) are from whole turns of each other, from 0 to 1 in half turns."""
    count = (x[:, :, None] - y[:, None, :]) / half
    return (count - 2 * (count / 2).round()).abs()


def _total(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _largest(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.maximum(parts[0], parts[1])


def _picked(x: Tensor, order: Tensor) -> Tensor:
    """The entries (i, order[i]) of matrices (B, n, n), as (B, n)."""
    return x.gather(2, order[..., None])[..., 0]


def _both(x: Tensor, y: Tensor) -> Tensor:
    """The squared norms (B,) of two tensors together; 1 where both vanish."""
    total = x.square().flatten(1).sum(1) + y.square().flatten(1).sum(1)
    return torch.where(total > 0, total, 1.0)


def _norms(terms: Sequence[Term], left: Sequence[Tensor], right: Sequence[Tensor]) -> list[Tensor]:
    """The squared norms (B,) of terms in both networks; one far below others of its layer is no unit of its own."""
    sizes = [_both(x, y) / t.segment.size for t, x, y in zip(terms, left, right, strict=True)]
    found = []
    for term, size in zip(terms, sizes, strict=True):
        layer = [s for t, s in zip(terms, sizes, strict=True) if t.target == term.target]
        found.append(term.segment.size * torch.maximum(size, _SMALLEST**2 * torch.stack(layer).amax(0)))
    return found


def _rows(x: Tensor) -> Tensor:
    return x.flatten(2) if x.dim() > 2 else x[..., None]


def _along(v: Tensor, x: Tensor, dim: int) -> Tensor:
    """Shape (B, n) so that it broadcasts along one dimension of x."""
    shape = [1] * x.dim()
    shape[0], shape[dim] = v.shape
    return v.reshape(shape)


def _taken(x: Tensor, order: Tensor, dim: int) -> Tensor:
    return torch.take_along_dim(x, _along(order, x, dim), dim)


def _assign(gain: Tensor) -> Tensor:
    """Per pair of networks the assignment of largest total gain: (B, n, n) to (B, n)."""
    # Gains that differ by rounding are equal, or else rounding would decide between them.
    size = gain.abs().amax((1, 2), keepdim=True)
    gain = (gain * (2.0**36 / torch.where(size > 0, size, 1.0))).round()
    found = [linear_sum_assignment(g, maximize=True)[1] for g in gain.cpu().numpy()]
    return torch.stack([torch.from_numpy(columns) for columns in found])
