"""From a table to its records: build the zoos, train what is missing, write down what came out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..training.lanes import train_all
from ..training.recipe import Recipe
from ..training.run import Run
from ..training.state import read_json
from .experiments import DATASETS, METHODS, Dataset, Method, possible, recipe
from .records import matching, read_records, run_name, same_experiment, write_record
from .zoos import Place, Scale, open_zoo

Tell = Callable[[str], None]
Watch = Callable[[str, Run], None]


@dataclass(frozen=True)
class Job:
    """One run to come."""

    dataset: Dataset
    method: Method
    seed: int
    recipe: Recipe

    @property
    def name(self) -> str:
        """Of the record."""
        return run_name(self.dataset, self.method, self.seed)

    @property
    def folder(self) -> str:
        """Of the run: other settings have another folder."""
        return f"{self.name}-{hashlib.sha256(self.recipe.to_toml().encode()).hexdigest()[:8]}"


def missing(
    datasets: Iterable[str], methods: Sequence[str], seeds: int, scale: Scale, zoos: Path, results: Path
) -> list[Job]:
    """The runs of which there is no record with the same recipe; all methods with the first seed come first.

    Records of another zoo count only where there is none to compare with.

    Arguments:
        datasets, methods, seeds, scale: What is wanted.
        zoos: The folder of the zoos.
        results: The folder of the records.
    """
    records = read_records(results)
    found = []
    for dataset in (DATASETS[name] for name in datasets):
        header = zoos / dataset.zoo / "zoo.json"
        sha256 = read_json(header)["sha256"] if header.is_file() else None
        for seed in range(seeds):
            for method in (METHODS[name] for name in methods if possible(dataset, METHODS[name], scale)):
                asked = recipe(dataset, method, scale, seed, zoos)
                there = [r for r in matching(records, dataset.name, method.name) if r.seed == seed]
                there = [r for r in there if sha256 in (None, r.zoo["sha256"])]
                if not any(same_experiment(record, asked) for record in there):
                    found.append(Job(dataset, method, seed, asked))
    return found


def perform(
    jobs: Sequence[Job],
    place: Place,
    runs: Path,
    results: Path,
    *,
    lanes: int | None = None,
    watch: Watch | None = None,
    tell: Tell | None = None,
) -> None:
    """Train, dataset by dataset; each finished run leaves its record at once.

    Arguments:
        jobs: What to train.
        place: Where zoos and images are.
        runs: The folder of the runs.
        results: The folder of the records.
        lanes: How many at the same time; one for each core if omitted. Each has one thread.
        watch: As in `train_all`.
        tell: Called with a line about each step.
    """
    for dataset in (DATASETS[name] for name in dict.fromkeys(job.dataset.name for job in jobs)):
        mine = {job.folder: job for job in jobs if job.dataset == dataset}
        zoo = open_zoo(dataset.zoo, place)
        if tell is not None:
            tell(f"{dataset.title}: {len(zoo):,} networks, {len(mine)} runs")

        recorded: set[str] = set()

        def look(name: str, run: Run, mine: dict[str, Job] = mine, recorded: set[str] = recorded) -> None:
            if watch is not None:
                watch(name, run)
            if run.finished and name not in recorded:
                recorded.add(name)
                job = mine[name]
                write_record(results, job.dataset, job.method, job.seed, run)

        for name in mine:
            # Trained before, but its record is gone.
            look(name, Run(runs / name))
        train_all({name: job.recipe for name, job in mine.items()}, runs, lanes=lanes, threads=1, watch=look, pause=1.0)
