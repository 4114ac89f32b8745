"""Recipes: what is refused and how, overrides, and text that reads back."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from scalegmn.cli import app
from scalegmn.cli.application import run
from scalegmn.errors import ScaleGMNError
from scalegmn.training.recipe import Recipe, make_recipe, override, read_recipe, to_toml

GOOD: dict[str, Any] = {"zoo": "z", "task": "classification", "model": {"name": "mlp", "width": 8}}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("trainin.lr=1", "unknown key 'trainin'; did you mean 'training'?"),
        ("training.epoch=3", "unknown key 'training.epoch'; did you mean 'epochs'?"),
        ("training.epochs=0", "training.epochs: input should be greater than 0, got 0"),
        ("training.epochs=many", "training.epochs: input should be a valid integer"),
        ("training.lr=nan", "training.lr: input should be"),
        ("training.schedule=cosin", "training.schedule: input should be 'constant' or 'cosine', got 'cosin'"),
        ("seed=-1", "seed: input should be greater than or equal to 0, got -1"),
        ("model.widht=3", "model 'mlp': unknown option 'widht'; did you mean 'width'?"),
        ("model.width=wide", "model 'mlp': width: expected int, got 'wide'"),
        ("model.normalisation=layers", "normalisation: expected one of none, parameter, layer, scale; got 'layers'"),
        ("model=mpl", "model: 'mpl' is not known; did you mean 'mlp'?"),
        ("task=clasification", "task: 'clasification' is not known; did you mean 'classification'?"),
        ("task.colum=a", "task 'classification': unknown key 'colum'; did you mean 'column'?"),
    ],
)
def test_a_mistake_is_one_line_with_the_nearest_name(change: str, complaint: str) -> None:
    with pytest.raises(ScaleGMNError) as caught:
        make_recipe(override(GOOD, [change]))
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["zoo", "task", "model"])
def test_a_missing_entry_is_named(key: str) -> None:
    with pytest.raises(ScaleGMNError, match=f"missing key '{key}'"):
        make_recipe({k: v for k, v in GOOD.items() if k != key})


def test_a_model_without_the_head_that_the_task_needs_is_refused() -> None:
    with pytest.raises(ScaleGMNError, match="model 'statnn' has no equivariant head, which task 'editing' needs"):
        make_recipe({"zoo": "z", "task": "editing", "model": "statnn"})


def test_pictures_are_not_moved_away_from_their_targets() -> None:
    with pytest.raises(ScaleGMNError, match=r"training\.move: expected 0 for task 'editing'"):
        make_recipe({"zoo": "z", "task": "editing", "model": "scalegmn", "training": {"move": 0.1}})


def test_the_command_line_says_which_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(to_toml({**GOOD, "sed": 3}))
    assert run(app, ["train", str(path)]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"error: {path}: unknown key 'sed'; did you mean 'seed'?\n")


@pytest.mark.parametrize(("text", "complaint"), [("zoo = ", "not valid TOML"), (None, "neither a file nor a shipped")])
def test_an_unreadable_file_is_one_line(tmp_path: Path, text: str | None, complaint: str) -> None:
    path = tmp_path / "recipe.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ScaleGMNError, match=complaint):
        read_recipe(path)


def test_overrides_are_toml_values_or_words() -> None:
    found = override(GOOD, ["training.lr=1e-4", "training.compile=true", "zoo=zoos/a", "model.width=4", "seed = 7"])
    assert found["training"] == {"lr": 1e-4, "compile": True}
    assert (found["zoo"], found["seed"], found["model"]) == ("zoos/a", 7, {"name": "mlp", "width": 4})
    assert GOOD["model"]["width"] == 8
    assert override(GOOD, ["model=gmn"])["model"] == {"name": "gmn"}
    for wrong in ("training.lr", "=3", "zoo.name=3", "a..b=1"):
        with pytest.raises(ScaleGMNError, match="--set"):
            override(GOOD, [wrong])


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("model.edge_updates=False", False),
        ("model.width=1e1", 10),
        ("model.probes=8.0", 8),
        ("model.dropout=0", 0.0),
    ],
)
def test_options_of_a_model_have_the_types_of_its_specification(change: str, value: object) -> None:
    recipe = make_recipe(override({**GOOD, "model": {"name": "scalegmn"}}, [change]))
    (found,) = recipe.model.options.values()
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("name", ["zoos/\U0001f600", "zoos/\x7f", "zoos/\u00e9"])
def test_any_name_of_a_zoo_is_valid_toml(name: str) -> None:
    recipe = make_recipe({**GOOD, "zoo": name})
    assert make_recipe(tomllib.loads(recipe.to_toml())) == recipe


def test_the_resolved_recipe_is_toml_that_gives_the_same_recipe() -> None:
    recipe = make_recipe(override(GOOD, ["training.minutes=2.5", 'zoo="a \\"b\\""', "task.column=digit"]))
    table = tomllib.loads(recipe.to_toml())
    assert table["training"]["epochs"] == 100
    assert make_recipe(table) == recipe
    assert isinstance(recipe, Recipe)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ('model.layers="2"', "model 'scalegmn': layers: expected int, got '2'"),
        ("model.widht=4", "model 'scalegmn': unknown option 'widht'; did you mean 'width'?"),
        ("model.copies=4", "model 'scalegmn': unknown option 'copies'"),
        ("model.probes=0.5", "model 'scalegmn': probes: expected int, got 0.5"),
        (f"model.probes={2**62}", f"model 'scalegmn': probes: expected at most 100000, got {2**62}"),
        ("model.layers=100000", "model 'scalegmn': layers: expected at most 1000, got 100000"),
        (f"training.epochs={2**63}", "training.epochs: input should be less than or equal to 1000000000"),
        (f"training.batch={2**63}", "training.batch: input should be less than or equal to 1000000000"),
        (f"training.batch=0x{'f' * 6000}", "training.batch: input should be a valid integer"),
        ("model.dropout=nan", "model 'scalegmn': dropout: expected at least 0 and less than 1, got nan"),
    ],
)
def test_options_of_a_model_are_checked_by_its_specification(change: str, complaint: str) -> None:
    with pytest.raises(ScaleGMNError, match=re.escape(complaint)):
        make_recipe(override({**GOOD, "model": {"name": "scalegmn"}}, [change]))


def test_options_of_a_head_stand_beside_those_of_the_trunk() -> None:
    editing = {**GOOD, "task": "editing", "model": {"name": "scalegmn", "width": 4, "copies": 2}}
    assert make_recipe(editing).model.options == {"width": 4, "copies": 2}
    with pytest.raises(ScaleGMNError, match="model 'statnn' has no equivariant head, which task 'editing' needs"):
        make_recipe({**editing, "model": "statnn"})
