"""Growing an architecture one operation at a time.

A traced module is a sequence of operations on symbolic values. A value is an affine function of a neuron layer's maps:
`factor * pooled(layer) + offset`. A layer is *open* as long as its activation is still to come; operations that need
finished neurons close it, with the identity where nothing else came.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ..core.activations import Activation
from ..core.architecture import Architecture, Connection, Conv, Layer, Linear, Map, Normalise, Pool, Skip
from ..errors import ScaleGMNError
from .layout import Fold, Source

IDENTITY = Activation("identity")
_PERIODIC = ("sine", "cos")


@dataclass(frozen=True, eq=False)
class Term:
    """A connection that is not yet in an architecture."""

    source: Node
    map: Map
    pools: tuple[Pool, ...] = ()
    gain: float = 1.0
    weight: Source | Fold | None = None


@dataclass(eq=False)
class Node:
    """A layer under construction. Size and spatial dimensions are None where they are those of the input."""

    size: int | None
    dims: int | None
    terms: list[Term] = field(default_factory=list)
    bias: Source | Fold | None = None
    activation: Activation = IDENTITY
    slope: Source | None = None
    offset: float = 0.0


@dataclass(frozen=True, eq=False)
class Value:
    """A symbolic tensor.

    Arguments:
        node: The layer it comes from.
        dims: Its spatial dimensions, after pooling.
        open: Whether the layer's activation is still to come.
        pools: Pooling of the layer's maps.
        flat: Whether its maps have been flattened.
        factor, offset: Of the affine function.
    """

    node: Node
    dims: int | None
    open: bool = False
    pools: tuple[Pool, ...] = ()
    flat: bool = False
    factor: float = 1.0
    offset: float = 0.0

    @property
    def plain(self) -> bool:
        """Whether factor and offset do nothing."""
        return self.factor == 1 and self.offset == 0


class UnsupportedError(Exception):
    """An operation that has no place in an architecture; the tracer adds where it stands.

    Arguments:
        what: The operation.
        instead: What is supported in its place.
    """

    def __init__(self, what: str, instead: str = "") -> None:
        super().__init__(f"{what} is not supported" + (f" ({instead})" if instead else ""))


class Builder:
    """A growing network."""

    def __init__(self) -> None:
        self.input = Node(None, None)
        self.nodes = [self.input]
        self.input_size: int | None = None
        self.input_dims: int | None = None

    # -- operations --------------------------------------------------------------------------------------------

    def start(self) -> Value:
        """The network's input."""
        return Value(self.input, None)

    def linear(self, value: Value, inputs: int, outputs: int, weight: Source, bias: Source | None) -> Value:
        """A linear layer; after a flatten, its positions lie on the edges."""
        dims = self.dims(value)
        if not value.flat and dims:
            raise UnsupportedError(
                f"a linear layer on maps with {dims} spatial dimension(s)", "flatten or pool them first"
            )
        if value.flat and self.size(value) is not None and dims != 0:
            channels = self.size(value)
            assert channels is not None
            if inputs % channels:
                raise UnsupportedError(f"a linear layer of {inputs} inputs after a flatten of {channels} channels")
            positions = _positions(inputs // channels, dims or 1, value.pools)
        elif value.flat and value.pools:
            if math.prod(value.pools[-1].size) != 1:
                raise UnsupportedError("a flatten of pooled inputs whose channels no convolution tells")
            self.meet(value, inputs, len(value.pools[-1].size))
            positions = ()
        else:
            self.meet(value, inputs, 0)
            positions = ()
        return self._dense(value, outputs, 0, Linear(positions), weight, bias)

    def conv(self, value: Value, inputs: int, outputs: int, conv: Conv, weight: Source, bias: Source | None) -> Value:
        """A convolution."""
        dims = len(conv.kernel)
        if value.flat:
            raise UnsupportedError("a convolution after a flatten")
        self.meet(value, inputs, dims)
        return self._dense(value, outputs, dims, conv, weight, bias)

    def normalise(self, value: Value, size: int, eps: float, weight: Source, bias: Source | None) -> Value:
        """LayerNorm over the neurons."""
        if value.flat or self.dims(value):
            raise UnsupportedError("LayerNorm over maps", "it is over the neurons of a linear layer")
        self.meet(value, size, 0)
        value = self.settled(value)
        term = Term(value.node, Normalise(eps), value.pools, weight=weight)
        return self.add_node(Node(size, 0, [term], bias))

    def fold(self, value: Value, size: int, make: Callable[[Source, str | None], Fold]) -> Value:
        """BatchNorm directly after a linear layer or a convolution."""
        node = value.node
        bare = value.open and value.plain and not value.flat and len(node.terms) == 1
        term = node.terms[0] if bare else None
        if term is None or not isinstance(term.weight, Source) or isinstance(term.map, Normalise):
            raise UnsupportedError("BatchNorm that does not stand directly after a linear layer or a convolution")
        if node.size != size:
            raise UnsupportedError(f"BatchNorm of {size} features after a layer of {node.size} neurons")
        assert not isinstance(node.bias, Fold)
        entry = make(term.weight, None if node.bias is None else node.bias.key)
        node.terms = [replace(term, weight=entry)]
        node.bias = entry
        return value

    def activate(self, value: Value, activation: Activation, slope: Source | None = None) -> Value:
        """Apply an activation; a factor before a sine becomes its frequency."""
        if activation == IDENTITY:
            return value
        if activation.across_neurons and value.flat:
            raise UnsupportedError(f"{activation.name} after a flatten")
        frequency = value.factor
        if activation.name in _PERIODIC and value.offset == 0 and frequency != 1:
            activation = Activation(activation.name, (activation.parameters[0] * frequency,))
            value = replace(value, factor=1.0)
        value = self.opened(value)
        value.node.activation, value.node.slope = activation, slope
        return replace(value, open=False)

    def add(self, a: Value, b: Value) -> Value:
        """A residual addition."""
        if a.flat != b.flat and (self.dims(a), self.dims(b)) != (0, 0):
            raise UnsupportedError("an addition of flattened and unflattened maps")
        if self.size(a) != self.size(b) and None not in (self.size(a), self.size(b)):
            raise UnsupportedError(f"an addition of {self.size(a)} and {self.size(b)} neurons (broadcasting)")
        if a.node is b.node:
            a, b = self.closed(a), self.closed(b)
        offset = a.offset + b.offset
        terms, bias = self._terms(replace(a, offset=0.0))
        more, second = self._terms(replace(b, offset=0.0), biased=bias is None)
        size, dims = (self.size(a), self.dims(a)) if a.node.size is not None else (self.size(b), self.dims(b))
        value = self.add_node(Node(size, dims, [*terms, *more], bias or second))
        return replace(value, offset=offset, flat=a.flat)

    def shift(self, value: Value, bias: Source, size: int) -> Value:
        """Add a learned vector: the bias of a layer."""
        if self.size(value) not in (None, size) or (value.flat and self.dims(value)):
            raise UnsupportedError(f"the addition of a parameter of {size} entries to {self.size(value)} neurons")
        if value.node.bias is not None:
            value = self.closed(value)
        value = self.opened(value)
        value.node.bias = bias
        return value

    def pool(self, value: Value, pool: Pool, dims: int | None = None) -> Value:
        """Pool maps; `dims` are those afterwards, as before where omitted."""
        if value.flat or self.dims(value) == 0:
            raise UnsupportedError("pooling of a value without spatial dimensions")
        if value.dims is None and self.input_dims is None:
            self.input_dims = len(pool.size)
        value = self.settled(value)
        return replace(value, pools=(*value.pools, pool), dims=value.dims if dims is None else dims)

    def flatten(self, value: Value) -> Value:
        """Put the positions of maps beside their channels."""
        if self.dims(value) == 0:
            return value
        if self.dims(value) is None and any(n.activation.across_neurons for n in self.nodes):
            raise UnsupportedError("a flatten after a softmax of the input", "its channels are not known")
        last = value.pools[-1] if value.pools else None
        if last is not None and set(last.size) == {1} and last.kind == "adaptive_avg" and value.node is not self.input:
            return replace(value, pools=(*value.pools[:-1], Pool("global_avg")), dims=0)
        return replace(value, flat=True)

    def finish(self, value: Value) -> tuple[Architecture, tuple[Source | Fold, ...]]:
        """Close the network with its output."""
        if value.flat and self.dims(value):
            raise UnsupportedError("a flatten at the output", "return the maps themselves")
        if value.open:
            # What is added after the identity can stay where it is.
            value = replace(self.opened(replace(value, offset=0.0)), offset=value.offset)
        node = value.node
        exposed = value.pools or node is self.input or any(t.source is node for n in self.nodes for t in n.terms)
        if exposed or value.factor != 1:
            node = self.settled(value, force=True).node
        else:
            node.offset += value.offset
        self.nodes = _ancestors(self.nodes, node)
        return _assemble(self.nodes, self.input_size)

    # -- values ------------------------------------------------------------------------------------------------

    def size(self, value: Value) -> int | None:
        """Neurons of a value, None where the input's size is not known yet."""
        return self.input_size if value.node.size is None else value.node.size

    def dims(self, value: Value) -> int | None:
        """Spatial dimensions of a value, None where those of the input are not known yet."""
        return self.input_dims if value.dims is None else value.dims

    def meet(self, value: Value, size: int, dims: int) -> None:
        """Learn, or check, what a layer says about its input."""
        if value.node.size is None and self.input_size is None:
            self.input_size = size
        if value.dims is None and self.input_dims is None:
            self.input_dims = dims
        if self.size(value) != size:
            raise UnsupportedError(f"a layer of {size} inputs on {self.size(value)} neurons")
        if self.dims(value) != dims:
            raise UnsupportedError(f"a layer for {dims} spatial dimension(s) on maps of {self.dims(value)}")

    def closed(self, value: Value) -> Value:
        """The same value as that of a finished layer."""
        return replace(value, open=False)

    def settled(self, value: Value, *, force: bool = False) -> Value:
        """The same value as that of a finished layer, without factor and offset (and pools, if forced)."""
        if value.plain and not force:
            return self.closed(value)
        node = Node(value.node.size, value.dims, [self._skip(value)], offset=value.offset)
        return replace(self.add_node(node), open=False, flat=value.flat)

    def opened(self, value: Value) -> Value:
        """The same value as that of an open layer without pools, factor or offset."""
        if value.open and value.plain:
            return value
        if value.open and value.offset == 0 and value.node.bias is None:
            value.node.terms = [replace(t, gain=t.gain * value.factor) for t in value.node.terms]
            return replace(value, factor=1.0)
        value = self.settled(value) if value.offset else value
        return replace(self.add_node(Node(value.node.size, value.dims, [self._skip(value)])), flat=value.flat)

    def add_node(self, node: Node) -> Value:
        """Put an open layer after all others."""
        self.nodes.append(node)
        return Value(node, node.dims, open=True)

    def _skip(self, value: Value) -> Term:
        return Term(value.node, Skip(), value.pools, value.factor)

    def _terms(self, value: Value, *, biased: bool = True) -> tuple[list[Term], Source | Fold | None]:
        """What a value adds to a layer; an open layer dissolves into its terms if it may bring its bias."""
        node = value.node
        if value.open and (node.bias is None or (biased and value.factor == 1)):
            self.nodes.remove(node)
            return [replace(t, gain=t.gain * value.factor) for t in node.terms], node.bias
        return [self._skip(value)], None

    def _dense(self, value: Value, size: int, dims: int, map_: Map, weight: Source, bias: Source | None) -> Value:
        if value.offset:
            value = self.settled(value)
        term = Term(value.node, map_, value.pools, value.factor, weight)
        return self.add_node(Node(size, dims, [term], bias))


def _positions(count: int, dims: int, pools: tuple[Pool, ...]) -> tuple[int, ...]:
    """The shape of `count` positions: from an adaptive pooling, a square, or one row where nothing is known."""
    if pools and pools[-1].kind == "adaptive_avg" and math.prod(pools[-1].size) == count:
        return pools[-1].size
    side = math.isqrt(count)
    return (side, side) if dims == 2 and side * side == count else (count,)


def _ancestors(nodes: list[Node], last: Node) -> list[Node]:
    """The layers that the last one sees, in order."""
    found = {id(last)}
    for node in reversed(nodes):
        if id(node) in found:
            found.update(id(t.source) for t in node.terms)
    return [n for n in nodes if id(n) in found]


def _assemble(nodes: list[Node], input_size: int | None) -> tuple[Architecture, tuple[Source | Fold, ...]]:
    if input_size is None:
        raise ScaleGMNError("module: expected at least one linear layer or convolution, found none")
    index = {id(n): i for i, n in enumerate(nodes)}
    layers, connections = [], []
    weights: list[Source | Fold | None] = []
    for i, n in enumerate(nodes):
        layers.append(Layer(n.size or input_size, n.activation, n.bias is not None, n.offset))
        for t in n.terms:
            connections.append(Connection(index[id(t.source)], i, t.map, t.pools, t.gain))
            weights.append(t.weight)
    architecture = Architecture(tuple(layers), tuple(connections))
    owners: dict[str, Sequence[Source | Fold | None]]
    owners = {"weight": weights, "bias": [n.bias for n in nodes], "slope": [n.slope for n in nodes]}
    entries: list[Source | Fold] = []
    for s in architecture.segments:
        entry = owners[s.kind][s.index]
        assert entry is not None
        entries.append(entry)
    return architecture, tuple(entries)
