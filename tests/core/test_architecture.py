"""Architectures derive roles, slots and groups, and refuse graphs that make no sense."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from strategies import architectures, laws

from scalegmn.core.activations import Phi, activation
from scalegmn.core.architecture import Architecture, Connection, Conv, Layer, Linear, Normalise, Pool, Skip
from scalegmn.core.groups import Group, NonZeroScale, PositiveScale, Sign, Trivial
from scalegmn.core.networks import Networks
from scalegmn.errors import ScaleGMNError
from scalegmn.testing import random_networks

RELU, TANH, ABS, SINE, GELU = (activation(n) for n in ("relu", "tanh", "abs", "sine", "gelu"))
INPUT, OUTPUT = Layer(3, bias=False), Layer(2)


def chain(
    *layers: Layer, maps: dict[int, Connection] | None = None, extra: tuple[Connection, ...] = ()
) -> Architecture:
    """Input, the layers and output in a row; `maps` replaces the connection into a layer."""
    count = len(layers) + 1
    connections = [(maps or {}).get(i + 1, Connection(i, i + 1)) for i in range(count)]
    return Architecture((INPUT, *layers, OUTPUT), tuple(sorted((*connections, *extra), key=lambda c: c.target)))


def test_an_mlp() -> None:
    a = Architecture.mlp([2, 32, 16, 1], ["relu", "tanh"], "sigmoid")
    assert a.roles == ("input", "hidden", "hidden", "output")
    assert a.slots == a.scale_slots == (None, 0, 1, None)
    assert a.groups == (Trivial, PositiveScale, Sign, Trivial)
    assert a.parameters == 2 * 32 + 32 + 32 * 16 + 16 + 16 + 1
    assert str(a) == "2-32-16-1 [relu, tanh]"
    assert not a.spatial


def test_a_cnn() -> None:
    a = Architecture.cnn([1, 16, 16, 16], 10, "relu", stride=2)
    assert a.parameters == 4970
    assert a.groups == (Trivial, PositiveScale, PositiveScale, PositiveScale, Trivial)
    assert a.spatial
    flat = Architecture.cnn([1, 4], 10, positions=(3, 5))
    assert flat.connections[-1].map == Linear((3, 5))
    assert flat.parameters == 4 * 9 + 4 + 10 * 4 * 15 + 10


def test_a_linear_network_has_nothing_to_move() -> None:
    a = Architecture.mlp([3, 2])
    assert a.slots == (None, None)
    assert a.groups == (Trivial, Trivial)


def test_a_skip_ties_both_ends() -> None:
    a = chain(Layer(6, RELU), Layer(5, TANH), Layer(6, TANH), extra=(Connection(1, 3, Skip()),))
    assert a.slots == (None, 0, 1, 0, None)
    # The relu end allows positive factors, the tanh end signs: nothing remains.
    assert a.groups == (Trivial, Trivial, Sign, Trivial, Trivial)
    b = chain(Layer(6, TANH), Layer(5, RELU), Layer(6, SINE), extra=(Connection(1, 3, Skip()),))
    assert b.groups == (Trivial, Sign, PositiveScale, Sign, Trivial)


def test_a_chain_of_skips_is_one_class() -> None:
    skips = (Connection(1, 2, Skip()), Connection(2, 3, Skip()))
    a = chain(Layer(6, TANH), Layer(6, TANH), Layer(6, GELU), extra=skips)
    assert a.slots == (None, 0, 0, 0, None)
    assert set(a.groups) == {Trivial}


def test_a_skip_to_the_input_or_output_pins() -> None:
    a = chain(Layer(3, TANH), Layer(4, TANH), extra=(Connection(0, 1, Skip()),))
    assert a.slots == (None, None, 0, None)
    assert a.groups == (Trivial, Trivial, Sign, Trivial)
    b = chain(Layer(4, TANH), Layer(2, TANH), extra=(Connection(2, 3, Skip()),))
    assert b.slots == (None, 0, None, None)


@pytest.mark.parametrize(
    ("source", "group", "carried", "scales", "signs"),
    [
        (activation("identity"), NonZeroScale, NonZeroScale, ((0, 1.0),), (0,)),
        (ABS, NonZeroScale, PositiveScale, ((0, 1.0),), ()),
        (activation("power", 3), NonZeroScale, NonZeroScale, ((0, 3.0),), (0,)),
        (activation("power", 2), NonZeroScale, PositiveScale, ((0, 2.0),), ()),
        (RELU, PositiveScale, PositiveScale, ((0, 1.0),), ()),
    ],
)
def test_a_skip_carries_what_phi_makes_of_a_multiplier(
    source: object, group: Group, carried: Group, scales: tuple[tuple[int, float], ...], signs: tuple[int, ...]
) -> None:
    linear = activation("identity")
    a = chain(Layer(6, source), Layer(6, linear), extra=(Connection(1, 2, Skip()),))  # type: ignore[arg-type]
    assert (a.groups[1], a.groups[2]) == (group, carried)
    assert (a.blocks[2][0].scales, a.blocks[2][0].signs) == (scales, signs)


@pytest.mark.parametrize("kind", ["max", "global_max", "avg", "global_avg", "adaptive_avg"])
@pytest.mark.parametrize(
    ("act", "group", "shrunk"),
    [
        (RELU, PositiveScale, PositiveScale),
        (TANH, Sign, Trivial),
        (ABS, NonZeroScale, NonZeroScale),
        (activation("identity"), NonZeroScale, PositiveScale),
        (activation("cos"), Sign, Sign),
        (activation("power", 3), NonZeroScale, PositiveScale),
    ],
)
def test_max_pooling_shrinks_the_group(kind: str, act: object, group: Group, shrunk: Group) -> None:
    pool = Pool(kind, (2, 2), (2, 2), (0, 0))  # type: ignore[arg-type]
    a = Architecture(
        (INPUT, Layer(4, act), OUTPUT),  # type: ignore[arg-type]
        (Connection(0, 1, Conv((3, 3), (1, 1), (0, 0), (1, 1))), Connection(1, 2, Linear(), (pool,))),
    )
    assert a.groups[1] == (shrunk if pool.is_max else group)


def test_normalisation_ties_the_order_but_not_the_scale() -> None:
    a = chain(Layer(6, RELU), Layer(6, TANH), maps={2: Connection(1, 2, Normalise())})
    assert a.slots == (None, 0, 0, None)
    assert a.scale_slots == (None, None, 0, None)
    assert a.groups == (Trivial, Trivial, Sign, Trivial)
    b = chain(Layer(6, ABS), Layer(6, TANH), maps={2: Connection(1, 2, Normalise())})
    assert b.groups[1] == Sign


def test_an_offset_takes_the_scales_away() -> None:
    a = chain(Layer(6, TANH, offset=0.5), Layer(6, TANH))
    assert a.groups == (Trivial, Trivial, Sign, Trivial)
    assert a.slots == (None, 0, 1, None)


def test_phis_follow_the_activations() -> None:
    a = Architecture.mlp([2, 3, 3, 1], ["abs", activation("power", 3)])
    assert a.phis[1:3] == (Phi(1, even=True), Phi(3))


@laws
@given(architectures)
def test_segments_cover_the_parameters_once(architecture: Architecture) -> None:
    start = 0
    for s in architecture.segments:
        assert s.start == start
        start += s.size
    assert start == architecture.parameters
    networks = Networks(architecture, torch.arange(2.0 * start).reshape(2, start))
    views = networks.views
    again = Networks.from_tensors(architecture, views.weights, views.biases, views.slopes)
    assert torch.equal(again.parameters, networks.parameters)
    assert views.biases[0] is None
    for c, w in zip(architecture.connections, views.weights, strict=True):
        assert (w is None) is isinstance(c.map, Skip)


@laws
@given(architectures)
def test_groups_are_no_larger_than_those_of_the_activations(architecture: Architecture) -> None:
    for layer, g in zip(architecture.layers, architecture.groups, strict=True):
        assert g <= layer.activation.group
    assert architecture.groups[0] == architecture.groups[-1] == Trivial
    for c in architecture.connections:
        if isinstance(c.map, Skip):
            assert architecture.groups[c.target] <= architecture.groups[c.source]


def test_equal_architectures_are_equal_keys() -> None:
    a, b = (Architecture.mlp([2, 8, 1], activation("sine", 30)) for _ in range(2))
    assert a == b
    assert hash(a) == hash(b)
    assert len({a, b, Architecture.mlp([2, 8, 1], activation("sine", 1))}) == 2


def test_an_architecture_is_the_same_key_in_another_process() -> None:
    """Hashes of names differ from process to process; a cached one must not travel."""
    a = Architecture.mlp([2, 8, 1], "relu")
    hash(a)
    code = "import pickle, sys; a = pickle.load(sys.stdin.buffer); print({type(a).mlp([2, 8, 1], 'relu'): 1}[a])"
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(a), capture_output=True, check=False)
    assert done.stdout.strip() == b"1", done.stderr.decode()


def test_what_reads_the_same_is_told_apart() -> None:
    a, b = Architecture.mlp([2, 8, 1]), Architecture.mlp([2, 8, 1], bias=False)
    assert str(a) == str(b)
    assert "layer 1 has " in a.beside(b)
    with pytest.raises(ScaleGMNError, match=r"got 2-8-1 .* layer 1 has bias True and False"):
        Networks.cat([random_networks(a, 1), random_networks(b, 1)])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Architecture.mlp([]), "expected those of input and output at least"),
        (lambda: Architecture.mlp([3]), "expected those of input and output at least"),
        (lambda: Architecture.cnn([], 10), "expected those of the input at least"),
    ],
)
def test_too_few_sizes(make: Callable[[], Architecture], message: str) -> None:
    with pytest.raises(ScaleGMNError, match=message):
        make()


@pytest.mark.parametrize(
    ("layers", "connections", "message"),
    [
        ((INPUT,), (), "at least 2 layers, got 1"),
        ((INPUT, OUTPUT), (), "layer 1 has no incoming connection"),
        ((INPUT, OUTPUT), (Connection(0, 2),), "must run forward between 2 layers"),
        ((INPUT, Layer(4), OUTPUT), (Connection(1, 1), Connection(0, 2)), "must run forward"),
        ((INPUT, OUTPUT), (Connection(0, 1, Skip()),), "needs equal sizes, got 3 and 2"),
        ((INPUT, OUTPUT), (Connection(0, 1, Normalise()),), "needs equal sizes, got 3 and 2"),
        ((INPUT, OUTPUT), (Connection(0, 1, Linear((0, 3))),), "at least one weight per edge"),
        ((INPUT, Layer(0), OUTPUT), (Connection(0, 1), Connection(1, 2)), "layer 1 needs at least one neuron, got 0"),
        ((INPUT, Layer(4), OUTPUT), (Connection(1, 2), Connection(0, 1)), "sorted by target"),
    ],
)
def test_graphs_that_make_no_sense(
    layers: tuple[Layer, ...], connections: tuple[Connection, ...], message: str
) -> None:
    with pytest.raises(ScaleGMNError, match=message):
        Architecture(layers, connections)


def test_the_number_of_activations_must_fit() -> None:
    with pytest.raises(ScaleGMNError, match="expected 2 activation"):
        Architecture.mlp([2, 3, 3, 1], ["relu"])
