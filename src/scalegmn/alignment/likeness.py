"""How well neurons of two networks match, for every choice of their signs and phases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product

import torch
from torch import Tensor

_LESS = 1e-12  # what counts as smaller
_MANY = 6  # variables of which all choices are tried
_ROUNDS = 4


@dataclass(frozen=True)
class Entry:
    """Inner products of corresponding vectors of neurons of A and of B.

    Arguments:
        value: For all pairs (B, n, n), or for chosen ones (B, n).
        signs: The sign variables that multiply it.
        mirrored: The layer whose half turns change its sign as well, if any.
    """

    value: Tensor
    signs: frozenset[int] = frozenset()
    mirrored: int | None = None


@dataclass(frozen=True)
class Phases:
    """How far the phases of a sine layer are from whole turns of each other, from 0 to 1 in half turns.

    Arguments:
        equal, opposite: For equal and for opposite signs, shaped like the entries.
        weight: Of the squares.
        signs: The sign variables of the layer.
    """

    equal: Tensor
    opposite: Tensor
    weight: Tensor
    signs: frozenset[int]

    def cost(self, sign: float, odd: bool) -> Tensor:
        """The cost of a sign with the best even, or the best odd, number of half turns."""
        if odd:
            # The incoming weights change their sign once more, and the phase moves by half a turn.
            return self.weight * (1 - (self.opposite if sign > 0 else self.equal)).square()
        return self.weight * (self.equal if sign > 0 else self.opposite).square()


@dataclass
class Likeness:
    """What is known about the pairs of neurons of a slot.

    Arguments:
        free: Whether signs and phases may be chosen.
        entries: Inner products; their sum, each with its sign, is maximised.
        phases: Per sine layer, the cost of phases.
    """

    free: bool
    entries: list[Entry]
    phases: dict[int, Phases] = field(default_factory=dict)

    def add(self, entry: Entry) -> None:
        """Add inner products; those with the same signs are one entry."""
        for n, other in enumerate(self.entries):
            if (other.signs, other.mirrored) == (entry.signs, entry.mirrored):
                self.entries[n] = replace(entry, value=other.value + entry.value)
                return
        self.entries.append(entry)

    def picked(self, order: Tensor) -> Likeness:
        """The same for the pairs of neuron i of A and order[i] of B alone."""

        def pick(x: Tensor) -> Tensor:
            return x.gather(2, order[..., None])[..., 0]

        phases = {
            i: Phases(pick(p.equal), pick(p.opposite), p.weight[..., 0], p.signs) for i, p in self.phases.items()
        }
        return Likeness(self.free, [replace(e, value=pick(e.value)) for e in self.entries], phases)

    def best(self) -> Tensor:
        """The gain of each pair with its best signs and phases."""
        total = torch.zeros_like(self.entries[0].value)
        for part in self._parts():
            total = total + part._largest()[0]
        return total

    def signs(self) -> dict[int, Tensor]:
        """The best value of every sign variable."""
        found: dict[int, Tensor] = {}
        for part in self._parts():
            found |= part._largest()[1]
        return found

    def odd(self, layer: int, signs: dict[int, Tensor]) -> Tensor:
        """Whether (1 or 0) an odd number of half turns is best for the phases of a layer, once signs are chosen."""
        options = [self._layer(layer, signs, odd=odd) for odd in (False, True)]
        if not any(e.mirrored == layer for e in self.entries):
            return torch.zeros_like(options[0])
        return (options[1] > options[0] + _LESS).to(options[0])

    def _parts(self) -> Iterator[Likeness]:
        """Parts that have no sign variable in common."""
        left = list(self.entries)
        while left:
            part = [left.pop(0)]
            layers, signs = {part[0].mirrored} - {None}, set(part[0].signs)
            for _ in range(len(left)):
                more = [e for e in left if signs & e.signs or e.mirrored in layers]
                if not more:
                    break
                left = [e for e in left if not any(e is m for m in more)]
                part += more
                layers |= {e.mirrored for e in more} - {None}
                signs |= {v for e in more for v in e.signs}
            phases = {i: p for i, p in self.phases.items() if i in layers or signs & p.signs}
            yield Likeness(self.free, part, phases)
        met = {i for i, p in self.phases.items() for e in self.entries if e.mirrored == i or e.signs & p.signs}
        loose = {i: p for i, p in self.phases.items() if i not in met}
        if loose:
            still = torch.zeros_like(next(iter(loose.values())).equal)
            yield Likeness(self.free, [Entry(still)], loose)

    def _largest(self) -> tuple[Tensor, dict[int, Tensor]]:
        """The largest sum over the signs, and the signs; in case of a tie, those that change nothing."""
        signed = [e.signs for e in self.entries] + [p.signs for p in self.phases.values()]
        variables = sorted(set().union(*signed)) if self.free else []
        ones = torch.ones_like(self.entries[0].value)
        if len(variables) <= _MANY:
            chosen: dict[int, Tensor] = dict.fromkeys(variables, ones)
            best = self._sum(dict.fromkeys(variables, 1.0))
            for values in list(product((1.0, -1.0), repeat=len(variables)))[1:]:
                choice = dict(zip(variables, values, strict=True))
                gain = self._sum(choice)
                better = gain > best + _LESS
                best = torch.where(better, gain, best)
                chosen = {v: torch.where(better, choice[v], x) for v, x in chosen.items()}
            return best, chosen
        chosen = dict.fromkeys(variables, ones)
        best = self._sum(chosen)
        for _ in range(_ROUNDS):
            for v in variables:
                other = chosen | {v: -chosen[v]}
                gain = self._sum(other)
                better = gain > best + _LESS
                best = torch.where(better, gain, best)
                chosen[v] = torch.where(better, other[v], chosen[v])
        return best, chosen

    def _sum(self, choice: dict[int, float] | dict[int, Tensor]) -> Tensor:
        """The gain for a choice of signs, with the best phases."""
        total = torch.zeros_like(self.entries[0].value)
        for e in self.entries:
            if e.mirrored is None:
                total = total + _sign(e.signs, choice) * e.value
        mirrored = {e.mirrored for e in self.entries if e.mirrored is not None}
        for i in sorted(mirrored | self.phases.keys()):
            even = self._layer(i, choice, odd=False)
            total = total + (torch.maximum(even, self._layer(i, choice, odd=True)) if i in mirrored else even)
        return total

    def _layer(self, layer: int, choice: dict[int, float] | dict[int, Tensor], *, odd: bool) -> Tensor:
        """The gain of what enters a sine layer when its phases turn by an even or odd number of half turns."""
        total = torch.zeros_like(self.entries[0].value)
        for e in self.entries:
            if e.mirrored == layer:
                total = total + (-1 if odd else 1) * _sign(e.signs, choice) * e.value
        if layer in self.phases:
            p = self.phases[layer]
            sign = _sign(p.signs, choice)
            if isinstance(sign, float):
                return total - p.cost(sign, odd)
            total = total - torch.where(sign > 0, p.cost(1.0, odd), p.cost(-1.0, odd))
        return total


def _sign(variables: frozenset[int], choice: dict[int, float] | dict[int, Tensor]) -> float | Tensor:
    """The product of signs; variables that are not in the choice are 1."""
    found: float | Tensor = 1.0
    for v in variables:
        found = found * choice.get(v, 1.0)
    return found
