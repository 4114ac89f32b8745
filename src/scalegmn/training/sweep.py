"""Many runs of one recipe: a grid of settings, several seeds each, here or on a Ray cluster."""

import itertools
import json
import math
import os
import random
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..cluster import connect, result
from ..core.schema import strict
from ..errors import ScaleGMNError
from ..files import read_toml, write_json
from ..tasks import task_class
from .loop import DivergedError, train
from .progress import Progress
from .recipe import Recipe, find_file, flat, make_recipe, override, parse_value

Grid = Mapping[str, Sequence[Any]]
MOST_RUNS = 100_000
Outcome = dict[str, Any]


@dataclass(frozen=True)
class Point:
    """One combination of settings with one seed.

    Arguments:
        changes: What differs from the recipe, as `dotted.key=value`.
        seed: The seed of the run.
        recipe: The whole recipe.
        path: Where it is run.
    """

    changes: tuple[str, ...]
    seed: int
    recipe: Recipe
    path: Path


def parse_grid(words: Sequence[str]) -> Grid:
    """The grid of `--grid` options: `key=a,b,c`, or a TOML file of lists, or a shipped one such as `grids/inr-editing`.

    >>> parse_grid(["training.lr=1e-3,1e-4", "model.readout=all,output"])
    {'training.lr': [0.001, 0.0001], 'model.readout': ['all', 'output']}
    """
    grid: dict[str, Sequence[Any]] = {}
    for word in words:
        key, equals, values = word.partition("=")
        if not equals:
            grid |= _read_grid(Path(word))
        elif not key or not all(values.split(",")):
            raise ScaleGMNError(f"--grid: expected key=a,b,c or a TOML file, got {word!r}")
        else:
            grid[key.strip()] = [parse_value(v.strip()) for v in values.split(",")]
    return grid


def _read_grid(path: Path) -> dict[str, Sequence[Any]]:
    file = find_file(path)
    if not file.exists():
        raise ScaleGMNError(f"--grid: expected key=a,b,c or a TOML file, got {path} (no such file)")
    table = read_toml(file)
    grid = flat(table)
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ScaleGMNError(f"{path}: {key}: expected a list of values, got {values!r}")
    return grid


def points(values: Mapping[str, Any], grid: Grid, seeds: int, out: Path, *, sample: int | None = None) -> list[Point]:
    """Every combination of a grid with every seed, each checked before the first is run.

    Arguments:
        values: The recipe as nested dictionaries.
        grid: Lists of values by dotted key.
        seeds: Seeds per combination: the recipe's own and the next ones.
        out: The sweep's directory.
        sample: Only this many combinations, drawn at random (always the same ones).
    """
    runs = math.prod(map(len, grid.values())) * seeds
    if runs > MOST_RUNS:
        raise ScaleGMNError(f"sweep: expected at most {MOST_RUNS} runs, got {runs}; give fewer seeds or values")
    combinations = list(itertools.product(*grid.values()))
    if sample is not None and sample < len(combinations):
        combinations = random.Random(0).sample(combinations, sample)
    found = []
    for combination in combinations:
        pairs = list(zip(grid, combination, strict=True))
        changes = tuple(f"{key}={json.dumps(value)}" for key, value in pairs)
        recipe = make_recipe(override(values, changes))
        for seed in range(recipe.seed, recipe.seed + seeds):
            seeded = recipe.model_copy(update={"seed": seed})
            found.append(Point(changes, seed, seeded, out / _folder(changes) / f"seed-{seed}"))
    return found


def _folder(changes: Sequence[str]) -> str:
    """A name for the runs of one combination.

    >>> _folder(["training.lr=0.001", 'model.readout="all"'])
    'training.lr=0.001_model.readout=all'
    """
    return re.sub(r"[^\w=.+-]+", "_", "_".join(changes).replace('"', "")) or "recipe"


def run_point(recipe: Recipe, path: Path) -> Outcome:
    """Train one point, or continue it; divergence counts as an outcome."""
    try:
        return train(recipe, path, resume=True, progress=Progress(path.parent.name, quiet=True))
    except DivergedError as error:
        return {"error": str(error)}


def _run_in(folder: Path, recipe: Recipe, path: Path) -> Outcome:
    """The same in a given working directory, because the path of a zoo may be relative to it."""
    os.chdir(folder)
    return run_point(recipe, path)


def run_here(todo: Sequence[Point], done: Callable[[Point, Outcome], None]) -> None:
    """Run points one after the other in this process."""
    for point in todo:
        done(point, run_point(point.recipe, point.path))


def run_on_ray(todo: Sequence[Point], done: Callable[[Point, Outcome], None], address: str, *, cpus: float = 1) -> None:
    """Run points in parallel on a Ray cluster whose machines share a file system.

    Arguments:
        todo: The points.
        done: Called in this process when a point ends.
        address: `local` starts a cluster on this machine.
        cpus: Processors for each run.
    """
    ray = connect(address)
    try:
        # A worker that dies is replaced, and its run continues from its checkpoint.
        remote = ray.remote(num_cpus=cpus, max_retries=3)(_run_in)
        waiting = {remote.remote(Path.cwd(), p.recipe, p.path): p for p in todo}
        while waiting:
            (ready,), _ = ray.wait(list(waiting))
            done(waiting.pop(ready), result(ray, ready))
    finally:
        ray.shutdown()


def ranked(outcomes: Mapping[Point, Outcome]) -> list[dict[str, Any]]:
    """One row per combination: mean and standard deviation over seeds, best validation first.

    Arguments:
        outcomes: The results of each point.
    """
    groups: dict[tuple[str, ...], list[Outcome]] = {}
    for point, outcome in outcomes.items():
        groups.setdefault(point.changes, []).append(outcome)
    rows = [_row(changes, found) for changes, found in groups.items()]
    maximise = any(row["maximise"] for row in rows)

    def rank(row: Mapping[str, Any]) -> float:
        mean: float | None = row["val"]["mean"]
        if mean is None or math.isnan(mean):
            return math.inf
        return -mean if maximise else mean

    return sorted(rows, key=rank)


def _row(changes: Sequence[str], found: Sequence[Outcome]) -> dict[str, Any]:
    good = [o for o in found if "error" not in o]
    metric = good[0]["metric"] if good else None
    return {
        "changes": list(changes),
        "runs": len(good),
        "failed": len(found) - len(good),
        "metric": metric,
        "maximise": bool(good) and task_class(good[0]["task"]).maximise,
        **{split: _spread([o[split][metric] for o in good if split in o]) for split in ("val", "test")},
        "seconds": round(statistics.fmean(o["seconds"] for o in good), 1) if good else None,
    }


def _spread(values: Sequence[float | None]) -> dict[str, float | None]:
    numbers = [math.nan if v is None else v for v in values]
    if not numbers:
        return {"mean": None, "std": None}
    if any(map(math.isnan, numbers)):
        return {"mean": math.nan, "std": math.nan}
    return {"mean": statistics.fmean(numbers), "std": statistics.stdev(numbers) if len(numbers) > 1 else 0.0}


def write_summary(out: Path, grid: Grid, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the table beside the runs."""
    write_json(out / "sweep.json", strict({"grid": dict(grid), "rows": list(rows)}))
