"""Random Fourier features (Tancik et al., Fourier features let networks learn high frequency functions, 2020)."""

import math

import torch
from torch import Tensor, nn


class FourierFeatures(nn.Module):
    r"""Random Fourier features of vectors.

    \[\gamma(x) = [\cos 2 \pi B x, \sin 2 \pi B x], \qquad B_{ij} \sim N(0, \sigma^2 / d)\]

    Each frequency mixes all entries of a kernel; the division by their number d gives the phases of a kernel the same
    spread as those of a scalar.

    Arguments:
        inputs: Size d of the last dimension.
        frequencies: Number m of rows of B, which are fixed.
        sigma: Their spread.

    >>> FourierFeatures(9, 16, sigma=3.0)(torch.rand(5, 9)).shape
    torch.Size([5, 32])
    """

    def __init__(self, inputs: int, frequencies: int, *, sigma: float) -> None:
        super().__init__()
        self.outputs = 2 * frequencies
        self.register_buffer("frequencies", sigma / math.sqrt(inputs) * torch.randn(inputs, frequencies))

    def forward(self, x: Tensor) -> Tensor:
        """Features (..., 2m) of inputs (..., d)."""
        phase = x @ (2 * math.pi * self.get_buffer("frequencies"))
        return torch.cat([phase.cos(), phase.sin()], dim=-1)
