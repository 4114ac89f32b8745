"""The loop: what it learns, what it keeps, when it stops, and that chance has no part in it."""

from __future__ import annotations

import math
import shutil
import struct
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from tiny_runs import recipe_for, same, weights
from tiny_zoos import mixed_zoo

from scalegmn.core import canonical
from scalegmn.core.canonical import present
from scalegmn.core.networks import Networks
from scalegmn.errors import ScaleGMNError
from scalegmn.inference.trained import load
from scalegmn.models.peers.flat import FlatTrunk
from scalegmn.tasks import Classification
from scalegmn.training import loop
from scalegmn.training.data import Stream
from scalegmn.training.distributed import World
from scalegmn.training.loop import DivergedError, learning_rate, train
from scalegmn.training.progress import Progress
from scalegmn.training.recipe import Training
from scalegmn.training.run import Run
from scalegmn.training.state import load_state
from scalegmn.zoo.store.writer import ZooWriter
from scalegmn.zoo.store.zoo import Zoo


def test_a_run_directory_tells_everything(digits: Zoo, tmp_path: Path) -> None:
    results = train(recipe_for(digits.path), tmp_path / "run")
    run = Run(tmp_path / "run")
    assert run.results() == results
    assert [line["epoch"] for line in run.metrics()] == [1, 2, 3, 4]
    assert run.recipe() == recipe_for(digits.path)
    assert results["steps"] == 4 * math.ceil(48 / 10)
    assert results["stopped"] == "finished"
    assert set(results["test"]) == {"loss", "accuracy"}
    config = load(run.path).config
    assert config["versions"]["torch"] == torch.__version__
    assert config["recipe"]["seed"] == 0
    assert not list(run.path.rglob("*.tmp"))


@pytest.mark.parametrize(
    ("task", "metric"),
    [({"name": "regression", "column": "psnr"}, "r2"), ("classification", "accuracy"), ("editing", "mse")],
)
def test_every_task_is_learnt(digits: Zoo, tmp_path: Path, task: Any, metric: str) -> None:
    model = {"name": "mlp", "width": 64}
    train(recipe_for(digits.path, task=task, model=model, epochs=40, lr=3e-3, warmup=5), tmp_path / "run")
    lines = Run(tmp_path / "run").metrics()
    assert lines[-1]["train_loss"] < 0.6 * lines[0]["train_loss"]
    assert metric in lines[0]


def test_the_best_validation_picks_the_model(digits: Zoo, tmp_path: Path) -> None:
    results = train(recipe_for(digits.path, task="editing", lr=0.03, epochs=12), tmp_path / "run")
    lines = Run(tmp_path / "run").metrics()
    best = min(lines, key=lambda line: line["mse"])
    assert results["best_step"] == best["step"] != lines[-1]["step"]
    again = load(tmp_path / "run").evaluate(digits, "val").metrics
    assert again["mse"] == pytest.approx(best["mse"], rel=1e-6)
    assert [line["best"] for line in lines][lines.index(best)]


def test_of_equal_accuracies_the_lower_loss_wins(digits: Zoo, tmp_path: Path) -> None:
    results = train(recipe_for(digits.path, lr=3e-5, epochs=12), tmp_path / "run")
    lines = Run(tmp_path / "run").metrics()
    top = max(line["accuracy"] for line in lines)
    equals = [line for line in lines if line["accuracy"] == top]
    assert len(equals) > 1
    assert results["best_step"] == min(equals, key=lambda line: line["loss"])["step"] != equals[0]["step"]


def test_the_test_split_has_no_influence(digits: Zoo, tmp_path: Path) -> None:
    changed = digits.batch().parameters.clone()
    test = digits.split("test")
    changed[test] = torch.randn(len(test), changed.shape[1])
    writer = ZooWriter(tmp_path / "zoo", kind="inr", arguments={}, canvas=digits.canvas)
    names = digits.splits
    split = [names[code] for code in digits.column("split").tolist()]
    writer.append(digits.architecture, changed, {"label": digits.column("label"), "split": split})
    writer.finish()
    a = train(recipe_for(digits.path), tmp_path / "a")
    b = train(recipe_for(tmp_path / "zoo"), tmp_path / "b")
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert a["test"] != b["test"]


def test_the_seed_decides_everything(digits: Zoo, tmp_path: Path) -> None:
    options = {"augment": "scale", "noise": 0.1}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.manual_seed(len(name))
        train(recipe_for(digits.path, seed=seed, **options), tmp_path / name)
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert not same(weights(tmp_path / "a"), weights(tmp_path / "c"))


@pytest.mark.parametrize("change", [{"augment": "scale"}, {"noise": 0.5}, {"warmup": 10}, {"schedule": "cosine"}])
def test_every_setting_changes_the_result(digits: Zoo, tmp_path: Path, change: dict[str, Any]) -> None:
    train(recipe_for(digits.path), tmp_path / "plain")
    train(recipe_for(digits.path, **change), tmp_path / "other")
    plain, other = (load_state(tmp_path / name / "checkpoints") for name in ("plain", "other"))
    assert plain is not None
    assert other is not None
    assert not same(plain.model, other.model)


def test_several_architectures_train_together(mixed: Zoo, tmp_path: Path) -> None:
    recipe = recipe_for(
        mixed.path, task={"name": "regression", "column": "score", "sigmoid": True}, model="statnn", epochs=60
    )
    results = train(recipe, tmp_path / "run")
    assert results["test"]["tau"] > 0.5


# -- when it stops ---------------------------------------------------------------------------------------------


def test_patience_ends_training_early(digits: Zoo, tmp_path: Path) -> None:
    results = train(recipe_for(digits.path, task="editing", lr=0.05, epochs=100, patience=3), tmp_path / "run")
    lines = Run(tmp_path / "run").metrics()
    assert results["stopped"] == "patience"
    assert len(lines) < 100
    assert [line["best"] for line in lines[-4:]] == [True, False, False, False]


def test_processor_time_stands_still_while_the_process_sleeps(digits: Zoo, tmp_path: Path) -> None:
    began, busy = time.perf_counter(), time.process_time()
    asleep = 0.0

    class Sleepy(Progress):
        """Somebody else has the processor for a while."""

        def step(self, step: int, networks: int) -> None:
            nonlocal asleep
            if asleep < 1.5:
                time.sleep(0.3)
                asleep += 0.3

    recipe = recipe_for(digits.path, epochs=10**6, minutes=0.02, clock="cpu")
    results = train(recipe, tmp_path / "run", progress=Sleepy("mlp", quiet=True))
    assert results["stopped"] == "minutes"
    assert 1.2 <= results["seconds"] <= time.process_time() - busy + 0.1
    assert time.perf_counter() - began > results["seconds"] + 1.2


def test_minutes_end_training(digits: Zoo, tmp_path: Path) -> None:
    results = train(recipe_for(digits.path, epochs=10**6, minutes=0.02, schedule="cosine"), tmp_path / "run")
    assert results["stopped"] == "minutes"
    assert 1.2 <= results["seconds"] < 5
    lines = Run(tmp_path / "run").metrics()
    assert lines[-1]["step"] == results["steps"]
    # The schedule follows the clock: at the end the learning rate is almost 0.
    assert lines[-1]["lr"] < 1e-4


def test_steps_and_validations_can_be_counted_in_steps(digits: Zoo, tmp_path: Path) -> None:
    results = train(recipe_for(digits.path, steps=7, validate_every=3), tmp_path / "run")
    assert results["steps"] == 7
    assert [line["step"] for line in Run(tmp_path / "run").metrics()] == [3, 6, 7]


def test_a_diverging_loss_is_noticed_at_its_step_and_leaves_nothing(digits: Zoo, tmp_path: Path) -> None:
    recipe = recipe_for(digits.path, task={"name": "regression", "column": "psnr"}, lr=1e25, clip=0, epochs=50)
    with pytest.raises(DivergedError, match=r"the loss became (nan|inf) at step [1-4]; try a smaller training.lr"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_infinite_gradient_is_noticed_before_its_loss(digits: Zoo, tmp_path: Path) -> None:
    # The loss is finite still, and the gradient beyond what a float can hold the square of.
    recipe = recipe_for(digits.path, task={"name": "regression", "column": "psnr"}, lr=3e4, epochs=50)
    with pytest.raises(DivergedError, match=r"the norm of the gradient became (nan|inf) at step [1-4]; try a smaller"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_networks_without_numbers_are_named(tmp_path: Path) -> None:
    zoo = mixed_zoo(tmp_path / "zoo")
    victims = sorted(zoo.split("train")[:3].tolist())
    for shard in sorted((tmp_path / "zoo").glob("parameters-*.safetensors")):
        with safe_open(shard, "pt") as file:
            parameters = file.get_tensor("parameters")
        content = bytearray(shard.read_bytes())
        start, size = len(content) - parameters.nbytes, parameters[0].nbytes
        first = 0 if shard.name.endswith("00000.safetensors") else len(zoo) - len(parameters)
        for row in (v - first for v in victims if first <= v < first + len(parameters)):
            content[start + row * size : start + row * size + 4] = struct.pack("<f", math.nan)
        shard.write_bytes(content)
    recipe = recipe_for(zoo.path, task={"name": "regression", "column": "score"}, model="statnn")
    expected = f"has networks with NaN or infinite weights: {', '.join(map(str, victims))}; build it again"
    with pytest.raises(ScaleGMNError, match=expected):
        train(recipe, tmp_path / "run")


# -- what is refused -------------------------------------------------------------------------------------------


def test_a_run_is_not_overwritten_and_not_mixed_up(digits: Zoo, tmp_path: Path) -> None:
    train(recipe_for(digits.path, epochs=1), tmp_path / "run")
    before = weights(tmp_path / "run")
    with pytest.raises(ScaleGMNError, match="already holds a run; use --resume"):
        train(recipe_for(digits.path, epochs=1), tmp_path / "run")
    with pytest.raises(ScaleGMNError, match=r"training\.lr is 0\.5 now but was 0\.001"):
        train(recipe_for(digits.path, epochs=1, lr=0.5), tmp_path / "run", resume=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("precious")
    with pytest.raises(ScaleGMNError, match="exists and is not a run"):
        train(recipe_for(digits.path), tmp_path / "other")
    assert same(before, weights(tmp_path / "run"))


def test_a_run_goes_on_only_with_its_own_zoo(tmp_path: Path) -> None:
    recipe = recipe_for(tmp_path / "zoo", task={"name": "regression", "column": "score"}, model="statnn", epochs=1)
    mixed_zoo(tmp_path / "zoo")
    train(recipe, tmp_path / "run")
    shutil.rmtree(tmp_path / "zoo")
    mixed_zoo(tmp_path / "zoo", count=40)
    with pytest.raises(ScaleGMNError, match=r"zoo is not the zoo that .*run was begun with; build that one again"):
        train(recipe, tmp_path / "run", resume=True)


@pytest.mark.parametrize("left", [[], ["config.json"], ["config.json", "lock", ".recipe.toml.tmp"]])
def test_a_run_killed_before_its_recipe_was_written_begins_again(digits: Zoo, tmp_path: Path, left: list[str]) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for name in left:
        (tmp_path / "run" / name).write_text("{")
    assert train(recipe_for(digits.path, epochs=1), tmp_path / "run", resume=True)["steps"] == 5


def test_a_refused_run_leaves_no_directory(mixed: Zoo, tmp_path: Path) -> None:
    task = {"name": "regression", "column": "score"}
    with pytest.raises(ScaleGMNError, match="inr2vec"):
        train(recipe_for(mixed.path, task=task, model="inr2vec"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_that_fails_before_its_first_checkpoint_leaves_no_directory(digits: Zoo, tmp_path: Path) -> None:
    run = Run(tmp_path / "run")

    def fail() -> None:
        with run.alone():
            run.begin(recipe_for(digits.path), Classification.from_zoo(digits), digits)
            torch.empty(2**50)

    with pytest.raises(RuntimeError, match="memory"):
        fail()
    assert not run.path.exists()


@pytest.mark.parametrize("resume", [False, True])
def test_a_corrected_recipe_starts_where_nothing_was_trained(digits: Zoo, tmp_path: Path, resume: bool) -> None:
    run, first = Run(tmp_path / "run"), recipe_for(digits.path, epochs=1, lr=0.5)
    with run.alone():
        run.begin(first, Classification.from_zoo(digits), digits)
    assert run.exists
    corrected = recipe_for(digits.path, epochs=1)
    train(corrected, run.path, resume=resume)
    assert run.recipe() == corrected


def test_a_configuration_of_something_else_is_left_alone(digits: Zoo, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ScaleGMNError, match="exists and is not a run"):
        train(recipe_for(digits.path), tmp_path, resume=True)


def test_a_zoo_without_validation_is_refused_before_training(digits: Zoo, tmp_path: Path) -> None:
    rows = torch.cat([digits.split("train"), digits.split("test")])
    writer = ZooWriter(tmp_path / "zoo", kind="inr", arguments={})
    split = ["train"] * len(digits.split("train")) + ["test"] * len(digits.split("test"))
    columns = {"label": digits.column("label")[rows], "split": split}
    writer.append(digits.architecture, digits.batch(rows).parameters, columns)
    writer.finish()
    with pytest.raises(ScaleGMNError, match=r"split: .* has train, test; got 'val'"):
        train(recipe_for(tmp_path / "zoo"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_preparation_and_canonical_forms_need_only_the_cpu(
    digits: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def prepare(model: FlatTrunk, networks: list[Networks]) -> None:
        seen.extend([networks[0].device.type, next(model.parameters()).device.type])

    def form(networks: Networks) -> Networks:
        seen.append(networks.device.type)
        return networks

    monkeypatch.setattr(FlatTrunk, "prepare", prepare)
    monkeypatch.setattr(loop, "weights_of", lambda model: {})
    monkeypatch.setitem(canonical._FORMS, "phase", form)
    # This device stands for one that lacks float64, as MPS does.
    elsewhere = torch.device("meta")
    together, quiet, task = World(0, 1, elsewhere), Progress("", quiet=True), Classification.from_zoo(digits)
    made = loop.Trainer(recipe_for(digits.path), Run(tmp_path), digits, task, together, quiet)
    assert {p.device for p in made.model.parameters()} == {elsewhere}
    one, several = digits.batch([0]), [digits.batch([0]), digits.batch([1])]
    shown = [present(one, "phase", elsewhere), *present(several, "phase", elsewhere)]
    assert {n.device for n in shown} == {elsewhere}
    assert seen == ["cpu"] * 5


def test_a_finished_run_is_not_trained_again(digits: Zoo, tmp_path: Path) -> None:
    first = train(recipe_for(digits.path), tmp_path / "run")
    changed = (tmp_path / "run" / "model.safetensors").stat().st_mtime_ns
    assert train(recipe_for(digits.path), tmp_path / "run", resume=True) == first
    assert (tmp_path / "run" / "model.safetensors").stat().st_mtime_ns == changed


@pytest.mark.parametrize("device", ["gpu", "meta"])
def test_a_device_that_is_not_there_is_one_line(digits: Zoo, tmp_path: Path, device: str) -> None:
    with pytest.raises(ScaleGMNError, match=f"device: cannot use '{device}'"):
        train(recipe_for(digits.path, device=device), tmp_path / "run")


# -- parts -----------------------------------------------------------------------------------------------------


def test_every_epoch_sees_every_network_once() -> None:
    stream = Stream(torch.arange(100, 123), 5, seed=3)
    epochs = [torch.cat([stream.indices_of(5 * e + i) for i in range(5)]) for e in range(2)]
    for order in epochs:
        assert sorted(order.tolist()) == list(range(100, 123))
    assert not torch.equal(*epochs)


def test_the_learning_rate_warms_up_and_cools_down() -> None:
    settings = Training(lr=2.0, warmup=10, schedule="cosine")
    assert learning_rate(settings, 4, 0.0) == pytest.approx(1.0)
    assert learning_rate(settings, 50, 0.5) == pytest.approx(1.0)
    assert learning_rate(settings, 99, 1.0) == pytest.approx(0.0)
