"""The paper's tables: every run has a recipe, records make the table, and nothing is computed twice."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scalegmn.cli import app
from scalegmn.cli.application import run as command
from scalegmn.errors import ScaleGMNError
from scalegmn.files import read_object, write_json
from scalegmn.inference.trained import load
from scalegmn.models.registry import method as named
from scalegmn.reproduce import render
from scalegmn.reproduce.experiments import DATASETS, METHODS, Experiment, experiments, recipe_file, run_folder
from scalegmn.reproduce.records import Record, read_records, same_experiment
from scalegmn.reproduce.run import missing, perform, tuned
from scalegmn.reproduce.tables import TABLES, table
from scalegmn.reproduce.zoos import NAMES, Folders, collection, held_out, open_zoo
from scalegmn.tasks import task_class
from scalegmn.training.recipe import read_recipe, shipped
from scalegmn.training.run import Run
from scalegmn.zoo.images.collections import load_images
from scalegmn.zoo.inr.build import build_inr_zoo
from scalegmn.zoo.inr.conventions import Fit

ROOT = Path(__file__).parents[2]
# Rows of the paper's scale alone.
FULL = {m for m in METHODS if "-ours" in m or re.search("-[0-9]+k$", m)}
ALL = [(d, m) for t in TABLES.values() for d in t.datasets for m in t.methods]


SMALL = Folders("small", Path("zoos/small"), None)
PAPER = Folders("paper", Path("zoos/paper"), None)


@pytest.mark.parametrize("dataset", sorted({d for d, _ in ALL}))
def test_every_row_of_every_table_is_a_recipe_file(dataset: str) -> None:
    """A method without a recipe cannot do the task: it cannot edit, or read convolutions, or is only published."""
    published = {"ng-t-64", *(("ng-t",) if "-gs-" in dataset else ()), *FULL}
    for method in sorted({m for d, m in ALL if d == dataset} - published):
        runs = experiments(DATASETS[dataset], METHODS[method], 4, SMALL)
        if not runs:
            kind = named(method.removesuffix("-augmented"))
            assert (dataset == "dilation" and not kind.edits) or not kind.convolutions
            continue
        assert [run.recipe.seed for run in runs] == [0, 1, 2, 3]
        recipe = runs[3].recipe
        assert recipe.zoo == f"zoos/small/{DATASETS[dataset].zoo}"
        assert (recipe.training.clock, recipe.training.minutes) == ("cpu", 1.0 if "-gs-" in dataset else 2.0)
        assert (recipe.canonical == "phase") == ("-gs-" not in dataset and "no-phase" not in method)
        assert task_class(recipe.task.name).metric == DATASETS[dataset].metric


def test_what_a_row_is_named_after_is_what_its_recipe_trains() -> None:
    files = {recipe_file(DATASETS[d], METHODS[m], scale) for d, m in ALL for scale in ("small", "paper")}
    for file in sorted(files - {None}):
        recipe, name = read_recipe(file), file.rpartition("/")[2]
        details = "-64|-128|-4|-8|-[0-9]+k|-activations|-corrected|-ours|-moved|-augmented|-no-phase"
        kind = re.sub(f"({details})+$", "", name).replace("scalegmn-reciprocal", "scalegmn-b")
        assert recipe.model.name == kind
        assert (recipe.training.augment == "scale") == ("-augmented" in name)
        assert (recipe.training.move > 0) == ("-moved" in name)
        probes = int(found[1]) if (found := re.search(r"-(64|128)(-|$)", name)) else 0
        assert recipe.model.options.get("probes", 0) == probes or name.startswith("probegen")
        assert ("-activations" in name) == (recipe.model.options.get("messages") == "activations")
        assert ("-corrected" in name) == ("corrections" in recipe.model.options)


def test_no_recipe_of_the_small_scale_is_left_over() -> None:
    used = {recipe_file(DATASETS[d], METHODS[m], scale) for d, m in ALL for scale in ("small", "paper")}
    assert {name for name in shipped() if name.startswith("small/") or "-ours" in name} <= used


def test_rows_in_our_settings_have_one_core_for_a_budget_that_can_be_changed() -> None:
    for dataset, method in (("mnist", "scalegmn-ours-moved"), ("dilation", "scalegmn-b-64-8-ours")):
        (plain,), (short,) = (experiments(DATASETS[dataset], METHODS[method], 1, PAPER, m) for m in (None, 3.0))
        assert plain.recipe.training.clock == "cpu"
        assert (plain.recipe.training.minutes, short.recipe.training.minutes)[1] == 3.0
        assert plain.recipe.training.minutes == (35 if dataset == "mnist" else 240)
    counts = [experiments(DATASETS["cifar10"], METHODS[m], 1, PAPER)[0] for m in table("learning-curve").methods]
    assert [e.recipe.training.networks for e in counts] == [1000, 3000, 10_000, 30_000, None]


def test_the_paper_scale_takes_the_published_settings() -> None:
    (forward,) = experiments(DATASETS["mnist"], METHODS["scalegmn"], 1, PAPER)
    (both_ways,) = experiments(DATASETS["mnist"], METHODS["scalegmn-b"], 1, PAPER)
    assert (forward.recipe.model.options["width"], forward.recipe.training.epochs) == (128, 150)
    assert both_ways.recipe.model.options["readout"] == "input+output"
    (peer,) = experiments(DATASETS["mnist"], METHODS["dws"], 1, PAPER)
    assert (peer.recipe.training.lr, peer.recipe.canonical) == (5e-3, "none")


def test_the_paper_scale_has_the_datasets_of_the_paper() -> None:
    kinds = [(name, scale) for name in ("svhn-gs-tanh", "svhn-gs-both") for scale in ("small", "paper")]
    found = [recipe_file(DATASETS[name], METHODS["scalegmn"], scale) is not None for name, scale in kinds]
    assert found == [True, True, True, False]


def test_every_record_belongs_to_an_experiment() -> None:
    records = read_records(ROOT / "results" / "small")
    assert len(records) >= 199
    for record in records:
        runs = experiments(DATASETS[record.dataset], METHODS[record.method], record.seed + 1, SMALL)
        assert runs[-1].name == f"{record.dataset}.{record.method}.{record.seed}"
        assert same_experiment(record, runs[-1]), f"{runs[-1].name}: a record of other settings than the recipe has now"


def test_datasets_name_zoos_that_can_be_built() -> None:
    assert {d.zoo for d in DATASETS.values()} <= set(NAMES)
    with pytest.raises(ScaleGMNError, match="expected one of mnist"):
        open_zoo("imagenet", Folders("small", Path("nowhere"), None))
    with pytest.raises(ScaleGMNError, match="scalegmn zoo images mnist"):
        open_zoo("mnist", Folders("small", Path("nowhere"), None))


def test_published_collections_take_the_place_of_our_zoos(tmp_path: Path) -> None:
    shapes = {0: (32, 2), 1: (32, 32), 2: (1, 32)}
    colours = {"net.0.linear": (32, 2), "net.1.linear": (32, 32), "net.2": (3, 32)}

    def save(path: Path, layers: dict[str, tuple[int, int]]) -> None:
        path.parent.mkdir(parents=True)
        state = {f"{name}.weight": torch.randn(shape) / 30 for name, shape in layers.items()}
        torch.save(state | {f"{name}.bias": torch.zeros(shape[0]) for name, shape in layers.items()}, path)

    given = tmp_path / "published"
    for i in range(24):
        name = f"mnist_png_{'testing' if i < 4 else 'training'}_{i % 10}_{i}"
        layers = {f"seq.{k}": shape for k, shape in shapes.items()}
        save(given / "mnist-inrs" / name / "checkpoints" / "model_final.pth", layers)
    for label, number, view in ((7, 1, ""), (3, 45_001, ""), (1, 50_001, ""), (7, 1, "aug0_")):
        save(given / "siren_cifar_wts" / f"randinit_smaller_{view}{label}s" / f"net{number}.pth", colours)
    (given / "cifar10").mkdir()
    place = Folders("paper", tmp_path / "zoos", None, None, given)
    zoo = open_zoo("mnist", place)
    assert (len(zoo), zoo.path.name) == (24, "mnist-published")
    (asked,) = experiments(DATASETS["mnist"], METHODS["dws"], 1, place)
    assert asked.recipe.zoo == str(zoo.path)
    # One view of each image is a part of the collection; our own zoo takes the place of one that is not there.
    assert [len(open_zoo(name, place)) for name in ("cifar10-views", "cifar10")] == [4, 3]
    assert collection("cifar10-gs-relu", place) is None
    assert collection("fashion-mnist", place) is None
    (given / "cifar10" / "weights.npy").touch()
    assert collection("cifar10-gs-both", place) == given / "cifar10"


def test_photographs_are_not_shared_between_training_and_test() -> None:
    files = np.array([f"{i // 3}.png" for i in range(300)])
    test = held_out(files)
    assert test.sum() == 60
    assert not set(files[test]) & set(files[~test])


def _record(dataset: str, method: str, seed: int, value: float) -> Record:
    versions = {"scalegmn": "1", "torch": "2", "python": "3"}
    machine = {"processor": "a", "cores": 2, "system": "b"}
    return Record(
        dataset=dataset,
        method=method,
        seed=seed,
        metric="accuracy",
        value=value,
        val=value,
        parameters=1000,
        epochs=5.0,
        seconds=240.0,
        recipe={},
        versions=versions,
        zoo={"networks": 9},
        machine=machine,
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
    assert rows["ng-gnn"]["mnist"] == {"paper": 91.4, "paper_std": 0.6}
    assert rows["probegen"]["mnist"] == {"paper": 98.4, "paper_std": None}
    assert rows["ng-t-64"] == {
        "mnist": {"paper": 97.3, "paper_std": 0.2},
        "fashion-mnist": {"paper": 74.8, "paper_std": 0.9},
    }
    assert "statnn" not in rows
    text = render.markdown(data)
    assert "| ScaleGMN | **85.0 ± 7.1** (96.57 ± 0.1) |" in text
    assert "| DWS | 70.0 (85.71 ± 0.57) |" in text
    assert "| ProbeGen | (98.4) | (87.7) |" in text
    assert "tau" not in text


def test_transformed_networks_have_a_table_of_their_own() -> None:
    record = dataclasses.replace(_record("mnist", "scalegmn", 0, 0.8), transformed=0.75)
    records = [record, _record("mnist", "dws", 0, 0.7)]
    data = render.table_data(table("symmetries"), records, "small")
    assert [row["method"] for row in data["rows"]] == ["scalegmn"]
    assert "| ScaleGMN | **80.0 → 75.0** |" in render.markdown(data)


def test_what_is_undefined_is_counted_and_never_averaged() -> None:
    tau = dataclasses.replace(_record("cifar10-gs-relu", "statnn", 0, 0.5), metric="tau", transformed=0.3)
    undefined = dataclasses.replace(tau, seed=1, value=None, val=None)
    unasked = dataclasses.replace(tau, seed=2, value=0.9, transformed=None)
    text = render.markdown(render.table_data(table("generalisation"), [tau, undefined, unasked], "small"))
    assert "0.700 ± 0.283, 1 undefined** (0.914 ± 0.001)" in text
    text = render.markdown(render.table_data(table("symmetries"), [tau, undefined, unasked], "small"))
    assert "0.500 → 0.300, 1 undefined" in text
    text = render.markdown(render.table_data(table("symmetries"), [undefined], "small"))
    assert "1 undefined" in text


def _told(data: dict[str, Any]) -> list[str]:
    """The lines below a table, except that these records have no recipe."""
    return [line for line in render.footers(data) if not line.startswith("Older, ")]


def test_the_cap_of_tau_stands_below_the_table() -> None:
    record = dataclasses.replace(_record("cifar10-gs-relu", "statnn", 0, 0.5), metric="tau")
    told = dataclasses.replace(record, zoo={"networks": 9, "sha256": "a", "tau_cap": 0.98765})
    expected = "Largest tau that equal accuracies allow: CIFAR-10-GS ReLU 0.988."
    assert _told(render.table_data(table("generalisation"), [told], "small")) == [expected]
    # A record from before says nothing, but its zoo is here.
    silent = dataclasses.replace(record, zoo={"networks": 9, "sha256": "a"})
    assert _told(render.table_data(table("generalisation"), [silent], "small", None, {"a": 0.9876})) == [expected]
    assert _told(render.table_data(table("generalisation"), [silent], "small", None, {"b": 0.9})) == []


def test_a_row_says_in_what_it_is_not_the_papers_model() -> None:
    def record(dataset: str, method: str, **model: object) -> Record:
        found = _record(dataset, method, 0, 0.5)
        return dataclasses.replace(found, recipe={"model": {"name": method, **model}})

    records = [
        record("mnist", "scalegmn", edge_updates=False, gate=16),
        record("cifar10", "scalegmn", edge_updates=False),
        *(record("mnist", f"scalegmn-ours{more}", edge_updates=False, gate=16) for more in ("", "-moved")),
        record("mnist", "scalegmn-b", edge_updates=True, form="paper"),
        # Of a peer the paper says nothing.
        record("mnist", "gmn", edge_updates=False, gate=16),
    ]
    assert _told(render.table_data(table("inr-classification"), records, "small")) == [
        "Not the paper's model: ScaleGMN: our form of its equations, edges are not updated, "
        "nets on edges have 16 hidden neurons on MNIST.",
        "Not the paper's model: ScaleGMN, our settings; ScaleGMN, our settings, inputs moved: "
        "our form of its equations, edges are not updated, nets on edges have 16 hidden neurons.",
    ]


def test_lower_errors_win(tmp_path: Path) -> None:
    found = [_record("dilation", name, 0, value) for name, value in (("dws", 0.02), ("mlp", 0.05))]
    records = [dataclasses.replace(record, metric="mse") for record in found]
    text = render.markdown(render.table_data(table("editing"), records, "small"))
    assert "| DWS | **2.00** (2.58 ± 0) |" in text
    assert "**5.00**" not in text


@pytest.fixture
def place(tmp_path: Path) -> Folders:
    """A zoo of digits in the place of MNIST: real networks, quickly fitted."""
    build_inr_zoo(
        load_images("digits"), tmp_path / "zoos" / "mnist", fit=Fit(hidden=(8, 8), steps=20), sizes=(40, 20, 20)
    )
    results, runs = tmp_path / "results" / "small", tmp_path / "runs"
    return Folders("small", tmp_path / "zoos", None, results=results, runs=runs)


def test_runs_leave_records_and_are_not_repeated(
    place: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, runs = place.results, place.runs
    methods = ["mlp", "statnn"]

    def left(names: list[str], seeds: int, minutes: float = 0.01) -> list[Experiment]:
        return missing(["mnist"], names, seeds, place, minutes)

    todo = left(methods, 2)
    assert [e.name for e in todo] == ["mnist.mlp.0", "mnist.statnn.0", "mnist.mlp.1", "mnist.statnn.1"]
    perform(todo[:2], place)
    assert [e.name for e in left(methods, 2)] == ["mnist.mlp.1", "mnist.statnn.1"]
    # An option that did not exist then had its default, and a field had another name.
    path = results / "mnist.mlp.0.json"
    old = read_object(path)
    del old["recipe"]["training"]["move"]
    old["moved"] = old.pop("transformed")
    write_json(path, old)
    assert [e.name for e in left(methods, 2)] == ["mnist.mlp.1", "mnist.statnn.1"]
    # A record that was lost is made again from its run, without training.
    folder = runs / run_folder(todo[0].name, todo[0].recipe)
    before = (folder / "results.json").stat().st_mtime_ns
    path.unlink()
    perform(left(["mlp"], 1), place)
    assert (folder / "results.json").stat().st_mtime_ns == before
    first, second = read_records(results)
    assert (first.method, second.method) == ("mlp", "statnn")
    assert (first.recipe["zoo"], first.recipe["training"]["minutes"]) == ("mnist", 0.01)
    assert "published" not in first.zoo
    # Also what the model says about permuted and rescaled copies.
    copies = load(folder).evaluate(place.zoos / "mnist", "test", transform_seed=0)
    assert first.transformed == copies.metrics["accuracy"]
    # Another recipe is another experiment.
    others = left(methods, 1, 0.02)
    assert len(others) == 2
    assert run_folder(others[0].name, others[0].recipe) != folder.name
    options = ["--table-only", "--json", "--results", str(tmp_path / "results"), "--zoos", str(tmp_path / "zoos")]
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
    header = read_object(place.zoos / "mnist" / "zoo.json")
    write_json(place.zoos / "mnist" / "zoo.json", {**header, "sha256": "0" * 64})
    assert len(left(methods, 1)) == 2


def test_seeds_of_other_settings_are_done_again(place: Folders) -> None:
    """A row with two seeds whose recipe has changed is missing both, though one seed is asked for."""
    (now, _) = experiments(DATASETS["mnist"], METHODS["mlp"], 2, place)
    sha256 = read_object(place.zoos / "mnist" / "zoo.json")["sha256"]
    place.results.mkdir(parents=True)
    for seed, lr in ((0, 0.5), (1, 0.5), (2, now.recipe.training.lr)):
        recipe = now.recipe.model_copy(update={"seed": seed}).to_dict()
        recipe["training"]["lr"] = lr
        record = dataclasses.replace(_record("mnist", "mlp", seed, 0.5), recipe=recipe, zoo={"sha256": sha256})
        write_json(place.results / f"mnist.mlp.{seed}.json", vars(record))
    assert [e.seed for e in missing(["mnist"], ["mlp"], 1, place)] == [0, 1]
    assert [e.seed for e in missing(["mnist"], ["mlp"], 1, place, minutes=0.5)] == [0]


def test_a_page_is_written_where_asked_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", "editing", "--results", str(ROOT / "results"), "--table-only"]
    assert command(app, words) == 0
    assert list(tmp_path.iterdir()) == []
    assert command(app, [*words, "--page", "pages/mine.md"]) == 0
    assert [path.as_posix() for path in Path().rglob("*.md")] == ["pages/mine.md"]
    assert "wrote pages/mine.md" in capsys.readouterr().err


def test_the_strength_of_an_augmentation_is_searched_on_validation(place: Folders, tmp_path: Path) -> None:
    (plain,) = experiments(DATASETS["cifar10-gs-relu"], METHODS["ng-gnn-augmented"], 1, PAPER)
    assert plain.grid == {"training.augment_rate": [0.5, 1.0, 2.0, 4.0]}
    assert not experiments(DATASETS["fashion-mnist"], METHODS["ng-gnn-augmented"], 1, PAPER)[0].grid
    assert not experiments(DATASETS["cifar10-gs-relu"], METHODS["ng-gnn-augmented"], 1, SMALL)[0].grid
    # The same with another setting, which is quicker to tell apart: with no steps to speak of nothing is learnt.
    seeds = experiments(DATASETS["mnist"], METHODS["mlp"], 2, place, minutes=1.0)
    grid = {"training.steps": [1, 60]}
    first, second = (tuned(dataclasses.replace(e, grid=grid), tmp_path / "runs") for e in seeds)
    trials = [Run(path).results() for path in sorted((tmp_path / "runs").iterdir()) if path.is_dir()]
    assert [trial["seed"] for trial in trials] == [0, 0]
    # Two trials may be equally good.
    best = [t["steps"] for t in trials if t["val"]["accuracy"] == max(t["val"]["accuracy"] for t in trials)]
    assert first.recipe.training.steps == second.recipe.training.steps
    assert first.recipe.training.steps in best
    assert (first.recipe.seed, second.recipe.seed) == (0, 1)
    # A record with any value of the grid is a record of the experiment.
    open_question = dataclasses.replace(seeds[0], grid=grid)
    record = dataclasses.replace(_record("mnist", "mlp", 0, 0.5), recipe=first.recipe.to_dict())
    assert same_experiment(record, open_question)
    assert not same_experiment(record, seeds[0])


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


def test_damaged_records_are_named(tmp_path: Path) -> None:
    write_json(tmp_path / "mnist.mlp.0.json", {"dataset": "mnist"})
    with pytest.raises(ScaleGMNError, match=r"mnist\.mlp\.0\.json"):
        read_records(tmp_path)
