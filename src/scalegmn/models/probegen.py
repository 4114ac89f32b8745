"""ProbeGen: networks seen only through their outputs on learned probes (Kahana et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from ..core.architecture import Architecture
from ..core.evaluate import input_dimensions, spatial_mean
from ..core.networks import Networks
from ..errors import ScaleGMNError
from .base import InvariantModel
from .mlp import perceptron
from .registry import ModelCard, register


class PointGenerator(nn.Module):
    r"""Probes \(W_k \cdots W_1 z_i\): linear maps in a row, without activations, from learned latents.

    Depth adds no functions, but it biases gradient descent towards probes that share structure.

    Arguments:
        probes: Their number.
        inputs: Numbers per probe.
        latent: Size of the latents.
        depth: Linear maps.

    >>> PointGenerator(16, 2)().shape
    torch.Size([16, 2])
    """

    def __init__(self, probes: int, inputs: int, *, latent: int = 32, depth: int = 2) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(probes, latent))
        self.maps = nn.Sequential(*(nn.Linear(latent, latent) for _ in range(depth - 1)), nn.Linear(latent, inputs))

    def forward(self) -> Tensor:
        """The probes (probes, inputs)."""
        points: Tensor = self.maps(self.latents)
        return points


class ImageGenerator(nn.Module):
    """Probe images: transposed convolutions without activations, from learned latents, and one tanh at the end.

    Arguments:
        probes: Their number.
        channels: Of the images.
        size: Side of the images (length, for signals).
        dimensions: 2 for images, 1 for signals.
        latent: Size of the latents.
        width: Channels of the last but one map; earlier maps have more.

    >>> ImageGenerator(16, 3, 28)().shape
    torch.Size([16, 3, 28, 28])
    """

    def __init__(
        self, probes: int, channels: int, size: int, *, dimensions: int = 2, latent: int = 32, width: int = 16
    ) -> None:
        super().__init__()
        self.size, self.dimensions = size, dimensions
        self.latents = nn.Parameter(torch.randn(probes, latent, *[1] * dimensions))
        conv = nn.ConvTranspose1d if dimensions == 1 else nn.ConvTranspose2d
        doublings = max(0, -(-size // 4) - 1).bit_length()
        widths = [width * 2**i for i in reversed(range(doublings + 1))]
        maps: list[nn.Module] = [conv(latent, widths[0], 4)]
        maps += [conv(i, o, 4, 2, 1) for i, o in pairwise(widths)]
        self.maps = nn.Sequential(*maps, conv(widths[-1], channels, 3, 1, 1), nn.Tanh())

    def forward(self) -> Tensor:
        """The probes (probes, channels, size[, size])."""
        maps: Tensor = self.maps(self.latents)
        for dim in range(2, 2 + self.dimensions):
            maps = maps.narrow(dim, (maps.shape[dim] - self.size) // 2, self.size)
        return maps


class ProbeGen(InvariantModel):
    r"""\(f(\theta) = \mathrm{MLP}(u_\theta(x_1), \dots, u_\theta(x_N))\) with learned probes \(x_i\).

    It sees what the networks compute and nothing else, so it is invariant to every symmetry that preserves their
    function. Kahana et al., Deep Linear Probe Generators for Weight Space Learning, 2024.

    Arguments:
        architectures: With the same numbers of inputs and outputs, of any depth.
        outputs: Numbers per network.
        width: Hidden neurons of the MLP.
        layers: Linear maps of the MLP.
        probes: Number N of probes.
        dropout: In the MLP.
        image: Side of the probe images, where the networks read images.

    >>> architecture = Architecture.mlp([2, 8, 8, 1], "tanh")
    >>> ProbeGen([architecture], 10)(Networks(architecture, torch.randn(5, architecture.parameters))).shape
    torch.Size([5, 10])
    """

    def __init__(
        self,
        architectures: Sequence[Architecture],
        outputs: int,
        *,
        width: int = 256,
        layers: int = 6,
        probes: int = 128,
        dropout: float = 0.0,
        image: int = 32,
    ) -> None:
        super().__init__(architectures)
        inputs, results, dimensions = _ends(self.architectures)
        self.generator = (
            ImageGenerator(probes, inputs, image, dimensions=dimensions)
            if dimensions
            else PointGenerator(probes, inputs)
        )
        if probes < 1:
            raise ScaleGMNError(f"probegen: probes: expected at least 1, got {probes}")
        self.trunk = perceptron([probes * results, *[width] * (layers - 1)], dropout=dropout)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(width, outputs))

    def probes(self) -> Tensor:
        """The probes (N, n_0, *spatial)."""
        found: Tensor = self.generator()
        return found

    def embed_one(self, networks: Networks) -> Tensor:
        """Hidden state (B, width) before the last map."""
        hidden: Tensor = self.trunk(spatial_mean(networks.evaluate(self.probes())).flatten(1))
        return hidden

    def read(self, embedding: Tensor) -> Tensor:
        """Outputs (B, outputs)."""
        result: Tensor = self.head(embedding)
        return result


def _ends(architectures: Sequence[Architecture]) -> tuple[int, int, int]:
    """Inputs, outputs and spatial dimensions of the input, which all architectures must share."""
    found = {(a.layers[0].size, a.layers[-1].size, input_dimensions(a)) for a in architectures}
    if len(found) > 1:
        known = " and ".join(str(a) for a in architectures[:2])
        raise ScaleGMNError(
            f"probegen: expected architectures with the same inputs and outputs, got {known}; train one model for each"
        )
    return found.pop()


register(
    ModelCard(
        name="probegen",
        title="ProbeGen",
        paper="Kahana et al., 2024",
        year=2024,
        symmetries=("permutation", "scale"),
        invariant=ProbeGen,
        equivariant=None,
    )
)
