"""The recipes and grids that are shipped: short, valid, and each used for what it is named after."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from scalegmn.errors import ScaleGMNError
from scalegmn.training.recipe import RECIPES, read_recipe, read_values, shipped
from scalegmn.training.sweep import parse_grid, points

NAMES = [name for name in shipped() if not name.startswith("grids/")]
GRIDS = {
    "inr-classification": "mnist/scalegmn",
    "cnn-generalisation": "cifar10-gs-tanh/scalegmn",
    "inr-editing": "dilation/scalegmn",
    "paper/cnn/scale-augmentation": "cnn/ng-gnn-augmented",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_short_and_valid(name: str) -> None:
    text = (RECIPES / f"{name}.toml").read_text()
    assert len(text.splitlines()) <= 20
    assert text.startswith("# ")
    recipe = read_recipe(name)
    if name.endswith("scalegmn-b"):
        assert recipe.model.name == "scalegmn-b"
    assert (recipe.task.name == "editing") == ("dilation" in name)


def test_a_file_comes_before_a_shipped_recipe_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mine = Path("digits/dws")
    mine.parent.mkdir()
    mine.write_text((RECIPES / "digits/mlp.toml").read_text())
    assert (read_recipe("digits/dws").model.name, read_recipe("digits/gmn").model.name) == ("mlp", "gmn")
    with pytest.raises(ScaleGMNError, match=r"neither a file nor a shipped recipe; did you mean 'digits/scalegmn'\?"):
        read_recipe("digits/scalgmn")


def test_a_recipe_builds_on_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    Path("mine/first.toml").write_text('base = "digits/scalegmn"\nseed = 3\n[model]\nwidth = 8\n')
    Path("mine/second.toml").write_text('base = "first.toml"\ntask = "editing"\n[model]\nreadout = "all"\n')
    values, shipped_values = read_values("mine/second.toml"), read_values("digits/scalegmn")
    assert values["model"] == {**shipped_values["model"], "width": 8, "readout": "all"}
    assert (values["seed"], values["task"], values["training"]) == (3, "editing", shipped_values["training"])
    assert "base" not in values


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('base = "one.toml"', "one.toml builds on itself"),
        ("base = 3", "base: expected the name of a recipe, got 3"),
        ('base = "digits/scalgmn"', r"digits/scalgmn: neither a file nor a shipped recipe; did you mean"),
    ],
)
def test_a_base_that_cannot_be_is_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "one.toml").write_text(text)
    with pytest.raises(ScaleGMNError, match=complaint):
        read_values(tmp_path / "one.toml")


@pytest.mark.parametrize(("grid", "recipe"), GRIDS.items())
def test_a_grid_fits_its_recipe(grid: str, recipe: str) -> None:
    table = parse_grid([f"grids/{grid}"])
    values = read_values(f"paper/{recipe}")
    found = points(values, table, 1, Path("out"), sample=30)
    assert len({p.path for p in found}) == min(30, math.prod(map(len, table.values())))
    # Every value of the grid is valid, not only those that were drawn.
    for key, options in table.items():
        for option in options:
            assert points(values, {key: [option]}, 1, Path("out"))
    assert read_recipe(f"paper/{recipe}").model.name in ("scalegmn", "ng-gnn")
