"""Blocks of neurons: what may be permuted together, and by what each neuron may be multiplied.

A layer is a row of blocks. The neurons of a block may be permuted (blocks with the same *slot* are permuted together);
those of a block with several *heads* within each head, and the heads as wholes. The multiplier of a neuron's
pre-activation is a monomial in free variables, one value per neuron: powers of positive numbers times signs. Residual
additions, concatenations, products, attention, normalisations and shared weights are all linear equations in the
exponents, over the reals for magnitudes and modulo 2 for signs, and are solved here by elimination.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Generic, TypeVar

from .wiring import Factor, Neurons, Wiring, wiring

if TYPE_CHECKING:
    from .architecture import Architecture

Place = tuple[int, int]  # of a block: its layer and its first neuron
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Block:
    """Neighbouring neurons of one layer.

    Arguments:
        start, size: Which neurons.
        slot: Number of the permutation of its neurons (within their heads); None if they may not be permuted.
        heads: Number of groups of equal size into which the neurons are divided, and which may be permuted as wholes.
        head_slot: Number of the permutation of the heads; None if there is one head.
        scales: The magnitude of the multiplier: pairs (variable, exponent).
        signs: The sign of the multiplier: the variables whose product it is.

    >>> from scalegmn import Architecture
    >>> Architecture.mlp([2, 3, 1], "relu").blocks[1]
    (Block(start=0, size=3, slot=0, heads=1, head_slot=None, scales=((0, 1.0),), signs=()),)
    """

    start: int
    size: int
    slot: int | None
    heads: int = 1
    head_slot: int | None = None
    scales: tuple[tuple[int, float], ...] = ()
    signs: tuple[int, ...] = ()

    @property
    def stop(self) -> int:
        """One past the last neuron."""
        return self.start + self.size


def find_blocks(architecture: Architecture) -> tuple[tuple[Block, ...], ...]:
    """The blocks of every layer."""
    demands = wiring(architecture)
    order = Order([layer.size for layer in architecture.layers], demands)
    scales, signs = _multipliers(architecture, order, demands)
    slots: dict[Place, int] = {}
    heads: dict[Place, int] = {}
    variables: tuple[dict[Place, int], dict[Place, int]] = {}, {}
    found = []
    for layer in range(len(architecture.layers)):
        blocks = []
        for place, size in order.places(layer):
            root, head = order.same.find(place), order.head(place)
            blocks.append(
                Block(
                    place[1],
                    size,
                    None if root in order.pinned else slots.setdefault(root, len(slots)),
                    order.count(place),
                    None if head is None else heads.setdefault(head, len(heads)),
                    tuple(sorted((variables[0].setdefault(v, len(variables[0])), p) for v, p in scales[place].items())),
                    tuple(sorted(variables[1].setdefault(v, len(variables[1])) for v in signs[place])),
                )
            )
        found.append(tuple(blocks))
    return tuple(found)


class Classes(Generic[Key]):
    """Equivalence classes that can be joined (union-find).

    >>> same: Classes[str] = Classes()
    >>> same.join("a", "b")
    >>> same.find("b"), same.find("c")
    ('a', 'c')
    """

    def __init__(self) -> None:
        self.parent: dict[Key, Key] = {}

    def find(self, key: Key) -> Key:
        """The representative of a class: always the same for the same class."""
        root = key
        while (up := self.parent.get(root, root)) != root:
            root = up
        while (up := self.parent.get(key, key)) != root:
            self.parent[key], key = root, up
        return root

    def join(self, a: Key, b: Key) -> None:
        """Join two classes."""
        a, b = self.find(a), self.find(b)
        if a != b:
            self.parent[b] = a


class Order:
    """Which ranges of neurons are permuted together.

    Boundaries between blocks spread along ties until every tie joins whole blocks. A grid that does not fill a block,
    or that contradicts another grid, becomes boundaries: its groups then stay where they are.

    >>> order = Order([2, 4], Wiring(ties=[(Neurons(0, 0, 2), Neurons(1, 2, 2))]))
    >>> list(order.places(1)), order.same.find((1, 2))
    ([((1, 0), 2), ((1, 2), 2)], (0, 0))
    """

    def __init__(self, sizes: list[int], demands: Wiring) -> None:
        self.cuts = [{0, n} for n in sizes]
        self.demands = demands
        self.dissolved: set[int] = set()
        for tie in demands.ties:
            for span in tie:
                self._cut(span, (0, span.size))
        for span in demands.pins:
            self._cut(span, (0, span.size))
        while True:
            self._spread()
            self.same, self.pinned = self._classes()
            contradicted = self._contradicted()
            if not contradicted:
                break
            for g in contradicted:
                span, groups = demands.grids[g]
                self._cut(span, range(0, span.size + 1, span.size // groups))
            self.dissolved |= contradicted
        self.grids: dict[Place, int] = {}
        self.linked: Classes[Place] = Classes()
        for g, (span, groups) in enumerate(demands.grids):
            if g not in self.dissolved:
                self.grids[self.same.find((span.layer, span.start))] = groups
        for a, b in demands.links:
            if a not in self.dissolved:
                self.linked.join(*(self.same.find(_place(demands.grids[g][0])) for g in (a, b)))

    def places(self, layer: int) -> Iterator[tuple[Place, int]]:
        """The blocks of a layer with their sizes."""
        cuts = sorted(self.cuts[layer])
        return (((layer, a), b - a) for a, b in pairwise(cuts))

    def count(self, place: Place) -> int:
        """The number of heads of a block."""
        return self.grids.get(self.same.find(place), 1)

    def head(self, place: Place) -> Place | None:
        """A name for the order of a block's heads."""
        root = self.same.find(place)
        return self.linked.find(root) if root in self.grids else None

    def within(self, span: Neurons) -> list[int]:
        """Where the blocks of a range begin, counted from its start."""
        return [c - span.start for c in sorted(self.cuts[span.layer]) if span.start <= c < span.start + span.size]

    def _cut(self, span: Neurons, where: Iterable[int]) -> None:
        self.cuts[span.layer].update(span.start + i for i in where)

    def _spread(self) -> None:
        growing = True
        while growing:
            growing = False
            for a, b in self.demands.ties:
                mine, theirs = self.within(a), self.within(b)
                if mine != theirs:
                    growing = True
                    self._cut(a, theirs)
                    self._cut(b, mine)

    def _classes(self) -> tuple[Classes[Place], set[Place]]:
        same: Classes[Place] = Classes()
        for a, b in self.demands.ties:
            for i in self.within(a):
                first, second = sorted([(a.layer, a.start + i), (b.layer, b.start + i)])
                same.join(first, second)
        pinned = {same.find((p.layer, p.start + i)) for p in self.demands.pins for i in self.within(p)}
        return same, pinned

    def _contradicted(self) -> set[int]:
        """Grids that cannot stay: not one whole block, pinned, of two sizes in one class, or linked to one of these."""
        roots = {g: self.same.find(_place(s)) for g, (s, _) in enumerate(self.demands.grids) if g not in self.dissolved}
        counts: dict[Place, set[int]] = {}
        for g, root in roots.items():
            counts.setdefault(root, set()).add(self.demands.grids[g][1])
        bad = {g for g, root in roots.items() if root in self.pinned or len(counts[root]) > 1}
        for g in roots:
            span = self.demands.grids[g][0]
            if self.within(span) != [0] or span.start + span.size not in self.cuts[span.layer]:
                bad.add(g)
        size = -1
        while len(bad) != size:
            size = len(bad)
            bad |= {g for link in self.demands.links if bad & set(link) for g in link}
            broken = {roots[g] for g in bad}
            bad |= {g for g, root in roots.items() if root in broken}
        return bad


def _place(span: Neurons) -> Place:
    return span.layer, span.start


Exponents = dict[Place, float]


def _multipliers(
    architecture: Architecture, order: Order, demands: Wiring
) -> tuple[dict[Place, Exponents], dict[Place, set[Place]]]:
    """For every block the exponents of its magnitude and the variables of its sign."""
    scales, signs = _Elimination(), _Elimination(modulus=2)
    phis = architecture.phis
    for relation in demands.scales:
        for row in _rows(order, relation):
            scales.demand([(p, f.power * (phis[p[0]].power if f.after else 1)) for p, f in row])
    for relation in demands.signs:
        for row in _rows(order, relation):
            signs.demand([(p, 0 if f.after and phis[p[0]].even else 1) for p, f in row])
    places = [place for layer in range(len(architecture.layers)) for place, _ in order.places(layer)]
    return {p: scales.value(p) for p in places}, {p: set(signs.value(p)) for p in places}


def _rows(order: Order, relation: tuple[Factor, ...]) -> Iterator[list[tuple[Place, Factor]]]:
    """A relation between ranges, block by block."""
    for i in order.within(relation[0].span):
        yield [((f.span.layer, f.span.start + i), f) for f in relation]


class _Elimination:
    """Homogeneous linear equations, solved for the latest of their unknowns."""

    def __init__(self, modulus: int | None = None) -> None:
        self.modulus = modulus
        self.solved: dict[Place, Exponents] = {}

    def demand(self, row: Iterable[tuple[Place, float]]) -> None:
        """Demand that the sum of coefficients times unknowns is zero."""
        total = self._sum(row)
        if total:
            pivot = max(total)
            factor = total.pop(pivot)
            self.solved[pivot] = {p: -c / factor for p, c in total.items()}

    def value(self, place: Place) -> Exponents:
        """An unknown expressed in those that stay free."""
        if place not in self.solved:
            return {place: 1.0}
        found = self._sum(self.solved[place].items())
        self.solved[place] = found
        return found

    def _sum(self, terms: Iterable[tuple[Place, float]]) -> Exponents:
        total: Exponents = {}
        for place, c in terms:
            for free, power in self.value(place).items():
                total[free] = total.get(free, 0.0) + c * power
        if self.modulus is not None:
            total = {p: c % self.modulus for p, c in total.items()}
        return {p: c for p, c in total.items() if abs(c) > 1e-12}
