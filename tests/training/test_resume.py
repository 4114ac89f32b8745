"""A process that dies by SIGKILL at any moment, and one that goes on: the same model to the last bit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tiny_runs import recipe_for, same, weights
from torch import nn

from scalegmn.errors import ScaleGMNError
from scalegmn.training.loop import train
from scalegmn.training.progress import Progress
from scalegmn.training.recipe import Recipe
from scalegmn.training.run import Run
from scalegmn.training.state import Counters, State, load_state, optimizer_tensors, restore_optimizer, save_state
from scalegmn.zoo.store.zoo import Zoo

OPTIONS = {"epochs": 6, "checkpoint_every": 2, "augment": "scale", "noise": 0.1, "schedule": "cosine", "patience": 50}

_MAIN = "from scalegmn.cli import main; main()"


class Killer(Progress):
    """Kills its own process after a given step."""

    def __init__(self, step: int) -> None:
        super().__init__("doomed", quiet=True)
        self.last = step

    def step(self, step: int, networks: int) -> None:
        super().step(step, networks)
        if step == self.last:
            os.kill(os.getpid(), signal.SIGKILL)


def train_and_die(recipe: Recipe, out: Path, step: int) -> None:
    """Train in a child process that is killed after `step`."""
    child = os.fork()
    if child == 0:
        try:
            train(recipe, out, resume=True, progress=Killer(step))
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def metrics(run: Path) -> list[dict[str, float]]:
    volatile = ("seconds", "networks_per_second")
    return [{k: v for k, v in line.items() if k not in volatile} for line in Run(run).metrics()]


@pytest.fixture(scope="module")
def whole(digits: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted."""
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("whole") / "run"
    train(recipe_for(digits.path, **OPTIONS), path)
    return path


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("deaths", [[1], [2], [13], [15], [3, 4, 5, 17, 29]])
def test_killed_runs_end_in_the_same_model(digits: Zoo, whole: Path, tmp_path: Path, deaths: list[int]) -> None:
    recipe = recipe_for(digits.path, **OPTIONS)
    for step in deaths:
        train_and_die(recipe, tmp_path / "run", step)
        assert not Run(tmp_path / "run").finished
    train(recipe, tmp_path / "run", resume=True)
    assert same(weights(tmp_path / "run"), weights(whole))
    ends = [load_state(path / "checkpoints") for path in (tmp_path / "run", whole)]
    assert ends[0] is not None
    assert ends[1] is not None
    assert same(ends[0].model, ends[1].model)
    assert same(ends[0].optimizer, ends[1].optimizer)
    assert metrics(tmp_path / "run") == metrics(whole)


def test_a_killed_command_is_resumed_by_the_command(digits: Zoo, whole: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(recipe_for(digits.path, **OPTIONS).to_toml())
    out = tmp_path / "run"
    command = [sys.executable, "-m", "scalegmn", "train", str(tmp_path / "recipe.toml"), "--out", str(out), "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while process.poll() is None and not list((out / "checkpoints").glob("0*")):
        time.sleep(0.005)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    again = subprocess.run([*command, "--resume"], env=environment, capture_output=True, text=True, check=True)
    assert "continuing at step" in again.stderr
    assert json.loads(again.stdout)["steps"] == Run(whole).results()["steps"]
    assert same(weights(out), weights(whole))


@pytest.mark.parametrize(("command", "kind"), [("train", signal.SIGINT), ("sweep", signal.SIGTERM)])
def test_an_interrupted_command_says_what_can_be_resumed(
    digits: Zoo, tmp_path: Path, command: str, kind: signal.Signals
) -> None:
    recipe, out = tmp_path / "recipe.toml", tmp_path / "out"
    recipe.write_text(recipe_for(digits.path, epochs=10**6, checkpoint_every=2).to_toml())
    run = Run(out if command == "train" else out / "recipe" / "seed-0")
    words = [sys.executable, "-m", "scalegmn", command, str(recipe), "--out", str(out)]
    # A shell that starts the tests in the background has them ignore interrupts, and so would this process.
    default = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler); {_MAIN}"
    process = subprocess.Popen([words[0], "-c", default, *words[3:]], stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not run.trained:
        time.sleep(0.005)
    process.send_signal(kind)
    said = process.communicate()[1].splitlines()
    assert process.returncode == 130
    what = f"{out} is saved up to step {run.saved_step()}; --resume continues there"
    what = what if command == "train" else f"0 of 1 runs are done in {out}; the same command continues"
    assert said[-2:] == [what, "interrupted"]


def test_two_processes_do_not_train_into_one_run(digits: Zoo, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    (out / "results.json").unlink()
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with Run(out).alone(), pytest.raises(ScaleGMNError, match="another process is training in"):
        train(recipe_for(digits.path, **OPTIONS), out, resume=True)
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert train(recipe_for(digits.path, **OPTIONS), out, resume=True) == Run(whole).results()


def test_a_run_that_dies_before_its_results_only_reads_the_test_split(digits: Zoo, whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "results.json").unlink()
    again = train(recipe_for(digits.path, **OPTIONS), tmp_path / "run", resume=True)
    assert again == Run(whole).results()


# -- checkpoints -----------------------------------------------------------------------------------------------


def state(step: int) -> State:
    return State(Counters(step=step), {"w": torch.full((2,), float(step))}, {}, {}, {})


def test_only_the_newest_complete_checkpoint_counts(tmp_path: Path) -> None:
    assert load_state(tmp_path) is None
    for step in (5, 5, 7):
        save_state(tmp_path, state(step))
    assert [p.name for p in tmp_path.iterdir()] == ["000003"]
    (tmp_path / ".000004.tmp").mkdir()
    found = load_state(tmp_path)
    assert found is not None
    assert (found.counters.step, found.model["w"].tolist()) == (7, [7.0, 7.0])


def test_an_optimizer_continues_as_if_nothing_had_happened() -> None:
    def run(pause: int | None) -> torch.Tensor:
        torch.manual_seed(0)
        layer = nn.Linear(3, 3)
        optimizer = torch.optim.AdamW(layer.parameters())
        for step in range(6):
            if step == pause:
                tensors = optimizer_tensors(optimizer)
                optimizer = torch.optim.AdamW(layer.parameters())
                restore_optimizer(optimizer, tensors)
            optimizer.zero_grad()
            layer(torch.ones(1, 3) * step).square().sum().backward()
            optimizer.step()
        return layer.weight.detach()

    assert torch.equal(run(None), run(3))


def test_a_checkpoint_keeps_the_gradient_scaler_and_exact_numbers(tmp_path: Path) -> None:
    counters = Counters(step=3, loss=0.1 + 0.2, best=1 / 3, stopped="patience")
    save_state(tmp_path, State(counters, {}, {}, {}, {"scale": 65536.0, "growth_factor": 2.0}))
    found = load_state(tmp_path)
    assert found is not None
    assert found.counters == counters
    assert found.scaler == {"scale": 65536.0, "growth_factor": 2.0}
