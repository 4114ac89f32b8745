"""Laws of Transform: the function is preserved, elements form a group, everything moves as stated."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from strategies import architectures, generator, laws, networks_of, seeds

from scalegmn.core.activations import activation
from scalegmn.core.architecture import Architecture, Connection, Conv, Layer, Linear, Normalise, Pool, Skip
from scalegmn.core.networks import Networks
from scalegmn.core.transform import Transform
from scalegmn.errors import ScaleGMNError
from scalegmn.testing import assert_function_preserved, random_inputs, relative_error


def changes(networks: Networks, moved: Networks) -> bool:
    x = random_inputs(networks.architecture, 64, generator=generator(7))
    return bool((relative_error(moved.evaluate(x), networks.evaluate(x)) > 1e-4).all())


@laws
@given(architectures, seeds)
def test_the_function_is_preserved(architecture: Architecture, seed: int) -> None:
    networks = networks_of(architecture, seed)
    g = Transform.sample(architecture, 3, generator(seed + 1))
    assert_function_preserved(networks, g.apply(networks), generator=generator(seed + 2), tolerance=1e-9)


@laws
@given(architectures, seeds)
def test_the_inverse_undoes(architecture: Architecture, seed: int) -> None:
    networks = networks_of(architecture, seed)
    g = Transform.sample(architecture, 3, generator(seed + 1))
    assert relative_error(g.inverse().apply(g.apply(networks)), networks).max() < 1e-12
    assert relative_error((g @ g.inverse()).apply(networks), networks).max() < 1e-12


@laws
@given(architectures, seeds)
def test_composition_is_one_after_the_other(architecture: Architecture, seed: int) -> None:
    networks = networks_of(architecture, seed)
    f, g, h = (Transform.sample(architecture, 3, generator(seed + i)) for i in (1, 2, 3))
    assert relative_error((g @ f).apply(networks), g.apply(f.apply(networks))).max() < 1e-12
    left, right = (h @ g) @ f, h @ (g @ f)
    for i in range(len(architecture.layers)):
        assert torch.equal(left.permutations[i], right.permutations[i])
        assert torch.allclose(left.scales[i], right.scales[i], rtol=1e-12)
    still = Transform.identity(architecture, 3)
    assert torch.equal(still.apply(networks).parameters, networks.parameters)


@laws
@given(architectures, seeds)
def test_responses_move_as_vertices(architecture: Architecture, seed: int) -> None:
    networks = networks_of(architecture, seed)
    g = Transform.sample(architecture, 3, generator(seed + 1))
    x = random_inputs(architecture, 8, generator=generator(seed + 2)).expand(3, *[-1] * (2 + _dims(architecture)))
    still, moved = networks.responses(x), g.apply(networks).responses(x)
    for i, phi in enumerate(architecture.phis):
        outer = dataclasses.replace(g, scales=tuple(phi(s) for s in g.scales))
        pairs = ((g, still.pre[i], moved.pre[i]), (outer, still.post[i], moved.post[i]))
        for h, before, after in pairs:
            expected = h.vertex(i, before.transpose(1, 2)).transpose(1, 2)
            assert relative_error(after, expected).max() < 1e-9


@laws
@given(architectures, seeds)
def test_gradients_move_as_duals(architecture: Architecture, seed: int) -> None:
    networks = networks_of(architecture, seed)
    g = Transform.sample(architecture, 3, generator(seed + 1))
    x = random_inputs(architecture, 4, generator=generator(seed + 2))
    cotangent = torch.randn(architecture.layers[-1].size, generator=generator(seed + 3), dtype=torch.float64)
    with torch.no_grad():
        still, moved = networks.gradients(x, cotangent), g.apply(networks).gradients(x, cotangent)
    for i, (before, after) in enumerate(zip(still, moved, strict=True)):
        # Gradients vanish where an activation is flat, up to rounding: compare with the size of all of them.
        expected = g.dual(i, before.transpose(1, 2)).transpose(1, 2)
        size = max(float(expected.abs().max()), 1e-6 * float(still[0].abs().max()))
        assert float((after - expected).abs().max()) <= 1e-9 * size


def _dims(architecture: Architecture) -> int:
    return random_inputs(architecture, 1).dim() - 2


@laws
@given(architectures, seeds)
def test_only_members_move_hidden_neurons(architecture: Architecture, seed: int) -> None:
    g = Transform.sample(architecture, 4, generator(seed))
    for i, layer in enumerate(architecture.layers):
        assert architecture.groups[i].contains(g.scales[i]).all()
        assert torch.equal(g.permutations[i].sort(1).values, torch.arange(layer.size).expand(4, -1))
        for j in range(i):
            if architecture.slots[i] is not None and architecture.slots[i] == architecture.slots[j]:
                assert torch.equal(g.permutations[i], g.permutations[j])
            if architecture.scale_slots[i] is not None and architecture.scale_slots[i] == architecture.scale_slots[j]:
                assert torch.equal(g.scales[i], g.scales[j])
    for end in (0, -1):
        assert (g.scales[end] == 1).all()
        assert torch.equal(g.permutations[end], torch.arange(architecture.layers[end].size).expand(4, -1))


# -- negative controls -----------------------------------------------------------------------------------------------


def with_scale(architecture: Architecture, layer: int, factor: float) -> Transform:
    g = Transform.identity(architecture, 3)
    scales = [factor * s if i == layer else s for i, s in enumerate(g.scales)]
    return dataclasses.replace(g, scales=tuple(scales))


def reversed_order(architecture: Architecture, layer: int) -> Transform:
    g = Transform.identity(architecture, 3)
    permutations = [p.flip(1) if i == layer else p for i, p in enumerate(g.permutations)]
    return dataclasses.replace(g, permutations=tuple(permutations))


MLP = Architecture.mlp([3, 8, 8, 3], "tanh")


@pytest.mark.parametrize("layer", [0, 3])
def test_moving_an_input_or_output_neuron_changes_the_function(layer: int) -> None:
    networks = networks_of(MLP, 1)
    assert changes(networks, reversed_order(MLP, layer).apply(networks))
    assert changes(networks, with_scale(MLP, layer, -1.0).apply(networks))
    assert not changes(networks, reversed_order(MLP, 1).apply(networks))
    assert not changes(networks, with_scale(MLP, 2, -1.0).apply(networks))


@pytest.mark.parametrize(
    ("name", "outside"),
    [
        ("relu", -1.0), ("leaky_relu", -1.0), ("prelu", -2.0), ("tanh", 2.0), ("tanh", -2.0), ("sine", 0.5),
        ("cos", 2.0), ("erf", 3.0), ("gelu", 2.0), ("gelu", -1.0), ("silu", -1.0), ("sigmoid", -1.0), ("softplus", 2.0),
        ("elu", 2.0), ("hardtanh", 2.0), ("asinh", 2.0), ("softsign", 0.5), ("arctan", 2.0), ("tanhshrink", 2.0),
    ],
)  # fmt: skip
def test_an_element_outside_the_group_changes_the_function(name: str, outside: float) -> None:
    architecture = Architecture.mlp([3, 8, 8, 2], name)
    assert not architecture.groups[1].contains(torch.tensor(outside))
    networks = networks_of(architecture, 2)
    assert changes(networks, with_scale(architecture, 1, outside).apply(networks))


@pytest.mark.parametrize(("power", "factor"), [(2, -2.0), (2, 3.0), (3, -2.0), (5, 0.5)])
def test_phi_matters(power: int, factor: float) -> None:
    architecture = Architecture.mlp([3, 8, 2], activation("power", power))
    networks = networks_of(architecture, 3)
    w1, w2 = networks.weights
    assert w1 is not None
    assert w2 is not None
    b1, b2 = networks.biases[1:]
    assert b1 is not None

    def scaled(outgoing: float) -> Networks:
        return Networks.from_tensors(architecture, [factor * w1, w2 / outgoing], [None, factor * b1, b2])

    assert changes(networks, scaled(factor))
    assert_function_preserved(networks, scaled(factor**power))
    moved = with_scale(architecture, 1, factor).apply(networks)
    assert torch.allclose(moved.parameters, scaled(factor**power).parameters, rtol=1e-12)


@pytest.mark.parametrize(
    ("pool", "changed"), [("max", True), ("global_max", True), ("avg", False), ("global_avg", False)]
)
def test_max_pooling_takes_the_sign_away(pool: str, changed: bool) -> None:
    architecture = pooled("tanh", pool)
    assert architecture.groups[1].signs is not changed
    networks = networks_of(architecture, 4)
    assert changes(networks, with_scale(architecture, 1, -1.0).apply(networks)) is changed


@pytest.mark.parametrize(("name", "factor"), [("relu", 2.0), ("abs", -2.0), ("cos", -1.0)])
def test_max_pooling_leaves_what_is_positive_outside(name: str, factor: float) -> None:
    architecture = pooled(name, "max")
    assert architecture.groups[1].contains(torch.tensor(factor))
    networks = networks_of(architecture, 5)
    assert not changes(networks, with_scale(architecture, 1, factor).apply(networks))


def pooled(name: str, pool: str) -> Architecture:
    window = () if pool.startswith("global") else (2, 2)
    stage = Pool(pool, window, window, (0, 0) if window else ())  # type: ignore[arg-type]
    last = Linear(() if pool.startswith("global") else (3, 3))
    conv = Conv((3, 3), (1, 1), (1, 1), (1, 1))
    layers = (Layer(1, bias=False), Layer(4, activation(name)), Layer(2))
    return Architecture(layers, (Connection(0, 1, conv), Connection(1, 2, last, (stage,))))


def residual(first: str, second: str = "identity") -> Architecture:
    layers = (
        Layer(3, bias=False),
        Layer(6, activation(first)),
        Layer(5, activation("tanh")),
        Layer(6, activation(second)),
        Layer(2),
    )
    connections = (Connection(0, 1), Connection(1, 2), Connection(1, 3, Skip()), Connection(2, 3), Connection(3, 4))
    return Architecture(layers, connections)


def test_tied_layers_must_move_together() -> None:
    architecture = residual("relu", "relu")
    networks = networks_of(architecture, 6)
    g = Transform.identity(architecture, 3)
    for alone in (1, 3):
        assert changes(networks, with_scale(architecture, alone, 2.0).apply(networks))
        assert changes(networks, reversed_order(architecture, alone).apply(networks))
    together = [2.0 * s if i in (1, 3) else s for i, s in enumerate(g.scales)]
    order = [p.flip(1) if i in (1, 3) else p for i, p in enumerate(g.permutations)]
    moved = Transform(architecture, tuple(order), tuple(together)).apply(networks)
    assert not changes(networks, moved)


@pytest.mark.parametrize(("first", "factor"), [("power", 2.0), ("abs", -1.0)])
def test_a_skip_carries_phi_of_the_factor(first: str, factor: float) -> None:
    architecture = residual(first)
    networks = networks_of(architecture, 7)
    g = Transform.identity(architecture, 3)
    phi = architecture.phis[1](torch.tensor(factor))
    alike = [factor * s if i in (1, 3) else s for i, s in enumerate(g.scales)]
    carried = [{1: factor, 3: phi}.get(i, 1.0) * s for i, s in enumerate(g.scales)]
    assert changes(networks, dataclasses.replace(g, scales=tuple(alike)).apply(networks))
    assert not changes(networks, dataclasses.replace(g, scales=tuple(carried)).apply(networks))


def test_normalisation_takes_the_scales_away() -> None:
    layers = (Layer(3, bias=False), Layer(6, activation("relu")), Layer(6, activation("relu")), Layer(2))
    architecture = Architecture(layers, (Connection(0, 1), Connection(1, 2, Normalise()), Connection(2, 3)))
    networks = networks_of(architecture, 8)
    uneven = Transform.identity(architecture, 3)
    uneven.scales[1][:, 0] = 3.0
    assert changes(networks, uneven.apply(networks))
    assert not changes(networks, with_scale(architecture, 2, 3.0).apply(networks))


def test_softmax_sees_the_order_of_outputs() -> None:
    architecture = Architecture.mlp([3, 8, 4], "relu", "softmax")
    networks = networks_of(architecture, 9)
    assert changes(networks, reversed_order(architecture, 2).apply(networks))


# -- edges ---------------------------------------------------------------------------------------------------------


def test_sampling_is_reproducible_and_can_leave_out_either_part() -> None:
    a, b = (Transform.sample(MLP, 3, generator(5)) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(a.scales + a.permutations, b.scales + b.permutations, strict=True))
    scales_only = Transform.sample(MLP, 3, generator(5), permute=False)
    assert torch.equal(scales_only.permutations[1], torch.arange(8).expand(3, -1))
    assert (scales_only.scales[1] == -1).any()
    order_only = Transform.sample(MLP, 3, generator(5), scale=False)
    assert all((s == 1).all() for s in order_only.scales)
    assert not torch.equal(order_only.permutations[1], torch.arange(8).expand(3, -1))
    assert len(order_only) == 3


def test_every_network_gets_its_own_element() -> None:
    g = Transform.sample(Architecture.mlp([2, 16, 1]), 2, generator(1))
    assert not torch.equal(g.permutations[1][0], g.permutations[1][1])
    assert not torch.equal(g.scales[1][0].sort().values, g.scales[1][1].sort().values)


def test_scales_stay_within_the_spread() -> None:
    g = Transform.sample(Architecture.mlp([2, 64, 1]), 64, generator(1), spread=3.0)
    assert 2.5 < float(g.scales[1].max()) <= 3.0
    assert 1 / 3.0 <= float(g.scales[1].min()) < 1 / 2.5


def test_float32_networks_stay_float32() -> None:
    networks = networks_of(MLP, 1).to(dtype=torch.float32)
    moved = Transform.sample(MLP, 3, generator(1)).apply(networks)
    assert moved.dtype == torch.float32
    assert_function_preserved(networks, moved)


def test_learned_slopes_stay() -> None:
    architecture = Architecture.mlp([2, 4, 1], "prelu")
    networks = networks_of(architecture, 1)
    moved = Transform.sample(architecture, 3, generator(1)).apply(networks)
    slopes = networks.views.slopes[1], moved.views.slopes[1]
    assert slopes[0] is not None
    assert slopes[1] is not None
    assert torch.equal(*slopes)


def test_another_architecture_or_number_is_refused() -> None:
    g = Transform.sample(MLP, 3)
    with pytest.raises(ScaleGMNError, match="made for 3 x"):
        g.apply(networks_of(MLP, 1, count=2))
    other = Architecture.mlp([3, 8, 8, 3], "relu")
    with pytest.raises(ScaleGMNError, match="made for 3 x"):
        g.apply(networks_of(other, 1))
    with pytest.raises(ScaleGMNError, match="cannot compose"):
        g @ Transform.sample(other, 3)
