"""What connections and layers of an architecture do: maps, pooling, and ways to combine incoming values."""

from dataclasses import dataclass, field
from typing import Literal

# Marks entries that the stored form of architectures lacked at first (`scalegmn.core.schema`).
LATER = "later"


@dataclass(frozen=True)
class Linear:
    """A matrix, applied at every position. After a flatten, `positions` is the spatial shape that each edge holds.

    >>> Linear((4, 4)).kernel
    (4, 4)
    """

    positions: tuple[int, ...] = ()

    @property
    def kernel(self) -> tuple[int, ...]:
        """The shape of the weights on one edge."""
        return self.positions


@dataclass(frozen=True)
class Conv:
    """A convolution in one or two dimensions.

    Arguments:
        kernel, stride, padding, dilation: Per spatial dimension.
        groups: Number of groups of channels; a depthwise convolution has as many as there are channels.
        transposed: Whether it is a transposed convolution.
        extra: For a transposed convolution, how much is added to one side of its output.

    >>> from scalegmn import Architecture
    >>> Architecture.cnn([1, 8], 10).connections[0].map.kernel
    (3, 3)
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = field(default=1, metadata={LATER: True})
    transposed: bool = field(default=False, metadata={LATER: True})
    extra: tuple[int, ...] = field(default=(), metadata={LATER: True})


@dataclass(frozen=True)
class Skip:
    """A wire without parameters: neuron `read + i` of the source goes to neuron `write + i` of the target.

    Arguments:
        read, write: Where the range of neurons begins.
        size: How many neurons; 0 for all of the source.

    >>> from scalegmn.core.architecture import Architecture, Connection, Layer
    >>> layers = Layer(2, bias=False), Layer(3), Layer(3), Layer(1)
    >>> wires = Connection(0, 1), Connection(1, 2), Connection(1, 2, Skip()), Connection(2, 3)
    >>> Architecture(layers, wires).slots  # one order at both ends of the addition
    (None, 0, 0, None)
    """

    read: int = field(default=0, metadata={LATER: True})
    write: int = field(default=0, metadata={LATER: True})
    size: int = field(default=0, metadata={LATER: True})


@dataclass(frozen=True)
class Scale:
    """One learned factor per neuron, as in a BatchNorm in evaluation mode.

    >>> from scalegmn.core.architecture import Architecture, Connection, Layer
    >>> layers = Layer(2, bias=False), Layer(3), Layer(3), Layer(1)
    >>> Architecture(layers, (Connection(0, 1), Connection(1, 2, Scale()), Connection(2, 3))).weight_shape(1)
    (3,)
    """


@dataclass(frozen=True)
class Normalise:
    """Normalisation, then one learned gain per neuron (its shift is the target's bias).

    Arguments:
        eps: Added to the variance.
        kind: `layer` and `rms` are over the neurons at each position (LayerNorm, RMSNorm), `group` over the neurons
            of a group and all positions (GroupNorm; InstanceNorm has groups of one neuron).
        groups: Number of groups of neurons.
        learned: Whether there are gains.

    >>> from scalegmn.core.architecture import Architecture, Connection, Layer
    >>> layers = Layer(2, bias=False), Layer(3), Layer(3), Layer(1)
    >>> Architecture(layers, (Connection(0, 1), Connection(1, 2, Normalise()), Connection(2, 3))).groups[1:3]
    (Trivial, NonZeroScale)
    """

    eps: float = 1e-5
    kind: Literal["layer", "rms", "group"] = field(default="layer", metadata={LATER: True})
    groups: int = field(default=1, metadata={LATER: True})
    learned: bool = field(default=True, metadata={LATER: True})


@dataclass(frozen=True)
class Table:
    """Weights per position, from a layer of one constant neuron: learned positions, class tokens, shifts.

    Arguments:
        positions: The spatial shape of the table; () adds the same values everywhere.
        start: The position along the first spatial dimension at which it begins.

    >>> Table((7,)).kernel
    (7,)
    """

    positions: tuple[int, ...] = ()
    start: int = 0

    @property
    def kernel(self) -> tuple[int, ...]:
        """The shape of the weights on one edge."""
        return self.positions


Map = Linear | Conv | Skip | Normalise | Scale | Table

PoolKind = Literal[
    "avg", "max", "adaptive_avg", "global_avg", "global_max",
    "pad", "merge", "at", "nearest", "bilinear", "bilinear_corners",
]  # fmt: skip


@dataclass(frozen=True)
class Pool:
    """Pooling of the source's maps, or another change of their positions, before the map of a connection.

    Arguments:
        kind: `avg` and `max` slide a window; `adaptive_avg` gives maps of shape `size`; `global_avg` and
            `global_max` remove the spatial dimensions. `pad` adds `size` zeros before and `stride` after (negative
            numbers cut off), `merge` puts all positions in a row, `at` takes position `size`. `nearest`, `bilinear`
            and `bilinear_corners` (corners aligned) enlarge maps `size` times.
        size, stride, padding: Of the window.

    >>> Pool("max", (2, 2), (2, 2)).is_max, Pool("global_avg").removes_space
    (True, True)
    """

    kind: PoolKind
    size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()

    @property
    def is_max(self) -> bool:
        """Whether it takes a maximum, which commutes only with positive factors."""
        return self.kind in ("max", "global_max")

    @property
    def removes_space(self) -> bool:
        """Whether no spatial dimensions remain."""
        return self.kind in ("global_avg", "global_max", "at")


@dataclass(frozen=True)
class Sum:
    """Incoming values are added.

    >>> from scalegmn import Architecture
    >>> Architecture.mlp([2, 3, 1]).layers[1].combine
    Sum()
    """


@dataclass(frozen=True)
class Product:
    """Incoming values are multiplied; a factor with one neuron, or without positions, is broadcast.

    >>> from torch import nn
    >>> from scalegmn import Networks
    >>> class Gated(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.a, self.b, self.c = nn.Linear(2, 3), nn.Linear(2, 3), nn.Linear(3, 1)
    ...     def forward(self, x):
    ...         return self.c(self.a(x) * self.b(x))
    >>> [layer.combine for layer in Networks.from_modules([Gated()]).architecture.layers[1:4]]
    [Sum(), Sum(), Product()]
    """


@dataclass(frozen=True)
class Attention:
    """Three wires come in: queries, keys and values. Each head computes softmax(scale q k) v over positions.

    Arguments:
        heads: Number of heads.
        scale: The factor before the softmax.
        causal: Whether a position sees only those before it and itself.

    >>> from torch import nn
    >>> from scalegmn import Networks
    >>> block = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True)
    >>> layers = Networks.from_modules([nn.Sequential(nn.Linear(3, 4), block)]).architecture.layers
    >>> [layer.combine.heads for layer in layers if isinstance(layer.combine, Attention)]
    [2]
    """

    heads: int
    scale: float
    causal: bool = False


Combine = Sum | Product | Attention
