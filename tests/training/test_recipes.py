"""The recipes and grids that are shipped: short, valid, and each used for what it is named after."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalegmn.errors import ScaleGMNError
from scalegmn.training.recipe import RECIPES, override, read_recipe, read_values, shipped
from scalegmn.training.sweep import parse_grid, points

NAMES = [name for name in shipped() if not name.startswith("grids/")]
GRIDS = {"inr-classification": "mnist", "cnn-generalisation": "cifar10-gs-tanh", "inr-editing": "mnist-dilation"}


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_short_and_valid(name: str) -> None:
    text = (RECIPES / f"{name}.toml").read_text()
    assert len(text.splitlines()) <= 20
    assert text.startswith("# ")
    recipe = read_recipe(name)
    if name.endswith("-b"):
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


def test_every_experiment_of_the_paper_has_its_recipes() -> None:
    names = {name.removeprefix("paper/") for name in NAMES}
    both = ["mnist", "fashion-mnist", "cifar10", "cifar10-augmented", "mnist-dilation"]
    both += ["cifar10-gs-relu", "svhn-gs-relu", "cifar10-gs-tanh", "svhn-gs-tanh", "cifar10-gs-both"]
    assert names >= {*both, *(f"{name}-b" for name in both)}
    assert names >= {"fashion-mnist-scale-augmentation", "cifar10-gs-relu-scale-augmentation"}


@pytest.mark.parametrize(("grid", "recipe"), GRIDS.items())
def test_a_grid_fits_its_recipe(grid: str, recipe: str) -> None:
    table = parse_grid([f"grids/{grid}"])
    values = read_values(f"paper/{recipe}")
    found = points(values, table, 1, Path("out"), sample=30)
    assert len({p.path for p in found}) == 30
    # Every value of the grid is valid, not only those that were drawn.
    for key, options in table.items():
        for option in options:
            assert points(values, {key: [option]}, 1, Path("out"))
    assert override(values, [])["model"]["name"] == "scalegmn"
