"""Runs whose files were damaged: one line that names the file, whichever command meets it."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import recipe_for

from scalegmn.cli import app
from scalegmn.cli.application import run
from scalegmn.errors import ScaleGMNError
from scalegmn.reproduce.records import read_records
from scalegmn.training.loop import train
from scalegmn.training.run import Run
from scalegmn.zoo.store.zoo import Zoo

FILES = ["config.json", "results.json", "metrics.jsonl", "recipe.toml", "model.safetensors"]
WRONG = [None, -1, 10**30, float("nan"), "x" * 50, "\0", [], {}, [[]]]


@pytest.fixture(scope="module")
def finished(digits: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("finished") / "run"
    train(recipe_for(digits.path, epochs=1), path)
    return path


@pytest.fixture
def damaged(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def commands(path: Path, digits: Zoo) -> list[list[str]]:
    return [
        ["evaluate", str(path)],
        ["report", str(path), "-o", str(path.parent / "out.html"), "--networks", "3"],
        ["train", str(path.parent / "recipe.toml"), "--out", str(path), "--resume"],
    ]


def told(path: Path, digits: Zoo, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What the commands say that refuse; every other one succeeds."""
    found = []
    (path.parent / "recipe.toml").write_text(recipe_for(digits.path, epochs=1).to_toml())
    for words in commands(path, digits):
        code = run(app, words)
        error = capsys.readouterr().err
        assert code in (0, 2), (words, error)
        if code == 2:
            assert error.splitlines()[-1].startswith("error: "), error
            found.append(error.splitlines()[-1])
    return found


BROKEN: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "nested": lambda path: path.write_text("[" * 100_000 + "\n"),
    "digits": lambda path: path.write_text('{"step": ' + "9" * 5000 + "}\n"),
    "bytes": lambda path: path.write_bytes(b"\xff\xfe\x00" * 20 + b"\n"),
    "list": lambda path: path.write_text("[1, 2]\n"),
    "pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "folder": lambda path: (path.unlink(), path.mkdir()),
    "device": lambda path: (path.unlink(), path.symlink_to("/dev/zero")),
}


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("name", FILES)
def test_a_broken_file_is_named(
    name: str, how: str, damaged: Path, digits: Zoo, capsys: pytest.CaptureFixture[str]
) -> None:
    BROKEN[how](damaged / name)
    lines = told(damaged, digits, capsys)
    # An empty list of validations is one, and a run without its end is not finished.
    if (name, how) != ("metrics.jsonl", "empty") and how not in ("pipe", "folder", "device"):
        assert any(name in line for line in lines), lines


@pytest.mark.parametrize("name", ["config.json", "results.json"])
def test_a_wrong_value_anywhere_is_one_line(
    name: str, damaged: Path, digits: Zoo, capsys: pytest.CaptureFixture[str]
) -> None:
    whole: dict[str, Any] = json.loads((damaged / name).read_text())
    (damaged.parent / "recipe.toml").write_text(recipe_for(digits.path, epochs=1).to_toml())
    for number, key in enumerate(sorted(whole)):
        for value in (WRONG[number % len(WRONG)], WRONG[(number + 4) % len(WRONG)]):
            changed = copy.deepcopy(whole)
            changed[key] = value
            (damaged / name).write_text(json.dumps(changed))
            code = run(app, ["report", str(damaged), "-o", str(damaged.parent / "out.html"), "--networks", "3"])
            assert code in (0, 2), (key, value, capsys.readouterr().err)
        del whole[key]
        (damaged / name).write_text(json.dumps(whole))
        whole = json.loads((damaged / name).read_text())
        code = run(app, ["report", str(damaged), "-o", str(damaged.parent / "out.html"), "--networks", "3"])
        assert code in (0, 2), (key, capsys.readouterr().err)


def test_a_line_that_a_crash_cut_short_is_left_out(damaged: Path) -> None:
    before = Run(damaged).metrics()
    with (damaged / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99, "ep')
    assert Run(damaged).metrics() == before


@pytest.mark.parametrize(("key", "value"), [("seed", "x"), ("value", []), ("recipe", None), ("extra", 1)])
def test_a_record_with_a_wrong_value_is_named(tmp_path: Path, key: str, value: object) -> None:
    source = next((Path(__file__).parents[2] / "results").rglob("mnist.*.json"))
    record = json.loads(source.read_text())
    (tmp_path / source.name).write_text(json.dumps(record))
    assert len(read_records(tmp_path)) == 1
    (tmp_path / source.name).write_text(json.dumps({**record, key: value}))
    with pytest.raises(ScaleGMNError, match=source.name) as caught:
        read_records(tmp_path)
    assert "\n" not in str(caught.value)
