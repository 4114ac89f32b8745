"""Random architectures, for tests that state laws."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from scalegmn.core.activations import Activation, activation
from scalegmn.core.architecture import Architecture, Connection, Conv, Layer, Linear, Map, Normalise, Pool, Skip
from scalegmn.core.networks import Networks
from scalegmn.testing import random_networks

torch.set_num_threads(1)

# The same examples in every run: a law that fails must fail again.
laws = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), print_blob=False
)

POWERS = (activation("power", 2), activation("power", 3))
ACTIVATIONS: tuple[Activation, ...] = (
    *(activation(name) for name in ("identity", "relu", "prelu", "tanh", "softsign", "arctan", "asinh", "erf")),
    *(activation(name) for name in ("hardtanh", "tanhshrink", "softshrink", "abs", "gelu", "silu", "sigmoid")),
    *(activation(name) for name in ("softplus", "elu")),
    activation("leaky_relu", 0.2),
    activation("sine", 1.0),
    activation("sine", 30.0),
    activation("cos", 2.0),
    *POWERS,
)

seeds = st.integers(0, 2**31 - 1)


@st.composite
def hidden_activations(draw: st.DrawFn, count: int) -> list[Activation]:
    """One per layer, or one for all; at most one power, because powers of powers leave the range of floats."""
    drawn = draw(st.lists(st.sampled_from(ACTIVATIONS), min_size=count, max_size=count))
    if draw(st.booleans()):
        drawn = [drawn[0]] * count
    powers = [i for i, a in enumerate(drawn) if a in POWERS]
    return [activation("tanh") if i in powers[1:] else a for i, a in enumerate(drawn)]


@st.composite
def mlps(draw: st.DrawFn, widths: int = 17, depth: int = 5) -> Architecture:
    """Multilayer perceptrons with 1 to `depth` hidden layers and any activations."""
    count = draw(st.integers(1, depth))
    sizes = draw(st.lists(st.integers(1, widths), min_size=count + 2, max_size=count + 2))
    output = draw(st.sampled_from(["identity", "sigmoid", "softmax", "tanh"]))
    a = Architecture.mlp(sizes, draw(hidden_activations(count)), output, bias=draw(st.booleans()))
    gain = draw(st.sampled_from([1.0, 30.0]))
    return Architecture(a.layers, tuple(Connection(c.source, c.target, c.map, (), gain) for c in a.connections))


@st.composite
def residual_mlps(draw: st.DrawFn) -> Architecture:
    """Blocks x + f(x), optionally normalised before, f one or two layers wide."""
    n = draw(st.integers(1, 9))
    blocks = draw(st.integers(1, 2))
    acts = iter(draw(hidden_activations(2 + 3 * blocks)))
    layers = [Layer(draw(st.integers(1, 5)), bias=False), Layer(n, next(acts))]
    connections = [Connection(0, 1)]
    stream = 1
    for _ in range(blocks):
        source = stream
        if draw(st.booleans()):
            layers.append(Layer(n, next(acts)))
            connections.append(Connection(stream, len(layers) - 1, Normalise()))
            source = len(layers) - 1
        layers += [Layer(draw(st.integers(1, 9)), next(acts)), Layer(n, next(acts))]
        t = len(layers) - 1
        connections += [Connection(source, t - 1), Connection(t - 1, t), Connection(stream, t, Skip())]
        stream = t
    layers.append(Layer(draw(st.integers(1, 4))))
    connections.append(Connection(stream, len(layers) - 1))
    return Architecture(tuple(layers), tuple(connections))


@st.composite
def cnns(draw: st.DrawFn) -> Architecture:
    """Convolutions in one or two dimensions with pooling, residual additions, then averaged, maximal or flattened."""
    dims = draw(st.integers(1, 2))
    depth = draw(st.integers(1, 3))
    acts = draw(hidden_activations(depth))
    size = draw(st.integers(7, 9))
    layers, connections = [Layer(draw(st.integers(1, 3)), bias=False)], []
    for act in acts:
        residual = len(layers) > 1 and draw(st.booleans())
        pools: tuple[Pool, ...] = ()
        if not residual and size > 5 and draw(st.booleans()):
            kind = draw(st.sampled_from(["max", "avg"]))
            pools = (Pool(kind, (2,) * dims, (2,) * dims, (0,) * dims),)  # type: ignore[arg-type]
            size = size // 2
        kernel = 3 if residual else draw(st.integers(1, min(3, size)))
        stride = 1 if residual else draw(st.integers(1, 2))
        padding = 1 if residual else draw(st.integers(0, kernel // 2))
        size = (size + 2 * padding - kernel) // stride + 1
        conv = Conv((kernel,) * dims, (stride,) * dims, (padding,) * dims, (1,) * dims)
        s, t = len(layers) - 1, len(layers)
        layers.append(Layer(layers[-1].size if residual else draw(st.integers(1, 6)), act))
        connections.append(Connection(s, t, conv, pools))
        if residual:
            connections.append(Connection(s, t, Skip()))
    end: tuple[Map, tuple[Pool, ...]] = draw(
        st.sampled_from(
            [
                (Linear(), (Pool("global_avg"),)),
                (Linear(), (Pool("global_max"),)),
                (Linear((size,) * dims), ()),
                (Linear((2,) * dims), (Pool("adaptive_avg", (2,) * dims),)),
            ]
        )
    )
    connections.append(Connection(len(layers) - 1, len(layers), *end))
    return Architecture((*layers, Layer(draw(st.integers(1, 4)))), tuple(connections))


architectures = st.one_of(mlps(), residual_mlps(), cnns())


def generator(seed: int) -> torch.Generator:
    """A source of randomness."""
    return torch.Generator().manual_seed(seed)


def networks_of(architecture: Architecture, seed: int, count: int = 3) -> Networks:
    """Random networks in float64."""
    return random_networks(architecture, count, generator=generator(seed))
