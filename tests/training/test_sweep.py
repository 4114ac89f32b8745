"""Sweeps: the grid, what is skipped, what is refused, the table, and the same on Ray."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_runs import recipe_for, same, weights

from scalegmn.cli import app
from scalegmn.cli.application import run
from scalegmn.errors import ScaleGMNError
from scalegmn.training.run import Run
from scalegmn.training.sweep import Outcome, Point, parse_grid, points, ranked, run_here, run_on_ray
from scalegmn.zoo.store.zoo import Zoo


def values(zoo: Zoo, **changes: Any) -> dict[str, Any]:
    return recipe_for(zoo.path, epochs=1, **changes).to_dict()


def collect(todo: list[Point]) -> dict[Point, Outcome]:
    found: dict[Point, Outcome] = {}
    run_here(todo, found.__setitem__)
    return found


def test_the_grid_is_every_combination_with_every_seed(digits: Zoo, tmp_path: Path) -> None:
    grid = parse_grid(["training.lr=1e-3,1e-2", "model.width=4,8,16"])
    todo = points(values(digits, seed=5), grid, 2, tmp_path)
    assert len(todo) == 12
    assert len({p.path for p in todo}) == 12
    assert {(p.recipe.training.lr, p.recipe.model.options["width"], p.recipe.seed) for p in todo} == {
        (lr, width, seed) for lr in (1e-3, 1e-2) for width in (4, 8, 16) for seed in (5, 6)
    }
    few = points(values(digits), grid, 1, tmp_path, sample=2)
    assert len(few) == 2
    assert few == points(values(digits), grid, 1, tmp_path, sample=2)


def test_a_grid_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text('seed = [1, 2]\n[model]\nname = ["mlp", "statnn"]\n')
    assert parse_grid([str(path), "seed=3"]) == {"seed": [3], "model.name": ["mlp", "statnn"]}
    path.write_text("[model]\nname = 3\n")
    with pytest.raises(ScaleGMNError, match=r"model\.name: expected a list of values, got 3"):
        parse_grid([str(path)])
    for wrong in ("training.lr", "lr=", "=1,2"):
        with pytest.raises(ScaleGMNError, match="--grid: expected key=a,b,c or a TOML file"):
            parse_grid([wrong])


def test_a_wrong_value_anywhere_is_found_before_anything_runs(digits: Zoo, tmp_path: Path) -> None:
    with pytest.raises(ScaleGMNError, match=r"training\.lr: input should be a valid number"):
        points(values(digits), parse_grid(["training.lr=1e-3,fast"]), 1, tmp_path / "out")
    with pytest.raises(ScaleGMNError, match="sweep: expected at most 100000 runs"):
        points(values(digits), parse_grid(["training.lr=1e-3"]), 10**30, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_sweep_goes_on_where_it_stopped(digits: Zoo, tmp_path: Path) -> None:
    todo = points(values(digits), parse_grid(["model.width=4,8"]), 2, tmp_path)
    collect(todo[:3])
    times = [(p.path / "model.safetensors").stat().st_mtime_ns for p in todo[:3]]
    outcomes = collect(todo)
    assert [(p.path / "model.safetensors").stat().st_mtime_ns for p in todo[:3]] == times
    rows = ranked(outcomes)
    assert [row["runs"] for row in rows] == [2, 2]
    first = [outcomes[p]["val"]["accuracy"] for p in todo if p.changes == tuple(rows[0]["changes"])]
    assert rows[0]["val"]["mean"] == pytest.approx(sum(first) / 2)
    assert rows[0]["val"]["std"] == pytest.approx(abs(first[0] - first[1]) / 2**0.5)


def test_the_best_validation_comes_first_in_either_direction() -> None:
    def rows(task: str, metric: str) -> list[float]:
        recipe: Any = None
        outcomes: dict[Point, Outcome] = {
            Point((f"a={v}",), 0, recipe, Path()): {
                "task": task, "metric": metric, "val": {metric: v}, "test": {metric: v}, "seconds": 1.0
            }
            for v in (0.5, 0.9, 0.1)
        }  # fmt: skip
        outcomes[Point(("a=bad",), 0, recipe, Path())] = {"error": "diverged"}
        return [row["val"]["mean"] for row in ranked(outcomes)]

    assert rows("classification", "accuracy") == [0.9, 0.5, 0.1, None]
    assert rows("editing", "mse") == [0.1, 0.5, 0.9, None]


def test_a_run_that_diverges_is_counted_and_the_others_go_on(digits: Zoo, tmp_path: Path) -> None:
    task = {"name": "regression", "column": "psnr"}
    todo = points(values(digits, task=task, clip=0), parse_grid(["training.lr=1e25,1e-3"]), 1, tmp_path)
    rows = ranked(collect(todo))
    assert [(row["runs"], row["failed"]) for row in rows] == [(1, 0), (0, 1)]


def test_a_missing_zoo_ends_the_sweep(digits: Zoo, tmp_path: Path) -> None:
    with pytest.raises(ScaleGMNError, match=r"nowhere holds no zoo\.json"):
        collect(points({**values(digits), "zoo": "nowhere"}, {}, 1, tmp_path))


def sweep_words(zoo: Zoo, folder: Path, *options: str) -> list[str]:
    """A sweep on the command line, over a recipe of one epoch."""
    (folder / "recipe.toml").write_text(recipe_for(zoo.path, epochs=1).to_toml())
    return ["sweep", str(folder / "recipe.toml"), *options, "--out", str(folder / "out")]


def test_the_command_writes_a_table(digits: Zoo, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = sweep_words(digits, tmp_path, "--grid", "model.width=4,8")
    assert run(app, words) == 0
    out, err = capsys.readouterr()
    assert "model.width" in out
    assert "±" in out
    assert "2/2" in err
    assert run(app, [*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "out" / "sweep.json").read_text())["rows"] == answer["rows"]


def test_a_refused_run_ends_the_sweep_and_leaves_its_table(
    digits: Zoo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = sweep_words(digits, tmp_path, "--grid", "model.width=4,8")
    assert run(app, words) == 0
    before = (tmp_path / "out" / "sweep.json").read_bytes()
    assert run(app, [*words, "--set", "training.lr=0.5"]) == 2
    assert "training.lr is 0.5 now but was 0.001" in capsys.readouterr().err
    assert (tmp_path / "out" / "sweep.json").read_bytes() == before


def test_a_metric_that_is_no_number_is_a_dash(
    digits: Zoo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = sweep_words(digits, tmp_path, "--seeds", "2")
    assert run(app, words) == 0
    path = tmp_path / "out" / "recipe" / "seed-0" / "results.json"
    results = json.loads(path.read_text())
    path.write_text(json.dumps({**results, "val": {"accuracy": None}}))
    capsys.readouterr()
    assert run(app, words) == 0
    out, err = capsys.readouterr()
    assert "seed 0  val accuracy -\n" in err
    assert out.splitlines()[1].split()[:2] == ["2", "-"]


def test_a_local_cluster_is_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    ray = SimpleNamespace(init=lambda **options: seen.update(options), remote=lambda **_: id, shutdown=lambda: None)
    monkeypatch.setitem(sys.modules, "ray", ray)
    run_on_ray([], lambda point, outcome: None, "local")
    assert seen["address"] == "local"


def test_ray_gives_the_same_models(digits: Zoo, tmp_path: Path) -> None:
    # Relative paths, which a worker must take as the command does.
    recipe = recipe_for(Path("zoo"), epochs=1)
    (tmp_path / "zoo").symlink_to(digits.path)
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    here = collect(points(values(digits), parse_grid(["model.width=4,8"]), 1, tmp_path / "here"))
    words = ["sweep", "recipe.toml", "--grid", "model.width=4,8", "--out", "ray", "--ray", "local", "--json"]
    command = [sys.executable, "-m", "scalegmn", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["rows"]) == 2
    for point in here:
        other = tmp_path / "ray" / point.path.relative_to(tmp_path / "here")
        assert Run(other).finished
        assert same(weights(point.path), weights(other))
