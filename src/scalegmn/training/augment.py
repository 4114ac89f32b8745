"""Augmentation of batches: random symmetries, noise on the weights, and random affine maps of the inputs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.architecture import Architecture
from ..core.groups import Sign
from ..core.maps import Linear
from ..core.networks import Networks
from ..core.parts import Connection
from ..core.transform import Draw, Transform
from ..errors import ScaleGMNError


@dataclass(frozen=True)
class ScaleAugment:
    r"""Rescales the neurons of every network of a batch at random, which does not change its function.

    Signs flip with probability 1/2, positive scales follow an exponential distribution,
    \(q \sim \lambda e^{-\lambda q}\), as in the paper's ablation on augmentation (section 6). Which of the two applies
    to a layer follows from its architecture.

    Arguments:
        rate: The coefficient \(\lambda\). Scales below 1e-4 of the mean are raised to that, since the next layer is
            multiplied by their reciprocals, which must not overflow.
        permute: Whether to shuffle the hidden neurons as well.

    >>> from scalegmn.core.architecture import Architecture
    >>> networks = Networks(Architecture.mlp([2, 8, 1], "relu"), torch.randn(5, 33, dtype=torch.float64))
    >>> scaled = ScaleAugment()(networks, torch.Generator().manual_seed(0))
    >>> x = torch.rand(10, 2, dtype=torch.float64)
    >>> torch.allclose(scaled.evaluate(x), networks.evaluate(x)), torch.equal(scaled.parameters, networks.parameters)
    (True, False)
    """

    rate: float = 1.0
    permute: bool = False

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise ScaleGMNError(f"rate: expected a positive number, got {self.rate}")

    def __call__(self, networks: Networks, generator: torch.Generator | None = None) -> Networks:
        """The rescaled networks; `generator` is the source of randomness (on the CPU)."""
        a, count = networks.architecture, len(networks)

        def order(heads: int, size: int) -> Tensor:
            return torch.rand(count, heads, size, generator=generator).argsort(2)

        def magnitude(size: int) -> Tensor:
            u = torch.rand(count, size, generator=generator, dtype=networks.dtype)
            return (-torch.log1p(-u)).clamp(min=1e-4) / self.rate

        def sign(size: int) -> Tensor:
            return Sign.sample(count, size, generator=generator, dtype=networks.dtype)

        still, moving = Draw(order if self.permute else None), Draw(None, magnitude, sign)
        permutations = Transform.assemble(a, count, still, dtype=networks.dtype).permutations
        scales = Transform.assemble(a, count, moving, dtype=networks.dtype).scales
        return Transform(a, permutations, scales).apply(networks)


@dataclass(frozen=True)
class _Strength:
    strength: float

    def __post_init__(self) -> None:
        if not self.strength >= 0:
            raise ScaleGMNError(f"strength: expected a number of at least 0, got {self.strength}")


class NoiseAugment(_Strength):
    r"""Adds Gaussian noise to the weights, \(\theta + s\,\sigma_\theta\,\epsilon\); the functions change a little.

    Arguments:
        strength: The factor s; \(\sigma_\theta\) is the standard deviation of each weight matrix or bias in the batch.

    >>> from scalegmn.core.architecture import Architecture
    >>> networks = Networks(Architecture.mlp([2, 8, 1], "relu"), torch.randn(5, 33))
    >>> noisy = NoiseAugment(0.1)(networks, torch.Generator().manual_seed(0))
    >>> 0.05 < float((noisy.parameters - networks.parameters).std()) < 0.2
    True
    """

    def __call__(self, networks: Networks, generator: torch.Generator | None = None) -> Networks:
        """The noisy networks; `generator` is the source of randomness (on the CPU)."""
        theta = networks.parameters
        noise = torch.randn(theta.shape, generator=generator, dtype=theta.dtype).to(theta.device)
        segments = networks.architecture.segments
        parts = theta.detach().split([s.size for s in segments], dim=1)
        spread = torch.cat([p.std(correction=0).expand(p.shape[1]) for p in parts])
        return networks.replace(theta + self.strength * spread * noise)


def _readers(a: Architecture) -> list[tuple[int, Connection]]:
    """The connections that read coordinates, with their numbers."""
    first = [(i, c) for i, c in enumerate(a.connections) if c.source == 0]
    if not all(isinstance(c.map, Linear) and c.kernel_size == 1 for _, c in first):
        raise ScaleGMNError(f"moved inputs: expected networks of coordinates, got {a}")
    return first


class MoveAugment(_Strength):
    r"""Composes INRs with random affine maps, \(u(x) \to u((1 + sA)x + sa)\), which moves the picture a little.

    The map is absorbed by the first weights and biases, \(W(1 + sA)\) and \(b + sWa\), so the result is exact (Navon
    et al. 2023 turn and shift representations in the same way).

    Arguments:
        strength: The factor s; entries of A and a are uniform in (-1, 1), and differ from network to network.

    >>> from scalegmn.core.architecture import Architecture
    >>> networks = Networks(Architecture.mlp([2, 8, 1], "sine"), torch.randn(5, 33))
    >>> moved = MoveAugment(0.1)(networks, torch.Generator().manual_seed(0))
    >>> torch.equal(moved.weights[1], networks.weights[1]), torch.equal(moved.weights[0], networks.weights[0])
    (True, False)
    """

    def __call__(self, networks: Networks, generator: torch.Generator | None = None) -> Networks:
        """The moved networks; `generator` is the source of randomness (on the CPU)."""
        a, theta = networks.architecture, networks.parameters
        first = _readers(a)
        if not all(a.layers[c.target].bias for _, c in first):
            raise ScaleGMNError(f"move: expected networks of coordinates with a bias in the first layer, got {a}")
        n = a.layers[0].size
        drawn = 2 * torch.rand(len(networks), n, n + 1, generator=generator, dtype=theta.dtype) - 1
        motion = self.strength * drawn.to(theta.device)
        result = networks.replace(theta.clone())
        for i, c in first:
            weight, bias = result.weights[i], result.biases[c.target]
            assert weight is not None
            assert bias is not None
            change = weight.squeeze(-1) @ motion
            bias += c.gain * change[..., n]
            weight += change[..., :n, None]
        return result


@dataclass(frozen=True)
class MirrorAugment:
    r"""Mirrors half of the INRs at random, \(u(x) \to u(x - 2 x_k e_k)\): column k of the first weights changes sign.

    Arguments:
        axis: The coordinate k; where it is the column of a pixel, left and right change places.

    >>> from scalegmn.core.architecture import Architecture
    >>> networks = Networks(Architecture.mlp([2, 8, 1], "sine"), torch.randn(5, 33))
    >>> mirrored = MirrorAugment(1)(networks, torch.Generator().manual_seed(0))
    >>> torch.equal(mirrored.weights[0].abs(), networks.weights[0].abs())
    True
    """

    axis: int

    def __call__(self, networks: Networks, generator: torch.Generator | None = None) -> Networks:
        """The networks, about half of them mirrored; `generator` is the source of randomness (on the CPU)."""
        a, theta = networks.architecture, networks.parameters
        first = _readers(a)
        if not 0 <= self.axis < a.layers[0].size:
            raise ScaleGMNError(f"mirror: expected a coordinate from 0 to {a.layers[0].size - 1}, got {self.axis}")
        sign = 1 - 2 * torch.randint(2, (len(networks), 1, 1), generator=generator).to(theta)
        result = networks.replace(theta.clone())
        for i, _ in first:
            weight = result.weights[i]
            assert weight is not None
            weight[:, :, self.axis] *= sign
        return result


Augment = ScaleAugment | NoiseAugment | MoveAugment | MirrorAugment
