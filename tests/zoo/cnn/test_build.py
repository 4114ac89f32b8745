"""CNN zoos: what is drawn for their networks, how these learn, and whole builds, also interrupted ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tiny_cnns
import torch
from tiny_cnns import hashes, settings, stripes
from torch import Tensor
from torch.nn import functional as F

from scalegmn.core.networks import Networks
from scalegmn.errors import ScaleGMNError
from scalegmn.native import library
from scalegmn.zoo.cnn import build as cnn
from scalegmn.zoo.cnn.build import build_cnn_zoo
from scalegmn.zoo.cnn.compiled import SOURCE
from scalegmn.zoo.cnn.plain import evaluate
from scalegmn.zoo.cnn.recipe import (
    FRACTIONS,
    OPTIMISERS,
    WEIGHT_INITS,
    Budget,
    draw_settings,
    draw_shape,
    generator,
    initial_parameters,
)
from scalegmn.zoo.cnn.shape import Cnn
from scalegmn.zoo.cnn.train import Minibatches, train
from scalegmn.zoo.images.collections import load_images
from scalegmn.zoo.store.verify import verify

SHAPES = [
    Cnn(32),
    Cnn(16, activation="tanh"),
    Cnn(20, (1, 5, 7), kernel=5),
    Cnn(11, (3, 4, 2), stride=1, activation="tanh", classes=3),
]


pytestmark = pytest.mark.usefixtures("one_thread")


# -- networks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_accuracy_and_loss_are_those_of_the_networks(shape: Cnn) -> None:
    torch.manual_seed(0)
    parameters = 0.3 * torch.randn(3, shape.architecture.parameters, dtype=torch.float64)
    x = torch.randn(50, shape.channels[0], shape.side, shape.side, dtype=torch.float64)
    labels = torch.randint(0, shape.classes, (50,))
    accuracy, loss = evaluate(shape, parameters, x, labels, batch=16)
    logits = Networks(shape.architecture, parameters).evaluate(x)
    torch.testing.assert_close(accuracy, (logits.argmax(2) == labels).double().mean(1))
    torch.testing.assert_close(loss, torch.stack([F.cross_entropy(one, labels) for one in logits]))


def test_images_that_are_too_small_are_refused() -> None:
    with pytest.raises(ScaleGMNError, match="8x8 is too small for 3 convolutions"):
        Cnn(8)


# -- optimisers and data -----------------------------------------------------------------------------------------------


def test_batches_go_through_the_part_once_per_epoch() -> None:
    batches = Minibatches(np.random.default_rng(0), 100, 0.25, 10)
    assert len(set(batches.part)) == 25
    epochs = np.concatenate([batches.next() for _ in range(5)]).reshape(2, 25)
    assert all(sorted(epoch) == sorted(batches.part) for epoch in epochs)
    assert not np.array_equal(*epochs)


# -- recipe ------------------------------------------------------------------------------------------------------------


def test_settings_depend_on_seed_and_index_alone_and_cover_the_recipe() -> None:
    drawn = [draw_settings(3, i, Budget(), 1000) for i in range(300)]
    assert drawn[7] == draw_settings(3, 7, Budget(), 1000) != draw_settings(4, 7, Budget(), 1000)
    assert {s.optimiser for s in drawn} == set(OPTIMISERS)
    assert {s.weight_init for s in drawn} == set(WEIGHT_INITS)
    assert {s.train_fraction for s in drawn} == set(FRACTIONS)
    assert all(50 <= s.steps <= 2000 and 0 <= s.dropout < 0.7 for s in drawn)
    epochs = draw_settings(3, 7, Budget(batch=512, epochs=86), 50_000)
    assert epochs.steps == 86 * -(-round(50_000 * epochs.train_fraction) // 512)


@pytest.mark.parametrize("kind", WEIGHT_INITS)
def test_initial_weights_have_the_spread_of_their_initialiser(kind: str) -> None:
    shape = Cnn(32)
    drawn = settings(weight_init=kind, weight_std=0.07, bias_init="normal", bias_std=0.02)
    rows = torch.stack([initial_parameters(shape, drawn, generator(0, i, 2)) for i in range(30)])
    networks = Networks(shape.architecture, rows)
    weight, bias = networks.weights[1], networks.biases[2]
    assert weight is not None
    assert bias is not None
    # A normal distribution cut off at two standard deviations is 0.88 times as wide.
    expected = {
        "glorot_normal": 0.8796 * (2 / (32 * 9)) ** 0.5,
        "he_normal": 0.8796 * (2 / 144) ** 0.5,
        "orthogonal": 1 / 12,
        "normal": 0.07,
        "truncated_normal": 0.8796 * 0.07,
    }[kind]
    assert weight.std().item() == pytest.approx(expected, rel=0.02)
    assert bias.std().item() == pytest.approx(0.02, rel=0.2)
    if kind == "orthogonal":
        gram = weight[0].flatten(1) @ weight[0].flatten(1).T
        torch.testing.assert_close(gram, torch.eye(16), atol=1e-5, rtol=0)


def test_varied_shapes_fit_their_images() -> None:
    shapes = {draw_shape(0, i, side=32, channels=1, classes=10, activation="relu", vary=True) for i in range(40)}
    assert {len(s.channels) - 1 for s in shapes} == {2, 3, 4}
    assert {s.kernel for s in shapes} == {3, 5}
    assert all(s.sides[-1] >= 1 for s in shapes)


@pytest.mark.parametrize("wrong", [{"batch": 10**9}, {"steps": (1, 10**30)}])
def test_an_absurd_budget_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ScaleGMNError, match="budget: expected batches up to"):
        Budget(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ScaleGMNError, match="epochs: expected up to"):
        draw_settings(0, 0, Budget(epochs=1e300), 1000)


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"steps": (0, 5)}, {"steps": (6, 5)}, {"epochs": 0.0}])
def test_a_wrong_budget_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ScaleGMNError, match="budget: expected batch >= 1"):
        Budget(**wrong)  # type: ignore[arg-type]


# -- training and building ---------------------------------------------------------------------------------------------


def test_networks_learn_without_compiled_code() -> None:
    source = stripes()
    images = torch.from_numpy(source.pixels[:, None])
    labels = torch.from_numpy(source.labels)
    shape = Cnn(16)
    short, long = (settings(optimiser="adam", learning_rate=0.01, steps=steps) for steps in (3, 150))
    trained = torch.stack(
        [
            train(shape, drawn, images[100:], labels[100:], seed=0, index=5, batch=32, engine="torch")
            for drawn in (short, long)
        ]
    )
    accuracy, _ = evaluate(shape, trained, images[:100].float() * (2 / 255) - 1, labels[:100])
    assert accuracy[1] > 0.6
    assert accuracy[1] > accuracy[0] + 0.2


@pytest.fixture(params=["compiled", "torch"])
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "compiled":
        if library.load(SOURCE) is None:
            pytest.skip("no compiler")
        yield request.param
    else:
        with library.disabled():
            yield request.param


def test_a_zoo_of_both_activations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    monkeypatch.setattr(cnn, "SHARD", 8)
    source = stripes()
    seen: list[int] = []

    def report(done: int, total: int, accuracy: Tensor) -> None:
        assert total == 20
        seen.append(len(accuracy))

    budget = Budget(batch=16, steps=(5, 30))
    zoo = build_cnn_zoo(source, tmp_path / "a", count=20, activation="both", budget=budget, report=report, threads=1)
    assert sum(seen) == len(zoo) == 20
    assert zoo.arguments["engine"] == engine
    assert [str(a) for a in zoo.architectures] == ["1-16-16-16-10 [relu]", "1-16-16-16-10 [tanh]"]
    assert [len(zoo.split(s)) for s in ("train", "val", "test")] == [14, 2, 4]
    assert verify(tmp_path / "a") == []
    # What the table says of each network holds for the weights that are stored.
    x = torch.from_numpy(source.pixels[:100, None]).float() * (2 / 255) - 1
    groups, positions = zoo.batches()
    labels = torch.from_numpy(source.labels[:100])
    found = torch.cat([(group.evaluate(x).argmax(2) == labels).float().mean(1) for group in groups])
    torch.testing.assert_close(found, zoo.column("test_accuracy")[positions])
    steps, wanted = zoo.column("steps"), [draw_settings(0, i, budget, 300).steps for i in range(20)]
    assert steps.tolist() == wanted
    # Threads change nothing, seeds do.
    build_cnn_zoo(source, tmp_path / "b", count=20, activation="both", budget=budget, threads=2)
    assert hashes(tmp_path / "a") == hashes(tmp_path / "b")
    build_cnn_zoo(source, tmp_path / "c", count=20, activation="both", budget=budget, seed=1)
    assert hashes(tmp_path / "a") != hashes(tmp_path / "c")
    with pytest.raises(ScaleGMNError, match="holds a zoo made with count=20, now count=21"):
        build_cnn_zoo(source, tmp_path / "a", count=21, activation="both", budget=budget)


def test_a_varied_zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cnn, "SHARD", 2)
    budget = Budget(batch=8, steps=(2, 4))
    zoo = build_cnn_zoo(stripes(), tmp_path / "z", count=8, vary=True, budget=budget, test_images=9)
    assert len(zoo.architectures) >= 3
    assert zoo.arguments["test_images"] == 9
    assert set((zoo.column("test_accuracy") * 9).round().tolist()) <= set(range(10))


def test_every_shape_of_a_varied_zoo_has_both_activations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cnn, "SHARD", 2)
    budget = Budget(batch=8, steps=(2, 4))
    zoo = build_cnn_zoo(stripes(), tmp_path / "z", count=12, activation="both", vary=True, budget=budget, test_images=9)
    shapes: dict[str, set[str]] = {}
    for a in zoo.architectures:
        kernel = a.connections[0].kernel_size
        shapes.setdefault(f"{str(a).partition(' ')[0]} {kernel}", set()).add(a.layers[1].activation.name)
    assert len(shapes) >= 2
    assert set(map(frozenset, shapes.values())) == {frozenset({"relu", "tanh"})}
    small = build_cnn_zoo(stripes(), tmp_path / "s", count=3, activation="both", budget=budget, test_images=9)
    assert small.architecture_of().bincount().tolist() != [3]


@pytest.mark.parametrize("count", [24, 25, 150])
def test_small_varied_zoos_have_many_shapes_and_both_activations(count: int) -> None:
    plan = cnn._Plan("both", True, Budget(), count, 0, cnn._pictures(load_images("digits"), 9, 0), 10, "torch")
    assert plan.starts[0] == 0
    assert plan.starts[-1] == count
    shapes: dict[tuple[tuple[int, ...], int], set[str]] = {}
    for shard in range(len(plan.starts) - 1):
        assert 0 < len(plan.rows(shard)) <= cnn.SHARD
        shape = plan.shape(shard)
        shapes.setdefault((shape.channels, shape.kernel), set()).add(shape.activation)
    assert len(shapes) >= 6
    lone = [kinds for kinds in shapes.values() if len(kinds) == 1]
    assert len(lone) <= (count == 25)  # one network that is left over cannot be two


def test_small_images_have_room_for_fewer_convolutions(tmp_path: Path) -> None:
    budget = Budget(batch=8, steps=(2, 4))
    zoo = build_cnn_zoo(load_images("digits"), tmp_path / "z", count=2, budget=budget, test_images=9)
    assert str(zoo.architecture) == "1-16-16-10 [relu]"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"activation": "sine"}, "activation: expected relu, tanh or both, got 'sine'"),
        ({"count": 0}, "expected count >= 1"),
        ({"count": 10**12}, "expected count >= 1 and at most"),
        ({"seed": 2**64}, "seed: expected a seed from 0"),
        ({"test_images": 101}, "test_images: expected 1 to 100, got 101"),
    ],
)
def test_wrong_arguments_leave_nothing_behind(tmp_path: Path, changes: dict[str, object], complaint: str) -> None:
    arguments = {"count": 4, **changes}
    with pytest.raises(ScaleGMNError, match=complaint):
        build_cnn_zoo(stripes(), tmp_path / "z", **arguments)  # type: ignore[arg-type]
    assert not (tmp_path / "z").exists()


BUILD = """
import sys
sys.path.insert(0, sys.argv[2])
from tiny_cnns import stripes
from scalegmn.zoo.cnn import build as cnn
cnn.SHARD = 8
cnn.build_cnn_zoo(stripes(), sys.argv[1], count=80, budget=cnn.Budget(batch=16, steps=(100, 200)))
"""


def test_a_killed_build_continues_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen([sys.executable, "-c", BUILD, str(killed), str(Path(tiny_cnns.__file__).parent)])
    deadline = time.monotonic() + 120
    while not (killed / "part-00001.safetensors").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (killed / "zoo.json").exists()
    first = (killed / "parameters-00000.safetensors").stat().st_mtime_ns
    monkeypatch.setattr(cnn, "SHARD", 8)
    for folder in (killed, whole):
        build_cnn_zoo(stripes(), folder, count=80, budget=Budget(batch=16, steps=(100, 200)), threads=2)
    assert (killed / "parameters-00000.safetensors").stat().st_mtime_ns == first
    assert hashes(killed) == hashes(whole)
