"""The classifiers of a CNN zoo and the settings of their training, for compiled code and plain torch alike."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from torch import Tensor

from ...core.architecture import Architecture
from ...errors import ScaleGMNError

# The channels for which there are random numbers of dropout are a multiple of this.
PAD = 8


@dataclass(frozen=True)
class Cnn:
    """Convolutions without padding, global average pooling and a linear layer.

    Arguments:
        side: Height and width of the input.
        channels: Channels of each layer, input included.
        kernel, stride: Of every convolution.
        activation: `relu` or `tanh`.
        classes: Outputs.

    >>> Cnn(32).architecture.parameters
    4970
    >>> Cnn(32).sides
    (32, 15, 7, 3)
    """

    side: int
    channels: tuple[int, ...] = (1, 16, 16, 16)
    kernel: int = 3
    stride: int = 2
    activation: str = "relu"
    classes: int = 10

    def __post_init__(self) -> None:
        if self.activation not in ("relu", "tanh"):
            raise ScaleGMNError(f"activation: expected relu or tanh, got {self.activation!r}")
        if self.sides[-1] < 1:
            raise ScaleGMNError(
                f"images: {self.side}x{self.side} is too small for {len(self.channels) - 1} convolutions with kernel "
                f"{self.kernel} and stride {self.stride}; use larger images"
            )

    @cached_property
    def sides(self) -> tuple[int, ...]:
        """Height and width of the maps of each layer, input included."""
        found = [self.side]
        for _ in self.channels[1:]:
            found.append((found[-1] - self.kernel) // self.stride + 1 if found[-1] >= self.kernel else 0)
        return tuple(found)

    @cached_property
    def architecture(self) -> Architecture:
        """The networks as an architecture."""
        return Architecture.cnn(self.channels, self.classes, self.activation, kernel=self.kernel, stride=self.stride)


class Rule(NamedTuple):
    """How a network is trained.

    Arguments:
        optimiser: `sgd`, `adam` or `rmsprop`.
        learning_rate: Its learning rate.
        l2: The factor of the squared weights in the loss.
        dropout: The share of values that are dropped.
        clip: Longer gradients are shortened to this norm.
    """

    optimiser: str
    learning_rate: float
    l2: float
    dropout: float
    clip: float


class Noise(NamedTuple):
    """Uniform numbers for dropout: every step reads `noise_size` of `pool` (n,) from its entry of `starts` (steps,) on.

    They belong to the layers one after the other, (batch, height, width, channels padded to a multiple of 8) each.
    """

    pool: Tensor
    starts: Tensor


def noise_size(shape: Cnn, batch: int) -> int:
    """How many random numbers a step with dropout reads.

    >>> noise_size(Cnn(16, (1, 12)), 2) == 2 * 7 * 7 * 16
    True
    """
    widths = (-(-n // PAD) * PAD for n in shape.channels[1:])
    return batch * sum(n * s * s for n, s in zip(widths, shape.sides[1:], strict=True))
