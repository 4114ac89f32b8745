"""The registry of activations: each has the group and phi that it claims."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalegmn.core.activations import (
    Activation,
    Identity,
    Phi,
    activation,
    is_activation_function,
    is_activation_module,
    names,
)
from scalegmn.core.groups import Group, NonZeroScale, PositiveScale, Sign, Trivial
from scalegmn.errors import ScaleGMNError

VARIANTS = [
    *(activation(name) for name in names()),
    activation("leaky_relu", 0.3), activation("leaky_relu", -0.5), activation("leaky_relu", 1.0),
    activation("leaky_relu", -1.0), activation("sine", 30.0), activation("cos", 0.7), activation("hardtanh", -2.0, 2.0),
    activation("hardtanh", -1.0, 2.0), activation("softshrink", 0.1), activation("softshrink", 0.0),
    activation("hardshrink", 0.0), activation("power", 1), activation("power", 2), activation("power", 5),
    activation("softplus", 2.0), activation("elu", 0.5), activation("elu", 0.0),
]  # fmt: skip


def apply(act: Activation, x: Tensor) -> Tensor:
    return act(x, torch.tensor(0.25, dtype=x.dtype) if act.learned_slope else None)


@pytest.mark.parametrize("act", VARIANTS, ids=str)
def test_the_activation_moves_as_claimed(act: Activation) -> None:
    x = 3 * torch.randn(1, 50, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for a in act.group.sample(20, generator=torch.Generator().manual_seed(1), dtype=torch.float64):
        expected = act.phi(a) * apply(act, x)
        assert torch.allclose(apply(act, a * x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("act", VARIANTS, ids=str)
def test_the_group_is_not_too_small(act: Activation) -> None:
    if act.across_neurons:
        return
    x = torch.linspace(-25, 25, 1001, dtype=torch.float64)
    y = apply(act, x)
    for a in (-1.0, 2.0):
        if act.group.contains(torch.tensor(a)):
            continue
        moved = apply(act, a * x)
        b = (moved @ y) / (y @ y)
        assert (moved - b * y).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("name", "group", "phi"),
    [
        *((n, PositiveScale, Identity) for n in ("relu", "leaky_relu", "prelu")),
        *((n, Sign, Identity) for n in ("tanh", "sine", "softsign", "arctan", "asinh", "erf")),
        *((n, Sign, Identity) for n in ("hardtanh", "tanhshrink")),
        *((n, Trivial, Identity) for n in ("gelu", "silu", "sigmoid", "softplus", "elu")),
        ("identity", NonZeroScale, Identity),
        ("abs", NonZeroScale, Phi(1, even=True)),
        ("square", NonZeroScale, Phi(2, even=True)),
        ("cube", NonZeroScale, Phi(3)),
        ("cos", Sign, Phi(1, even=True)),
    ],
)
def test_groups_by_name(name: str, group: Group, phi: Phi) -> None:
    assert (activation(name).group, activation(name).phi) == (group, phi)


# -- phi -----------------------------------------------------------------------------------------------------------

PHIS = [Identity, Phi(1, even=True), Phi(2, even=True), Phi(2), Phi(3), Phi(5), Phi(1.5, even=True), Phi(0, even=True)]


@pytest.mark.parametrize("phi", PHIS, ids=str)
def test_phi_is_a_homomorphism(phi: Phi) -> None:
    a, b = NonZeroScale.sample(2, 100, dtype=torch.float64)
    assert torch.allclose(phi(a * b), phi(a) * phi(b), rtol=1e-12)
    assert torch.allclose(phi(1 / a), 1 / phi(a), rtol=1e-12)
    assert phi(torch.ones(())) == 1
    assert phi(-torch.ones(())) == (1 if phi.even else -1)


@pytest.mark.parametrize("phi", PHIS, ids=str)
def test_the_derivative_of_phi(phi: Phi) -> None:
    a = NonZeroScale.sample(100, dtype=torch.float64).requires_grad_()
    (expected,) = torch.autograd.grad(phi(a).sum() + 0 * a.sum(), a)
    assert torch.allclose(phi.derivative(a), expected, rtol=1e-12)


@pytest.mark.parametrize("phi", PHIS, ids=str)
def test_where_phi_is_the_identity(phi: Phi) -> None:
    a = torch.tensor([-2.0, -1.0, 1.0, 2.0])
    assert torch.equal(phi.fixed.contains(a), (phi(a) - a).abs() < 1e-6)


def test_phi_of_a_state_moves_with_phi() -> None:
    x, q = torch.randn(2, 9, dtype=torch.float64)
    assert torch.allclose(Phi(2)(q * x), Phi(2)(q) * Phi(2)(x))


# -- look-up -------------------------------------------------------------------------------------------------------

MODULES = [
    nn.Identity(), nn.ReLU(), nn.LeakyReLU(0.2), nn.Tanh(), nn.Softsign(), nn.Hardtanh(-2, 2), nn.Tanhshrink(),
    nn.Softshrink(0.3), nn.Hardshrink(0.3), nn.GELU(), nn.SiLU(), nn.Sigmoid(), nn.Softplus(2.0), nn.ELU(0.5),
    nn.SELU(), nn.Mish(), nn.ReLU6(), nn.Hardswish(), nn.Hardsigmoid(), nn.LogSigmoid(), nn.Softmax(2),
    nn.LogSoftmax(2),
]  # fmt: skip


@pytest.mark.parametrize("module", MODULES, ids=lambda m: type(m).__name__)
def test_modules_and_their_activations_agree(module: nn.Module) -> None:
    x = torch.linspace(-7, 7, 60).reshape(1, 10, 6)
    assert torch.equal(activation(module)(x), module(x))
    assert is_activation_module(module)


def test_prelu_brings_its_slope() -> None:
    module = nn.PReLU(init=0.3)
    x = torch.linspace(-7, 7, 60)
    assert torch.equal(activation(module)(x, module.weight), module(x))
    assert activation(nn.PReLU).learned_slope
    with pytest.raises(ScaleGMNError, match="one slope, got 4"):
        activation(nn.PReLU(4))


@pytest.mark.parametrize(
    "function",
    [
        torch.relu, F.relu, F.leaky_relu, torch.tanh, torch.sin, torch.cos, torch.atan, torch.arctan, torch.asinh,
        torch.erf, F.softsign, F.hardtanh, F.tanhshrink, F.softshrink, F.hardshrink, torch.abs, F.gelu, F.silu,
        torch.sigmoid, F.softplus, F.elu, F.selu, F.mish, F.relu6, F.hardswish, F.hardsigmoid, F.logsigmoid,
        torch.square,
    ],
)  # fmt: skip
def test_functions_and_their_activations_agree(function) -> None:  # type: ignore[no-untyped-def]
    x = torch.linspace(-7, 7, 61)
    assert torch.equal(activation(function)(x), function(x))
    assert is_activation_function(function)


def test_classes_take_parameters() -> None:
    assert activation(nn.LeakyReLU, 0.2) == activation("leaky_relu", 0.2)
    assert activation(nn.Hardtanh) == activation("hardtanh")


def test_aliases() -> None:
    assert activation("sin", 30.0) == activation("siren", 30.0) == activation("sine", 30.0)
    assert activation("swish") == activation("silu")
    assert activation(activation("relu")) == activation("relu")


def test_what_is_not_known_is_not_an_activation() -> None:
    assert not is_activation_module(nn.Linear(1, 1))
    assert not is_activation_function(torch.add)
    assert not is_activation_function([])


@pytest.mark.parametrize(
    ("which", "parameters", "message"),
    [
        ("rellu", (), "expected one of .*relu.*got 'rellu'"),
        ("relu", (1.0,), "expected 0 parameter"),
        ("power", (2.5,), "whole exponent"),
        ("square", (5.0,), "square has its parameters already"),
        (nn.ReLU(), (3.0,), r"ReLU\(\) has its parameters already"),
        ("power", (0,), "whole exponent"),
        ("sine", (0.0,), "frequency other than 0"),
        ("cos", (math.inf,), "frequency other than 0"),
        (nn.Linear(1, 1), (), "not in the registry"),
        (torch.add, (), "not in the registry"),
    ],
)
def test_bad_activations_say_what_was_expected(which: str, parameters: tuple[float, ...], message: str) -> None:
    with pytest.raises(ScaleGMNError, match=message):
        activation(which, *parameters)


def test_activations_are_values() -> None:
    assert hash(activation("sine", 30)) == hash(activation("sine", 30.0))
    assert str(activation("sine", 30.0)) == "sine(30)"
    assert str(activation("relu")) == "relu"
    assert {activation("relu"), activation(nn.ReLU())} == {activation("relu")}
