"""Commands that are killed, stopped or run out of disk at any moment: run again, they end in the same bytes."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from archives import saved
from moments import PHASES, Moment, Process, fill_disk, interrupt, kill, stop
from tiny_runs import recipe_for

from scalegmn.cli import app
from scalegmn.cli.application import run
from scalegmn.training.run import Run
from scalegmn.zoo.store.zoo import Zoo

pytestmark = [pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"), pytest.mark.usefixtures("one_thread")]

COMMANDS = ["zoo build", "zoo import", "train", "sweep"]
MOMENTS = 20
# A lock, and the validations of a run that had none yet.
MAY_BE_EMPTY = ("lock", "metrics.jsonl")
Whole = tuple[dict[str, str], dict[str, int]]
Wholes = Callable[[str], Whole]
# What a run says about time, which is never the same.
VOLATILE = ("results.json", "metrics.jsonl", "state.json", "sweep.json", "lock")


@pytest.fixture(scope="module")
def inputs(digits: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, checkpoints and a recipe, all very small."""
    folder = tmp_path_factory.mktemp("inputs")
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (2100, 2, 2), dtype=np.uint8)
    np.savez(folder / "images.npz", x=pixels, y=np.arange(2100) % 3)
    sizes = {"seq.0": (32, 2), "seq.1": (32, 32), "seq.2": (1, 32)}
    for i in range(10):
        place = folder / "inrs" / f"mnist_png_training_{i % 3}_{i}" / "checkpoints"
        place.mkdir(parents=True)
        state = {f"{n}.{part}": torch.randn(s if part == "weight" else s[:1]) for n, s in sizes.items()
                 for part in ("weight", "bias")}  # fmt: skip
        (place / "model_final.pth").write_bytes(saved(state))
    (folder / "recipe.toml").write_text(recipe_for(digits.path, epochs=1, batch=12, checkpoint_every=1).to_toml())
    return folder


def words_of(command: str, inputs: Path, out: Path) -> list[str]:
    recipe = str(inputs / "recipe.toml")
    images = ["--images", f"npz:{inputs / 'images.npz'}", "--hidden", "2", "--steps", "1"]
    words = {
        "zoo build": ["zoo", "build", "inr", *images, "--out", str(out)],
        "zoo import": ["zoo", "import", "mnist-inr", str(inputs / "inrs"), str(out)],
        "train": ["train", recipe, "--out", str(out), "--resume"],
        "sweep": ["sweep", recipe, "--grid", "model.width=4,8", "--out", str(out)],
    }
    return words[command]


def content(out: Path) -> dict[str, str]:
    """Hash of every file that does not tell the time; of `metrics.jsonl`, the numbers that do not."""
    found = {}
    for path in sorted(p for p in out.rglob("*") if p.is_file()):
        if path.name == "metrics.jsonl":
            lines = Run(path.parent).metrics()
            kept = [{k: v for k, v in m.items() if k not in ("seconds", "networks_per_second")} for m in lines]
            found[str(path.relative_to(out))] = json.dumps(kept)
        elif path.name not in VOLATILE:
            found[str(path.relative_to(out))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


@pytest.fixture(scope="module")
def whole(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Wholes:
    """What a command writes when nothing disturbs it, and how many calls of each phase it has; once for all tests."""
    known: dict[str, Whole] = {}

    def of(command: str) -> Whole:
        if command not in known:
            out = tmp_path_factory.mktemp("whole") / "out"
            # Once before: what is loaded at first use is loaded now.
            assert run(app, words_of(command, inputs, out.with_name("before"))) == 0
            ended = Process(words_of(command, inputs, out)).wait()
            assert ended.code == 0, ended.said
            known[command] = content(out), ended.calls
        return known[command]

    return of


@pytest.mark.parametrize("command", COMMANDS)
def test_killed_at_twenty_moments_it_ends_in_the_same_bytes(
    command: str, inputs: Path, whole: Wholes, tmp_path: Path
) -> None:
    expected, calls = whole(command)
    rng, out = random.Random(command), tmp_path / "out"
    # As many moments of each kind: most calls are work, and few are renames. Large numbers vary a little.
    last = {phase: count if count < 1000 else count * 9 // 10 for phase, count in calls.items()}
    moments = [Moment(phase, rng.randrange(last[phase])) for phase in PHASES for _ in range(MOMENTS // len(PHASES))]
    for moment in moments:
        ended = Process(words_of(command, inputs, out), moment, kill).wait()
        assert ended.code == -signal.SIGKILL, moment
        # An import is there whole or not at all, and where it is, it is not written over.
        if not (command == "zoo import" and out.exists()):
            again = Process(words_of(command, inputs, out), watched=False).wait()
            assert again.code == 0, (moment, again.said)
        assert content(out) == expected, moment
        shutil.rmtree(out)
        assert not list(tmp_path.iterdir()), moment


KEPT = {
    "zoo build": "2,100 networks are kept in {out}; the same command continues",
    "zoo import": "{out}: nothing was written",
    "train": "{out} is saved up to step 4; --resume continues there",
    "sweep": "1 of 2 runs are done in {out}; the same command continues",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_an_interrupt_says_what_is_kept(command: str, inputs: Path, whole: Wholes, tmp_path: Path) -> None:
    expected, calls = whole(command)
    out = tmp_path / "out"
    # The last write is the header of a zoo, the results of a run, or the table of a sweep after those of its last run.
    late = Moment("write", calls["write"] - (4 if command == "sweep" else 2))
    ended = Process(words_of(command, inputs, out), late, interrupt).wait()
    assert ended.code == 130, ended.said
    assert ended.said.splitlines()[-2:] == [KEPT[command].format(out=out), "interrupted"]
    assert Process(words_of(command, inputs, out), watched=False).wait().code == 0
    assert content(out) == expected


@pytest.mark.parametrize("command", COMMANDS)
def test_a_disk_that_is_full_at_any_write_is_one_line_and_loses_nothing(
    command: str, inputs: Path, whole: Wholes, tmp_path: Path
) -> None:
    expected, calls = whole(command)
    out = tmp_path / "out"
    assert calls["write"] > 6
    for write in range(calls["write"] // 2):
        ended = Process(words_of(command, inputs, out), Moment("write", 2 * write), fill_disk).wait()
        assert ended.code == 2, (write, ended.said)
        assert "cannot be written (File too large)" in ended.said.splitlines()[-1]
        assert str(tmp_path) in ended.said
        empty = [p for p in tmp_path.rglob("*") if p.is_file() and not p.stat().st_size and p.name not in MAY_BE_EMPTY]
        assert not [*empty, *tmp_path.rglob("*.tmp"), *tmp_path.rglob("*.unfinished")], write
        again = Process(words_of(command, inputs, out), watched=False).wait()
        assert again.code == 0, (write, again.said)
        assert content(out) == expected, write
        shutil.rmtree(out)


@pytest.mark.parametrize("command", COMMANDS)
def test_of_two_processes_in_one_directory_the_second_is_refused(
    command: str, inputs: Path, whole: Wholes, tmp_path: Path
) -> None:
    expected, calls = whole(command)
    out = tmp_path / "out"
    # The table of a sweep is written when its runs are done: then there is nothing to share any more.
    moments = [Moment("rename", 0), *([] if command == "sweep" else [Moment("write", calls["write"] - 1)])]
    for moment in moments:
        first = Process(words_of(command, inputs, out), moment, stop)
        first.wait_until_stopped()
        second = Process(words_of(command, inputs, out), watched=False).wait()
        os.kill(first.pid, signal.SIGCONT)
        assert first.wait().code == 0
        assert second.code == 2, second.said
        assert "another process is" in second.said.splitlines()[-1]
        assert content(out) == expected
        shutil.rmtree(out)


# -- damage between runs -----------------------------------------------------------------------------------------------


def interrupted(command: str, inputs: Path, calls: dict[str, int], out: Path) -> list[str]:
    """Leave most of the work done, and give the command that goes on."""
    words = words_of(command, inputs, out)
    assert Process(words, Moment("write", calls["write"] - 2), kill).wait().code == -signal.SIGKILL
    return words


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["parameters-00000.safetensors", "part-00000.safetensors"])
def test_a_shard_that_was_damaged_between_runs_is_made_again(
    name: str, inputs: Path, whole: Wholes, tmp_path: Path
) -> None:
    expected, calls = whole("zoo build")
    words = interrupted("zoo build", inputs, calls, tmp_path / "out")
    flip(tmp_path / "out" / name)
    assert Process(words, watched=False).wait().code == 0
    assert content(tmp_path / "out") == expected


@pytest.mark.parametrize("name", ["state.safetensors", "state.json"])
def test_a_checkpoint_that_was_damaged_between_runs_is_named(
    name: str, inputs: Path, whole: Wholes, tmp_path: Path
) -> None:
    words = interrupted("train", inputs, whole("train")[1], tmp_path / "out")
    (checkpoint,) = (tmp_path / "out" / "checkpoints").glob("[0-9]*")
    before = (checkpoint / name).read_bytes()
    if name == "state.json":
        (checkpoint / name).write_bytes(before.replace(b'"step": ', b'"step": 1'))
    else:
        flip(checkpoint / name)
    ended = Process(words, watched=False).wait()
    assert ended.code == 2
    assert f"{name}: changed since it was written (wrong checksum)" in ended.said
    (checkpoint / name).write_bytes(before)
    assert Process(words, watched=False).wait().code == 0
    assert content(tmp_path / "out") == whole("train")[0]
