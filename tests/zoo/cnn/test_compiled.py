"""The compiled engine of CNN zoos: the trajectories of the torch engine, and no surprise where it is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import tiny_cnns
import torch
from tiny_cnns import hashes, settings, stripes
from torch import Tensor

from scalegmn.errors import ScaleGMNError
from scalegmn.native import library
from scalegmn.zoo.cnn import build as cnn
from scalegmn.zoo.cnn import compiled, plain
from scalegmn.zoo.cnn.build import build_cnn_zoo
from scalegmn.zoo.cnn.compiled import SOURCE, descend
from scalegmn.zoo.cnn.recipe import OPTIMISERS, Budget
from scalegmn.zoo.cnn.shape import Cnn, Noise, Rule, noise_size
from scalegmn.zoo.cnn.train import CLIP, train

SHAPES = [
    Cnn(32),
    Cnn(16, (1, 8, 24), kernel=5),
    Cnn(17, (3, 12, 20, 9), classes=3),
    Cnn(11, (2, 33, 5), stride=1, classes=12),
    Cnn(9, (1, 40)),
]


pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(library.load(SOURCE) is None, reason="no compiler"),
]


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
        torch.testing.assert_close(found, plain.descend(*given), rtol=1e-8, atol=1e-10)
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
    torch.testing.assert_close(descend(*given), plain.descend(*given), rtol=1e-8, atol=1e-10)


def test_long_gradients_are_shortened_and_infinite_ones_left_out() -> None:
    given = task(Cnn(16), Rule("sgd", 1.0, 0.0, 0.0, CLIP), steps=1, spread=2.0)
    step = descend(*given) - given.parameters
    assert float(step.norm()) == pytest.approx(CLIP)
    torch.testing.assert_close(descend(*given), plain.descend(*given), rtol=1e-8, atol=1e-10)
    huge = given._replace(parameters=given.parameters * 1e200)
    assert torch.equal(descend(*huge), huge.parameters)


@pytest.mark.parametrize("shape", [*SHAPES, Cnn(16, activation="tanh")])
def test_accuracy_and_loss_are_those_of_the_torch_engine(shape: Cnn) -> None:
    torch.manual_seed(0)
    parameters = 0.3 * torch.randn(3, shape.architecture.parameters, dtype=torch.float64)
    x = torch.randn(51, shape.channels[0], shape.side, shape.side, dtype=torch.float64)
    labels = torch.randint(0, shape.classes, (51,))
    for found, expected in zip(
        compiled.evaluate(shape, parameters, x, labels), plain.evaluate(shape, parameters, x, labels), strict=True
    ):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_both_engines_begin_choose_and_drop_alike(dropout: float) -> None:
    source = stripes()
    data = torch.from_numpy(source.pixels[100:, None]), torch.from_numpy(source.labels[100:])
    drawn = settings(optimiser="adam", learning_rate=0.01, l2=1e-4, steps=20, dropout=dropout)
    ours = train(Cnn(16), drawn, *data, seed=3, index=5, batch=16, engine="compiled")
    theirs = train(Cnn(16), drawn, *data, seed=3, index=5, batch=16, engine="torch")
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
    other = train(Cnn(16), drawn, *data, seed=3, index=6, batch=16, engine="compiled")
    assert (ours - other).abs().max() > 0.1


# -- the boundary ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (lambda t: t._replace(labels=t.labels - 1), "a label is none of the classes"),
        (lambda t: t._replace(labels=t.labels + 10), "a label is none of the classes"),
        (lambda t: t._replace(labels=t.labels + 2**62), "a label is none of the classes"),
        (lambda t: t._replace(labels=t.labels[1:]), "one label per image"),
        (lambda t: t._replace(chosen=t.chosen + 30), "a chosen image is none of the images"),
        (lambda t: t._replace(chosen=t.chosen - 30), "a chosen image is none of the images"),
        (lambda t: t._replace(images=t.images[..., 1:]), "images must be|one label per image"),
        (lambda t: t._replace(parameters=t.parameters[1:]), "parameters must be"),
        (lambda t: t._replace(noise=Noise(t.noise.pool[5:], t.noise.starts + 10**9)), "a step reads beyond the noise"),
        (lambda t: t._replace(noise=Noise(t.noise.pool, t.noise.starts - 100)), "a step reads beyond the noise"),
        (lambda t: t._replace(noise=Noise(t.noise.pool, t.noise.starts[1:])), "every step needs a start"),
        (lambda t: t._replace(noise=None), "every step needs a start|beyond the noise"),
        (lambda t: t._replace(noise=Noise(t.noise.pool.float(), t.noise.starts)), "contiguous torch.float64"),
        (lambda t: t._replace(rule=t.rule._replace(dropout=1.5)), "dropout must be"),
        (lambda t: t._replace(labels=t.labels.int()), "contiguous torch.int64"),
    ],
)
def test_compiled_code_refuses_what_would_lead_out_of_its_arrays(
    change: Callable[[Task], Task], refusal: str
) -> None:
    given = task(Cnn(16), Rule("sgd", 0.1, 0.0, 0.3, CLIP))
    assert descend(*given).isfinite().all()
    with pytest.raises(ScaleGMNError, match=refusal) as caught:
        descend(*change(given))
    assert "\n" not in str(caught.value)


def test_evaluation_refuses_labels_that_are_no_classes() -> None:
    shape = Cnn(16)
    parameters, x = torch.randn(1, shape.architecture.parameters), torch.rand(3, 1, 16, 16)
    for labels in ([0, 1, -1], [0, 1, 10], [0, 1, 2**40], [0, 1]):
        with pytest.raises(ScaleGMNError, match="label"):
            compiled.evaluate(shape, parameters, x, torch.tensor(labels))


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
    with library.disabled(), pytest.raises(ScaleGMNError, match="begun with engine=compiled, now engine=torch"):
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
