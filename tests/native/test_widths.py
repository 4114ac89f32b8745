"""Compiled code gives the same bytes with vectors of 512 bits and with those of 256 bits, so zoos are the same."""

from __future__ import annotations

import ctypes
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from strategies import generator

from scalegmn.native import build, library
from scalegmn.zoo.cnn import compiled
from scalegmn.zoo.cnn.shape import Cnn, Noise, Rule, noise_size
from scalegmn.zoo.inr.compiled import Problem
from scalegmn.zoo.inr.conventions import Fit, coordinates


def _why_not() -> str:
    if platform.machine() not in ("x86_64", "AMD64"):
        return "only x86 has vectors of two widths"
    try:
        build.find_compiler()
        flags = Path("/proc/cpuinfo").read_text()
    except (build.NoCompilerError, OSError):
        return "no compiler"
    return "" if "avx512f" in flags else "this processor has no vectors of 512 bits"


pytestmark = pytest.mark.skipif(bool(_why_not()), reason=_why_not())
TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ctypes.CDLL]:
    """Sources compiled without AVX-512, each once."""
    folder, found = tmp_path_factory.mktemp("narrow"), {}

    def load(source: str) -> ctypes.CDLL:
        if source not in found:
            path, code = folder / f"{source}.so", build.FOLDER / f"{source}.cpp"
            command = [build.find_compiler(), *build.flags(), "-mno-avx512f", "-shared", str(code), "-o", str(path)]
            subprocess.run(command, check=True, capture_output=True)
            found[source] = ctypes.CDLL(str(path))
        return found[source]

    return load


@TYPES
@pytest.mark.parametrize("hidden", [(32, 32), (5,), (8, 24), (17, 40, 9), (50, 33)])
@pytest.mark.parametrize("activation", ["sine", "relu", "tanh"])
def test_inrs_do_not_depend_on_the_width_of_vectors(
    activation: str,
    hidden: tuple[int, ...],
    dtype: torch.dtype,
    narrow: Callable[[str], ctypes.CDLL],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fit = Fit(hidden=hidden, activation=activation, steps=12)
    # More than one tile of pixels, and one that is not full.
    problem = Problem(fit.shape(3), coordinates(11, 13).to(dtype))
    random = generator(1)
    targets = torch.rand(2, 143, 3, generator=random, dtype=dtype)
    start = problem.shape.initial(0, [0, 1]).to(dtype)

    wide = problem.fit(fit, targets, start)
    monkeypatch.setattr(library, "load", narrow)
    found = problem.fit(fit, targets, start)
    assert torch.equal(found.parameters, wide.parameters)
    assert torch.equal(found.psnr, wide.psnr)
    assert wide.parameters.isfinite().all()


@TYPES
@pytest.mark.parametrize("channels", [(1, 16, 16, 16), (3, 12, 20), (1, 5, 9), (2, 33, 40)])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize(
    "rule",
    [
        # The first clips every gradient, the last none.
        Rule("sgd", 0.1, 1e-3, 0.0, 0.1),
        Rule("adam", 0.01, 1e-3, 0.3, 0.1),
        Rule("rmsprop", 0.001, 0.0, 0.3, 1e9),
    ],
    ids=lambda rule: rule.optimiser,
)
def test_cnns_do_not_depend_on_the_width_of_vectors(
    rule: Rule,
    activation: str,
    channels: tuple[int, ...],
    dtype: torch.dtype,
    narrow: Callable[[str], ctypes.CDLL],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape, steps, batch, random = Cnn(19, channels, activation=activation), 12, 5, generator(2)
    images = torch.randint(0, 256, (20, channels[0], 19, 19), generator=random, dtype=torch.uint8)
    labels = torch.randint(0, shape.classes, (20,), generator=random)
    chosen = torch.randint(0, 20, (steps, batch), generator=random, dtype=torch.int32)
    start = 0.2 * torch.randn(shape.architecture.parameters, generator=random, dtype=dtype)
    size = noise_size(shape, batch)
    pool = torch.rand(2 * size, generator=random, dtype=dtype)
    noise = Noise(pool, torch.randint(0, size, (steps,), generator=random))
    x, given = torch.rand(20, channels[0], 19, 19, generator=random, dtype=dtype), (images, labels, chosen, noise)

    def results() -> list[torch.Tensor]:
        row = compiled.descend(shape, rule, start, *given)
        return [row, *compiled.evaluate(shape, row.unsqueeze(0), x, labels)]

    wide = results()
    monkeypatch.setattr(library, "load", narrow)
    assert all(map(torch.equal, wide, results()))
    assert wide[0].isfinite().all()
