"""Canonical forms: constant on orbits, idempotent, function preserving."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from devices import without_double
from hypothesis import given
from hypothesis import strategies as st
from strategies import architectures, generator, laws, mlps, networks_of, residual_mlps, seeds
from torch import Tensor

from scalegmn.core.activations import Activation, activation
from scalegmn.core.architecture import Architecture, Connection, Layer, Normalise, Skip
from scalegmn.core.canonical import canonicalize, permutation, phase, scale, scaling, sorting
from scalegmn.core.networks import Networks
from scalegmn.core.transform import Transform
from scalegmn.testing import assert_function_preserved, relative_error


def tensor(x: Tensor | None) -> Tensor:
    assert x is not None
    return x


def replace_biases(networks: Networks, biases: dict[int, Tensor]) -> Networks:
    new = [biases.get(i, b) for i, b in enumerate(networks.biases)]
    return Networks.from_tensors(networks.architecture, networks.weights, new, networks.views.slopes)


# -- phase ---------------------------------------------------------------------------------------------------------


def siren(w0: float, convention: str, last: str = "identity") -> Architecture:
    """sin(w0 (W x + b)) or sin(w0 W x + b)."""
    act = activation("sine", w0 if convention == "inside" else 1.0)
    a = Architecture.mlp([2, 9, 7, 3], act, last)
    gain = w0 if convention == "outside" else 1.0
    sines = [isinstance(a.layers[c.target].activation, Activation) and c.target < 3 for c in a.connections]
    connections = [
        Connection(c.source, c.target, gain=gain if s else 1.0) for c, s in zip(a.connections, sines, strict=True)
    ]
    return Architecture(a.layers, tuple(connections))


CONVENTIONS = pytest.mark.parametrize(("w0", "convention"), [(30.0, "inside"), (30.0, "outside"), (1.0, "inside")])


def phases(networks: Networks, layer: int) -> Tensor:
    return networks.architecture.layers[layer].activation.parameters[0] * tensor(networks.biases[layer])


@CONVENTIONS
@pytest.mark.parametrize("size", [1.0, 30.0, 1e3])
def test_phases_end_in_the_half_open_interval(w0: float, convention: str, size: float) -> None:
    networks = networks_of(siren(w0, convention), 1, count=20)
    wild = replace_biases(networks, {i: size * (2 * torch.rand_like(tensor(networks.biases[i])) - 1) for i in (1, 2)})
    found = phase(wild)
    for i in (1, 2):
        assert phases(found, i).max() <= math.pi / 2 + 1e-12
        assert phases(found, i).min() > -math.pi / 2 - 1e-12
    assert_function_preserved(wild, found, tolerance=1e-9)
    assert torch.equal(phase(found).parameters, found.parameters)
    assert not torch.equal(found.parameters, wild.parameters) or size == 1.0


def shifted(networks: Networks, seed: int) -> Networks:
    """W' = q W, b' = q b + (2 m + [q < 0]) pi / f, in all sine layers."""
    a = networks.architecture
    weights, biases = list(networks.weights), list(networks.biases)
    for i, layer in enumerate(a.layers):
        if layer.activation.name == "sine":
            b = tensor(biases[i])
            q = 2.0 * torch.randint(2, b.shape, generator=generator(seed + i)) - 1
            m = torch.randint(-20, 21, b.shape, generator=generator(seed - i - 1))
            biases[i] = q * b + (2 * m + (q < 0)).double() * math.pi / layer.activation.parameters[0]
            for c in a.incoming[i]:
                weights[c] = q[..., None, None] * tensor(weights[c])
    return Networks.from_tensors(a, weights, biases)


@CONVENTIONS
@pytest.mark.parametrize("last", ["identity", "sine"])
def test_networks_that_differ_by_shifts_get_one_form(w0: float, convention: str, last: str) -> None:
    networks = networks_of(siren(w0, convention, last), 2, count=10)
    other = shifted(networks, 5)
    assert_function_preserved(networks, other)
    assert relative_error(other, networks).min() > 1e-3
    assert relative_error(phase(other), phase(networks)).max() < 1e-9
    moved = Transform.sample(networks.architecture, 10, generator(3)).apply(other)
    assert relative_error(canonicalize(moved), canonicalize(networks)).max() < 1e-9


def test_other_layers_are_not_touched() -> None:
    acts = [activation("sine", 30.0), activation("cos", 30.0), activation("tanh")]
    a = Architecture.mlp([2, 5, 5, 5, 2], acts)
    networks = networks_of(a, 3)
    wild = replace_biases(networks, {i: 100 * tensor(networks.biases[i]) for i in range(1, 5)})
    found = phase(wild)
    for i in (2, 3, 4):
        assert torch.equal(tensor(found.biases[i]), tensor(wild.biases[i]))
        assert torch.equal(tensor(found.weights[i - 1]), tensor(wild.weights[i - 1]))
    assert not torch.equal(tensor(found.biases[1]), tensor(wild.biases[1]))
    tanh = networks_of(Architecture.mlp([2, 4, 1], "tanh"), 1)
    assert torch.equal(phase(tanh).parameters, tanh.parameters)


def test_the_ends_of_the_interval_stay() -> None:
    a = Architecture.mlp([1, 4, 1], "sine")
    b = torch.tensor([[math.pi / 2, -math.pi / 2, 0.0, 1.0]], dtype=torch.float64)
    networks = replace_biases(networks_of(a, 1, count=1), {1: b})
    assert torch.equal(phase(networks).parameters, networks.parameters)


def test_by_hand() -> None:
    a = Architecture.mlp([1, 5, 1], activation("sine", 2.0))
    b = torch.tensor([[0.3, 0.3 + math.pi / 2, 0.3 - math.pi / 2, 0.3 + math.pi, -1.0]], dtype=torch.float64)
    networks = replace_biases(networks_of(a, 1, count=1), {1: b})
    found = phase(networks)
    expected = [0.3, -0.3, -0.3, 0.3, 1.0 - math.pi / 2]
    assert tensor(found.biases[1])[0].tolist() == pytest.approx(expected, abs=1e-15)
    signs = tensor(found.weights[0]) / tensor(networks.weights[0])
    assert signs.flatten().tolist() == [1, -1, -1, 1, -1]
    assert torch.equal(tensor(found.weights[1]), tensor(networks.weights[1]))
    assert_function_preserved(networks, found)


def residual_siren(skip: bool) -> Architecture:
    sine = activation("sine", 3.0)
    layers = (Layer(2, bias=False), Layer(4, sine), Layer(4, sine), Layer(1))
    extra = (Connection(1, 2, Skip()),) if skip else (Connection(1, 2, Normalise()),)
    return Architecture(layers, (Connection(0, 1), Connection(1, 2), *extra, Connection(2, 3)))


@pytest.mark.parametrize("skip", [True, False])
def test_a_residual_sine_layer_takes_whole_turns_only(skip: bool) -> None:
    networks = networks_of(residual_siren(skip), 4, count=20)
    wild = replace_biases(networks, {i: 100 * tensor(networks.biases[i]) for i in (1, 2)})
    found = phase(wild)
    assert_function_preserved(wild, found)
    assert phases(found, 1).abs().max() <= math.pi / 2 + 1e-12
    largest = float(phases(found, 2).abs().max())
    assert largest <= (math.pi if skip else math.pi / 2) + 1e-12
    assert (largest > math.pi / 2 + 0.1) is skip
    assert torch.equal(tensor(found.weights[1]), tensor(wild.weights[1])) is skip


def test_float32_networks_are_reduced_in_float64() -> None:
    networks = networks_of(siren(30.0, "inside"), 5)
    wild = replace_biases(networks, {1: 100 * tensor(networks.biases[1])}).to(dtype=torch.float32)
    found = phase(wild)
    assert found.dtype == torch.float32
    exact = phase(wild.to(dtype=torch.float64))
    assert torch.allclose(found.parameters.double(), exact.parameters, atol=1e-7)


# -- scale ---------------------------------------------------------------------------------------------------------


def incoming_norm(networks: Networks, layer: int) -> Tensor:
    a = networks.architecture
    parts = [tensor(networks.weights[c]).flatten(2) for c in a.incoming[layer]]
    bias = networks.biases[layer]
    return torch.cat([*parts, *([] if bias is None else [bias[..., None]])], dim=2).norm(dim=2)


@pytest.mark.parametrize("name", ["relu", "identity", "abs", "cube"])
def test_scaled_neurons_have_unit_norm(name: str) -> None:
    networks = networks_of(Architecture.mlp([3, 6, 5, 2], name), 1)
    found = scale(networks)
    for layer in (1, 2):
        assert torch.allclose(incoming_norm(found, layer), torch.ones(()).double(), rtol=1e-12)
    assert not torch.allclose(incoming_norm(found, 3), torch.ones(()).double())


@pytest.mark.parametrize("name", ["tanh", "sine", "identity", "cos", "square"])
def test_biases_turn_positive(name: str) -> None:
    networks = networks_of(Architecture.mlp([3, 6, 5, 2], name), 1)
    found = scale(networks)
    assert all((tensor(found.biases[i]) > 0).all() for i in (1, 2))
    assert any((tensor(networks.biases[i]) < 0).any() for i in (1, 2))


@pytest.mark.parametrize("name", ["relu", "tanh", "identity"])
def test_zero_neurons_are_left_alone(name: str) -> None:
    a = Architecture.mlp([3, 6, 5, 2], name)
    networks = networks_of(a, 1)
    tensor(networks.weights[0])[:, 2] = 0
    tensor(networks.biases[1])[:, 2] = 0
    found = canonicalize(networks)
    assert found.parameters.isfinite().all()
    assert_function_preserved(networks, found)
    still = scaling(networks)
    assert (still.scales[1][:, 2] == 1).all()
    everything = Networks(a, torch.zeros(2, a.parameters))
    assert (canonicalize(everything).parameters == 0).all()


def test_tiny_and_huge_weights_do_not_leave_the_range() -> None:
    a = Architecture.mlp([3, 6, 2], "relu")
    networks = networks_of(a, 1)
    for factor in (1e-200, 1e200):
        odd = Networks.from_tensors(
            a, [factor * tensor(networks.weights[0]), networks.weights[1]], [None, *networks.biases[1:]]
        )
        odd = replace_biases(odd, {1: factor * tensor(odd.biases[1])})
        found = scale(odd)
        assert found.parameters.isfinite().all()
        assert torch.allclose(incoming_norm(found, 1), torch.ones(()).double(), rtol=1e-12)


def test_without_biases_the_sign_comes_from_the_weights() -> None:
    a = Architecture.mlp([3, 6, 5, 2], "tanh", bias=False)
    networks = networks_of(a, 1)
    found = scale(networks)
    assert all((tensor(w).sum((2, 3)) > 0).all() for w in found.weights[:2])
    # Kernels whose sum vanishes: their first moment decides.
    edges = Architecture.cnn([1, 4], 2, "tanh")
    networks = networks_of(edges, 2)
    kernel = torch.tensor([-1.0, 0, 1, -2, 0, 2, -1, 0, 1]).double() * torch.tensor([1.0, -1, 2, -2])[:, None]
    biases = {1: torch.zeros(3, 4).double()}
    networks = replace_biases(networks, biases)
    tensor(networks.weights[0])[:] = kernel.reshape(4, 1, 9)
    moved = Transform.sample(edges, 3, generator(1), permute=False).apply(networks)
    assert not torch.equal(moved.parameters, networks.parameters)
    assert torch.allclose(scale(moved).parameters, scale(networks).parameters)


@laws
@given(architectures, seeds)
def test_scale_is_constant_on_scalings(architecture: Architecture, seed: int) -> None:
    networks = networks_of(architecture, seed)
    moved = Transform.sample(architecture, 3, generator(seed + 1), permute=False).apply(networks)
    assert relative_error(scale(moved), scale(networks)).max() < 1e-9
    assert_function_preserved(networks, scale(networks), generator=generator(seed))


# -- permutation ---------------------------------------------------------------------------------------------------


@laws
@given(architectures, seeds)
def test_permutation_is_constant_on_permutations(architecture: Architecture, seed: int) -> None:
    networks = networks_of(architecture, seed)
    moved = Transform.sample(architecture, 3, generator(seed + 1), scale=False).apply(networks)
    found = permutation(networks)
    assert torch.equal(permutation(moved).parameters, found.parameters)
    assert torch.equal(permutation(found).parameters, found.parameters)
    assert_function_preserved(networks, found, generator=generator(seed))


def test_sorting_only_permutes_and_scaling_only_scales() -> None:
    a = Architecture.mlp([3, 6, 5, 2], "relu")
    networks = networks_of(a, 1)
    assert all((s == 1).all() for s in sorting(networks).scales)
    assert all((p == torch.arange(p.shape[1])).all() for p in scaling(networks).permutations)
    assert torch.equal(sorting(networks).apply(networks).parameters, permutation(networks).parameters)


def test_equal_biases_do_not_make_a_tie() -> None:
    a = Architecture.mlp([3, 12, 12, 2], "tanh")
    networks = networks_of(a, 1)
    networks = replace_biases(networks, {i: torch.zeros(3, 12).double() for i in (1, 2)})
    moved = Transform.sample(a, 3, generator(1)).apply(networks)
    assert relative_error(canonicalize(moved), canonicalize(networks)).max() < 1e-9


def test_neurons_with_the_same_input_are_told_apart_by_their_output() -> None:
    a = Architecture.mlp([1, 12, 12, 2], "relu", bias=False)
    networks = networks_of(a, 1)
    assert torch.allclose(tensor(scale(networks).weights[0]).abs(), torch.ones(()).double(), rtol=1e-12)
    moved = Transform.sample(a, 3, generator(1)).apply(networks)
    assert relative_error(canonicalize(moved), canonicalize(networks)).max() < 1e-9


# -- all -----------------------------------------------------------------------------------------------------------


@laws
@given(architectures, seeds)
def test_the_canonical_form_is_constant_on_orbits(architecture: Architecture, seed: int) -> None:
    networks = networks_of(architecture, seed)
    moved = Transform.sample(architecture, 3, generator(seed + 1)).apply(networks)
    found = canonicalize(networks)
    assert relative_error(canonicalize(moved), found).max() < 1e-9
    assert relative_error(canonicalize(found), found).max() < 1e-12
    assert_function_preserved(networks, found, generator=generator(seed), tolerance=1e-9)


@laws
@given(st.one_of(mlps(), residual_mlps()), seeds)
def test_different_networks_keep_different_forms(architecture: Architecture, seed: int) -> None:
    networks = networks_of(architecture, seed, count=2)
    one, two = canonicalize(networks)
    assert relative_error(one, two).max() > 1e-6


def test_batches_and_single_networks_agree() -> None:
    networks = networks_of(siren(30.0, "inside"), 1, count=4)
    together = canonicalize(networks)
    alone = Networks.cat([canonicalize(n) for n in networks])
    assert torch.allclose(together.parameters, alone.parameters, rtol=1e-12)


def test_the_input_is_not_changed() -> None:
    networks = networks_of(siren(30.0, "inside"), 1)
    before = networks.parameters.clone()
    canonicalize(networks)
    assert torch.equal(networks.parameters, before)


# -- devices -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [phase, scale, permutation, canonicalize])
@pytest.mark.parametrize("name", ["sine", "relu", "tanh"])
def test_a_device_without_double_precision(
    monkeypatch: pytest.MonkeyPatch, form: Callable[[Networks], Networks], name: str
) -> None:
    a = Architecture.mlp([2, 4, 4, 1], name)
    with without_double(monkeypatch) as device:
        found = form(Networks(a, torch.empty(2, a.parameters, device=device)))
    assert (found.device.type, found.dtype) == (device, torch.float32)
