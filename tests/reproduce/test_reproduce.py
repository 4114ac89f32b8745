"""The paper's tables: every run has a recipe, records make the table, and nothing is computed twice."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from scalegmn.cli import app
from scalegmn.cli.application import run as command
from scalegmn.errors import ScaleGMNError
from scalegmn.inference.trained import load
from scalegmn.reproduce import experiments, render
from scalegmn.reproduce.experiments import DATASETS, METHODS, possible, recipe
from scalegmn.reproduce.records import Record, read_records
from scalegmn.reproduce.run import missing, perform
from scalegmn.reproduce.tables import TABLES, table
from scalegmn.reproduce.zoos import NAMES, Place, held_out, open_zoo
from scalegmn.training.state import read_json, write_json
from scalegmn.zoo.images.collections import load_images
from scalegmn.zoo.inr.build import Fit, build_inr_zoo

ROOT = Path(__file__).parents[2]
ALL = [(d, m) for t in TABLES.values() for d in t.datasets for m in t.methods]


@pytest.mark.parametrize(("dataset", "method"), sorted(set(ALL)))
def test_every_run_of_every_table_has_a_recipe(dataset: str, method: str) -> None:
    small = recipe(DATASETS[dataset], METHODS[method], "small", 3, Path("zoos/small"))
    assert small.seed == 3
    assert (small.training.minutes, small.training.clock) == (DATASETS[dataset].minutes, "cpu")
    assert (small.canonical == "phase") == (DATASETS[dataset].sines and METHODS[method].phase)


def test_the_paper_scale_takes_the_published_settings() -> None:
    forward = recipe(DATASETS["mnist"], METHODS["scalegmn"], "paper", 0, Path("zoos/paper"))
    both_ways = recipe(DATASETS["mnist"], METHODS["scalegmn-b"], "paper", 0, Path("zoos/paper"))
    assert (forward.model.options["width"], forward.model.options["readout"], forward.training.epochs) == (
        128,
        "output",
        150,
    )
    assert (both_ways.model.options["readout"], both_ways.training.weight_decay) == ("input+output", 0.001)
    peer = recipe(DATASETS["mnist"], METHODS["dws"], "paper", 0, Path("zoos/paper"))
    assert peer.training == forward.training


def test_the_paper_scale_has_the_datasets_of_the_paper() -> None:
    kinds = [(name, scale) for name in ("svhn-gs-tanh", "svhn-gs-both") for scale in ("small", "paper")]
    found = [possible(DATASETS[name], METHODS["scalegmn"], scale) for name, scale in kinds]
    assert found == [True, True, True, False]


def test_datasets_name_zoos_that_can_be_built() -> None:
    assert {d.zoo for d in DATASETS.values()} <= set(NAMES)
    with pytest.raises(ScaleGMNError, match="expected one of mnist"):
        open_zoo("imagenet", Place("small", Path("nowhere"), None))
    with pytest.raises(ScaleGMNError, match="scalegmn zoo images mnist"):
        open_zoo("mnist", Place("small", Path("nowhere"), None))


def test_photographs_are_not_shared_between_training_and_test() -> None:
    files = np.array([f"{i // 3}.png" for i in range(300)])
    test = held_out(files)
    assert test.sum() == 60
    assert not set(files[test]) & set(files[~test])


def _record(dataset: str, method: str, seed: int, value: float) -> Record:
    versions = {"scalegmn": "1", "torch": "2", "python": "3"}
    machine = {"processor": "a", "cores": 2, "system": "b"}
    return Record(
        dataset, method, seed, "accuracy", value, value, 1000, 5.0, 240.0, {}, versions, {"networks": 9}, machine
    )


def test_cells_hold_means_deviations_and_published_values(tmp_path: Path) -> None:
    records = [
        _record("mnist", "scalegmn", 0, 0.8),
        _record("mnist", "scalegmn", 1, 0.9),
        _record("mnist", "dws", 0, 0.7),
    ]
    data = render.table_data(table("inr-classification"), records, "small")
    rows = {row["method"]: row["cells"] for row in data["rows"]}
    assert rows["scalegmn"]["mnist"]["mean"] == pytest.approx(85.0)
    assert rows["scalegmn"]["mnist"]["std"] == pytest.approx(7.0711, abs=1e-3)
    assert rows["dws"]["mnist"]["std"] is None
    assert rows["ng-gnn"]["mnist"] == {"paper": 91.4}
    assert "statnn" not in rows
    text = render.markdown(data)
    assert "| ScaleGMN | **85.0 ± 7.1** (96.57) |" in text
    assert "| DWS | 70.0 (85.71) |" in text


def test_moved_networks_have_a_table_of_their_own() -> None:
    record = dataclasses.replace(_record("mnist", "scalegmn", 0, 0.8), moved=0.75)
    records = [record, _record("mnist", "dws", 0, 0.7)]
    data = render.table_data(table("symmetries"), records, "small")
    assert [row["method"] for row in data["rows"]] == ["scalegmn"]
    assert "| ScaleGMN | **80.0 → 75.0** |" in render.markdown(data)


def test_what_is_undefined_is_counted_and_never_averaged() -> None:
    tau = dataclasses.replace(_record("cifar10-gs-relu", "statnn", 0, 0.5), metric="tau", moved=0.3)
    undefined = dataclasses.replace(tau, seed=1, value=None, val=None)
    unasked = dataclasses.replace(tau, seed=2, value=0.9, moved=None)
    text = render.markdown(render.table_data(table("generalisation"), [tau, undefined, unasked], "small"))
    assert "0.700 ± 0.283, 1 undefined** (0.914)" in text
    text = render.markdown(render.table_data(table("symmetries"), [tau, undefined, unasked], "small"))
    assert "0.500 → 0.300, 1 undefined" in text
    text = render.markdown(render.table_data(table("symmetries"), [undefined], "small"))
    assert "1 undefined" in text


def test_lower_errors_win(tmp_path: Path) -> None:
    records = [
        dataclasses.replace(_record("dilation", m, 0, v), metric="mse") for m, v in (("dws", 0.02), ("mlp", 0.05))
    ]
    text = render.markdown(render.table_data(table("editing"), records, "small"))
    assert "| DWS | **2.00** (2.58) |" in text
    assert "**5.00**" not in text


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A zoo of digits in the place of MNIST: real networks, quickly fitted."""
    build_inr_zoo(
        load_images("digits"), tmp_path / "zoos" / "mnist", fit=Fit(hidden=(8, 8), steps=20), sizes=(40, 20, 20)
    )
    return Place("small", tmp_path / "zoos", None)


def test_runs_leave_records_and_are_not_repeated(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(experiments, "EPOCHS", 2)
    results, runs = tmp_path / "results" / "small", tmp_path / "runs"
    methods = ["mlp", "statnn"]
    todo = missing(["mnist"], methods, 2, "small", place.zoos, results)
    assert [job.name for job in todo] == ["mnist.mlp.0", "mnist.statnn.0", "mnist.mlp.1", "mnist.statnn.1"]
    perform(todo[:2], place, runs, results)
    left = missing(["mnist"], methods, 2, "small", place.zoos, results)
    assert [job.name for job in left] == ["mnist.mlp.1", "mnist.statnn.1"]
    # An option that did not exist then had its default.
    path = results / "mnist.mlp.0.json"
    old = read_json(path)
    del old["recipe"]["training"]["move"]
    write_json(path, old)
    assert left == missing(["mnist"], methods, 2, "small", place.zoos, results)
    # A record that was lost is made again from its run, without training.
    folder = runs / todo[0].folder
    before = (folder / "results.json").stat().st_mtime_ns
    path.unlink()
    perform(missing(["mnist"], ["mlp"], 1, "small", place.zoos, results), place, runs, results)
    assert (folder / "results.json").stat().st_mtime_ns == before
    first, second = read_records(results)
    assert (first.method, second.method, first.epochs) == ("mlp", "statnn", 2)
    assert first.recipe["zoo"] == "mnist"
    # Also what the model says about permuted and rescaled copies.
    copies = load(folder).evaluate(place.zoos / "mnist", "test", transform_seed=0)
    assert first.moved == copies.metrics["accuracy"]
    # Another recipe is another experiment.
    monkeypatch.setattr(experiments, "EPOCHS", 3)
    others = missing(["mnist"], methods, 1, "small", place.zoos, results)
    assert len(others) == 2
    assert others[0].folder != todo[0].folder
    options = ["--table-only", "--json", "--results", str(tmp_path / "results")]
    assert command(app, ["reproduce", "inr-classification", *options]) == 0
    shown = json.loads(capsys.readouterr().out)
    cell = next(row for row in shown["rows"] if row["method"] == "mlp")["cells"]["mnist"]
    assert cell["mean"] == pytest.approx(100 * (first.value or 0))
    # Only the rows and columns that were asked for.
    options += ["--methods", "mlp", "--datasets", "mnist,cifar10"]
    assert command(app, ["reproduce", "inr-classification", *options]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in shown["rows"]] == ["mlp"]
    assert [column["name"] for column in shown["datasets"]] == ["mnist", "cifar10"]
    # Another zoo in the same place is another experiment.
    monkeypatch.setattr(experiments, "EPOCHS", 2)
    header = read_json(place.zoos / "mnist" / "zoo.json")
    write_json(place.zoos / "mnist" / "zoo.json", {**header, "sha256": "0" * 64})
    assert len(missing(["mnist"], methods, 1, "small", place.zoos, results)) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table-9"], "table: expected one of inr-classification"),
        (["editing", "--methods", "scalegmn,foo"], "got 'foo'"),
        (["editing", "--datasets", "mnist"], "expected some of dilation; got 'mnist'"),
    ],
)
def test_bad_input(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(app, ["reproduce", *arguments, "--table-only"]) == 2
    assert message in capsys.readouterr().err


def test_the_page_in_the_documentation_is_what_the_records_say() -> None:
    shown = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert shown == render.page(ROOT / "results" / "small", "small", ROOT / "docs" / "distributions")


def test_damaged_records_are_named(tmp_path: Path) -> None:
    write_json(tmp_path / "mnist.mlp.0.json", {"dataset": "mnist"})
    with pytest.raises(ScaleGMNError, match=r"mnist\.mlp\.0\.json"):
        read_records(tmp_path)
