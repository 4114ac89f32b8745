"""Two processes train as one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_runs import recipe_for, same, weights

from scalegmn.files.tensors import read_tensors
from scalegmn.training.distributed import World
from scalegmn.training.loop import train
from scalegmn.training.run import Run
from scalegmn.zoo.store.zoo import Zoo

KEEPER = """
import os
import sys
from pathlib import Path
from scalegmn.training import loop
from scalegmn.training.recipe import read_recipe
from scalegmn.files.tensors import write_tensors
from scalegmn.training.state import weights_of

class Keeper(loop.Trainer):
    def _finish(self):
        write_tensors(Path(sys.argv[2]) / f"{self.world.rank}.safetensors", weights_of(self.model))
        return super()._finish()

loop.Trainer = Keeper
loop.train(read_recipe(sys.argv[1]), sys.argv[2])
os._exit(0)  # as the command does: threads of torch.distributed may call Python while it shuts down
"""


def torchrun(*words: object) -> subprocess.CompletedProcess[str]:
    """Two processes of a script or a module."""
    # A rendezvous on a free port, so that several such tests can run at once.
    start = ["-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *start, "--nproc-per-node", "2", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_two_processes_equal_one(digits: Zoo, tmp_path: Path) -> None:
    # 48 networks in batches of 47: the last batch has one network, so one process has none.
    recipe = recipe_for(digits.path, model={"name": "mlp", "width": 16}, batch=47, epochs=5)
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    alone = train(recipe, tmp_path / "one")
    done = torchrun("-m", "scalegmn", "train", tmp_path / "recipe.toml", "--out", tmp_path / "two", "--json")
    assert done.returncode == 0, done.stderr
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        assert torch.allclose(tensor, two[name], rtol=0, atol=1e-5), name
    # Only one process wrote: one answer, one line per epoch, one checkpoint.
    results = json.loads(done.stdout)
    assert results["test"] == pytest.approx(alone["test"], abs=1e-5)
    assert [line["step"] for line in Run(tmp_path / "two").metrics()] == [2, 4, 6, 8, 10]
    assert done.stderr.count("epoch 5") == 1
    assert len(list((tmp_path / "two" / "checkpoints").iterdir())) == 1


def test_processes_that_train_by_the_clock_stay_together(digits: Zoo, tmp_path: Path) -> None:
    recipe = recipe_for(digits.path, epochs=10**6, minutes=0.02, schedule="cosine", lr=0.01)
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    (tmp_path / "keeper.py").write_text(KEEPER)
    done = torchrun(tmp_path / "keeper.py", tmp_path / "recipe.toml", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert Run(tmp_path / "run").results()["stopped"] == "minutes"
    assert same(*(read_tensors(tmp_path / "run" / f"{rank}.safetensors") for rank in range(2)))


def test_a_world_of_one_keeps_everything() -> None:
    world = World(0, 1, torch.device("cpu"))
    x = torch.arange(7)
    assert torch.equal(world.join(world.part(x), 7), x)
    assert world.total(2.5) == 2.5
    assert world.main


def test_parts_are_everything_once() -> None:
    x = torch.arange(10, 17)
    parts = [World(rank, 3, torch.device("cpu")).part(x) for rank in range(3)]
    assert sorted(torch.cat(parts).tolist()) == x.tolist()
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
