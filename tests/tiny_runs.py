"""Recipes that train in a blink."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, equal

from scalegmn.files.tensors import read_tensors
from scalegmn.training.recipe import Recipe, make_recipe


def recipe_for(path: Path, **changes: Any) -> Recipe:
    """A recipe for the digits, with `training` entries changed or other tables replaced."""
    table: dict[str, Any] = {
        "zoo": str(path),
        "task": "classification",
        "model": {"name": "mlp", "width": 16, "dropout": 0.2},
        "training": {"epochs": 4, "batch": 10, "device": "cpu"},
    }
    for key, value in changes.items():
        if key in ("task", "model", "seed"):
            table[key] = value
        else:
            table["training"][key] = value
    return make_recipe(table)


def weights(run: Path) -> dict[str, Tensor]:
    """The best weights of a run."""
    return read_tensors(run / "model.safetensors")


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether tensors are equal to the last bit."""
    return a.keys() == b.keys() and all(equal(t, b[k]) for k, t in a.items())
