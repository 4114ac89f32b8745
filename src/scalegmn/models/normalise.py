"""Input normalisation: statistics of the training networks, stored with the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from ..architecture import Architecture
from ..networks import Networks, group_by_architecture


class Normalisation(nn.Module):
    r"""Standardise parameters, \(\hat\theta = (\theta - \mu) / s\), with statistics of the training networks.

    With `by="tensor"` all weights of a connection share one mean and spread, and so do all biases of a layer: this
    commutes with permutations. With `by="parameter"` every parameter has its own, which does not.
    Until `fit` is called it changes nothing.

    Arguments:
        architectures: Every architecture it will meet, each with its own statistics.
        by: What shares a mean and a spread.

    >>> architecture = Architecture.mlp([2, 8, 1])
    >>> networks = Networks(architecture, 3 + 0.1 * torch.randn(100, architecture.parameters))
    >>> normalisation = Normalisation([architecture])
    >>> normalisation.fit([networks])
    >>> bool(normalisation(networks).parameters.mean().abs() < 0.1)
    True
    """

    def __init__(
        self, architectures: Sequence[Architecture], *, by: Literal["tensor", "parameter"] = "tensor"
    ) -> None:
        super().__init__()
        self.by = by
        self.index = {a: i for i, a in enumerate(dict.fromkeys(architectures))}
        for a, i in self.index.items():
            self.register_buffer(f"mean_{i}", torch.zeros(a.parameters))
            self.register_buffer(f"spread_{i}", torch.ones(a.parameters))

    def statistics(self, architecture: Architecture) -> tuple[Tensor, Tensor]:
        """Mean and spread (P,) of the parameters of one architecture."""
        i = self.index[architecture]
        return self.get_buffer(f"mean_{i}"), self.get_buffer(f"spread_{i}")

    @torch.no_grad()
    def fit(self, training: Sequence[Networks]) -> None:
        """Take the statistics of these networks; architectures that are not among them keep theirs."""
        for batch, _ in group_by_architecture(training):
            mean, spread = self.statistics(batch.architecture)
            if self.by == "parameter":
                found = batch.parameters.std(0, correction=0), batch.parameters.mean(0)
                spread.copy_(_nonzero(found[0]))
                mean.copy_(found[1])
                continue
            for s in batch.architecture.segments:
                part = slice(s.start, s.start + s.size)
                values = batch.parameters[:, part]
                spread[part] = _nonzero(values.std(correction=0))
                mean[part] = values.mean()

    def forward(self, networks: Networks) -> Networks:
        """The networks with standardised parameters: features, no longer the same functions."""
        mean, spread = self.statistics(networks.architecture)
        return networks.replace((networks.parameters - mean) / spread)

    def extra_repr(self) -> str:
        return f"by={self.by!r}"


def _nonzero(spread: Tensor) -> Tensor:
    """A parameter that never varies is only centred."""
    return torch.where(spread > 1e-12, spread, torch.ones_like(spread))
