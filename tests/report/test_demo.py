"""The demonstration, small: the same steps with few networks and one epoch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scalegmn.cli.application import BAD_INPUT, OK, app, run
from scalegmn.cli.experiments.demo import TITLES
from scalegmn.report.demo import MODELS, ask_shipped

KEYS = {"accuracy", "accuracy_transformed", "seconds", "parameters"}


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["demo", "--out", str(tmp_path), "--networks", "60", "--epochs", "1"]
    assert run(app, [*command, "--json"]) == OK
    first = capsys.readouterr()
    found = json.loads(first.out)
    assert "1/4  fitting 20 small networks to digits; the trained model `mnist` reads their weights" in first.err
    assert list(found) == list(MODELS) == list(TITLES)
    assert all(row.keys() >= KEYS for row in found.values())
    for name in ("scalegmn", "scalegmn-no-probes"):
        assert found[name]["accuracy"] == found[name]["accuracy_transformed"]
        assert found[name]["answers_changed"] == 0
        assert found[name]["largest_change"] < 1e-3
    assert found["mlp"]["largest_change"] > 1e-2
    assert "</html>" in (tmp_path / "report.html").read_text()

    # Nothing is done twice, and the numbers are the same.
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    assert run(app, command) == OK
    table = capsys.readouterr().out
    assert all(title in table for title in TITLES.values())
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")} == times

    # A failure of a training process becomes one line.
    assert run(app, [*command[:-1], "2"]) == BAD_INPUT
    assert "training.epochs is 2 now but was 1" in capsys.readouterr().err


def test_the_model_that_comes_along_reads_most_fresh_networks() -> None:
    fresh = ask_shipped(12)
    assert len(fresh.answers) == len(fresh.labels) == 12
    assert fresh.right >= 8
    assert fresh.far <= 3


def test_quick_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(app, ["demo", "--quick", "--networks", "50", "--epochs", "1", "--json"]) == OK
    assert list(json.loads(capsys.readouterr().out)) == list(MODELS)
    assert (tmp_path / "demo" / "quick" / "report.html").is_file()
