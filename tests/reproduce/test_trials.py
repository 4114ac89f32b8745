"""Trials: the same for every method, on validation networks, resumed after a kill, and the winner becomes a recipe."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scalegmn.cli import app
from scalegmn.cli.application import run as command
from scalegmn.errors import ScaleGMNError
from scalegmn.files import read_object, write_json
from scalegmn.models.registry import method
from scalegmn.reproduce import render
from scalegmn.reproduce.experiments import DATASETS, METHODS, experiments, run_folder
from scalegmn.reproduce.records import matching, read_records, same_experiment
from scalegmn.reproduce.tables import TABLES, table
from scalegmn.reproduce.trials import Trial, TrialRecord, read_outcomes, trials, tried, unanswered, winner, write_winner
from scalegmn.reproduce.zoos import Folders
from scalegmn.training import recipe as recipe_module
from scalegmn.training.recipe import RECIPES, add_recipes, read_recipe, shipped
from scalegmn.zoo.images.collections import load_images
from scalegmn.zoo.inr.build import build_inr_zoo
from scalegmn.zoo.inr.conventions import Fit

ROOT = Path(__file__).parents[2]
SMALL = Folders("small", Path("zoos/small"), None)
TUNED = [name for name in TABLES if TABLES[name].tuned]
COMPARED = {"gmn", "dws", "nfn-hnp", "ng-gnn", "ng-gnn-64", "probegen", "scalegmn", "scalegmn-b"}
CANNOT = {"inr-classification": set(), "generalisation": {"dws"}, "editing": {"probegen"}}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of zoos with one of digits in the place of MNIST: real networks, quickly fitted."""
    folder = tmp_path_factory.mktemp("zoos")
    build_inr_zoo(
        load_images("digits"), folder / "small" / "mnist", fit=Fit(hidden=(8, 8), steps=20), sizes=(40, 20, 20)
    )
    return folder


@pytest.fixture(autouse=True)
def _recipes_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders that a test adds are gone after it."""
    monkeypatch.setattr(recipe_module, "_FOLDERS", [RECIPES])


@pytest.mark.parametrize("name", TUNED)
def test_every_method_that_can_has_the_same_trials(name: str) -> None:
    wanted = table(name)
    assert set(tried(wanted, "small")) == COMPARED - CANNOT[name]
    spaces = set()
    for name_of in tried(wanted, "small"):
        found, own = trials(wanted, name_of, SMALL), read_recipe(f"trials/{_folder(name)}/{name_of}")
        assert [t.number for t in found] == [0, 1, 2, 3]
        assert len({json.dumps(dict(t.changes)) for t in found}) == 4
        space = []
        for t in found:
            options, training = t.recipe.model.options, t.recipe.training
            times = options["width"] / own.model.options["width"]
            space.append((training.lr, training.weight_decay, options["dropout"], times))
            # The budget of a run, and nothing else than the space.
            (row,) = experiments(DATASETS[wanted.tuned], METHODS[name_of], 1, SMALL)
            assert (training.minutes, training.clock, t.recipe.seed) == (row.recipe.training.minutes, "cpu", 0)
            assert (training.batch, t.recipe.canonical) == (row.recipe.training.batch, row.recipe.canonical)
        spaces.add(tuple(space))
        # No method brings settings of its own that were tuned before.
        assert "gate" not in own.model.options
        assert own.training == read_recipe(f"trials/{_folder(name)}/scalegmn").training
    assert len(spaces) == 1
    # What all methods of the table share without trials is one of them.
    assert {(t[0], t[1], t[3]) for t in next(iter(spaces))} >= {(own.training.lr, own.training.weight_decay, 1.0)}


def _folder(name: str) -> str:
    return DATASETS[TABLES[name].tuned].recipes[-1]


@pytest.mark.parametrize("name", TUNED)
def test_rows_have_what_won_in_recorded_trials(name: str) -> None:
    wanted, place = table(name), dataclasses.replace(SMALL, results=ROOT / "results" / "small")
    records = read_records(place.results)
    for name_of in tried(wanted, "small"):
        best = winner(wanted, name_of, place)
        runs = experiments(DATASETS[wanted.tuned], METHODS[name_of], 2, place)
        assert runs[0].recipe == best.recipe
        for run in runs:
            (record,) = [r for r in matching(records, wanted.tuned, name_of) if r.seed == run.seed]
            assert same_experiment(record, run), run.name


def test_there_is_no_recipe_for_trials_without_a_row() -> None:
    used = {f"trials/{_folder(name)}/{m}" for name in TUNED for m in tried(table(name), "small")}
    assert {name for name in shipped() if name.startswith("trials/")} == used
    assert tried(table("probes"), "small") == ()
    assert tried(table("editing"), "paper") == ()


def test_models_of_trials_are_those_of_the_rows() -> None:
    for name in TUNED:
        for name_of in tried(table(name), "small"):
            recipe = read_recipe(f"trials/{_folder(name)}/{name_of}")
            assert method(recipe.model.name).name == name_of.replace("ng-gnn-64", "ng-gnn")
            assert recipe.model.options.get("probes", 0) in ((64, 128) if name_of[-2:] in ("64", "en") else (0,))


def _outcome(trial: Trial, val: float | None) -> TrialRecord:
    return TrialRecord(
        dataset=trial.dataset.name,
        method=trial.method.name,
        number=trial.number,
        changes=dict(trial.changes),
        metric=trial.dataset.metric,
        val=val,
        epochs=1.0,
        seconds=2.0,
        recipe={**trial.recipe.to_dict(), "zoo": trial.dataset.zoo},
        versions={"scalegmn": "1", "torch": "2", "python": "3"},
        zoo={"sha256": "0"},
        machine={"processor": "a", "cores": 2, "system": "b"},
    )


def _note(results: Path, name: str, name_of: str, values: list[float | None]) -> None:
    (results / "trials").mkdir(parents=True, exist_ok=True)
    for trial, value in zip(trials(table(name), name_of, SMALL), values, strict=True):
        write_json(results / "trials" / f"{trial.name}.json", vars(_outcome(trial, value)))


def test_the_best_on_validation_wins_and_equals_go_to_the_first(tmp_path: Path) -> None:
    place = dataclasses.replace(SMALL, results=tmp_path)
    for name, name_of, values, best in (
        ("inr-classification", "dws", [0.5, None, 0.7, 0.7], 2),
        ("editing", "dws", [0.05, 0.02, 0.02, 0.09], 1),
        ("generalisation", "ng-gnn", [None, None, -0.1, -0.2], 2),
    ):
        _note(tmp_path, name, name_of, values)
        assert winner(table(name), name_of, place).number == best
        assert unanswered(table(name), [name_of], place) == []
    # A trial with other settings is another trial.
    assert len(unanswered(table("editing"), ["dws"], place, minutes=0.5)) == 4
    with pytest.raises(ScaleGMNError, match=r"dilation\.gmn\.0 has no record"):
        winner(table("editing"), "gmn", place)
    write_json(tmp_path / "trials" / "mnist.mlp.0.json", {"dataset": "mnist"})
    with pytest.raises(ScaleGMNError, match=r"mnist\.mlp\.0\.json: not a record of a trial"):
        read_outcomes(tmp_path)


def test_what_wins_is_the_recipe_of_all_columns(tmp_path: Path) -> None:
    wanted = table("inr-classification")
    before = read_recipe("small/inr/scalegmn-no-phase")
    best = next(t for t in trials(wanted, "scalegmn", SMALL) if t.recipe.training.lr != before.training.lr)
    written = write_winner(wanted, best, tmp_path, "small")
    assert [path.relative_to(tmp_path).as_posix() for path in written] == [
        "small/inr/scalegmn.toml",
        "small/cifar10/scalegmn.toml",
    ]
    add_recipes(tmp_path)
    for name in wanted.datasets:
        (asked,) = experiments(DATASETS[name], METHODS["scalegmn"], 1, SMALL)
        assert asked.recipe.model_copy(update={"zoo": best.recipe.zoo}) == best.recipe
        # The run of the trial is that of the first seed, in the same folder: it is not trained again.
        assert asked.recipe.zoo == f"zoos/small/{DATASETS[name].zoo}"
        if name == wanted.tuned:
            assert run_folder(asked.name, asked.recipe) == best.folder
    text = written[0].read_text()
    assert text.startswith("# ScaleGMN: the best of its trials on the validation networks of MNIST.\nbase = ")
    assert len(text.splitlines()) <= 20
    # Rows that vary the method build on its recipe, and have what won as well; another method stays as it is.
    after = read_recipe("small/inr/scalegmn-no-phase")
    assert after.training.lr == best.changes["training.lr"]
    assert after.canonical == "none"
    assert read_recipe("small/inr/dws") == read_recipe(RECIPES / "small" / "inr" / "dws.toml")


def test_tables_and_pages_tell_of_trials(tmp_path: Path) -> None:
    _note(tmp_path, "editing", "dws", [0.05, 0.02, 0.03, 0.09])
    data = render.table_data(table("editing"), [], "small", outcomes=read_outcomes(tmp_path))
    assert data["trials"]["dws"]["won"] == 1
    assert data["trials"]["dws"]["values"] == {"0": 0.05, "1": 0.02, "2": 0.03, "3": 0.09}
    (line,) = render.footers(data)
    assert line == (
        "Settings of DWS: of each the best of 4 trials, the same for all, on the validation networks of "
        "Dilation of MNIST, MSE x 100."
    )
    assert "were tuned with the same trials" in render.results_page(tmp_path, "small")
    shutil.rmtree(tmp_path / "trials")
    assert "were tuned with the same trials" not in render.results_page(tmp_path, "small")


def _words(zoo: Path, out: Path, *more: str) -> list[str]:
    folders = [f"--{kind}={out / kind}" for kind in ("runs", "results", "recipes")]
    return ["reproduce", "inr-classification", "--tune", f"--zoos={zoo}", *folders, "--datasets=mnist", *more]


def _start(words: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "scalegmn", *words],
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def test_a_killed_search_goes_on_and_ends_in_recipes_and_rows(
    zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = _words(zoo, tmp_path, "--methods=dws", "--minutes=0.01", "--jobs=2", "--json")
    records = tmp_path / "results" / "small" / "trials"
    first = _start(words, tmp_path / "first.log")
    deadline = time.monotonic() + 600
    while not list(records.glob("*.json")):
        assert first.poll() is None, (tmp_path / "first.log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    # Only the command dies; what it started lives on for a moment, and holds the locks of its runs.
    first.send_signal(signal.SIGKILL)
    first.wait()
    done = {path: path.read_bytes() for path in records.glob("*.json")}
    assert list((tmp_path / "recipes").rglob("*.toml")) == []
    second = _start(words, tmp_path / "second.log")
    assert second.wait(timeout=600) == 0, (tmp_path / "second.log").read_text()
    log = (tmp_path / "second.log").read_text()
    assert f"{4 - len(done)} trials to do" in log
    outcomes = read_outcomes(tmp_path / "results" / "small")
    assert [(o.method, o.number) for o in outcomes] == [("dws", number) for number in range(4)]
    assert all(path.read_bytes() == content for path, content in done.items())
    assert "test" not in json.dumps([vars(o) for o in outcomes])
    best = max(outcomes, key=lambda o: (o.val or 0.0, -o.number))
    recipe = read_recipe(tmp_path / "recipes" / "small" / "inr" / "dws.toml")
    assert recipe.training.lr == best.changes["training.lr"]
    assert recipe.model.options["dropout"] == best.changes["model.dropout"]
    # Two seeds of the winner; the first is the trial itself.
    rows = read_records(tmp_path / "results" / "small")
    assert [(r.method, r.seed) for r in rows] == [("dws", 0), ("dws", 1)]
    assert rows[0].val == best.val
    assert rows[0].recipe["training"]["lr"] == best.changes["training.lr"]
    # Once more: there is nothing left to do.
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "results").rglob("*.json")}
    assert command(app, words) == 0
    shown = capsys.readouterr()
    assert "0 trials to do" in shown.err
    assert "0 runs to do" in shown.err
    assert json.loads(shown.out)["trials"]["dws"]["won"] == best.number
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "results").rglob("*.json")} == before


def test_what_cannot_be_tuned_is_one_line(zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, complaint in (
        (["reproduce", "editing", "--tune"], "--tune: expected --recipes FOLDER as well"),
        (["reproduce", "probes", "--tune", "--recipes", "r"], "no method of probes has trials at the small scale"),
        (_words(zoo, tmp_path, "--methods=mlp"), "methods: expected some of gmn,dws"),
        (_words(zoo, tmp_path, "--scale=paper"), "no method of inr-classification has trials at the paper scale"),
    ):
        assert command(app, words) == 2
        assert complaint in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_trials_of_another_zoo_do_not_count(zoo: Path, tmp_path: Path) -> None:
    wanted, place = table("inr-classification"), Folders("small", zoo / "small", None, results=tmp_path)
    sha256 = read_object(zoo / "small" / "mnist" / "zoo.json")["sha256"]
    (tmp_path / "trials").mkdir()
    for trial in trials(wanted, "dws", place):
        outcome = dataclasses.replace(_outcome(trial, 0.5), zoo={"sha256": sha256 if trial.number else "1"})
        write_json(tmp_path / "trials" / f"{trial.name}.json", vars(outcome))
    assert [t.number for t in unanswered(wanted, ["dws"], place)] == [0]


def test_shipped_recipes_follow_when_the_package_is_the_folder() -> None:
    """Rows that vary a method build on its recipe, so that they have what won as well."""
    for name in ("dws-augmented", "nfn-hnp-augmented", "scalegmn-no-phase", "ng-gnn-64-moved", "probegen-moved"):
        text = (RECIPES / "small" / "inr" / f"{name}.toml").read_text()
        parent = name.replace("-augmented", "").replace("-no-phase", "").replace("-moved", "")
        assert f'base = "small/inr/{parent}"' in text
