"""Groups found numerically agree with the registry, and the conditions of the theory are checked."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalegmn.core.activations import Activation, Identity, Phi, activation, names
from scalegmn.core.groups import Group, NonZeroScale, PositiveScale, Sign, Trivial
from scalegmn.core.intertwiner import intertwiner
from scalegmn.errors import ScaleGMNError

ELEMENTWISE = [
    *(activation(name) for name in names() if not activation(name).across_neurons),
    activation("leaky_relu", -0.5), activation("leaky_relu", 1.0), activation("leaky_relu", -1.0),
    activation("sine", 30.0), activation("sine", -3.0), activation("cos", 0.7), activation("hardtanh", -2.0, 2.0),
    activation("hardtanh", -1.0, 2.0), activation("softshrink", 0.1), activation("softshrink", 0.0),
    activation("hardshrink", 0.0), activation("power", 1), activation("power", 2), activation("power", 8),
    activation("softplus", 2.0), activation("elu", 0.5), activation("elu", 0.0),
]  # fmt: skip
LINEAR = {activation(n, *p) for n, p in (("identity", ()), ("leaky_relu", (1.0,)), ("power", (1,)))} | {
    activation(n, 0.0) for n in ("softshrink", "hardshrink")
}


def with_slope(act: Activation, slope: float = 0.25) -> Callable[[Tensor], Tensor]:
    return (lambda x: act(x, torch.tensor(slope, dtype=x.dtype))) if act.learned_slope else act


@pytest.mark.parametrize("act", ELEMENTWISE, ids=str)
def test_it_agrees_with_the_registry(act: Activation) -> None:
    found = intertwiner(with_slope(act))
    assert found.group == act.group
    assert found.phi == act.phi
    assert found.linear is (act in LINEAR)
    assert found.complete is (act not in LINEAR)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(
    ("make", "group"),
    [(nn.ReLU, PositiveScale), (nn.ELU, Trivial), (nn.Hardtanh, Sign), (nn.LeakyReLU, PositiveScale)],
)
def test_a_module_may_work_in_place(make: Callable[..., nn.Module], group: Group, inplace: bool) -> None:
    found = intertwiner(make(inplace=inplace))
    assert (found.group, found.phi) == (group, Identity)
    assert found.complete


@pytest.mark.parametrize("slope", [-2.0, 0.0, 0.01, 3.0])
def test_prelu_with_any_slope(slope: float) -> None:
    found = intertwiner(with_slope(activation("prelu"), slope))
    assert (found.group, found.phi, found.kinks) == (PositiveScale, Identity, (0.0,))


@pytest.mark.parametrize(
    ("fn", "group", "phi"),
    [
        (lambda x: torch.relu(x) ** 2, PositiveScale, Phi(2, even=True)),
        (lambda x: x * x.abs(), NonZeroScale, Phi(2)),
        (lambda x: x.abs() ** 1.5, NonZeroScale, Phi(1.5, even=True)),
        (lambda x: x.sign() * x.abs() ** 0.5, NonZeroScale, Phi(0.5)),
        (lambda x: 1e-6 * torch.tanh(x), Sign, Identity),
        (lambda x: torch.exp(-(x**2)), Sign, Phi(1, even=True)),
        (torch.sinh, Sign, Identity),
        (torch.exp, Trivial, Identity),
        (lambda x: x + 1e-3 * x**2, Trivial, Identity),
        # Only powers of 2 scale this one: none of the four groups has them, so its scales count for nothing.
        (lambda x: x * torch.sin(2 * math.pi * torch.log2(x.abs() + (x == 0)) + 1), Sign, Identity),
    ],
)
def test_other_functions(fn: Callable[[Tensor], Tensor], group: Group, phi: Phi) -> None:
    found = intertwiner(fn)
    assert (found.group, found.phi) == (group, phi)
    assert not found.linear
    assert not found.constant


@pytest.mark.parametrize("k", [1, 2, 7, 30])
def test_a_sine_at_a_multiple_of_pi_fails_the_condition(k: int) -> None:
    found = intertwiner(lambda x: torch.sin(k * math.pi * x))
    assert found.group == Sign
    assert found.singular == 1
    assert not found.complete
    assert "not invertible" in found.problems[0]
    assert intertwiner(lambda x: torch.sin((k + 0.01) * math.pi * x)).complete


@pytest.mark.parametrize(
    ("fn", "d"),
    [
        (lambda x: torch.cos(math.pi * x), 2),  # sigma(1) = -sigma(0)
        (lambda x: torch.cos(math.pi / 2 * x), 1),  # sigma(1) = 0
        (lambda x: torch.cos(2 * math.pi * x), 2),  # sigma(1) = sigma(0)
        (lambda x: 1 - 4 * x**2, 4),  # sigma(1) = -3 sigma(0)
        (lambda x: F.hardshrink(x, 1.0), 1),
        (torch.sigmoid, None),
        (torch.cos, None),
    ],
)
def test_where_the_image_of_the_identity_matrix_is_singular(fn: Callable[[Tensor], Tensor], d: int | None) -> None:
    assert intertwiner(fn).singular == d
    for width in (1, 2, 3, 4, 5):
        matrix = fn(torch.eye(width, dtype=torch.float64))
        singular = bool(torch.linalg.svdvals(matrix).min() < 1e-9)
        if d is None or width < d:
            assert not singular
        if width == d:
            assert singular


def test_identity_is_linear() -> None:
    found = intertwiner(nn.Identity())
    assert found.linear
    assert found.group == NonZeroScale
    assert "linear" in found.problems[0]
    assert intertwiner(lambda x: 2 * x + 1).linear


def test_constants() -> None:
    one = intertwiner(torch.ones_like)
    assert one.constant
    assert (one.group, one.phi) == (NonZeroScale, Phi(0, even=True))
    zero = intertwiner(torch.zeros_like)
    assert zero.constant
    assert "constant" in " ".join(zero.problems)


@pytest.mark.parametrize(
    ("fn", "kinks"),
    [
        (torch.tanh, ()),
        (lambda x: torch.sin(1000 * x), ()),
        (F.relu6, (0.0, 6.0)),
        (F.hardtanh, (-1.0, 1.0)),
        (F.hardshrink, (-0.5, 0.5)),
        (torch.sign, (0.0,)),
        (lambda x: F.elu(x, 1.01), (0.0,)),
        (lambda x: torch.relu(x - 1 / 3), (1 / 3,)),
        (lambda x: x * x.abs(), ()),
    ],
)
def test_kinks_are_found(fn: Callable[[Tensor], Tensor], kinks: tuple[float, ...]) -> None:
    found = intertwiner(fn)
    assert found.kinks == pytest.approx(kinks, abs=1e-5)
    assert not found.rough


@pytest.mark.parametrize(
    "fn",
    [
        torch.floor,
        lambda x: (x - x.round()).abs(),
        lambda x: (1000 * x - (1000 * x).round()).abs(),
        lambda x: sum(0.7**k * torch.cos(3.0**k * x) for k in range(30)),
    ],
)
def test_kinks_without_end_are_a_problem(fn: Callable[[Tensor], Tensor]) -> None:
    found = intertwiner(fn)
    assert found.rough
    assert "infinitely many" in found.problems[-1]


class Siren(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w0 = nn.Parameter(torch.tensor(30.0))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.w0 * x)


def test_a_module_is_copied_to_float64() -> None:
    module = Siren()
    assert intertwiner(module).group == Sign
    assert module.w0.dtype == torch.float32
    assert intertwiner(nn.PReLU()).group == PositiveScale


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x: torch.softmax(x, dim=-1), "each entry alone"),
        (lambda x: torch.rand_like(x), "each entry alone"),
        (lambda x: x.sum(), "one per entry"),
        (lambda x: x.float(), "float64"),
        (lambda x: 1 / x, "finite values"),
        (activation("softmax"), "each entry alone"),
    ],
)
def test_what_is_not_a_scalar_function_is_refused(fn: Callable[[Tensor], Tensor], message: str) -> None:
    with pytest.raises(ScaleGMNError, match=message):
        intertwiner(fn)
