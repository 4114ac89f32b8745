"""Datasets, methods, and the recipe files that combine them."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..files import read_toml
from ..training.recipe import Recipe, make_recipe, override, read_values, shipped
from ..training.sweep import parse_grid
from .zoos import Folders, Scale, zoo_path


@dataclass(frozen=True)
class Dataset:
    """Networks and what to learn from them.

    Arguments:
        name: Its key in records.
        title: As a heading.
        zoo: Name of its zoo.
        metric: What is reported, a key of the task's metrics.
        unit: The factor of values in tables.
        digits: Decimal places in tables.
        recipes: Folders of its recipes below that of the scale; the first with a recipe of the method's name is used.
        scales: The scales that have it; some datasets are not in the paper.
    """

    name: str
    title: str
    zoo: str
    metric: str
    unit: float
    digits: int
    recipes: tuple[str, ...]
    scales: tuple[Scale, ...] = ("small", "paper")


@dataclass(frozen=True)
class Contender:
    """A row of a table.

    Arguments:
        name: Its key in records, and the name of its recipes.
        title: As in tables.
        search: Name of a grid that is searched with the first seed on validation networks, if `grids/SCALE/FOLDER` has
            one of that name.
    """

    name: str
    title: str
    search: str = ""


def _classification(name: str, title: str, *recipes: str) -> Dataset:
    return Dataset(name, title, name, "accuracy", 100.0, 1, (name, *recipes, "inr"))


def _generalisation(images: str, title: str, kind: str) -> Dataset:
    name = f"{images}-gs-{kind}"
    shown = {"relu": "ReLU", "tanh": "tanh", "both": "both"}[kind]
    scales: tuple[Scale, ...] = ("small",) if name == "svhn-gs-both" else ("small", "paper")
    return Dataset(name, f"{title} {shown}", name, "tau", 1.0, 3, (name, "cnn"), scales)


DATASETS = {
    dataset.name: dataset
    for dataset in (
        _classification("mnist", "MNIST"),
        _classification("fashion-mnist", "Fashion-MNIST"),
        _classification("cifar10", "CIFAR-10"),
        _classification("cifar10-views", "CIFAR-10, several views", "cifar10"),
        *(_generalisation("cifar10", "CIFAR-10-GS", kind) for kind in ("relu", "tanh", "both")),
        *(_generalisation("svhn", "SVHN-GS stand-in", kind) for kind in ("relu", "tanh", "both")),
        Dataset("dilation", "Dilation of MNIST, MSE x 100", "mnist", "mse", 100.0, 2, ("dilation",)),
    )
}

# Rows, tables and published results.
TOLD = read_toml(Path(__file__).with_name("tables.toml"))
METHODS = {name: Contender(name, title, TOLD["search"].get(name, "")) for name, title in TOLD["methods"].items()}


@dataclass(frozen=True)
class Experiment:
    """One run: a recipe file with a zoo, a seed, and perhaps another budget.

    Arguments:
        dataset, method, seed: What is trained on which networks, and with which seed.
        values: The recipe as nested dictionaries.
        recipe: The same, checked.
        grid: Lists of values by dotted key, of which the best on validation networks is used; empty if there is
            nothing to search.
    """

    dataset: Dataset
    method: Contender
    seed: int
    values: Mapping[str, Any]
    recipe: Recipe
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the run and its record."""
        return run_name(self.dataset, self.method, self.seed)


def run_name(dataset: Dataset, method: Contender, seed: int) -> str:
    """The name of a run and its record."""
    return f"{dataset.name}.{method.name}.{seed}"


def run_folder(name: str, recipe: Recipe) -> str:
    """The folder of a run, which depends on its settings."""
    return f"{name}-{hashlib.sha256(recipe.to_toml().encode()).hexdigest()[:8]}"


def with_budget(values: Mapping[str, Any], minutes: float | None) -> dict[str, Any]:
    """A recipe as nested dictionaries, with another number of minutes if one is given."""
    return override(values, [] if minutes is None else [f"training.minutes={minutes}"])


def recipe_file(dataset: Dataset, method: Contender, scale: Scale) -> str | None:
    """The name of the recipe, or None if a scale has no such experiment.

    >>> [recipe_file(DATASETS[name], METHODS["dws"], "small") for name in ("mnist", "svhn-gs-relu")]
    ['small/inr/dws', None]
    """
    return _first(dataset, scale, method.name, "") if scale in dataset.scales else None


def _first(dataset: Dataset, scale: Scale, name: str, above: str) -> str | None:
    known = shipped()
    names = (f"{above}{scale}/{folder}/{name}" for folder in dataset.recipes)
    return next((name for name in names if name in known), None)


def experiments(
    dataset: Dataset, method: Contender, seeds: int, place: Folders, minutes: float | None = None
) -> list[Experiment]:
    """A method on a dataset with the first few seeds; empty if the scale has no recipe for it.

    Arguments:
        dataset, method: The method and the dataset.
        seeds: How many.
        place: The scale, and where its zoos are.
        minutes: The budget of each run, instead of that of the recipe.

    >>> from pathlib import Path
    >>> (found,) = experiments(DATASETS["mnist"], METHODS["scalegmn"], 1, Folders("small", Path("zoos"), None))
    >>> found.recipe.zoo, found.recipe.model.name, found.recipe.training.minutes
    ('zoos/mnist', 'scalegmn', 2.0)
    """
    file = recipe_file(dataset, method, place.scale)
    if file is None:
        return []
    values = {**with_budget(read_values(file), minutes), "zoo": str(zoo_path(dataset.zoo, place))}
    recipe = make_recipe(values, file)
    search = _first(dataset, place.scale, method.search, "grids/") if method.search else None
    grid = {} if search is None else parse_grid([search])
    return [
        Experiment(dataset, method, seed, values, recipe.model_copy(update={"seed": seed}), grid)
        for seed in range(seeds)
    ]
