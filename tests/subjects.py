"""Small networks of every kind on which models are tried: architectures, hostile weights, how far a law is broken."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from strategies import generator

from scalegmn.activations import activation
from scalegmn.architecture import Architecture, Connection, Layer, Skip
from scalegmn.models.base import Editor, InvariantModel
from scalegmn.networks import Networks
from scalegmn.testing import random_inputs, random_networks, relative_error
from scalegmn.transform import Transform

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


def residual(hidden: Sequence[str]) -> Architecture:
    """A block x + f(x) between two linear layers."""
    a, b, c = map(activation, hidden)
    layers = (Layer(2, bias=False), Layer(5, a), Layer(4, b), Layer(5, c), Layer(3))
    connections = (
        Connection(0, 1), Connection(1, 2), Connection(1, 3, Skip()), Connection(2, 3), Connection(3, 4),
    )  # fmt: skip
    return Architecture(layers, connections)


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
    """Networks with exact zeros, values near 1e-15, neurons that hear nothing and neurons that nobody hears."""
    networks = fresh(a, count, seed)
    draw = torch.rand(networks.parameters.shape, generator=generator(seed + 1))
    networks.parameters[draw < 0.15] = 0
    networks.parameters[(draw > 0.15) & (draw < 0.3)] *= 1e-15
    for c, w in zip(a.connections, networks.weights, strict=True):
        if w is None or not c.dense:
            continue
        if a.roles[c.target] == "hidden":
            w[:, 0] = 0
        if a.roles[c.source] == "hidden":
            w[:, :, -1] = 0
    for b in networks.biases:
        if b is not None:
            b[:, 0] = 0
    return networks


def transforms(a: Architecture, count: int = 3, seed: int = 5, spread: float = 1e3) -> Transform:
    """One symmetry for each network."""
    return Transform.sample(a, count, generator(seed), spread=spread)


def violation(model: InvariantModel | Editor, networks: Networks, g: Transform) -> float:
    """The largest relative error of f(g x) = f(x), or of g^-1 f(g x) = f(x) for the direction of an editor."""
    both = Networks.cat([networks, g.apply(networks)])
    with torch.no_grad():
        if isinstance(model, InvariantModel):
            still, moved = model(both).chunk(2)
            return relative_error(moved, still).max().item()
        still, moved = model.direction(both).chunk(2)
    # Compare in the coordinates of the original, where no entry hides behind a large multiplier.
    inverse = g.inverse()
    return max(
        relative_error(inverse.apply(networks.replace(m)), networks.replace(s)).max().item()
        for m, s in zip(moved.unbind(1), still.unbind(1), strict=True)
    )


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
