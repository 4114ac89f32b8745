"""From layers under construction to an architecture, and where each of its tensors comes from."""

from collections.abc import Sequence

from ...core.architecture import Architecture, Connection, Kind, Layer, Shared
from ...errors import ScaleGMNError
from ..layout import Fixed, Fold, Source
from .value import Node, Weight


def ancestors(nodes: list[Node], last: Node) -> list[Node]:
    """The layers that the last one depends on, in order; the input is always among them."""
    found = {id(last), id(nodes[0])}
    for node in reversed(nodes):
        if id(node) in found:
            found.update(id(t.source) for t in node.terms)
    return [n for n in nodes if id(n) in found]


def assemble(nodes: list[Node], input_size: int | None) -> tuple[Architecture, tuple[Source | Fold, ...]]:
    """The architecture of layers in order, and the sources of its segments."""
    if input_size is None:
        raise ScaleGMNError("module: expected at least one linear layer or convolution, found none")
    index = {id(n): i for i, n in enumerate(nodes)}
    layers, connections = [], []
    weights: list[Weight | None] = []
    for i, n in enumerate(nodes):
        biased = n.bias is not None
        layers.append(Layer(n.size or input_size, n.activation, biased, n.offset, n.combine))
        for t in n.terms:
            fixed = t.weight.values if isinstance(t.weight, Fixed) else ()
            connections.append(Connection(index[id(t.source)], i, t.map, t.pools, t.gain, fixed))
            weights.append(t.weight)
    owners: dict[Kind, Sequence[Weight | None]]
    owners = {"weight": weights, "bias": [n.bias for n in nodes], "slope": [n.slope for n in nodes]}
    architecture = Architecture(tuple(layers), tuple(connections), _shared(owners))
    entries: list[Source | Fold] = []
    for s in architecture.segments:
        entry = owners[s.kind][s.index]
        assert isinstance(entry, Source | Fold)
        entries.append(entry)
    return architecture, tuple(entries)


def _shared(owners: dict[Kind, Sequence[Weight | None]]) -> tuple[Shared, ...]:
    """Tensors that are used in several places."""
    first: dict[str, tuple[Kind, int, Source | Fold]] = {}
    found = []
    for kind, entries in owners.items():
        for i, entry in enumerate(entries):
            keys = (entry.key,) if isinstance(entry, Source) else entry.keys if isinstance(entry, Fold) else ()
            for key in keys:
                if key not in first:
                    assert isinstance(entry, Source | Fold)
                    first[key] = (kind, i, entry)
                    continue
                other, of, before = first[key]
                if before is entry or (before == entry and isinstance(entry, Fold) and other != kind):
                    continue
                both = isinstance(entry, Source) and isinstance(before, Source)
                if not both or other != kind:
                    raise ScaleGMNError(f"{key} is used twice in different ways, which is not supported")
                assert isinstance(entry, Source)
                assert isinstance(before, Source)
                if entry.groups != before.groups:
                    raise ScaleGMNError(f"{key} is used as a convolution and as a transposed one; give each its own")
                found.append(Shared(kind, i, of, entry.transposed != before.transposed))
    return tuple(found)
