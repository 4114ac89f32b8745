"""Building an architecture one operation at a time (see `value` for what it works on)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from ...core.activations import Activation
from ...core.architecture import (
    Architecture,
    Attention,
    Conv,
    Linear,
    Map,
    Normalise,
    Pool,
    Product,
    Scale,
    Skip,
    Table,
)
from ..layout import Fold, Source
from .assemble import ancestors, assemble
from .shapes import Shapes
from .value import IDENTITY, Arc, Node, UnsupportedError, Value, Weight

_PERIODIC = ("sine", "cos")


class Builder(Shapes):
    """A network under construction.

    Arguments:
        input_size: Number of input neurons, if known beforehand.
    """

    def __init__(self, input_size: int | None = None) -> None:
        super().__init__(input_size)
        self.input = Node(None, None)
        self.nodes = [self.input]
        self.constant: Node | None = None

    def start(self) -> Value:
        """The network's input."""
        return Value(self.input, None)

    def linear(self, value: Value, inputs: int, outputs: int, weight: Weight, bias: Source | None) -> Value:
        """A linear layer, applied at every position; after a flatten, the edges hold the positions."""
        positions = self._flattened(value, inputs) if value.flat else ()
        if not value.flat:
            dims = self.dims(value)
            if dims and not self.undecided(value) and self.axes(value)[-1] != "c":
                raise UnsupportedError(
                    f"a linear layer on maps with {dims} spatial dimension(s)", "flatten or pool them first"
                )
            self.last(value)
            self.meet_size(value, inputs)
        found = self._dense(value, outputs, 0 if value.flat else value.dims, Linear(positions), weight, bias)
        return found if value.flat else replace(found, axes=value.axes)

    def _flattened(self, value: Value, inputs: int) -> tuple[int, ...]:
        size, dims = self.size(value), self.dims(value)
        if size is not None and dims != 0 and (dims is not None or size != inputs):
            if inputs % size:
                raise UnsupportedError(f"a linear layer of {inputs} inputs after a flatten of {size} channels")
            return _positions(inputs // size, dims or 1, value.pools)
        if value.pools:
            if math.prod(value.pools[-1].size) != 1:
                raise UnsupportedError("a flatten of pooled inputs whose channels no convolution tells")
            self.meet(value, inputs, len(value.pools[-1].size))
        else:
            self.meet(value, inputs, 0)
        return ()

    def conv(self, value: Value, inputs: int, outputs: int, conv: Conv, weight: Weight, bias: Source | None) -> Value:
        """A convolution."""
        dims = len(conv.kernel)
        if value.flat:
            raise UnsupportedError("a convolution after a flatten")
        self.meet(value, inputs, dims)
        return self._dense(value, outputs, dims, conv, weight, bias)

    def normalise(self, value: Value, size: int, norm: Normalise, weight: Source | None, bias: Source | None) -> Value:
        """A normalisation: over the neurons, which are the last axis, or over groups of channels."""
        if value.flat:
            raise UnsupportedError("a normalisation after a flatten")
        if norm.kind == "group":
            self.first(value)
        elif self.dims(value) and self.axes(value)[-1] != "c":
            raise UnsupportedError("LayerNorm over maps", "it is over the neurons, which must be the last axis")
        else:
            self.last(value)
        self.meet_size(value, size)
        value = self.whole(self.settled(value))
        term = Arc(value.node, replace(norm, learned=weight is not None), value.pools, weight=weight)
        return replace(self.add_node(Node(size, value.dims, [term], bias)), axes=value.axes)

    def fold(self, value: Value, size: int, make: Callable[[Source | None, str | None], Fold]) -> Value:
        """BatchNorm: folded into the linear layer or convolution before it, or a layer of its own."""
        node = value.node
        self.first(value)
        self.meet_size(value, size)
        bare = value.open and value.plain and not value.flat and len(node.terms) == 1 and value.part is None
        term = node.terms[0] if bare else None
        if term is not None and isinstance(term.weight, Source) and isinstance(term.map, Linear | Conv):
            assert not isinstance(node.bias, Fold)
            entry = make(term.weight, None if node.bias is None else node.bias.key)
            node.terms = [replace(term, weight=entry)]
            node.bias = entry
            return value
        entry = make(None, None)
        if entry.gain is None:
            raise UnsupportedError("BatchNorm without gains that does not stand directly after a layer")
        found = self.scale(value, entry, size)
        found.node.bias = entry
        return found

    def scale(self, value: Value, weight: Weight, size: int) -> Value:
        """One factor per neuron."""
        if value.flat and self.dims(value):
            raise UnsupportedError("factors after a flatten")
        self.meet_size(value, size)
        value = self.whole(self.settled(value) if value.offset else value)
        term = Arc(value.node, Scale(), value.pools, value.factor, weight)
        return replace(self.add_node(Node(size, value.dims, [term])), axes=value.axes)

    def table(self, value: Value, weight: Weight, map_: Table) -> Value:
        """Add a number per neuron and position, or per neuron."""
        if map_.positions and value.dims is None and self.input_dims is None:
            self.input_dims = len(map_.positions)
        offset = value.offset
        terms, bias = self._terms(replace(value, offset=0.0))
        size = self.known_size(value)
        node = Node(size, value.dims, [*terms, Arc(self.one(), map_, weight=weight)], bias)
        return replace(self.add_node(node), offset=offset, axes=value.axes)

    def concatenate(self, values: Sequence[Value]) -> Value:
        """Concatenate the channels of several values."""
        dims = {self.dims(v) for v in values if not (v.flat and self.dims(v) == 0)}
        if len(dims - {None}) > 1 or any(v.flat and self.dims(v) for v in values):
            raise UnsupportedError("a concatenation of values with different spatial dimensions")
        terms, start = [], 0
        for value in values:
            value = self.settled(value) if value.offset else value
            size = self.known_size(value)
            terms.append(self._skip(value, start, size))
            start += size
        first = next((v for v in values if v.dims is not None), values[0])
        return replace(self.add_node(Node(start, first.dims, terms)), axes=first.axes)

    def product(self, values: Sequence[Value]) -> Value:
        """The product of values, neuron by neuron; a single neuron, or a value without positions, is broadcast."""
        sizes = [self.known_size(v) for v in values]
        size = max(sizes)
        if set(sizes) - {1, size} or any(v.flat and self.dims(v) for v in values):
            raise UnsupportedError(f"a product of {sizes[0]} and {sizes[1]} neurons")
        values = [self.settled(v) if v.offset else v for v in values]
        largest = max(values, key=lambda v: (self.known_size(v) == size, self.dims(v) or 0))
        terms = [self._skip(v) for v in values]
        node = Node(size, largest.dims, terms, combine=Product())
        return replace(self.add_node(node), axes=largest.axes)

    def attention(self, values: Sequence[Value], attention: Attention) -> Value:
        """Attention of queries, keys and values."""
        query, key, value = ((self.settled(v) if v.offset else v) for v in values)
        if self.known_size(query) != self.known_size(key):
            raise UnsupportedError("attention whose queries and keys differ in size")
        terms = [self._skip(v) for v in (query, key, value)]
        return self.add_node(Node(self.known_size(value), query.dims, terms, combine=attention))

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
        shape = a if a.node.size is not None and (a.dims is not None or b.dims is None) else b
        value = self.add_node(Node(self.size(shape), shape.dims, [*terms, *more], bias or second))
        return replace(value, offset=offset, flat=a.flat, axes=shape.axes)

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
        """Pool maps; `dims` is the number of dimensions afterwards, unchanged if omitted."""
        if value.flat or self.dims(value) == 0:
            raise UnsupportedError("pooling of a value without spatial dimensions")
        if value.dims is None and self.input_dims is None:
            self.input_dims = len(pool.size)
        axes = value.axes if value.axes is not None or value.dims is not None else self.axes(value)
        value = self.settled(value)
        after = value.dims if dims is None else dims
        if pool.removes_space or dims == 0:
            axes, after = None, 0
        elif axes is not None and after is not None and len(axes) != 2 + after:
            axes = tuple(a for a in axes if not a.startswith("s") or int(a[1:]) < after)
        return replace(value, pools=(*value.pools, pool), dims=after, axes=axes)

    def flatten(self, value: Value) -> Value:
        """Flatten the positions of maps into the neurons."""
        if self.dims(value) == 0:
            return value
        if self.dims(value) is not None and self.axes(value)[1] != "c":
            raise UnsupportedError("a flatten of values whose channels come last")
        if self.dims(value) is None and any(n.activation.across_neurons for n in self.nodes):
            raise UnsupportedError("a flatten after a softmax of the input", "its channels are not known")
        last = value.pools[-1] if value.pools else None
        if last is not None and set(last.size) == {1} and last.kind == "adaptive_avg" and value.node is not self.input:
            size = last.size if value.node.dims is None else ()
            return replace(value, pools=(*value.pools[:-1], Pool("global_avg", size)), dims=0, axes=None)
        return replace(value, flat=True)

    def finish(self, value: Value) -> tuple[Architecture, tuple[Source | Fold, ...]]:
        """Close the network with its output."""
        if value.flat and self.dims(value):
            raise UnsupportedError("a flatten at the output", "return the maps themselves")
        if value.split:
            raise UnsupportedError("an output whose channels are split")
        if value.open and value.part is None:
            # What is added after the identity can stay where it is.
            value = replace(self.opened(replace(value, offset=0.0)), offset=value.offset)
        node = value.node
        exposed = value.pools or node is self.input or any(t.source is node for n in self.nodes for t in n.terms)
        if exposed or value.factor != 1 or value.part is not None:
            node = self.settled(value, force=True).node
        else:
            node.offset += value.offset
        return assemble(ancestors(self.nodes, node), self.input_size)

    def one(self) -> Node:
        """The layer of one neuron whose value is always 1."""
        if self.constant is None:
            self.constant = Node(1, 0, offset=1.0)
            self.nodes.insert(1, self.constant)
        return self.constant

    def closed(self, value: Value) -> Value:
        """The same value as that of a finished layer."""
        return replace(value, open=False)

    def settled(self, value: Value, *, force: bool = False) -> Value:
        """The same value as that of a finished layer, without factor and offset (and pools, if forced)."""
        if value.plain and not force:
            return self.closed(value)
        node = Node(self._node_size(value), value.dims, [self._skip(value)], offset=value.offset)
        return replace(self.add_node(node), open=False, flat=value.flat, axes=value.axes, split=value.split)

    def whole(self, value: Value) -> Value:
        """The same value as all channels of a layer."""
        return value if value.part is None else self.settled(value, force=True)

    def opened(self, value: Value) -> Value:
        """The same value as that of an open layer without pools, factor or offset."""
        if value.open and value.plain and value.part is None:
            return value
        if value.open and value.offset == 0 and value.node.bias is None and value.part is None:
            if isinstance(value.node.combine, Product):
                value.node.terms[0] = replace(value.node.terms[0], gain=value.node.terms[0].gain * value.factor)
                return replace(value, factor=1.0)
            if not isinstance(value.node.combine, Attention):
                value.node.terms = [replace(t, gain=t.gain * value.factor) for t in value.node.terms]
                return replace(value, factor=1.0)
        value = self.settled(value) if value.offset else value
        found = self.add_node(Node(self._node_size(value), value.dims, [self._skip(value)]))
        return replace(found, flat=value.flat, axes=value.axes, split=value.split)

    def add_node(self, node: Node) -> Value:
        """Add an open layer after all others."""
        self.nodes.append(node)
        return Value(node, node.dims, open=True)

    def _node_size(self, value: Value) -> int | None:
        return value.node.size if value.part is None else value.part[1]

    def _skip(self, value: Value, write: int = 0, size: int = 0) -> Arc:
        read, size = value.part if value.part is not None else (0, size)
        return Arc(value.node, Skip(read, write, size), value.pools, value.factor)

    def _terms(self, value: Value, *, biased: bool = True) -> tuple[list[Arc], Source | Fold | None]:
        """The terms that a value adds to a layer; an open layer is replaced by its terms, if its bias may be moved."""
        node = value.node
        sums = not isinstance(node.combine, Product | Attention)
        if value.open and sums and value.part is None and (node.bias is None or (biased and value.factor == 1)):
            self.nodes.remove(node)
            return [replace(t, gain=t.gain * value.factor) for t in node.terms], node.bias
        return [self._skip(value)], None

    def _dense(
        self, value: Value, size: int, dims: int | None, map_: Map, weight: Weight, bias: Source | None
    ) -> Value:
        if value.offset:
            value = self.settled(value)
        if value.part is not None and not value.flat:
            value = self.whole(value)
        if value.part is not None:
            raise UnsupportedError("a layer on some of the channels after a flatten")
        term = Arc(value.node, map_, value.pools, value.factor, weight)
        return self.add_node(Node(size, dims, [term], bias))


def _positions(count: int, dims: int, pools: tuple[Pool, ...]) -> tuple[int, ...]:
    """The shape of `count` positions: from an adaptive pooling, a square, or one row if nothing is known."""
    if pools and pools[-1].kind == "adaptive_avg" and math.prod(pools[-1].size) == count:
        return pools[-1].size
    side = math.isqrt(count)
    return (side, side) if dims == 2 and side * side == count else (count,)

