"""The pictures of an INR zoo: size, value range and coordinates."""

from dataclasses import dataclass

from torch import Tensor

from ...core.networks import Networks
from .conventions import coordinates


@dataclass(frozen=True)
class Canvas:
    """The pixel grid of an INR zoo and the values that mean black and white.

    Arguments:
        convention: `dws` or `nfn`: how a pixel becomes a coordinate.
        height, width, channels: Of the images.
        low, high: The outputs of a network that mean 0 and 1.

    >>> Canvas("dws", 28, 28, 1).grid().shape
    torch.Size([784, 2])
    """

    convention: str
    height: int
    width: int
    channels: int
    low: float = 0.0
    high: float = 1.0

    def grid(self) -> Tensor:
        """The coordinates of all pixels, row by row (height * width, 2)."""
        return coordinates(self.height, self.width, self.convention)

    def render(self, networks: Networks) -> Tensor:
        """The images of networks on the [0, 1] scale, not clipped (B, height, width, channels)."""
        grid = self.grid().to(networks.parameters)
        return self.picture(networks.evaluate(grid))

    def picture(self, values: Tensor) -> Tensor:
        """Outputs (B, height * width, channels) as images on the [0, 1] scale."""
        unit = (values - self.low) / (self.high - self.low)
        return unit.reshape(len(values), self.height, self.width, self.channels)

    def values(self, images: Tensor) -> Tensor:
        """The outputs (B, height * width, channels) that networks should give for 8-bit images."""
        unit = images.reshape(len(images), self.height * self.width, self.channels).float() / 255
        return unit * (self.high - self.low) + self.low
