"""Which runs belong together, and what they are called."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from scalegmn.errors import ScaleGMNError
from scalegmn.report.collect import collect, find_runs


def test_seeds_of_one_recipe_are_one_series(runs: Path) -> None:
    (section,) = collect([runs / "mlp-1", runs / "scalegmn", runs / "mlp-0"])
    assert [(s.label, [r.seed for r in s.runs]) for s in section.series] == [("MLP", [0, 1]), ("ScaleGMN", [0])]


def test_equal_models_are_told_apart_by_what_differs(runs: Path) -> None:
    (section,) = collect([runs / "probes", runs / "scalegmn", runs / "mlp-0"])
    assert [s.label for s in section.series] == ["ScaleGMN, probes 4", "ScaleGMN", "MLP"]


def test_tasks_and_zoos_are_sections(runs: Path) -> None:
    found = [section.task.name for section in collect([runs])]
    assert sorted(found) == ["classification", "editing", "regression"]


def test_a_directory_stands_for_the_runs_in_it(runs: Path) -> None:
    assert find_runs([runs, runs / "mlp-0"]) == sorted(path for path in runs.iterdir())


def test_a_copied_zoo_is_the_same_zoo(runs: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(runs / "mlp-1", tmp_path / "run"))
    config = json.loads((other / "config.json").read_text())
    config["recipe"]["zoo"] = "elsewhere"
    (other / "config.json").write_text(json.dumps(config))
    (section,) = collect([runs / "mlp-0", other])
    assert len(section.series) == 1


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScaleGMNError, match="holds no run"):
        collect([tmp_path])
    with pytest.raises(ScaleGMNError, match="not a directory"):
        collect([tmp_path / "nothing"])
