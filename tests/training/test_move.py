"""Moved inputs are there for every method that classifies, and change what it learns from."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_runs import recipe_for, same, weights

from scalegmn.training.loop import train
from scalegmn.training.progress import Progress
from scalegmn.zoo.store.zoo import Zoo

MODELS = {
    "mlp": {},
    "gmn": {"layers": 1},
    "dws": {"layers": 1},
    "nfn-hnp": {"layers": 1},
    "ng-gnn": {"layers": 1, "probes": 2},
    "probegen": {"probes": 2},
    "scalegmn": {"layers": 1},
    "scalegmn-b": {"layers": 1, "probes": 2},
}


@pytest.mark.parametrize("name", MODELS)
def test_any_method_may_have_its_inputs_moved(name: str, digits: Zoo, tmp_path: Path) -> None:
    model = {"name": name, "width": 4, **MODELS[name]}
    for move in (0.0, 0.1):
        recipe = recipe_for(digits.path, model=model, steps=2, move=move)
        train(recipe, tmp_path / str(move), progress=Progress("test", quiet=True))
    assert not same(weights(tmp_path / "0.0"), weights(tmp_path / "0.1"))
