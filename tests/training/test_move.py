"""Moved inputs are there for every method that classifies, and change what it learns from."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_runs import recipe_for, same, weights

from scalegmn.errors import ScaleGMNError
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
    for run, changes in {"still": {}, "moved": {"move": 0.1}, "mirrored": {"mirror": 1}}.items():
        recipe = recipe_for(digits.path, model=model, steps=2, **changes)
        train(recipe, tmp_path / run, progress=Progress("test", quiet=True))
    still, moved, mirrored = (weights(tmp_path / run) for run in ("still", "moved", "mirrored"))
    assert not same(still, moved)
    assert not same(still, mirrored)


@pytest.mark.parametrize("changes", [{"move": 0.1}, {"mirror": 0}])
def test_editors_keep_their_inputs_still(changes: dict[str, float], digits: Zoo) -> None:
    (name,) = changes
    with pytest.raises(ScaleGMNError, match=f"training.{name}: expected .* whose targets would not move"):
        recipe_for(digits.path, task={"name": "editing", "target": "dilation"}, model="gmn", **changes)
