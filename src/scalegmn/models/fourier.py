"""Random Fourier features of scalars (Tancik et al., NeurIPS 2020), which neural functionals use on weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class RandomFourierFeatures(nn.Module):
    r"""\(x \mapsto (\sin 2 \pi f_k x, \cos 2 \pi f_k x)_k\) with fixed random frequencies \(f_k \sim N(0, s^2)\).

    The last dimension of the input, c channels, becomes 2 k c channels.

    Arguments:
        frequencies: Their number k.
        scale: Their standard deviation s.

    >>> RandomFourierFeatures(8)(torch.randn(4, 10, 3)).shape
    torch.Size([4, 10, 48])
    """

    def __init__(self, frequencies: int, *, scale: float = 0.5) -> None:
        super().__init__()
        self.scale = scale
        self.register_buffer("frequencies", scale * torch.randn(frequencies))

    @property
    def factor(self) -> int:
        """By how much the number of channels grows."""
        return 2 * len(self.get_buffer("frequencies"))

    def forward(self, x: Tensor) -> Tensor:
        """Features (..., 2 k c) of inputs (..., c)."""
        phase = 2 * math.pi * x[..., None] * self.get_buffer("frequencies")
        return torch.cat((phase.sin(), phase.cos()), dim=-1).flatten(-2)

    def extra_repr(self) -> str:
        return f"frequencies={self.factor // 2}, scale={self.scale:g}"
