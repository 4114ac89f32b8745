"""Records: one JSON file per run. Tables are made from records alone."""

import os
import platform
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.schema import strict
from ..errors import ScaleGMNError
from ..files import believing, read_object, write_json
from ..inference.trained import load
from ..training.data import unchanged_zoo
from ..training.documents import checked
from ..training.recipe import Recipe, flat, make_recipe
from ..training.run import Run
from ..zoo.store.stats import tau_cap
from .experiments import Contender, Dataset, Experiment


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The outcome of a training run.

    Arguments:
        dataset, method: What was trained, on which networks.
        metric: The name of the value.
        val: On the validation networks, at the best validation; None where it is undefined.
        epochs: Passes over the training networks.
        seconds: Processor time of one core, for training and validation.
        recipe: The whole recipe, with the name of the zoo in place of its path.
        versions: Of the software that the numbers depend on.
        zoo: Its number of networks and checksum; where it has them, the published collection that it came from and
            `tau_cap`, the tau that a perfect predictor without ties would have on the test networks.
        machine: The machine that it ran on.
    """

    dataset: str
    method: str
    metric: str
    val: float | None
    epochs: float
    seconds: float
    recipe: dict[str, Any]
    versions: dict[str, str]
    zoo: dict[str, Any]
    machine: dict[str, Any]


def measured(dataset: Dataset, method: Contender, run: Run) -> dict[str, Any]:
    """The fields of `Measured` of a finished run."""
    results, config = run.results(), run.config()
    return {
        "dataset": dataset.name,
        "method": method.name,
        "metric": dataset.metric,
        "val": results["val"][dataset.metric],
        "epochs": results["epochs"],
        "seconds": results["seconds"],
        "recipe": {**config["recipe"], "zoo": dataset.zoo},
        "versions": config["versions"],
        "zoo": config["zoo"],
        "machine": machine(),
    }


@dataclass(frozen=True, kw_only=True)
class Record(Measured):
    """The outcome of a run that belongs to a table.

    Arguments:
        seed: The seed of the run.
        value: On the test networks, at the best validation.
        parameters: Of the model.
        transformed: The value on randomly permuted and rescaled copies of the test networks.
        curve: Validations on the way, at most about a hundred: epoch, seconds, value. Older records have none.
    """

    seed: int
    value: float | None
    parameters: int
    transformed: float | None = None
    curve: list[list[float | None]] = field(default_factory=list)


def write_record(folder: Path, published: Path | None, experiment: Experiment, run: Run) -> Record:
    """Make the record of a finished run.

    Arguments:
        folder: Of the records.
        published: The collection that the networks came from, if any.
        experiment: The experiment.
        run: Its run directory.
    """
    results, config, metric = run.results(), run.config(), experiment.dataset.metric
    zoo = unchanged_zoo(config["recipe"]["zoo"], config["zoo"]["sha256"])
    copies = load(run.path).evaluate(zoo, "test", transform_seed=0)
    told = dict(config["zoo"])
    if published is not None:
        told["published"] = published.name
    if metric == "tau":
        told["tau_cap"] = tau_cap(copies.targets.numpy())
    record = Record(
        **{**measured(experiment.dataset, experiment.method, run), "zoo": told},
        seed=experiment.seed,
        value=results["test"][metric],
        parameters=results["parameters"],
        transformed=copies.metrics[metric],
        curve=_curve(run.metrics(), metric),
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{experiment.name}.json", strict(vars(record)))
    return record


def _curve(lines: Sequence[Mapping[str, Any]], metric: str) -> list[list[float | None]]:
    """Some of the validations of a run, the last among them, with five digits.

    >>> _curve([{"epoch": i, "seconds": 2.0 * i, "tau": 0.5} for i in range(1, 301)], "tau")[-2:]
    [[297.0, 594.0, 0.5], [300.0, 600.0, 0.5]]
    """
    step = -(-len(lines) // 100) or 1
    kept = lines[(len(lines) - 1) % step :: step]
    return [[None if v is None else float(f"{v:.5g}") for v in (m["epoch"], m["seconds"], m[metric])] for m in kept]


def read_records(folder: Path) -> list[Record]:
    """All records of a folder, by name."""
    return [_read(path) for path in sorted(folder.glob("*.*.*.json"))]


def _read(path: Path) -> Record:
    values = read_object(path)
    if "moved" in values:
        # Its name in older records.
        values["transformed"] = values.pop("moved")
    with believing(path, "delete it and run again"):
        return Record(**checked(Record, values, path))


def matching(records: Sequence[Record], dataset: str, method: str) -> list[Record]:
    """The records of a dataset and a method, by seed."""
    return sorted((r for r in records if (r.dataset, r.method) == (dataset, method)), key=lambda r: r.seed)


def same_experiment(record: Record, experiment: Experiment) -> bool:
    """Whether a record belongs to an experiment, wherever its zoo is; options that did not exist had their defaults.

    Settings that the experiment searches for may have any value of its grid.
    """
    return same_recipe(record.recipe, experiment.recipe, experiment.grid)


def same_recipe(noted: Mapping[str, Any], asked: Recipe, grid: Mapping[str, Sequence[Any]] | None = None) -> bool:
    """Whether a recorded recipe equals a wanted one, wherever its zoo is.

    Arguments:
        noted: The recorded recipe as nested dictionaries.
        asked: The wanted recipe.
        grid: Values that some dotted keys may have instead.
    """
    try:
        had = flat(make_recipe(noted).to_dict())
    except ScaleGMNError:
        return False
    free = {"zoo": None, **(grid or {})}
    given = all(had.get(key) in values for key, values in free.items() if values is not None)
    return given and _without(had, free) == _without(flat(asked.to_dict()), free)


def _without(table: Mapping[str, Any], keys: Container[str]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in keys}


def machine() -> dict[str, Any]:
    """The machine on which seconds were measured."""
    return {"processor": _processor(), "cores": os.cpu_count(), "system": platform.system()}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
