"""Records: one JSON file per run, which is all that tables are made of."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.schema import strict
from ..errors import ScaleGMNError
from ..inference.trained import load
from ..training.data import open_zoo
from ..training.recipe import Recipe, make_recipe
from ..training.run import Run
from ..training.state import read_json, write_json
from .experiments import Dataset, Method


@dataclass(frozen=True)
class Record:
    """What became of one run.

    Arguments:
        dataset, method, seed: Which.
        metric: The name of the value.
        value: On the test networks, at the best validation.
        val: The same on the validation networks.
        parameters: Of the model.
        epochs: Passes over the training networks.
        seconds: Of one core, for training and validation.
        recipe: The whole recipe; the zoo by its name.
        versions: Of what the numbers depend on.
        zoo: Its number of networks and checksum.
        machine: Where.
        moved: The value on randomly permuted and rescaled copies of the test networks.
    """

    dataset: str
    method: str
    seed: int
    metric: str
    value: float | None
    val: float | None
    parameters: int
    epochs: float
    seconds: float
    recipe: dict[str, Any]
    versions: dict[str, str]
    zoo: dict[str, Any]
    machine: dict[str, Any]
    moved: float | None = None


def run_name(dataset: Dataset, method: Method, seed: int) -> str:
    """The name of a run and its record."""
    return f"{dataset.name}.{method.name}.{seed}"


def write_record(folder: Path, dataset: Dataset, method: Method, seed: int, run: Run) -> Record:
    """Make the record of a finished run."""
    results, config = run.results(), read_json(run.path / "config.json")
    recipe = run.recipe().to_dict()
    zoo = open_zoo(recipe["zoo"], config["zoo"]["sha256"])
    copies = load(run.path).evaluate(zoo, "test", transform_seed=0)
    recipe["zoo"] = dataset.zoo
    record = Record(
        dataset.name,
        method.name,
        seed,
        dataset.metric,
        results["test"][dataset.metric],
        results["val"][dataset.metric],
        results["parameters"],
        results["epochs"],
        results["seconds"],
        recipe,
        config["versions"],
        config["zoo"],
        machine(),
        copies.metrics[dataset.metric],
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{run_name(dataset, method, seed)}.json", strict(vars(record)))
    return record


def read_records(folder: Path) -> list[Record]:
    """All records of a folder, by name."""
    return [_read(path) for path in sorted(folder.glob("*.*.*.json"))]


def _read(path: Path) -> Record:
    try:
        return Record(**read_json(path))
    except TypeError as error:
        raise ScaleGMNError(f"{path}: not a record of a run ({error}); delete it and run again") from None


def matching(records: Sequence[Record], dataset: str, method: str) -> list[Record]:
    """Those of a dataset and a method, by seed."""
    return sorted((r for r in records if (r.dataset, r.method) == (dataset, method)), key=lambda r: r.seed)


def same_experiment(record: Record, recipe: Recipe) -> bool:
    """Whether a record answers a recipe, wherever its zoo lies; what was no option then had its default."""
    try:
        had = make_recipe(record.recipe).to_dict()
    except ScaleGMNError:
        return False
    return {**had, "zoo": ""} == {**recipe.to_dict(), "zoo": ""}


def machine() -> dict[str, Any]:
    """What a number of seconds means here."""
    return {"processor": _processor(), "cores": os.cpu_count(), "system": platform.system()}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
