"""Small runs of all tasks, made by the real training loop."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_runs import recipe_for
from tiny_zoos import digits_zoo, mixed_zoo

from scalegmn.training.loop import train
from scalegmn.training.progress import Progress
from scalegmn.zoo.store.zoo import Zoo

SMALL = {"name": "scalegmn", "width": 8, "layers": 2}


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Sums in the same order everywhere."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    return digits_zoo(tmp_path_factory.mktemp("zoo") / "digits", count=40, steps=30)


@pytest.fixture(scope="session")
def runs(digits: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of finished runs: mlp-0, mlp-1 (two seeds), scalegmn, probes, regression, editing."""
    out = tmp_path_factory.mktemp("runs")
    mixed = mixed_zoo(tmp_path_factory.mktemp("zoo") / "mixed")
    regression = {"name": "regression", "column": "score"}
    recipes = {
        "mlp-0": recipe_for(digits.path, epochs=3),
        "mlp-1": recipe_for(digits.path, epochs=3, seed=1),
        "scalegmn": recipe_for(digits.path, epochs=3, model=SMALL),
        "probes": recipe_for(digits.path, epochs=3, model={**SMALL, "probes": 4}),
        "regression": recipe_for(mixed.path, epochs=3, task=regression, model={"name": "gmn", "width": 8, "layers": 1}),
        "editing": recipe_for(digits.path, epochs=1, task="editing", model={**SMALL, "name": "scalegmn-b"}),
    }
    for name, recipe in recipes.items():
        train(recipe, out / name, progress=Progress(name, quiet=True))
    return out
