"""Small networks of every kind on which models are tried: fresh, trained and hostile."""

from __future__ import annotations

from functools import cache

import torch
from strategies import generator

from scalegmn.audit import hostile_networks, residual
from scalegmn.core.architecture import Architecture
from scalegmn.core.networks import Networks
from scalegmn.core.transform import Transform
from scalegmn.testing import random_inputs, random_networks

# One group each, a group with another phi, and one of each kind within one network.
ACTIVATIONS: dict[str, tuple[str, str, str]] = {
    "relu": ("relu",) * 3,
    "leaky": ("leaky_relu",) * 3,
    "tanh": ("tanh",) * 3,
    "sine": ("sine",) * 3,
    "cube": ("cube",) * 3,
    "mixed": ("relu", "tanh", "cube"),
}
SIGNS = ("tanh", "sine")
KINDS = ("mlp", "cnn", "flatten", "residual")


def architecture(kind: str, name: str) -> Architecture:
    """One of KINDS with one of ACTIVATIONS."""
    hidden = ACTIVATIONS[name]
    match kind:
        case "mlp":
            return Architecture.mlp([2, 6, 5, 4, 3], hidden)
        case "cnn":
            return Architecture.cnn([1, 4, 5, 3], 3, hidden)
        case "flatten":
            return Architecture.cnn([2, 3, 4, 3], 2, hidden, kernel=2, positions=(2, 2))
        case "residual":
            return residual(hidden)
    raise AssertionError(kind)


ARCHITECTURES = {(kind, name): architecture(kind, name) for kind in KINDS for name in ACTIVATIONS}


def fresh(a: Architecture, count: int = 3, seed: int = 0) -> Networks:
    """Random networks in float64."""
    return random_networks(a, count, generator=generator(seed))


def hostile(a: Architecture, count: int = 3, seed: int = 0) -> Networks:
    """Networks with exact zeros, values near 1e-15 and dead neurons."""
    return hostile_networks(a, count, generator(seed))


def transforms(a: Architecture, count: int = 3, seed: int = 5, spread: float = 1e3) -> Transform:
    """One symmetry for each network."""
    return Transform.sample(a, count, generator(seed), spread=spread)


@cache
def trained(a: Architecture, count: int = 3, steps: int = 10) -> Networks:
    """Networks after some steps of Adam towards random outputs."""
    start = fresh(a, count, seed=7)
    parameters = start.parameters.clone().requires_grad_()
    x = random_inputs(a, 8, generator=generator(8))
    targets = torch.randn(start.evaluate(x).shape, generator=generator(9), dtype=torch.float64)
    optimiser = torch.optim.Adam([parameters], lr=0.05)
    for _ in range(steps):
        optimiser.zero_grad()
        (Networks(a, parameters).evaluate(x) - targets).square().mean().backward()
        optimiser.step()
    return Networks(a, parameters.detach())


def of_all_conditions(a: Architecture, count: int = 2) -> Networks:
    """Fresh, trained and hostile networks in one batch."""
    return Networks.cat([fresh(a, count), trained(a, count), hostile(a, count)])
