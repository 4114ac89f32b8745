"""Random Fourier features: a scalar weight becomes a point on many circles."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class RandomFourierFeatures(nn.Module):
    r"""Fixed random frequencies: \(\gamma(x) = [\cos(2 \pi B x), \sin(2 \pi B x)]\) with \(B \sim N(0, \sigma^2 / d)\).

    Tancik et al., Fourier features let networks learn high frequency functions, NeurIPS 2020. The division by the
    input size d keeps the spread of the phases the same for a scalar weight and for a whole kernel.

    Arguments:
        inputs: Size d of the last dimension.
        frequencies: Number m of frequencies.
        sigma: Their spread, for inputs of about unit variance.

    >>> RandomFourierFeatures(1, 16)(torch.rand(5, 8, 4, 1)).shape
    torch.Size([5, 8, 4, 32])
    """

    frequencies: Tensor

    def __init__(self, inputs: int, frequencies: int, *, sigma: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("frequencies", sigma / math.sqrt(inputs) * torch.randn(frequencies, inputs))

    @property
    def outputs(self) -> int:
        """Size 2m of the features."""
        return 2 * self.frequencies.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        """Features (..., 2m) of inputs (..., d)."""
        phase = x @ (2 * math.pi * self.frequencies.T)
        return torch.cat([phase.cos(), phase.sin()], dim=-1)

    def extra_repr(self) -> str:
        return f"{self.frequencies.shape[1]}, {self.frequencies.shape[0]}"
