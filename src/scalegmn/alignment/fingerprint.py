"""A short vector that is the same for all members of an orbit and changes little when weights change little."""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.mixed import expect_networks
from ..core.networks import Networks
from .states import default_inputs, unit
from .structure import half_turn

WIDTH = 32
_CHUNK = 1 << 24
_LEAST = 1e-5  # of the largest: layers that say less count less
_STEP = 2.0**-7  # of what a digest sees


@dataclass(frozen=True)
class Fingerprint:
    """Fingerprints of networks.

    Arguments:
        vectors: Shape (B, 32), float64, of length about 1.
    """

    vectors: Tensor

    @property
    def digests(self) -> list[str]:
        """Sixteen hexadecimal digits per network, from the coarsely rounded vector.

        Networks of one orbit share them, unless rounding falls on a boundary: in float64 never in practice, in float32
        about once in a thousand. Networks that share one are almost certainly the same; `same` checks it.
        """
        steps = (self.vectors / _STEP).round().to(torch.int16).cpu().numpy()
        return [hashlib.sha256(row.astype("<i2").tobytes()).hexdigest()[:16] for row in steps]


def fingerprint(networks: Networks) -> Fingerprint:
    r"""Invariant vectors of networks.

    In each layer, the products \(|z_i g_i|\) of a neuron's responses to fixed random inputs with its gradients do not
    depend on scales and signs, and their means over the neurons do not depend on the order. These, and the outputs,
    are projected to 32 numbers.

    Arguments:
        networks: Any.

    >>> from scalegmn import Architecture, Transform
    >>> a = Networks(Architecture.mlp([2, 8, 1], "relu"), torch.randn(1, 33, dtype=torch.float64))
    >>> moved = Transform.sample(a.architecture, 1).apply(a)
    >>> fingerprint(a).digests == fingerprint(moved).digests
    True
    """
    expect_networks(networks)
    a = networks.architecture
    step = max(1, _CHUNK // (64 * sum(layer.size for layer in a.layers) + a.parameters))
    parts = [_vectors(networks[i : i + step]) for i in range(0, len(networks), step)]
    return Fingerprint(torch.cat(parts) if parts else networks.parameters.new_zeros(0, WIDTH, dtype=torch.float64))


def _vectors(networks: Networks) -> Tensor:
    a = networks.architecture
    exact = networks.detach().to(dtype=torch.float64)
    x = default_inputs(exact)
    with torch.no_grad():
        answers = exact.responses(x).means()
        gradients = exact.gradients(x)
    # Half a turn changes the sign of a sine's input, but not its output.
    says = [answers.pre[i] if half_turn(a, i) is None else answers.post[i] for i in range(len(a.layers))]
    products = [(s * g).abs() for s, g in zip(says[1:-1], gradients[1:-1], strict=True)]
    # All have the unit of the output. What is far below the others is rounding, as behind a normalisation.
    size = torch.stack([p.flatten(1).amax(1) for p in products] or [answers.post[-1].flatten(1)[:, 0] * 0]).amax(0)
    least = _LEAST * torch.where(size > 0, size, 1.0)[:, None]
    parts = [unit(answers.post[-1].flatten(1)[:, None])[:, 0]]
    for product in products:
        low = _LEAST * least[..., None]  # the root is steep at zero
        root = (product + low).sqrt() - low.sqrt()
        parts += [_level(product.mean(2), least), _level(root.mean(2), least.sqrt())]
    found = torch.cat([p - p.mean(1, keepdim=True) for p in parts], dim=1)
    draw = torch.Generator().manual_seed(found.shape[1])
    projection = torch.randn(found.shape[1], WIDTH, generator=draw, dtype=torch.float64).to(found)
    vectors: Tensor = found @ projection / (WIDTH * len(parts)) ** 0.5
    return vectors


def _level(x: Tensor, least: Tensor) -> Tensor:
    """Rows (B, N) of length one, or less where they are shorter than the least."""
    return x / torch.maximum(x.norm(dim=1, keepdim=True), least)
