"""What an architecture is made of: layers, connections, and where their parameters lie."""

import math
from dataclasses import dataclass, field
from typing import Literal

from .activations import Activation
from .maps import LATER, Combine, Conv, Linear, Map, Normalise, Pool, Skip, Sum, Table

Kind = Literal["weight", "bias", "slope"]


@dataclass(frozen=True)
class Layer:
    """A layer of neurons (or channels).

    Arguments:
        size: Number of neurons.
        activation: Applied to the pre-activation.
        bias: Whether it has a bias.
        offset: A fixed number added after the activation, such as the +0.5 of some implicit representations. A layer
            without incoming connections is constant: its value is its offset.
        combine: How incoming values are combined.

    >>> Layer(8, Activation("relu")).bias
    True
    """

    size: int
    activation: Activation = field(default_factory=lambda: Activation("identity"))
    bias: bool = True
    offset: float = 0.0
    combine: Combine = field(default_factory=Sum, metadata={LATER: True})


@dataclass(frozen=True)
class Connection:
    """A connection from layer `source` to layer `target`.

    Arguments:
        source, target: Positions in `Architecture.layers`.
        map: What it does.
        pools: Pooling that is first applied to the source's maps.
        gain: A fixed factor on the weights, as in sin(w0 W x + b).
        constant: Its weights, if they are fixed numbers instead of parameters (Fourier features, fixed filters).

    >>> conv = Connection(0, 1, Conv((3, 3), (1, 1), (0, 0), (1, 1)))
    >>> conv.dense, conv.kernel_size
    (True, 9)
    """

    source: int
    target: int
    map: Map = field(default_factory=Linear)
    pools: tuple[Pool, ...] = ()
    gain: float = 1.0
    constant: tuple[float, ...] = field(default=(), metadata={LATER: True})

    @property
    def dense(self) -> bool:
        """Whether every neuron of the source is connected to every neuron of the target."""
        return isinstance(self.map, Linear | Table) or (isinstance(self.map, Conv) and self.map.groups == 1)

    @property
    def groups(self) -> int:
        """Number of groups into which the neurons at both ends are divided; each connects only to its counterpart."""
        return self.map.groups if isinstance(self.map, Conv) else 1

    @property
    def kernel_size(self) -> int:
        """Number of weights on one edge."""
        return math.prod(self.map.kernel) if isinstance(self.map, Linear | Conv | Table) else 1

    @property
    def has_weights(self) -> bool:
        """Whether it has weights, learned or fixed."""
        if isinstance(self.map, Normalise):
            return self.map.learned
        return not isinstance(self.map, Skip)


@dataclass(frozen=True)
class Segment:
    """The place of one tensor in a network's flat parameter vector.

    >>> from scalegmn import Architecture
    >>> [(s.kind, s.start, s.shape) for s in Architecture.mlp([2, 3, 1]).segments][:2]
    [('weight', 0, (3, 2, 1)), ('bias', 6, (3,))]
    """

    kind: Kind
    index: int
    start: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of parameters."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Shared:
    """One tensor in two places: connection (or layer) `index` uses the weights (or bias, or slope) of `of`.

    Arguments:
        kind: Which tensor.
        index, of: Positions of connections or layers, `of` the earlier one.
        transposed: Whether source and target are swapped.

    >>> from scalegmn import Architecture
    >>> chain = Architecture.mlp([2, 3, 3, 3, 1])
    >>> loop = Architecture(chain.layers, chain.connections, (Shared("weight", 2, 1),))
    >>> chain.parameters - loop.parameters
    9
    """

    kind: Kind
    index: int
    of: int
    transposed: bool = False
