"""The public test kit passes what is right and fails what is broken."""

from __future__ import annotations

import pytest
import torch
from strategies import generator, networks_of
from torch import Tensor, nn

from scalegmn.core.activations import activation
from scalegmn.core.architecture import Architecture, Connection, Layer, Linear
from scalegmn.core.canonical import canonicalize
from scalegmn.core.networks import Networks
from scalegmn.core.transform import Transform
from scalegmn.errors import ScaleGMNError
from scalegmn.testing import (
    assert_equivariant,
    assert_function_preserved,
    assert_invariant,
    equivariance_error,
    random_inputs,
    random_networks,
    relative_error,
)

RELU = Architecture.mlp([2, 8, 8, 3], "relu")
TANH = Architecture.mlp([2, 8, 8, 3], "tanh")
BOTH = pytest.mark.parametrize("architecture", [RELU, TANH], ids=str)


def first(networks: Networks) -> tuple[Tensor, Tensor]:
    w, b = networks.weights[0], networks.biases[1]
    assert w is not None
    assert b is not None
    return w, b


def outputs(networks: Networks) -> Tensor:
    return networks.evaluate(torch.linspace(-1, 1, 8, dtype=networks.dtype).reshape(4, 2))


def step(networks: Networks) -> Networks:
    """One step of gradient flow on an invariant loss moves with signs and permutations, but not with scales."""
    p = networks.parameters.detach().requires_grad_()
    with torch.enable_grad():
        (g,) = torch.autograd.grad(outputs(networks.replace(p)).square().sum(), p)
    return networks.replace(networks.parameters - 0.1 * g)


class FlatMLP(nn.Module):
    """The model that knows nothing of symmetry."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.linear = nn.Linear(architecture.parameters, 4).double()

    def forward(self, networks: Networks) -> Tensor:
        y = self.linear(networks.parameters)
        assert isinstance(y, Tensor)
        return y


# -- what is right passes ----------------------------------------------------------------------------------------------


@BOTH
def test_invariant_models_pass(architecture: Architecture) -> None:
    networks = networks_of(architecture, 1)
    assert_invariant(outputs, networks)
    assert_invariant(lambda n: FlatMLP(architecture)(canonicalize(n)) * 0 + 1, networks)
    flat = FlatMLP(architecture)
    assert_invariant(lambda n: flat(canonicalize(n)), networks)
    assert_equivariant(outputs, networks)


@BOTH
def test_equivariant_models_pass(architecture: Architecture) -> None:
    networks = networks_of(architecture, 1)
    assert_equivariant(lambda n: n, networks)
    assert_equivariant(lambda n: n.replace(-3 * n.parameters), networks)


def test_a_gradient_step_moves_with_signs_only() -> None:
    assert_equivariant(step, networks_of(TANH, 1))
    with pytest.raises(AssertionError, match=r"f\(g x\) differs from g f\(x\)"):
        assert_equivariant(step, networks_of(RELU, 1))


@BOTH
def test_states_of_a_layer_with_their_own_action(architecture: Architecture) -> None:
    networks = networks_of(architecture, 1)

    def layer(n: Networks) -> Tensor:
        return 2 * first(n)[0].sum(3)

    assert_equivariant(layer, networks, act=lambda g, x: g.vertex(1, x))
    with pytest.raises(AssertionError):
        assert_equivariant(lambda n: layer(n) + 1, networks, act=lambda g, x: g.vertex(1, x))
    with pytest.raises(AssertionError):
        assert_equivariant(layer, networks, act=lambda g, x: g.vertex(2, x))


def test_float32_has_its_own_tolerance() -> None:
    networks = networks_of(RELU, 1).to(dtype=torch.float32)
    assert_invariant(outputs, networks)
    with pytest.raises(AssertionError, match="more than 1e-12"):
        assert_invariant(outputs, networks, tolerance=1e-12)


# -- what is broken fails ----------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("count", [1, 3])
def test_broken_invariant_models_fail(architecture: Architecture, count: int) -> None:
    networks = networks_of(architecture, 1, count=count)
    broken = [
        FlatMLP(architecture),
        lambda n: first(n)[1],  # sees the order
        lambda n: first(n)[1].sum(1),  # sees scales and signs
        lambda n: first(n)[1].abs().max(1).values if architecture is RELU else first(n)[1].max(1).values,
        lambda n: outputs(n) + 1e-6 * first(n)[1][:, None, :3],  # slightly wrong
    ]
    for model in broken:
        with pytest.raises(AssertionError, match=r"f\(g x\) differs from f\(x\): relative error .* network"):
            assert_invariant(model, networks, 10, generator=generator(0))


@BOTH
def test_broken_equivariant_models_fail(architecture: Architecture) -> None:
    networks = networks_of(architecture, 1)
    position = torch.arange(architecture.parameters).double()
    broken = [
        lambda n: n.replace(n.parameters + 0.1),
        lambda n: n.replace(n.parameters * (1 + 1e-6 * position)),
        lambda n: n.replace(n.parameters.flip(1)),
        canonicalize,  # invariant is not equivariant
    ]
    for model in broken:
        with pytest.raises(AssertionError, match=r"f\(g x\) differs from g f\(x\)"):
            assert_equivariant(model, networks, generator=generator(0))


def test_scales_are_tried_and_not_only_permutations() -> None:
    networks = networks_of(RELU, 1)

    def deep_sets(n: Networks) -> Tensor:
        w, b = first(n)
        return torch.tanh(torch.cat([w.flatten(2), b[..., None]], 2)).sum(1)

    order = Transform.sample(RELU, 3, generator(1), scale=False)
    assert_invariant(deep_sets, networks, order)
    with pytest.raises(AssertionError):
        assert_invariant(deep_sets, networks)


def test_an_error_in_a_small_tensor_is_not_hidden_by_a_large_one() -> None:
    networks = networks_of(RELU, 1)
    sizes = [s.size for s in RELU.segments]
    small = torch.cat([torch.full((s,), 1e-9 if i == 0 else 1.0).double() for i, s in enumerate(sizes)])
    wrong = torch.zeros(RELU.parameters).double()
    wrong[0] = 1e-9
    assert_equivariant(lambda n: n.replace(small * n.parameters), networks)
    with pytest.raises(AssertionError):
        assert_equivariant(lambda n: n.replace(small * n.parameters + wrong), networks)


def test_nan_and_infinity_are_errors() -> None:
    networks = networks_of(RELU, 1)
    for value in (float("nan"), float("inf")):
        with pytest.raises(AssertionError, match="inf"):
            assert_invariant(lambda n, v=value: outputs(n) + v, networks)


def test_a_function_that_changes_is_found() -> None:
    networks = networks_of(TANH, 1)
    moved = Transform.sample(TANH, 3, generator(1)).apply(networks)
    assert_function_preserved(networks, moved)
    nudge = torch.zeros_like(moved.parameters)
    nudge[2, 5] = 1e-6
    with pytest.raises(AssertionError, match=r"the function has changed.*network 2 of 3"):
        assert_function_preserved(networks, moved.replace(moved.parameters + nudge))
    assert_function_preserved(networks, moved.replace(moved.parameters + nudge), tolerance=1e-3)


def test_given_inputs_are_the_ones_that_count() -> None:
    a = Architecture((Layer(1, bias=False), Layer(1, activation("relu"))), (Connection(0, 1),))
    one, two = (Networks(a, torch.tensor([[w, 0.0]])) for w in (1.0, 2.0))
    assert_function_preserved(one, two, -torch.ones(5, 1))
    with pytest.raises(AssertionError):
        assert_function_preserved(one, two)


# -- errors per network ------------------------------------------------------------------------------------------------


def test_errors_come_per_network() -> None:
    networks = networks_of(TANH, 1)
    g = Transform.sample(TANH, 3, generator(1))
    mixed = Networks.cat([networks[:2], networks[2]])

    def partly(n: Networks) -> Tensor:
        good, bad = outputs(n).flatten(1), n.parameters[:, :12]
        return torch.where(torch.tensor([[True], [True], [False]]), good, bad)

    error = equivariance_error(partly, mixed, g)
    assert error.shape == (3,)
    assert (error[:2] < 1e-12).all()
    assert error[2] > 0.1


def test_relative_error() -> None:
    a = torch.tensor([[1.0, 2.0], [0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    b = torch.tensor([[1.0, 4.0], [0.0, 0.0], [0.0, 0.0], [0.0, float("nan")]])
    assert relative_error(a, b).tolist() == [0.5, 0.0, float("inf"), float("inf")]
    assert relative_error(torch.ones(3), torch.ones(3)).tolist() == [0, 0, 0]
    assert relative_error(torch.ones(3, 0), torch.ones(3, 0)).tolist() == [0, 0, 0]


def test_outputs_that_cannot_be_compared() -> None:
    networks = networks_of(TANH, 1)
    with pytest.raises(ScaleGMNError, match=r"expected shape \(3, 2\), got \(3, 3\)"):
        relative_error(torch.zeros(3, 3), torch.zeros(3, 2))
    with pytest.raises(ScaleGMNError, match="expected tensors or networks, got Tensor and Networks"):
        relative_error(torch.zeros(3, 3), networks)
    with pytest.raises(ScaleGMNError, match="expected 2-8-8-3"):
        relative_error(networks_of(Architecture.mlp([1, 1]), 1), networks)


# -- random material ---------------------------------------------------------------------------------------------------


def test_inputs_fit_the_architecture() -> None:
    assert random_inputs(RELU, 5).shape == (5, 2)
    wide = Architecture((Layer(2, bias=False), Layer(3)), (Connection(0, 1, Linear((3, 5))),))
    assert random_inputs(wide, 5).shape == (5, 2, 3, 5)
    assert random_inputs(Architecture.cnn([1, 2], 3), 4).shape == (4, 1, 8, 8)
    impossible = Architecture.cnn([1, 2], 3, positions=(100, 100))
    with pytest.raises(ScaleGMNError, match="found no size up to 64"):
        random_inputs(impossible, 1)


def test_networks_are_reproducible_and_tame() -> None:
    a = Architecture.mlp([2, 64, 64, 1], activation("sine", 30.0))
    one, two = (random_networks(a, 5, generator=generator(3)) for _ in range(2))
    assert torch.equal(one.parameters, two.parameters)
    r = one.responses(random_inputs(a, 50, generator=generator(1)))
    assert all(0.3 < float((30 * z).std()) < 3 for z in r.pre[1:3])
    assert random_networks(a, 2, dtype=torch.float32).dtype == torch.float32
