r"""Implicit neural representations: conventions, coordinates, initialisation and rendering.

An INR is a small network \(f_\theta(x, y)\) that returns the colour of an image at a point. Its parameters
are stored as one row of a matrix, in the order W1, b1, W2, b2, ..., each weight (out, in) row by row.
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
    """How a published INR collection scales its images and shifts its output.

    A network fits `low + (high - low) * image` for images in [0, 1], and its colour is its last linear layer plus
    `offset`.
    """

    name: str
    low: float
    high: float
    offset: float

    @property
    def span(self) -> float:
        """The largest difference of two colours."""
        return self.high - self.low


CONVENTIONS: Final = {
    "dws": Convention("dws", low=0.0, high=1.0, offset=0.5),
    "nfn": Convention("nfn", low=-1.0, high=1.0, offset=0.0),
}
ACTIVATIONS: Final = ("sine", "relu", "tanh")
# Adam's (Kingma & Ba, 2015), and the steps between two looks at the PSNR when a target is set.
BETA1, BETA2, EPSILON, LOOK_EVERY = 0.9, 0.999, 1e-8, 10
# Beyond these nobody means what was typed.
_MOST_STEPS, _WIDEST, _DEEPEST = 10**7, 4096, 32


def convention(name: str) -> Convention:
    """The convention of a name, `dws` (Navon et al., 2023) or `nfn` (Zhou et al., 2023).

    >>> convention("dws").offset
    0.5
    """
    if name not in CONVENTIONS:
        raise ScaleGMNError(f"convention: expected one of {', '.join(CONVENTIONS)}, got {name!r}")
    return CONVENTIONS[name]


def coordinates(height: int, width: int, convention_name: str = "dws") -> Tensor:
    """The points at which an INR is trained, one per pixel, pixels row by row.

    Both conventions use `linspace(-1, 1)` along each side. `dws` gives a point as (x, y), so x varies fastest;
    `nfn` gives it as (row, column).

    Arguments:
        height: Rows of the image.
        width: Columns of the image.
        convention_name: `dws` or `nfn`.

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
    r"""The shape of an INR, \(f(x) = W_L \sigma(w_0 (W_{L-1} \cdots + b_{L-1})) + b_L + o\).

    SIREN networks (Sitzmann et al., 2020) have \(\sigma = \sin\) and \(w_0 = 30\); `relu` and `tanh`
    have \(w_0 = 1\). The offset o is part of the convention.

    Arguments:
        channels: Colours of the image, 1 or 3.
        hidden: Sizes of the hidden layers.
        activation: `sine`, `relu` or `tanh`.
        w0: Frequency of the sine layers; 1 for the other activations.
        convention: `dws` or `nfn`.

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
        if not 0 <= seed < 2**63 or min(indices) < 0:
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
        kind = self.convention
        return (self.evaluate(self.split(parameters), points) + (kind.offset - kind.low)) / kind.span

    def split(self, parameters: Tensor) -> list[Tensor]:
        """Rows (B, P) as W1 (B, out, in), b1 (B, out), W2, ..."""
        shapes = [shape for a, b in pairwise(self.sizes) for shape in ((b, a), (b,))]
        parts = parameters.split([math.prod(shape) for shape in shapes], dim=1)
        return [part.unflatten(1, shape) for part, shape in zip(parts, shapes, strict=True)]

    def evaluate(self, parts: Sequence[Tensor], points: Tensor) -> Tensor:
        """The output of the last linear layer at points (N, 2), without the offset, (B, N, channels)."""
        x = points.to(parts[0]).expand(len(parts[0]), -1, -1)
        for layer in range(0, len(parts), 2):
            x = torch.baddbmm(parts[layer + 1][:, None], x, parts[layer].mT)
            if layer < len(parts) - 2:
                x = self.activate(x)
        return x

    def wanted(self, images: Tensor) -> Tensor:
        """The wanted outputs of the last layer for images (B, N, C): scaled, and without the fixed offset."""
        kind = self.convention
        return images * kind.span + (kind.low - kind.offset)

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
    """A checked `Inr`; `w0` is 30 for sine unless given, and has no meaning for the others.

    >>> inr(3, activation="relu").w0
    1.0
    """
    if activation not in ACTIVATIONS:
        raise ScaleGMNError(f"activation: expected one of {', '.join(ACTIVATIONS)}, got {activation!r}")
    if channels < 1 or not hidden or min(hidden) < 1:
        raise ScaleGMNError(f"inr: expected at least one channel and hidden layer, got {channels} and {tuple(hidden)}")
    if max(hidden) > _WIDEST or len(hidden) > _DEEPEST:
        raise ScaleGMNError(f"hidden: expected up to {_DEEPEST} layers of up to {_WIDEST} neurons, got more")
    if activation != "sine" and w0 not in (None, 1.0):
        raise ScaleGMNError(f"w0: only sine layers have a frequency, got w0={w0} with {activation}; leave it out")
    frequency = w0 if w0 is not None else (30.0 if activation == "sine" else 1.0)
    if not frequency > 0 or not math.isfinite(frequency):
        raise ScaleGMNError(f"w0: expected a positive number, got {w0}")
    return Inr(channels, tuple(hidden), activation, float(frequency), convention(convention_name))


@dataclass(frozen=True)
class Fit:
    """How networks are fitted to images: all settings, from the command line to the compiled code.

    Arguments:
        hidden: Sizes of the hidden layers.
        activation: `sine`, `relu` or `tanh`.
        w0: Frequency of sine layers; 30 if omitted.
        convention: `dws` or `nfn`: initialisation, image scale and output offset.
        steps: Steps of Adam; if omitted 1,000, or 500 for images of less than 256 pixels, which are learnt faster, and
            with `psnr` ten times as many.
        lr: Learning rate.
        psnr: Stop each network when it reaches this many decibels, checked every 10 steps.

    >>> Fit().limit(28 * 28), Fit().limit(8 * 8), Fit(steps=7).limit(64)
    (1000, 500, 7)
    """

    hidden: tuple[int, ...] = (32, 32)
    activation: str = "sine"
    w0: float | None = None
    convention: str = "dws"
    steps: int | None = None
    lr: float = 1e-3
    psnr: float | None = None

    def __post_init__(self) -> None:
        for name in ("w0", "lr", "psnr"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise ScaleGMNError(f"{name}: expected a finite number, got {value}")
        self.shape(1)
        if not self.lr > 0 or not 0 <= self.limit(1) <= _MOST_STEPS:
            raise ScaleGMNError(
                f"fit: expected steps >= 0, at most {_MOST_STEPS}, and lr > 0, got {self.steps} and {self.lr}"
            )

    def shape(self, channels: int) -> Inr:
        """The shape of networks for images with this many channels."""
        name = self.convention
        return inr(channels, hidden=self.hidden, activation=self.activation, w0=self.w0, convention_name=name)

    def limit(self, points: int) -> int:
        """Adam steps for an image with this many pixels."""
        default = (1000 if points >= 256 else 500) * (1 if self.psnr is None else 10)
        return default if self.steps is None else self.steps


@dataclass(frozen=True)
class FitResult:
    """Fitted networks.

    Arguments:
        parameters: One network per row, (B, P), in the order W1, b1, W2, b2, ..., weights (out, in) row by row.
        psnr: Peak signal-to-noise ratio in dB on the [0, 1] image scale with peak 1, not clipped, (B,).
        steps: Adam steps that each network took, (B,).
    """

    parameters: Tensor
    psnr: Tensor
    steps: Tensor

    @staticmethod
    def joined(parts: "Sequence[FitResult]") -> "FitResult":
        """Several results joined into one."""
        return FitResult(
            torch.cat([part.parameters for part in parts]),
            torch.cat([part.psnr for part in parts]),
            torch.cat([part.steps for part in parts]),
        )
