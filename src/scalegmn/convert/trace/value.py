"""Symbolic values of a traced module.

A value is an affine function of a neuron layer's maps: `factor * pooled(layer) + offset`, or of some of its channels. A
layer is *open* until it gets its activation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...core.activations import Activation
from ...core.architecture import Combine, Map, Pool, Sum
from ..layout import Fixed, Fold, Source

IDENTITY = Activation("identity")

# Names of the axes of a tensor: "b" the batch, "c" the channels ("c0", "c1", ... where they are split), "s0", "s1" the
# positions.
Axes = tuple[str, ...]
Weight = Source | Fold | Fixed


class UnsupportedError(Exception):
    """An operation that an architecture cannot express; the tracer adds where it is in the module.

    Arguments:
        what: The operation.
        instead: What is supported in its place.
    """

    def __init__(self, what: str, instead: str = "") -> None:
        super().__init__(f"{what} is not supported" + (f" ({instead})" if instead else ""))


class UnknownSizeError(UnsupportedError):
    """The number of input neurons is needed before a layer determines it."""

    def __init__(self) -> None:
        super().__init__("an operation that needs the number of inputs before any layer tells it")


@dataclass(frozen=True, eq=False)
class Arc:
    """A connection that is not yet in an architecture."""

    source: Node
    map: Map
    pools: tuple[Pool, ...] = ()
    gain: float = 1.0
    weight: Weight | None = None


@dataclass(eq=False)
class Node:
    """A layer under construction. Size and spatial dimensions are None if they are those of the input."""

    size: int | None
    dims: int | None
    terms: list[Arc] = field(default_factory=list)
    bias: Source | Fold | None = None
    activation: Activation = IDENTITY
    slope: Source | None = None
    offset: float = 0.0
    combine: Combine = field(default_factory=Sum)


@dataclass(frozen=True, eq=False)
class Value:
    """A symbolic tensor.

    Arguments:
        node: The layer it comes from.
        dims: Its spatial dimensions, after pooling.
        open: Whether the layer has no activation yet.
        pools: Pooling of the layer's maps.
        flat: Whether its maps have been flattened.
        factor, offset: Of the affine function.
        axes: The order of its axes, if it is not (batch, channels, *space).
        part: First channel and number of channels, if it is not all of them.
        split: The sizes of the axes into which channels are split.
    """

    node: Node
    dims: int | None
    open: bool = False
    pools: tuple[Pool, ...] = ()
    flat: bool = False
    factor: float = 1.0
    offset: float = 0.0
    axes: Axes | None = None
    part: tuple[int, int] | None = None
    split: tuple[int, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether factor and offset have no effect."""
        return self.factor == 1 and self.offset == 0


def space(dims: int) -> Axes:
    """The names of spatial axes."""
    return tuple(f"s{i}" for i in range(dims))
