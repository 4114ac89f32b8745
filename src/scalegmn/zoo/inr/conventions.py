r"""Implicit neural representations: conventions, coordinates, initialisation and rendering.

An INR is a small network :math:`f_\theta(x, y)` that returns the colour of an image at a point. Its parameters
travel as one row of a matrix, in the order W1, b1, W2, b2, ..., each weight (out, in) row by row.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import torch
from torch import Tensor

from ...errors import ScaleGMNError


@dataclass(frozen=True)
class Convention:
    """How a published INR collection scales its images and places its output.

    A network fits ``low + (high - low) * image`` for images in [0, 1], and its colour is its last linear layer plus
    ``offset``.
    """

    name: str
    low: float
    high: float
    offset: float


CONVENTIONS: Final = {
    "dws": Convention("dws", low=0.0, high=1.0, offset=0.5),
    "nfn": Convention("nfn", low=-1.0, high=1.0, offset=0.0),
}
ACTIVATIONS: Final = ("sine", "relu", "tanh")


def convention(name: str) -> Convention:
    """The convention of a name, ``dws`` (Navon et al., 2023) or ``nfn`` (Zhou et al., 2023).

    >>> convention("dws").offset
    0.5
    """
    if name not in CONVENTIONS:
        raise ScaleGMNError(f"convention: expected one of {', '.join(CONVENTIONS)}, got {name!r}")
    return CONVENTIONS[name]


def coordinates(height: int, width: int, convention_name: str = "dws") -> Tensor:
    """The points at which an INR is trained, one per pixel, pixels row by row.

    Both conventions use ``linspace(-1, 1)`` along each side. ``dws`` gives a point as (x, y), so x varies fastest;
    ``nfn`` gives it as (row, column).

    Arguments:
        height: Rows of the image.
        width: Columns of the image.
        convention_name: ``dws`` or ``nfn``.

    Returns:
        The coordinates, (height * width, 2) in float32.

    >>> coordinates(2, 3).tolist()[:3]
    [[-1.0, -1.0], [0.0, -1.0], [1.0, -1.0]]
    >>> coordinates(2, 3, "nfn").tolist()[:3]
    [[-1.0, -1.0], [-1.0, 0.0], [-1.0, 1.0]]
    """
    if height < 1 or width < 1:
        raise ScaleGMNError(f"coordinates: expected a height and width of at least 1, got {height} and {width}")
    swap = convention(convention_name).name == "dws"
    rows, columns = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
    pair = (columns, rows) if swap else (rows, columns)
    return torch.stack(pair, dim=-1).reshape(-1, 2)


@dataclass(frozen=True)
class Inr:
    r"""The shape of an INR, :math:`f(x) = W_L \sigma(w_0 (W_{L-1} \cdots + b_{L-1})) + b_L + o`.

    SIREN networks (Sitzmann et al., 2020) have :math:`\sigma = \sin` and :math:`w_0 = 30`; ``relu`` and ``tanh``
    have :math:`w_0 = 1`. The offset o belongs to the convention.

    Arguments:
        channels: Colours of the image, 1 or 3.
        hidden: Sizes of the hidden layers.
        activation: ``sine``, ``relu`` or ``tanh``.
        w0: Frequency of the sine layers; 1 for the other activations.
        convention: ``dws`` or ``nfn``.

    >>> inr(1, hidden=(32, 32)).parameters
    1185
    """

    channels: int
    hidden: tuple[int, ...]
    activation: str
    w0: float
    convention: Convention

    @property
    def sizes(self) -> tuple[int, ...]:
        """Neurons of every layer, the two coordinates first."""
        return (2, *self.hidden, self.channels)

    @property
    def parameters(self) -> int:
        """The number of parameters P of one network."""
        return sum((a + 1) * b for a, b in pairwise(self.sizes))

    def bounds(self) -> Tensor:
        """Half widths of the uniform initial distributions, (P,), in parameter order."""
        parts: list[Tensor] = []
        last = len(self.sizes) - 2
        for layer, (fan_in, fan_out) in enumerate(pairwise(self.sizes)):
            weight, bias = self._bound(layer, fan_in, fan_out, last=layer == last)
            parts += [torch.full((fan_out * fan_in,), weight), torch.full((fan_out,), bias)]
        return torch.cat(parts)

    def _bound(self, layer: int, fan_in: int, fan_out: int, *, last: bool) -> tuple[float, float]:
        default = 1 / math.sqrt(fan_in)
        siren = math.sqrt(6 / fan_in) / self.w0
        if self.activation == "sine" and self.convention.name == "dws":
            return (default, default) if last else (siren, 0.0)
        if self.activation == "sine":
            return (1 / fan_in if layer == 0 else siren), default
        if last:
            return default, default
        gain = 6 / fan_in if self.activation == "relu" else 6 / (fan_in + fan_out)
        return math.sqrt(gain), default

    def initial(self, seed: int, indices: Sequence[int]) -> Tensor:
        """Initial parameters of networks, each drawn from its own counter-based stream.

        Arguments:
            seed: Seed of the zoo.
            indices: Number of each network in the zoo; a network depends on (seed, index) and on nothing else.

        Returns:
            Parameters, (len(indices), P) in float32.

        >>> shape = inr(1, hidden=(4,))
        >>> bool((shape.initial(0, [7, 8])[1] == shape.initial(0, [8])[0]).all())
        True
        """
        if seed < 0 or min(indices) < 0:
            raise ScaleGMNError(f"seed: expected a seed and indices of at least 0, got {seed} and {min(indices)}")
        keys = (np.array([seed, index], dtype=np.uint64) for index in indices)
        raw = np.stack([np.random.Philox(key=key).random_raw(self.parameters) for key in keys])
        # 24 random bits are exactly what a float32 in [0, 1) holds.
        unit = torch.from_numpy((raw >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24))
        return (2 * unit - 1) * self.bounds()

    def render(self, parameters: Tensor, points: Tensor) -> Tensor:
        """The images of networks on the [0, 1] scale, not clipped.

        Arguments:
            parameters: One network per row, (B, P).
            points: Coordinates, (N, 2).

        Returns:
            Colours, (B, N, channels).
        """
        x = points.to(parameters).expand(len(parameters), -1, -1)
        start = 0
        last = len(self.sizes) - 2
        for layer, (fan_in, fan_out) in enumerate(pairwise(self.sizes)):
            weight = parameters[:, start : start + fan_in * fan_out].unflatten(1, (fan_out, fan_in))
            start += fan_in * fan_out
            x = x @ weight.mT + parameters[:, None, start : start + fan_out]
            start += fan_out
            if layer < last:
                x = self.activate(x)
        kind = self.convention
        return (x + (kind.offset - kind.low)) / (kind.high - kind.low)

    def activate(self, z: Tensor) -> Tensor:
        """The activation of hidden neurons, elementwise."""
        if self.activation == "sine":
            return torch.sin(self.w0 * z)
        return torch.relu(z) if self.activation == "relu" else torch.tanh(z)


def inr(
    channels: int,
    *,
    hidden: Sequence[int] = (32, 32),
    activation: str = "sine",
    w0: float | None = None,
    convention_name: str = "dws",
) -> Inr:
    """A checked :class:`Inr`; ``w0`` is 30 for sine unless given, and has no meaning for the others.

    >>> inr(3, activation="relu").w0
    1.0
    """
    if activation not in ACTIVATIONS:
        raise ScaleGMNError(f"activation: expected one of {', '.join(ACTIVATIONS)}, got {activation!r}")
    if channels < 1 or not hidden or min(hidden) < 1:
        raise ScaleGMNError(f"inr: expected at least one channel and hidden layer, got {channels} and {tuple(hidden)}")
    if activation != "sine" and w0 not in (None, 1.0):
        raise ScaleGMNError(f"w0: only sine layers have a frequency, got w0={w0} with {activation}; leave it out")
    frequency = w0 if w0 is not None else (30.0 if activation == "sine" else 1.0)
    if not frequency > 0 or not math.isfinite(frequency):
        raise ScaleGMNError(f"w0: expected a positive number, got {w0}")
    return Inr(channels, tuple(hidden), activation, float(frequency), convention(convention_name))
