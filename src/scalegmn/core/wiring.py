"""The conditions that a graph puts on the order and the multipliers of its neurons, range by range.

There are four kinds of conditions: two ranges of neurons have the same order (a *tie*), a range is divided into groups
that stay together (a *grid*), a range may not be permuted (a *pin*), and a product of multipliers is 1 (a *relation*,
for magnitudes or for signs). `scalegmn.core.blocks` solves them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..errors import ScaleGMNError
from .groups import Trivial
from .maps import Attention, Conv, Linear, Normalise, Product, Scale, Skip, Sum, Table

if TYPE_CHECKING:
    from .architecture import Architecture, Connection


@dataclass(frozen=True)
class Neurons:
    """A range of neurons of one layer.

    >>> Neurons(layer=1, start=2, size=4)
    Neurons(layer=1, start=2, size=4)
    """

    layer: int
    start: int
    size: int


@dataclass(frozen=True)
class Factor:
    """The multiplier of a range of neurons, before or after the activation, to the power 1 or -1.

    >>> Factor(Neurons(1, 0, 4), -1, after=True).power
    -1
    """

    span: Neurons
    power: int = 1
    after: bool = False


Relation = tuple[Factor, ...]


@dataclass
class Wiring:
    """All conditions of one graph.

    Arguments:
        ties: Pairs of ranges with the same order.
        grids: Ranges that are divided into a number of groups.
        links: Pairs of grids (positions in `grids`) whose groups have the same order.
        pins: Ranges that may not be permuted.
        scales, signs: Products of multipliers whose magnitude (whose sign) is 1.

    >>> from scalegmn import Architecture
    >>> wiring(Architecture.mlp([2, 3, 1])).pins
    [Neurons(layer=0, start=0, size=2), Neurons(layer=2, start=0, size=1)]
    """

    ties: list[tuple[Neurons, Neurons]] = field(default_factory=list)
    grids: list[tuple[Neurons, int]] = field(default_factory=list)
    links: list[tuple[int, int]] = field(default_factory=list)
    pins: list[Neurons] = field(default_factory=list)
    scales: list[Relation] = field(default_factory=list)
    signs: list[Relation] = field(default_factory=list)

    def equal(self, *factors: Factor) -> None:
        """Demand that the product of the factors is 1, in magnitude and sign."""
        self.scales.append(factors)
        self.signs.append(factors)

    def tie(self, target: Neurons, source: Neurons) -> None:
        """Demand that two ranges have the same order; a wire between them carries the source's multiplier."""
        self.ties.append((target, source))

    def grid(self, span: Neurons, groups: int) -> int:
        """Add a range that is divided into groups, and return the position of the grid."""
        self.grids.append((span, groups))
        return len(self.grids) - 1


def wiring(architecture: Architecture) -> Wiring:
    """The conditions of an architecture."""
    w = Wiring()
    for i, layer in enumerate(architecture.layers):
        whole = Neurons(i, 0, layer.size)
        own = layer.activation.group if layer.offset == 0 else Trivial
        if i in (0, len(architecture.layers) - 1) or not architecture.incoming[i]:
            w.pins.append(whole)
            own = Trivial
        if not own.scales:
            w.scales.append((Factor(whole),))
        if not own.signs:
            w.signs.append((Factor(whole),))
        incoming = [architecture.connections[c] for c in architecture.incoming[i]]
        for c in incoming:
            source, _ = spans(architecture, c)
            if any(p.is_max for p in c.pools):
                w.signs.append((Factor(source, after=True),))
        match layer.combine:
            case Sum():
                for c in incoming:
                    _summand(w, architecture, c)
            case Product():
                _product(w, architecture, whole, incoming)
            case Attention(heads=heads):
                _attention(w, architecture, whole, incoming, heads)
    _shared(w, architecture)
    return w


def spans(architecture: Architecture, c: Connection) -> tuple[Neurons, Neurons]:
    """The ranges of source and target that a connection joins."""
    n_s, n_t = architecture.layers[c.source].size, architecture.layers[c.target].size
    if isinstance(c.map, Skip):
        size = c.map.size or n_s
        return Neurons(c.source, c.map.read, size), Neurons(c.target, c.map.write, size)
    return Neurons(c.source, 0, n_s), Neurons(c.target, 0, n_t)


def _summand(w: Wiring, architecture: Architecture, c: Connection) -> None:
    source, target = spans(architecture, c)
    wire = Factor(target), Factor(source, -1, after=True)
    match c.map:
        case Skip():
            w.tie(target, source)
            w.equal(*wire)
        case Scale():
            w.tie(target, source)
            if c.constant:
                w.equal(*wire)
        case Normalise(kind=kind, groups=groups, learned=learned):
            w.tie(target, source)
            w.scales.append((Factor(source, after=True),))
            if kind != "rms" and groups < source.size:
                w.signs.append((Factor(source, after=True),))
            if not learned:
                w.equal(*wire)
            if groups > 1:
                w.grid(target, groups)
        case Conv(groups=groups) if groups > 1:
            if groups == source.size == target.size:
                w.tie(target, source)
                if c.constant:
                    w.equal(*wire)
            else:
                w.links.append((w.grid(source, groups), w.grid(target, groups)))
        case Linear() | Conv() | Table():
            pass
    if c.constant:
        _constant(w, c, source, target)


def _constant(w: Wiring, c: Connection, source: Neurons, target: Neurons) -> None:
    """Fixed weights: the neurons they connect may not be permuted either, unless all are treated alike."""
    width = len(c.constant) // target.size
    rows = [c.constant[i : i + width] for i in range(0, len(c.constant), width)]
    if any(row != rows[0] for row in rows):
        w.pins.append(target)
    depthwise = c.groups == source.size == target.size
    if c.dense or (isinstance(c.map, Conv) and not depthwise):
        w.equal(Factor(target))
        w.equal(Factor(source, after=True))
        w.pins.append(source)


def _product(w: Wiring, architecture: Architecture, whole: Neurons, incoming: list[Connection]) -> None:
    factors = [Factor(whole)]
    for c in incoming:
        source, _ = spans(architecture, c)
        if source.size == whole.size:
            w.tie(whole, source)
            factors.append(Factor(source, -1, after=True))
        else:
            w.equal(Factor(source, after=True))
    w.equal(*factors)


def _attention(w: Wiring, architecture: Architecture, whole: Neurons, incoming: list[Connection], heads: int) -> None:
    query, key, value = (spans(architecture, c)[0] for c in incoming)
    w.tie(query, key)
    w.equal(Factor(query, after=True), Factor(key, after=True))
    w.tie(whole, value)
    w.equal(Factor(whole), Factor(value, -1, after=True))
    if heads > 1:
        w.links.append((w.grid(query, heads), w.grid(whole, heads)))


def _shared(w: Wiring, architecture: Architecture) -> None:
    """One tensor in two places changes in the same way in both; transposed, with inverse multipliers."""
    for s in architecture.shared:
        if s.kind == "slope":
            continue
        if s.kind == "bias":
            first, again = (Neurons(i, 0, architecture.layers[i].size) for i in (s.of, s.index))
            w.tie(again, first)
            w.equal(Factor(again), Factor(first, -1))
            continue
        source, target = spans(architecture, architecture.connections[s.of])
        again_source, again_target = spans(architecture, architecture.connections[s.index])
        ends = [(Factor(target), Factor(again_target)), (Factor(source, after=True), Factor(again_source, after=True))]
        if s.transposed:
            ends = [(ends[0][0], ends[1][1]), (ends[1][0], ends[0][1])]
        for one, two in ends:
            w.tie(two.span, one.span)
            w.equal(two, one if s.transposed else replace(one, power=-1))


def check_graph(a: Architecture) -> None:
    """Refuse a graph that makes no sense."""
    if len(a.layers) < 2:
        raise ScaleGMNError(f"architecture: expected at least 2 layers, got {len(a.layers)}")
    for c in a.connections:
        if not 0 <= c.source < c.target < len(a.layers):
            raise ScaleGMNError(
                f"architecture: connection {c.source} -> {c.target} must run forward between {len(a.layers)} layers"
            )
        _check_connection(a, c)
    for i, layer in enumerate(a.layers):
        if layer.size < 1:
            raise ScaleGMNError(f"architecture: layer {i} needs at least one neuron, got {layer.size}")
        if i and not a.incoming[i] and layer.offset == 0:
            raise ScaleGMNError(f"architecture: layer {i} has no incoming connection")
        wires = all(isinstance(a.connections[c].map, Skip) for c in a.incoming[i])
        if not isinstance(layer.combine, Sum) and not wires:
            raise ScaleGMNError(f"architecture: layer {i} combines wires (Skip) only, got other connections")
        if isinstance(layer.combine, Attention) and len(a.incoming[i]) != 3:
            raise ScaleGMNError(f"architecture: attention {i} needs queries, keys and values")
    if sorted(a.connections, key=lambda c: c.target) != list(a.connections):
        raise ScaleGMNError("architecture: connections must be sorted by target")


def _check_connection(a: Architecture, c: Connection) -> None:
    where = f"architecture: connection {c.source} -> {c.target}"
    n_s, n_t = a.layers[c.source].size, a.layers[c.target].size
    if isinstance(c.map, Skip):
        source, target = spans(a, c)
        whole = c.map == Skip() and isinstance(a.layers[c.target].combine, Sum)
        fits = source.start + source.size <= n_s and (
            not isinstance(a.layers[c.target].combine, Sum) or target.start + target.size <= n_t
        )
        if (whole and n_s != n_t) or not fits:
            raise ScaleGMNError(f"{where}: an elementwise connection needs equal sizes, got {n_s} and {n_t}")
    elif isinstance(c.map, Normalise | Scale) and n_s != n_t:
        raise ScaleGMNError(f"{where}: an elementwise connection needs equal sizes, got {n_s} and {n_t}")
    elif isinstance(c.map, Conv) and (c.groups < 1 or n_s % c.groups or n_t % c.groups):
        raise ScaleGMNError(f"{where}: {n_s} and {n_t} channels do not fall into {c.groups} groups")
    elif isinstance(c.map, Table) and n_s != 1:
        raise ScaleGMNError(f"{where}: a table needs a layer of one constant neuron, got {n_s}")
    if c.kernel_size < 1:
        raise ScaleGMNError(f"{where} needs at least one weight per edge, got {c.map}")
