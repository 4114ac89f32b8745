"""From a table to its records: build the zoos, train what is missing, write the results."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..tasks import task_class
from ..training.lanes import Watch, train_all
from ..training.recipe import Recipe
from ..training.run import Run
from ..training.sweep import points
from .experiments import DATASETS, METHODS, Experiment, experiments, run_folder
from .identity import checksums
from .records import matching, read_records, same_experiment, write_record
from .zoos import Folders, collection, open_zoo

Tell = Callable[[str], None]


def missing(
    datasets: Iterable[str],
    methods: Sequence[str],
    seeds: int,
    place: Folders,
    minutes: float | None = None,
) -> list[Experiment]:
    """The experiments of which there is no record with the same recipe; all methods with the first seed come first.

    Records of another zoo count only if there is no zoo to compare with. If a method has records of more seeds with
    other settings, those seeds are trained as well: a row never mixes two recipes.

    Arguments:
        datasets, methods, seeds: What is wanted.
        place: The scale, and where its zoos and records are.
        minutes: The budget of each run, instead of that of its recipe.
    """
    records = read_records(place.results)
    found = []
    for dataset in (DATASETS[name] for name in datasets):
        known = checksums(dataset.zoo, place)
        had = {name: [r.seed + 1 for r in matching(records, dataset.name, name)] for name in methods}
        count = {name: max([seeds, *(had[name] if minutes is None else ())]) for name in methods}
        asked = [experiments(dataset, METHODS[name], count[name], place, minutes) for name in methods]
        for experiment in sorted((e for runs in asked for e in runs), key=lambda e: e.seed):
            there = [r for r in matching(records, dataset.name, experiment.method.name) if r.seed == experiment.seed]
            there = [r for r in there if not known or r.zoo["sha256"] in known]
            if not any(same_experiment(record, experiment) for record in there):
                found.append(experiment)
    return found


def perform(
    todo: Sequence[Experiment],
    place: Folders,
    *,
    lanes: int | None = None,
    watch: Watch | None = None,
    tell: Tell | None = None,
) -> None:
    """Train, dataset by dataset; each finished run leaves its record at once.

    Arguments:
        todo: What to train.
        place: Where zoos, images, runs and records are.
        lanes, watch: As in `train_recorded`.
        tell: Called with a line about each step.
    """
    for dataset in (DATASETS[name] for name in dict.fromkeys(e.dataset.name for e in todo)):
        source = collection(dataset.zoo, place)
        zoo = open_zoo(dataset.zoo, place)
        here = [e for e in todo if e.dataset == dataset]
        if tell is not None:
            origin = "fitted by us" if source is None else f"published, from {source}"
            tell(f"{dataset.title}: {len(zoo):,} networks ({origin}), {len(here)} runs")
        named = {run_folder(e.name, e.recipe): e for e in (tuned(e, place.runs, lanes, watch) for e in here)}

        def record(name: str, run: Run, named: Mapping[str, Experiment] = named, source: Path | None = source) -> None:
            write_record(place.results, source, named[name], run)

        train_recorded({name: e.recipe for name, e in named.items()}, place.runs, record, lanes=lanes, watch=watch)


def train_recorded(
    recipes: Mapping[str, Recipe],
    runs: Path,
    record: Callable[[str, Run], object],
    *,
    lanes: int | None,
    watch: Watch | None,
) -> None:
    """Train recipes, each in its folder; runs begun before continue, and each finished run is recorded at once.

    Arguments:
        recipes: By the name of the run.
        runs: The folder of the runs.
        record: Called once with every finished run, even if it was finished before and only its record is missing.
        lanes: How many at the same time; one for each core if omitted. Each has one thread.
        watch: As in `train_all`.
    """
    recorded: set[str] = set()

    def look(name: str, run: Run) -> None:
        if watch is not None:
            watch(name, run)
        if run.finished and name not in recorded:
            recorded.add(name)
            record(name, run)

    for name in recipes:
        look(name, Run(runs / name))
    train_all(recipes, runs, lanes=lanes, threads=1, watch=look, pause=1.0)


def tuned(experiment: Experiment, runs: Path, lanes: int | None = None, watch: Watch | None = None) -> Experiment:
    """The experiment with the settings of its grid that were best on the validation networks, with the first seed.

    The trials are ordinary runs: what was trained before is not trained again.

    Arguments:
        experiment: The experiment, with its grid.
        runs: The folder of the runs.
        lanes, watch: As in `perform`.
    """
    if not experiment.grid:
        return experiment
    trials = points(experiment.values, experiment.grid, 1, runs)
    first = replace(experiment, seed=0).name
    named = {run_folder(first, trial.recipe): trial.recipe for trial in trials}
    train_all(named, runs, lanes=lanes, threads=1, watch=watch, pause=1.0)
    task = task_class(experiment.recipe.task.name)
    values = {name: Run(runs / name).results()["val"][task.metric] for name in named}
    known = {name: value for name, value in values.items() if value is not None}
    best = (max if task.maximise else min)(known or values, key=lambda name: values[name] or 0.0)
    return replace(experiment, recipe=named[best].model_copy(update={"seed": experiment.seed}))
