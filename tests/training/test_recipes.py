"""The recipes and grids that are shipped: short, valid, and each used for what it is named after."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalegmn.training.recipe import override, read_recipe, read_values
from scalegmn.training.sweep import parse_grid, points

ROOT = Path(__file__).parents[2] / "recipes"
RECIPES = sorted([*ROOT.glob("digits/*.toml"), *ROOT.glob("paper/*.toml")])
GRIDS = {"inr-classification": "mnist", "cnn-generalisation": "cifar10-gs-tanh", "inr-editing": "mnist-dilation"}


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_a_recipe_is_short_and_valid(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 20
    assert text.startswith("# ")
    recipe = read_recipe(path)
    if path.stem.endswith("-b"):
        assert recipe.model.name == "scalegmn-b"
    assert (recipe.task.name == "editing") == ("dilation" in path.stem)


def test_every_experiment_of_the_paper_has_its_recipes() -> None:
    names = {p.stem for p in ROOT.glob("paper/*.toml")}
    both = ["mnist", "fashion-mnist", "cifar10", "cifar10-augmented", "mnist-dilation"]
    both += ["cifar10-gs-relu", "svhn-gs-relu", "cifar10-gs-tanh", "svhn-gs-tanh", "cifar10-gs-both"]
    assert names >= {*both, *(f"{name}-b" for name in both)}
    assert names >= {"fashion-mnist-scale-augmentation", "cifar10-gs-relu-scale-augmentation"}


@pytest.mark.parametrize(("grid", "recipe"), GRIDS.items())
def test_a_grid_fits_its_recipe(grid: str, recipe: str) -> None:
    table = parse_grid([str(ROOT / "grids" / f"{grid}.toml")])
    values = read_values(ROOT / "paper" / f"{recipe}.toml")
    found = points(values, table, 1, Path("out"), sample=30)
    assert len({p.path for p in found}) == 30
    # Every value of the grid is valid, not only those that were drawn.
    for key, options in table.items():
        for option in options:
            assert points(values, {key: [option]}, 1, Path("out"))
    assert override(values, [])["model"]["name"] == "scalegmn"
