"""ProbeGen: networks seen only through their outputs on learned probes (Kahana et al. 2024)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...core.architecture import Architecture
from ...core.evaluate import input_dimensions, spatial_mean
from ...core.networks import Networks
from ...core.spec import Count
from ...errors import ScaleGMNError
from ...nn.probes import LATENT, ImageGenerator
from ..method import Method
from ..parts.dense import DenseSpec, rectified
from ..trunk import Pooling, Trunk


class PointGenerator(nn.Module):
    r"""Probes \(W_k \cdots W_1 z_i\): consecutive linear maps, without activations, of learned latents.

    Depth adds no functions, but it biases gradient descent towards probes that share structure.

    Arguments:
        probes: Their number.
        inputs: Numbers per probe.
        depth: Linear maps.

    >>> PointGenerator(16, 2)().shape
    torch.Size([16, 2])
    """

    def __init__(self, probes: int, inputs: int, *, depth: int = 2) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(probes, LATENT))
        self.maps = nn.Sequential(*(nn.Linear(LATENT, LATENT) for _ in range(depth - 1)), nn.Linear(LATENT, inputs))

    def forward(self) -> Tensor:
        """The probes (probes, inputs)."""
        points: Tensor = self.maps(self.latents)
        return points


@dataclass(frozen=True, repr=False)
class ProbeGenSpec(DenseSpec):
    """The options of ProbeGen.

    Arguments:
        probes: Number N of probes.
        image: Side of the probe images, if the networks read images.

    >>> ProbeGenSpec(probes=16)
    ProbeGenSpec(probes=16)
    """

    probes: Count = 128
    image: Count = 32


class ProbeGenTrunk(Trunk):
    r"""\(f(\theta) = \mathrm{MLP}(u_\theta(x_1), \dots, u_\theta(x_N))\) with learned probes \(x_i\).

    It sees only what the networks compute, so it is invariant to every symmetry that preserves their function. Kahana
    et al., Deep Linear Probe Generators for Weight Space Learning, 2024.

    Reads architectures with the same numbers of inputs and outputs, of any depth.

    >>> architecture = Architecture.mlp([2, 8, 8, 1], "tanh")
    >>> ProbeGen([architecture], 10)(Networks(architecture, torch.randn(5, architecture.parameters))).shape
    torch.Size([5, 10])
    """

    spec: ProbeGenSpec

    def build(self) -> None:
        spec = self.spec
        inputs, results, dimensions = _ends(self.architectures)
        self.generator = (
            ImageGenerator(spec.probes, inputs, (spec.image,) * dimensions)
            if dimensions
            else PointGenerator(spec.probes, inputs)
        )
        self.maps = rectified([spec.probes * results, *[spec.width] * (spec.layers - 1)], dropout=spec.dropout)

    def forward(self, networks: Networks) -> Tensor:
        """Hidden states (B, width)."""
        hidden: Tensor = self.maps(spatial_mean(networks.evaluate(self.generator())).flatten(1))
        return hidden

    def pooling(self) -> Pooling:
        return Pooling(nn.Identity(), nn.Identity(), self.spec.width)


def _ends(architectures: Sequence[Architecture]) -> tuple[int, int, int]:
    """Inputs, outputs and spatial dimensions of the input, which all architectures must share."""
    found = {(a.layers[0].size, a.layers[-1].size, input_dimensions(a)) for a in architectures}
    if len(found) > 1:
        known = " and ".join(str(a) for a in architectures[:2])
        raise ScaleGMNError(
            f"probegen: expected architectures with the same inputs and outputs, got {known}; train one model for each"
        )
    return found.pop()


_BOTH = ("permutation", "scale")
ProbeGen = Method("probegen", "ProbeGen", "Kahana et al., arXiv 2024", _BOTH, ProbeGenTrunk, ProbeGenSpec(256, 6))
"""ProbeGen (`probegen`); options as in `ProbeGenSpec`."""
