r"""Normalisation of the input networks' parameters, fitted on training networks and stored with the model.

Peers that see raw weights stay at chance without it. `PerParameter` is what most public baselines do, but it depends on
the position of a neuron in its layer: only `PerLayer` and `LayerScale` commute with permutations.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ..core.architecture import Architecture, Segment
from ..core.doubles import double
from ..core.networks import Networks
from ..errors import ScaleGMNError
from .parts.dense import PeerSpec

Kind = Literal["none", "parameter", "layer", "scale"]


@dataclass(frozen=True, repr=False)
class NormalisedSpec(PeerSpec):
    """The options of a trunk with input normalisation.

    Arguments:
        normalisation: Of the inputs: by `layer`, by `parameter` (which breaks the symmetry), by `scale` alone, or none.

    >>> NormalisedSpec(normalisation="none")
    NormalisedSpec(normalisation='none')
    """

    normalisation: Kind = "layer"


class Normalisation(nn.Module, ABC):
    """The input normalisation of a trunk.

    >>> networks = Networks(Architecture.mlp([2, 8, 1]), 5 * torch.randn(100, 33) + 3)
    >>> normalise = normaliser("layer", [networks.architecture])
    >>> normalise.fit([networks])
    >>> print(f"{abs(normalise(networks).weights[0].mean()):.3f}")
    0.000
    """

    @abstractmethod
    def fit(self, training: Sequence[Networks]) -> None:
        """Take the statistics of these networks."""

    @abstractmethod
    def forward(self, networks: Networks) -> Networks:
        """The normalised networks."""


class Unchanged(Normalisation):
    """No normalisation.

    >>> networks = Networks(Architecture.mlp([2, 8, 1]), torch.randn(3, 33))
    >>> Unchanged()(networks) is networks
    True
    """

    def fit(self, training: Sequence[Networks]) -> None:
        """Does nothing: there is nothing to measure."""

    def forward(self, networks: Networks) -> Networks:
        """The networks themselves."""
        return networks


class Standardisation(Normalisation, ABC):
    r"""\(\theta \mapsto (\theta - \mu) / \sigma\); architectures that differ in activations alone share both constants.

    Before `fit` it changes nothing.

    Arguments:
        architectures: Every architecture that it will read.

    >>> architecture = Architecture.mlp([2, 8, 1], "tanh")
    >>> networks = Networks(architecture, 3 + 5 * torch.randn(100, architecture.parameters))
    >>> normalise = PerLayer([architecture])
    >>> normalise.fit([networks])
    >>> bool(normalise(networks).parameters.std() < 1.1)
    True
    """

    def __init__(self, architectures: Sequence[Architecture]) -> None:
        super().__init__()
        self.architectures = tuple(dict.fromkeys(architectures))
        for i, a in enumerate(self.architectures):
            self.register_buffer(f"mean_{i}", torch.zeros(a.parameters))
            self.register_buffer(f"std_{i}", torch.ones(a.parameters))

    @abstractmethod
    def statistics(self, networks: Networks) -> tuple[Tensor, Tensor]:
        """What to subtract and what to divide by, each (P,)."""

    @torch.no_grad()
    def fit(self, training: Sequence[Networks]) -> None:
        """Measure the statistics of these networks; architectures without networks keep theirs."""
        groups: dict[tuple[Segment, ...], list[Tensor]] = {}
        for networks in training:
            self._index(networks.architecture)
            groups.setdefault(networks.architecture.segments, []).append(networks.parameters)
        for i, architecture in enumerate(self.architectures):
            if architecture.segments not in groups:
                continue
            mean, std = self.statistics(Networks(architecture, torch.cat(groups[architecture.segments])))
            # A parameter that never varies keeps its unit.
            std = torch.where(std > torch.finfo(std.dtype).tiny, std, torch.ones_like(std))
            self.get_buffer(f"mean_{i}").copy_(mean)
            self.get_buffer(f"std_{i}").copy_(std)

    def forward(self, networks: Networks) -> Networks:
        """The normalised networks."""
        i = self._index(networks.architecture)
        mean, std = self.get_buffer(f"mean_{i}"), self.get_buffer(f"std_{i}")
        return networks.replace((networks.parameters - mean) / std)

    def _index(self, architecture: Architecture) -> int:
        if architecture not in self.architectures:
            known = "; ".join(str(a) for a in self.architectures)
            raise ScaleGMNError(f"normalisation: made for {known}; got {architecture}")
        return self.architectures.index(architecture)

    def extra_repr(self) -> str:
        return f"{len(self.architectures)} architecture(s)"


class PerParameter(Standardisation):
    """Mean and standard deviation of every parameter by itself.

    >>> type(normaliser("parameter", [Architecture.mlp([2, 8, 1])])).__name__
    'PerParameter'
    """

    def statistics(self, networks: Networks) -> tuple[Tensor, Tensor]:
        var, mean = torch.var_mean(networks.parameters, dim=0, correction=0)
        return mean, var.sqrt()


class PerLayer(Standardisation):
    """One mean and one standard deviation for each tensor of parameters; commutes with permutations.

    >>> type(normaliser("layer", [Architecture.mlp([2, 8, 1])])).__name__
    'PerLayer'
    """

    def statistics(self, networks: Networks) -> tuple[Tensor, Tensor]:
        mean, square = _moments(networks)
        return mean, (square - mean.square()).clamp_min(0).sqrt()


class LayerScale(Standardisation):
    """One root mean square for each tensor of parameters, nothing subtracted; commutes with scalings too.

    >>> type(normaliser("scale", [Architecture.mlp([2, 8, 1])])).__name__
    'LayerScale'
    """

    def statistics(self, networks: Networks) -> tuple[Tensor, Tensor]:
        mean, square = _moments(networks)
        return torch.zeros_like(mean), square.sqrt()


_KINDS: dict[Kind, type[Standardisation]] = {"parameter": PerParameter, "layer": PerLayer, "scale": LayerScale}


def normaliser(kind: Kind, architectures: Sequence[Architecture]) -> Normalisation:
    """The normalisation with the name `kind` in recipes."""
    return Unchanged() if kind == "none" else _KINDS[kind](architectures)


def _moments(networks: Networks) -> tuple[Tensor, Tensor]:
    """First and second moment of each tensor of parameters, repeated for its entries: (P,), (P,)."""
    parameters = double(networks.parameters)
    sizes = torch.tensor([s.size for s in networks.architecture.segments], device=parameters.device)

    def pooled(x: Tensor) -> Tensor:
        parts = x.split(sizes.tolist())
        return torch.stack([p.mean() for p in parts]).repeat_interleave(sizes)

    return pooled(parameters.mean(0)), pooled(parameters.square().mean(0))
