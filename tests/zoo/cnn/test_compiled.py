"""The compiled engine of CNN zoos: the trajectories of the torch engine, and no surprise where it is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import tiny_cnns
import torch
from tiny_cnns import hashes, settings, stripes
from torch import Tensor

from scalegmn.core.networks import Networks
from scalegmn.errors import ScaleGMNError
from scalegmn.native import library as kernels
from scalegmn.zoo.cnn import build as cnn
from scalegmn.zoo.cnn import compiled as cnn_compiled
from scalegmn.zoo.cnn.build import build_cnn_zoo
from scalegmn.zoo.cnn.compiled import SOURCE, Noise, Rule, descend, noise_size
from scalegmn.zoo.cnn.engine import Cnn, Engine, evaluate
from scalegmn.zoo.cnn.recipe import OPTIMISERS, Budget
from scalegmn.zoo.cnn.train import CLIP, Optimiser, _weight_mask, train, train_compiled

pytestmark = pytest.mark.skipif(kernels.load(SOURCE) is None, reason="no compiler")

SHAPES = [
    Cnn(32),
    Cnn(16, (1, 8, 24), kernel=5),
    Cnn(17, (3, 12, 20, 9), classes=3),
    Cnn(11, (2, 33, 5), stride=1, classes=12),
    Cnn(9, (1, 40)),
]


pytestmark = pytest.mark.usefixtures("one_thread")


class Task(NamedTuple):
    """A network, its data and its random numbers, for both engines."""

    shape: Cnn
    rule: Rule
    parameters: Tensor
    images: Tensor
    labels: Tensor
    chosen: Tensor
    noise: Noise


def task(
    shape: Cnn, rule: Rule, dtype: torch.dtype = torch.float64, *, batch: int = 7, steps: int = 4, spread: float = 0.2
) -> Task:
    generator = torch.Generator().manual_seed(0)
    size = noise_size(shape, batch)
    return Task(
        shape,
        rule,
        spread * torch.randn(shape.architecture.parameters, generator=generator, dtype=dtype),
        torch.randint(0, 256, (30, shape.channels[0], shape.side, shape.side), generator=generator, dtype=torch.uint8),
        torch.randint(0, shape.classes, (30,), generator=generator),
        torch.randint(0, 30, (steps, batch), generator=generator, dtype=torch.int32),
        Noise(torch.rand(2 * size, generator=generator, dtype=dtype), torch.arange(steps) * 3),
    )


def reference(task: Task) -> Tensor:
    """The trajectory of the torch engine, with the same values dropped."""
    shape, rule = task.shape, task.rule
    kind = settings(optimiser=rule.optimiser, learning_rate=rule.learning_rate, l2=rule.l2)
    parameters = task.parameters[None].clone()
    gradient = torch.empty_like(parameters)
    optimiser = Optimiser([kind], _weight_mask(shape).to(parameters))
    batch = task.chosen.shape[1]
    engine = Engine(shape, 1, batch, parameters)
    networks, slopes = (Networks(shape.architecture, p) for p in (parameters, gradient))
    for step, (chosen, start) in enumerate(zip(task.chosen, task.noise.starts.tolist(), strict=True), start=1):
        x = (task.images[chosen].to(parameters) * (2 / 255) - 1).permute(1, 2, 3, 0)[None].contiguous()
        rate = torch.tensor([rule.dropout], dtype=parameters.dtype)
        engine.gradient(networks, x, task.labels[chosen][None], rate, samples_last(task, start), slopes)
        optimiser.update(parameters, gradient, step)
    return parameters[0]


def samples_last(task: Task, start: int) -> Tensor:
    """The random numbers of a step in the order of the torch engine: channels, height, width, samples."""
    parts, batch = [], task.chosen.shape[1]
    for width, side in zip(task.shape.channels[1:], task.shape.sides[1:], strict=True):
        padded = -(-width // 8) * 8
        count = batch * side * side * padded
        part = task.noise.pool[start : start + count].view(batch, side, side, padded)[..., :width]
        parts.append(part.permute(3, 1, 2, 0).flatten())
        start += count
    return torch.cat(parts)


# -- training and evaluation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize(("l2", "dropout"), [(0.0, 0.0), (0.01, 0.0), (0.0, 0.4), (0.01, 0.4)])
def test_both_engines_take_the_same_steps(optimiser: str, activation: str, l2: float, dropout: float) -> None:
    rate = 0.1 if optimiser == "sgd" else 0.003
    rule = Rule(optimiser, rate, l2, dropout, CLIP)
    for shape in SHAPES[:3]:
        given = task(Cnn(shape.side, shape.channels, shape.kernel, shape.stride, activation, shape.classes), rule)
        found = descend(*given)
        torch.testing.assert_close(found, reference(given), rtol=1e-8, atol=1e-10)
        assert (found - given.parameters).abs().max() > rate / 100
    # Negative controls: each of them matters.
    for other in (rule._replace(l2=l2 + 0.01), rule._replace(dropout=dropout + 0.2)):
        assert (descend(*given._replace(rule=other)) - found).abs().max() > 1e-6


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_both_engines_agree_in_single_precision(optimiser: str, activation: str) -> None:
    rule = Rule(optimiser, 0.1 if optimiser == "sgd" else 0.001, 1e-3, 0.3, CLIP)
    given = task(Cnn(32, activation=activation), rule, torch.float32, batch=32)
    double = given._replace(
        parameters=given.parameters.double(), noise=Noise(given.noise.pool.double(), given.noise.starts)
    )
    # The rate as a threshold is a number that both precisions share.
    expected = descend(*double._replace(rule=rule._replace(dropout=float(torch.tensor(0.3)))))
    torch.testing.assert_close(descend(*given).double(), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch", [1, 4, 9])
def test_any_shape_and_batch(shape: Cnn, batch: int) -> None:
    given = task(shape, Rule("sgd", 0.1, 0.001, 0.2, CLIP), batch=batch, steps=2)
    torch.testing.assert_close(descend(*given), reference(given), rtol=1e-8, atol=1e-10)


def test_long_gradients_are_shortened_and_infinite_ones_left_out() -> None:
    given = task(Cnn(16), Rule("sgd", 1.0, 0.0, 0.0, CLIP), steps=1, spread=2.0)
    step = descend(*given) - given.parameters
    assert float(step.norm()) == pytest.approx(CLIP)
    torch.testing.assert_close(descend(*given), reference(given), rtol=1e-8, atol=1e-10)
    huge = given._replace(parameters=given.parameters * 1e200)
    assert torch.equal(descend(*huge), huge.parameters)


@pytest.mark.parametrize("shape", [*SHAPES, Cnn(16, activation="tanh")])
def test_accuracy_and_loss_are_those_of_the_torch_engine(shape: Cnn) -> None:
    torch.manual_seed(0)
    parameters = 0.3 * torch.randn(3, shape.architecture.parameters, dtype=torch.float64)
    x = torch.randn(51, shape.channels[0], shape.side, shape.side, dtype=torch.float64)
    labels = torch.randint(0, shape.classes, (51,))
    for found, expected in zip(
        cnn_compiled.evaluate(shape, parameters, x, labels), evaluate(shape, parameters, x, labels), strict=True
    ):
        torch.testing.assert_close(found, expected)


def test_both_engines_begin_and_choose_images_alike() -> None:
    source = stripes()
    data = torch.from_numpy(source.pixels[100:, None]), torch.from_numpy(source.labels[100:])
    drawn = settings(optimiser="adam", learning_rate=0.01, l2=1e-4, steps=20)
    ours = train_compiled(Cnn(16), drawn, *data, seed=3, index=5, batch=16)
    torch.testing.assert_close(
        ours, train(Cnn(16), [drawn], *data, seed=3, indices=[5], batch=16)[0], rtol=0, atol=1e-4
    )
    other = train_compiled(Cnn(16), drawn, *data, seed=3, index=6, batch=16)
    assert (ours - other).abs().max() > 0.1


# -- zoos --------------------------------------------------------------------------------------------------------------


def test_a_network_of_a_zoo_depends_on_its_number_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budget, source = Budget(batch=16, steps=(5, 30)), stripes()
    small = build_cnn_zoo(source, tmp_path / "small", count=5, budget=budget, threads=1)
    monkeypatch.setattr(cnn, "SHARD", 4)
    large = build_cnn_zoo(source, tmp_path / "large", count=12, budget=budget, threads=2)
    assert torch.equal(small.batch().parameters, large.batch(range(5)).parameters)
    assert any(rate > 0 for rate in large.column("dropout").tolist())
    assert small.arguments["engine"] == "compiled"


def test_a_zoo_is_not_continued_with_the_other_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cnn, "SHARD", 2)
    budget = Budget(batch=8, steps=(2, 4))

    def stop(done: int, total: int, accuracy: Tensor) -> None:
        if done > 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_cnn_zoo(stripes(), tmp_path / "a", count=8, budget=budget, report=stop)
    assert (tmp_path / "a" / "parameters-00000.safetensors").exists()
    with kernels.disabled(), pytest.raises(ScaleGMNError, match="begun with engine=compiled, now engine=torch"):
        build_cnn_zoo(stripes(), tmp_path / "a", count=8, budget=budget)
    for name in ("a", "b"):
        build_cnn_zoo(stripes(), tmp_path / name, count=8, budget=budget)
    assert hashes(tmp_path / "a") == hashes(tmp_path / "b")


PLAIN = """
import sys
sys.path.insert(0, sys.argv[2])
from tiny_cnns import stripes
from scalegmn.zoo.cnn.build import Budget, build_cnn_zoo
zoo = build_cnn_zoo(stripes(), sys.argv[1], count=3, budget=Budget(batch=8, steps=(2, 4)))
print(zoo.arguments["engine"], len(zoo))
"""


@pytest.mark.parametrize("change", [{"SCALEGMN_KERNELS": "0"}, {"CXX": "no-such-compiler"}])
def test_without_a_compiler_the_torch_engine_builds(tmp_path: Path, change: dict[str, str]) -> None:
    command = [sys.executable, "-c", PLAIN, str(tmp_path / "z"), str(Path(tiny_cnns.__file__).parent)]
    result = subprocess.run(command, env={**os.environ, **change}, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["torch", "3"]
