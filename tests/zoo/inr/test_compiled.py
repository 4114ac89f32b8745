"""The laws of the compiled engine: exact gradients, accurate activations, and no surprise where it is missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from scalegmn.errors import ScaleGMNError
from scalegmn.native import library
from scalegmn.zoo.images.collections import load_images
from scalegmn.zoo.inr.build import build_inr_zoo
from scalegmn.zoo.inr.compiled import SOURCE, Problem
from scalegmn.zoo.inr.conventions import Fit, Inr, coordinates, inr
from scalegmn.zoo.inr.fit import best_engine, fit_inrs

pytestmark = pytest.mark.skipif(library.load(SOURCE) is None, reason="no compiler")

ONE = {torch.float32: 2e-7, torch.float64: 1e-15}


def gradients(shape: Inr, points: Tensor, image: Tensor, parameters: Tensor) -> tuple[float, Tensor, float, Tensor]:
    """Loss and gradient of one network by the compiled code, then by autograd through the plain rendering."""
    kind = shape.convention
    span = kind.high - kind.low
    loss, gradient = Problem(shape, points).gradient(image * span + (kind.low - kind.offset), parameters)
    leaf = parameters.clone().requires_grad_()
    expected = ((shape.render(leaf[None], points)[0] - image) * span).square().mean()
    (reference,) = torch.autograd.grad(expected, leaf)
    return loss, gradient, float(expected.detach()), reference


@given(
    activation=st.sampled_from(["sine", "relu", "tanh"]),
    convention=st.sampled_from(["dws", "nfn"]),
    hidden=st.lists(st.sampled_from([1, 3, 5, 8, 24, 32, 40]), min_size=1, max_size=3),
    channels=st.integers(1, 7),
    sides=st.tuples(st.integers(1, 16), st.integers(1, 16)),
    scattered=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_gradient_is_that_of_autograd(
    activation: str,
    convention: str,
    hidden: list[int],
    channels: int,
    sides: tuple[int, int],
    scattered: bool,
    seed: int,
) -> None:
    shape = inr(channels, hidden=hidden, activation=activation, convention_name=convention)
    generator = torch.Generator().manual_seed(seed)
    points = coordinates(*sides, convention).double()
    if scattered:
        points = torch.rand(points.shape, generator=generator, dtype=torch.float64) * 2 - 1
    image = torch.rand(len(points), channels, generator=generator, dtype=torch.float64)
    parameters = shape.initial(seed, [0])[0].double() + 0.01
    loss, gradient, expected, reference = gradients(shape, points, image, parameters)
    assert loss == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert (gradient - reference).abs().max() <= 1e-9 * reference.abs().max()


@pytest.mark.parametrize("activation", ["sine", "relu", "tanh"])
def test_gradient_in_single_precision(activation: str) -> None:
    shape, points = inr(1, activation=activation), coordinates(28, 28)
    parameters = shape.initial(0, [0])[0]
    image = torch.rand(784, 1, generator=torch.Generator().manual_seed(0))
    _, gradient, _, _ = gradients(shape, points, image, parameters)
    _, _, _, reference = gradients(shape, points.double(), image.double(), parameters.double())
    assert (gradient - reference).abs().max() <= 3e-6 * reference.abs().max()


def activations(name: str, z: Tensor) -> tuple[Tensor, Tensor]:
    """Activation and slope at z, (n,), read from gradients.

    One pixel at the origin, n neurons with biases z, and every neuron its own colour: the gradient of the biases of the
    colours is their error. Errors of nearly 1 make that of the hidden biases the slope.
    """
    n = len(z)
    shape = inr(n, hidden=(n,), activation=name, w0=1.0 if name == "sine" else None)
    parameters = torch.cat([z.new_zeros(2 * n), z, torch.eye(n, dtype=z.dtype).flatten(), z.new_zeros(n)])
    problem = Problem(shape, z.new_zeros(1, 2))
    _, gradient = problem.gradient(z.new_zeros(1, n), parameters)
    value = gradient[-n:] * (n / 2)
    _, gradient = problem.gradient(value[None] - 1, parameters)
    return value, gradient[2 * n : 3 * n] * (n / 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("largest", [1e-3, 3.0, 30.0, 1000.0])
def test_activations_are_accurate(dtype: torch.dtype, largest: float) -> None:
    z = torch.linspace(-largest, largest, 1001, dtype=torch.float64).to(dtype)
    value, slope = activations("sine", z)
    assert (value - z.double().sin()).abs().max() < ONE[dtype]
    assert (slope - z.double().cos()).abs().max() < 2 * ONE[dtype]
    value, slope = activations("tanh", z)
    assert (value - z.double().tanh()).abs().max() < ONE[dtype]
    assert (slope - (1 - z.double().tanh() ** 2)).abs().max() < 4 * ONE[dtype]
    value, slope = activations("relu", z)
    assert torch.allclose(value, z.relu(), rtol=1e-6)
    # Errors of 1 are read beside values of `largest`.
    assert torch.allclose(slope, (z > 0).to(dtype), rtol=0, atol=max(largest, 1) * ONE[dtype])


@pytest.mark.parametrize("activation", ["sine", "relu", "tanh"])
@pytest.mark.parametrize(("side", "channels", "hidden"), [(28, 1, (32, 32)), (9, 3, (7, 6, 20)), (8, 1, (16,))])
def test_both_engines_agree(activation: str, side: int, channels: int, hidden: tuple[int, ...]) -> None:
    points, images = coordinates(side, side).double(), torch.rand(3, side * side, channels, dtype=torch.float64)

    def fit(engine: str, lr: float = 1e-3) -> Tensor:
        how = Fit(hidden=hidden, activation=activation, lr=lr, steps=25)
        return fit_inrs(images, points, how, engine=engine).parameters

    torch.testing.assert_close(fit("compiled"), fit("torch"), rtol=0, atol=1e-9)
    assert (fit("compiled") - fit("torch", lr=2e-3)).abs().max() > 1e-3


def test_a_network_depends_on_nothing_else_whatever_its_sizes() -> None:
    points, images = coordinates(9, 9), torch.rand(7, 81, 3, generator=torch.Generator().manual_seed(0))

    def fit(rows: list[int], threads: int) -> Tensor:
        how = Fit(hidden=(7, 6), steps=21)
        return fit_inrs(images[rows], points, how, indices=rows, threads=threads, engine="compiled").parameters

    whole = fit(list(range(7)), 1)
    assert torch.equal(whole, fit(list(range(7)), 3))
    for row in range(7):
        assert torch.equal(whole[row], fit([row], 1)[0])
    # Negative control: another image is another network.
    assert not torch.equal(fit_inrs(images[:1] + 0.01, points, Fit(hidden=(7, 6), steps=21)).parameters[0], whole[0])


def test_compiled_code_refuses_what_would_lead_out_of_its_arrays() -> None:
    shape, points = inr(1, hidden=(8,)), coordinates(4, 4)
    target, row = torch.rand(16, 1), shape.initial(0, [0])[0]

    def refused(match: str, target: Tensor = target, row: Tensor = row, **change: Tensor) -> None:
        problem = Problem(shape, points)
        vars(problem).update(change)
        with pytest.raises(ScaleGMNError, match=match):
            problem.gradient(target, row)

    refused("target must be", target=target[1:])
    refused("parameters must be|gradient must be", row=row[1:])
    refused("contiguous torch.float32", row=row.double())
    refused("contiguous torch.float32", target=torch.rand(16, 2)[:, :1])
    column = Problem(shape, points).column
    refused("a column is none of x", column=column + 4)
    refused("a column is none of x", column=column - 1)
    refused("a row is none of y", y=points.new_zeros(1))
    refused("every pixel needs a row", column=column[1:])
    refused("sizes must be", sizes=torch.tensor([2, 0, 1]))
    refused("sizes must be", sizes=torch.tensor([2, 2**40, 1]))
    refused("sizes must be", sizes=torch.tensor([3, 8, 1]))


def test_without_a_compiler_the_other_engine_works(tmp_path: Path) -> None:
    program = """
import torch
from scalegmn.errors import ScaleGMNError
from scalegmn.zoo.inr.conventions import Fit, coordinates
from scalegmn.zoo.inr.fit import best_engine, fit_inrs
images, points = torch.rand(2, 16, 1), coordinates(4, 4)
print(best_engine(images), len(fit_inrs(images, points, Fit(hidden=(4,), steps=2)).parameters))
try:
    fit_inrs(images, points, engine="compiled")
except ScaleGMNError as error:
    print(error)
"""
    for change in ({"SCALEGMN_KERNELS": "0"}, {"CXX": "no-such-compiler"}, {"PATH": str(tmp_path), "CXX": "g++"}):
        environment = {**os.environ, **change}
        result = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        first, second = result.stdout.splitlines()
        assert first == "torch 2"
        assert second.startswith("engine: compiled fits float32 or float64 on a CPU with a C++ compiler")


def test_other_numbers_and_unknown_engines() -> None:
    assert best_engine(torch.zeros(1)) == "compiled"
    assert best_engine(torch.zeros(1, dtype=torch.float16)) == "torch"
    assert best_engine(torch.zeros(1, device="meta")) == "torch"
    with library.disabled():
        assert best_engine(torch.zeros(1)) == "torch"
    with pytest.raises(ScaleGMNError, match="engine: expected compiled or torch, got 'jax'"):
        fit_inrs(torch.rand(1, 16, 1), coordinates(4, 4), engine="jax")  # type: ignore[arg-type]


def test_a_zoo_is_not_continued_with_the_other_engine(tmp_path: Path) -> None:
    digits, fit = load_images("digits"), Fit(hidden=(8,), steps=5)

    def stop(done: int, total: int, psnr: Tensor) -> None:
        if done > 1024:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_inr_zoo(digits, tmp_path, fit=fit, report=stop)
    with library.disabled(), pytest.raises(ScaleGMNError, match="begun with engine=compiled, now engine=torch"):
        build_inr_zoo(digits, tmp_path, fit=fit)
    assert build_inr_zoo(digits, tmp_path, fit=fit).arguments["engine"] == "compiled"
