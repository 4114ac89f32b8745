r"""Matching the neurons of pairs of networks: linear assignments, one family after another, until nothing improves.

For pairs (A, B) of balanced networks the search minimises

    sum over tensors of  c |A - g B|^2

over permutations, signs and phases g, which do not change norms. With all but one family of layers fixed, this is a
linear assignment problem of its neurons, in which each candidate pair of neurons gets its best signs and phases; so no
step increases the sum (weight matching, Ainsworth et al. 2023, extended to signs, phases and ties).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import torch
from torch import Tensor

from ..core.architecture import Architecture
from ..core.networks import Networks
from ..core.transform import Transform
from .assign import assign
from .likeness import Entry, Likeness, Phases
from .phases import nearest_parity, phase_distance
from .states import Signatures
from .structure import Family, Slot, Term, families, half_turn, mirrors, pieces, sent_sign, split, terms

_SWEEPS = 100
_LESS = 1e-12  # what counts as smaller
_SMALLEST = 1e-3  # of a tensor beside others that enter its layer, such as a bias beside weights
_SIZES = 0.05  # how much sizes count beside answers and gradients


class Search:
    """Pairs of networks that are being matched.

    Arguments:
        a, b: The networks, in float64, balanced, phases in range.
        signs: Whether neurons may change sign; if not, phases stay unchanged too.
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
            inner = sorted({i for f in families(a.architecture) if f.permuted for i in f.layers})
            for i in inner:
                x, y = answers[0][i], answers[1][i].clone()
                self.answers[i] = x, y, weight / len(inner) / _both(x, y)
        count, sizes_of = len(a), [layer.size for layer in a.architecture.layers]
        self.order = [torch.arange(n, device=a.device).expand(count, -1).clone() for n in sizes_of]
        self.sign = [torch.ones(count, n, dtype=torch.float64, device=a.device) for n in sizes_of]

    def __len__(self) -> int:
        return self.order[0].shape[0]

    def at(self, rows: Tensor) -> Search:
        """Some of the pairs, to continue the search with them alone."""
        found = copy(self)
        found.left, found.right = [x[rows] for x in self.left], [x[rows] for x in self.right]
        found.weights, found.norms = [w[rows] for w in self.weights], [w[rows] for w in self.norms]
        found.answers = {i: (x[rows], y[rows], w[rows]) for i, (x, y, w) in self.answers.items()}
        found.order, found.sign = [p[rows] for p in self.order], [s[rows] for s in self.sign]
        return found

    def put(self, rows: Tensor, other: Search) -> None:
        """Take over the state of some pairs from another search."""
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

    def objective(self, layers: frozenset[int] | None = None) -> Tensor:
        """The sum (B,); with `layers`, of the terms that these move."""
        total = torch.zeros_like(self.sign[0][:, 0])
        for term, x, y, w in zip(self.terms, self.left, self.right, self.weights, strict=True):
            if layers is None or term.target in layers or term.source in layers:
                total = total + w * (x - y).square().flatten(1).sum(1)
        for i, (x, y, w) in self.answers.items():
            if layers is None or i in layers:
                total = total + w * (x - y).square().flatten(1).sum(1)
        return total

    def start_from_states(self, a: Signatures, b: Signatures) -> None:
        """Match neurons by their responses and their gradients."""
        for family in families(self.architecture):
            likes = []
            for slot in family.slots:
                like = self._blank(slot)
                for i, block in slot.blocks:
                    here = slice(block.start, block.stop)
                    both = (a.gradients, b.gradients), (a.answers, b.answers)
                    gradients, answers = (x[i][:, here] @ y[i][:, here].mT for x, y in both)
                    like.add(Entry(gradients, frozenset(block.signs), self._mirrored(i)))
                    like.add(Entry(answers, sent_sign(self.architecture, i, block.start)))
                    like.add(Entry(-_SIZES * torch.cdist(a.sizes[i][:, here], b.sizes[i][:, here]).square()))
                likes.append(like)
            self._move(family, likes)

    def start_from_weights(self, *, backwards: bool = False) -> None:
        """Match family after family from one end, by the tensors whose other end is already matched."""
        order = families(self.architecture)
        missing = [place for family in order for place in family.places()]
        for family in reversed(order) if backwards else order:
            likes = [self._likeness(slot, frozenset(i for i, _ in missing)) for slot in family.slots]
            self._move(family, likes)
            missing = [place for place in missing if place not in set(family.places())]

    def refine(self) -> None:
        """Go through the families until no pair improves."""
        rows = torch.arange(len(self), device=self.order[0].device)
        for _ in range(_SWEEPS):
            part = self.at(rows)
            better = part._sweep()
            self.put(rows, part)
            rows = rows[better]
            if not len(rows):
                return

    def _sweep(self) -> Tensor:
        """One step per family; returns which pairs (B,) improved."""
        better = torch.zeros_like(self.order[0][:, 0], dtype=torch.bool)
        for family in families(self.architecture):
            before, old = self.objective(family.layers), self._snapshot()
            self._move(family, [self._likeness(slot) for slot in family.slots])
            smaller = self.objective(family.layers) < before - _LESS
            self._restore(old, ~smaller)
            better |= smaller
        return better

    def _snapshot(self) -> Search:
        """The current state; moves replace tensors and never write into them."""
        found = copy(self)
        found.right, found.order, found.sign = list(self.right), list(self.order), list(self.sign)
        found.answers = dict(self.answers)
        return found

    def _restore(self, old: Search, rows: Tensor) -> None:
        """Go back to a snapshot for the pairs of a mask (B,)."""
        for mine, theirs in ((self.right, old.right), (self.order, old.order), (self.sign, old.sign)):
            for n, (x, y) in enumerate(zip(mine, theirs, strict=True)):
                if x is not y:
                    mine[n] = torch.where(rows.reshape(-1, *[1] * (x.dim() - 1)), y, x)
        for i, (x, y, w) in old.answers.items():
            self.answers[i] = x, torch.where(rows[:, None, None], y, self.answers[i][1]), w

    def _half(self, layer: int) -> float | None:
        """Half a turn of a layer's biases, if they may turn."""
        return half_turn(self.architecture, layer) if self.signs else None

    def _mirrored(self, layer: int) -> int | None:
        """The layer, if half a turn changes the sign of what enters it."""
        return layer if self.signs and mirrors(self.architecture, layer) else None

    def _blank(self, slot: Slot) -> Likeness:
        """Nothing known yet about the neurons of a slot."""
        return Likeness(self.signs, [Entry(self.weights[0].new_zeros(len(self), slot.size, slot.size))])

    def _likeness(self, slot: Slot, missing: frozenset[int] = frozenset()) -> Likeness:
        """What the tensors say about the neurons of a slot, except those whose other end is not matched yet."""
        like = self._blank(slot)
        for piece in pieces(self.architecture, slot):
            term, here = self.terms[piece.term], slice(piece.block.start, piece.block.stop)
            if missing.intersection(piece.others):
                continue
            w = self.weights[piece.term][:, None, None]
            x, y = (term.rows(side[piece.term], piece.end)[:, here] for side in (self.left, self.right))
            half = self._half(piece.layer)
            if piece.end == "target" and term.segment.kind == "bias" and half is not None:
                equal, opposite = (phase_distance(x[..., 0], sign * y[..., 0], half) for sign in (1, -1))
                like.phases[piece.layer] = Phases(equal, opposite, 0.5 * half**2 * w, piece.signs)
            else:
                mirrored = self._mirrored(piece.layer) if piece.end == "target" else None
                like.add(Entry((x * w) @ y.mT, piece.signs, mirrored))
        for i, block in slot.blocks:
            if i in self.answers:
                x, y, w = self.answers[i]
                here = slice(block.start, block.stop)
                gain = (x[:, here] * w[:, None, None]) @ y[:, here].mT
                like.add(Entry(gain, sent_sign(self.architecture, i, block.start)))
        return like

    def _move(self, family: Family, likes: Sequence[Likeness]) -> None:
        """Give the neurons of a family their best order, signs and phases."""
        if family.permuted:
            orders = assign([like.best() for like in likes], family.heads)
        else:
            orders = [torch.arange(slot.size).expand(len(self), -1) for slot in family.slots]
        a, still = self.architecture, Transform.identity(self.architecture, len(self)).to(self.order[0].device)
        permutations, scales = list(still.permutations), list(still.scales)
        turned: dict[int, Tensor] = {}
        for slot, like, order in zip(family.slots, likes, orders, strict=True):
            order = order.to(self.order[0].device)
            picked = like.picked(order)
            values = picked.signs()
            for i, block in slot.blocks:
                here = slice(block.start, block.stop)
                permutations[i] = permutations[i].clone()
                permutations[i][:, here] = block.start + order
                sign = torch.ones_like(scales[i][:, here])
                for v in block.signs:
                    sign = sign * values.get(v, 1.0)
                scales[i] = scales[i].clone()
                scales[i][:, here] = sign
                if self._half(i) is not None:
                    turned.setdefault(i, torch.zeros_like(scales[i]))[:, here] = picked.odd(i, values)
        moved = Transform(a, tuple(permutations), tuple(scales))
        self._carry_out(moved, family.layers, turned)

    def _carry_out(self, move: Transform, layers: frozenset[int], odd: dict[int, Tensor]) -> None:
        """Apply a move to some layers; then turn phases, by odd numbers of half turns where `odd` says so."""
        for n, term in enumerate(self.terms):
            x = self.right[n]
            if term.target in layers or term.source in layers:
                x = self._moved(term, x, move, layers)
            if term.target in odd and term.target is not None:
                x = x * _along(1 - 2 * odd[term.target], x)
                half = self._half(term.target)
                if term.segment.kind == "bias" and half is not None:
                    x = x + half * nearest_parity((self.left[n] - x) / half, odd[term.target])
            self.right[n] = x
        for i in layers:
            self.sign[i] = move.scales[i] * self.sign[i].gather(1, move.permutations[i])
            self.order[i] = self.order[i].gather(1, move.permutations[i])
            if i in self.answers:
                x, y, w = self.answers[i]
                rows = torch.take_along_dim(y, move.permutations[i][..., None], 1)
                self.answers[i] = x, rows * self.architecture.phis[i](move.scales[i])[..., None], w

    def _moved(self, term: Term, x: Tensor, move: Transform, layers: frozenset[int]) -> Tensor:
        """A term after a move of some layers; like `Transform.edge`, without the ends that stay."""
        if term.groups > 1 or term.paired:
            return move.edge(term.segment.index, x)
        if term.target in layers and term.target is not None:
            x = _rows(x, move.permutations[term.target]) * _along(move.scales[term.target], x)
        if term.source in layers and term.source is not None:
            sent = self.architecture.phis[term.source](move.scales[term.source])
            x = (_rows(x.transpose(1, 2), move.permutations[term.source]) * sent[..., None, None]).transpose(1, 2)
        return x


def _rows(x: Tensor, order: Tensor) -> Tensor:
    """The rows of x (B, n, ...) in another order (B, n)."""
    return x[torch.arange(len(x), device=x.device)[:, None], order]


def _both(x: Tensor, y: Tensor) -> Tensor:
    """The squared norms (B,) of two tensors together; 1 where both vanish."""
    total = x.square().flatten(1).sum(1) + y.square().flatten(1).sum(1)
    return torch.where(total > 0, total, 1.0)


def _norms(terms: Sequence[Term], left: Sequence[Tensor], right: Sequence[Tensor]) -> list[Tensor]:
    """The squared norms (B,) of terms in both networks; a norm far below the others of its layer is raised."""
    sizes = [_both(x, y) / t.segment.size for t, x, y in zip(terms, left, right, strict=True)]
    found = []
    for term, size in zip(terms, sizes, strict=True):
        layer = [s for t, s in zip(terms, sizes, strict=True) if t.target == term.target]
        found.append(term.segment.size * torch.maximum(size, _SMALLEST**2 * torch.stack(layer).amax(0)))
    return found


def _along(v: Tensor, x: Tensor) -> Tensor:
    """Shape (B, n) so that it broadcasts against x."""
    return v.reshape(*v.shape, *[1] * (x.dim() - 2))
