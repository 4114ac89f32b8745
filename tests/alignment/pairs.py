"""Networks and their disguises, for the tests of alignment."""

from __future__ import annotations

import torch
from strategies import generator

from scalegmn.alignment.phases import turned
from scalegmn.alignment.structure import half_turn, mirrors
from scalegmn.core.architecture import Architecture
from scalegmn.core.networks import Networks
from scalegmn.core.transform import Transform


def disguised(networks: Networks, seed: int = 0, *, spread: float = 10.0) -> Networks:
    """The same functions: neurons permuted, scaled, with other signs and phases."""
    a, draw = networks.architecture, generator(seed)
    counts = tuple(
        None if half_turn(a, i) is None else _turns(a, i, len(networks), draw) for i in range(len(a.layers))
    )
    return Transform.sample(a, len(networks), draw, spread=spread).apply(turned(networks, counts))


def _turns(a: Architecture, layer: int, count: int, draw: torch.Generator) -> torch.Tensor:
    drawn = torch.randint(-4, 5, (count, a.layers[layer].size), generator=draw)
    return drawn if mirrors(a, layer) else 2 * drawn


def noisy(networks: Networks, level: float, seed: int = 0) -> Networks:
    """Noise on every parameter, relative to the root mean square of its tensor."""
    parameters = networks.parameters.clone()
    for s in networks.architecture.segments:
        part = parameters[:, s.start : s.start + s.size]
        noise = torch.randn(part.shape, generator=generator(seed + s.start), dtype=part.dtype)
        part += level * part.square().mean(1, keepdim=True).sqrt() * noise
    return networks.replace(parameters)
