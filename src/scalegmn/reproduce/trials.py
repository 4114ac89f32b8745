"""The same few trials for every method that a reader compares, and the recipe of the one that wins.

A table has one dataset on which settings are tried, and a list of them, `grids/SCALE/TABLE`. Every method starts from
its own recipe, `trials/FOLDER/METHOD`, has the budget of a run for each trial, and is judged on validation networks
alone. What wins becomes `SCALE/FOLDER/METHOD`, the recipe of the method's row in all columns of the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.schema import strict
from ..errors import ScaleGMNError
from ..files import write_atomically
from ..tasks import task_class
from ..training.lanes import Watch, train_all
from ..training.recipe import Recipe, flat, make_recipe, override, read_values, shipped, to_toml
from ..training.run import Run
from ..training.state import read_json, write_json
from ..training.sweep import parse_grid
from .experiments import DATASETS, METHODS, Dataset, Method, run_folder, run_name, with_budget
from .identity import checksums
from .records import machine, same_recipe
from .tables import Table
from .zoos import Place, Scale, open_zoo, zoo_path

_TIMES = "times."


@dataclass(frozen=True)
class Trial:
    """One method with one choice of settings.

    Arguments:
        dataset, method: Which.
        number: Among the trials of its method.
        changes: What differs from the method's own recipe, by dotted key.
        recipe: The whole recipe.
    """

    dataset: Dataset
    method: Method
    number: int
    changes: Mapping[str, Any]
    recipe: Recipe

    @property
    def name(self) -> str:
        """Of its record."""
        return run_name(self.dataset, self.method, self.number)

    @property
    def folder(self) -> str:
        """Of its run, which is that of the first seed of its row if it wins."""
        return run_folder(run_name(self.dataset, self.method, 0), self.recipe)


def tried(table: Table, scale: Scale) -> tuple[str, ...]:
    """The methods of a table that have trials at a scale.

    >>> from .tables import TABLES
    >>> tried(TABLES["editing"], "small")
    ('gmn', 'dws', 'nfn-hnp', 'ng-gnn', 'ng-gnn-64', 'scalegmn', 'scalegmn-b')
    """
    if not table.tuned or f"grids/{scale}/{table.name}" not in shipped():
        return ()
    known = set(shipped())
    return tuple(m for m in table.methods if f"trials/{_kind(table)}/{m}" in known)


def _kind(table: Table) -> str:
    """The folder of recipes that all datasets of a table share."""
    return DATASETS[table.tuned].recipes[-1]


def trials(table: Table, method: str, place: Place, minutes: float | None = None) -> list[Trial]:
    """The trials of a method.

    Arguments:
        table: Of which table.
        method: Which.
        place: The scale, and where its zoos are.
        minutes: Of each, instead of what the recipe says.

    >>> from pathlib import Path
    >>> from .tables import TABLES
    >>> found = trials(TABLES["inr-classification"], "dws", Place("small", Path("zoos"), None))
    >>> len(found), sorted(found[3].changes)
    (4, ['model.dropout', 'model.width', 'training.lr', 'training.weight_decay'])
    """
    dataset = DATASETS[table.tuned]
    file = f"trials/{_kind(table)}/{method}"
    values = {**with_budget(read_values(file), minutes), "zoo": str(zoo_path(dataset.zoo, place))}
    own = flat(values)
    grid = parse_grid([f"grids/{place.scale}/{table.name}"])
    found = []
    for number, column in enumerate(zip(*grid.values(), strict=True)):
        changes = dict(_change(key, value, own) for key, value in zip(grid, column, strict=True))
        words = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
        found.append(Trial(dataset, METHODS[method], number, changes, make_recipe(override(values, words), file)))
    return found


def _change(key: str, value: Any, own: Mapping[str, Any]) -> tuple[str, Any]:
    """A setting and its value; below `times`, a multiple of the method's own."""
    if not key.startswith(_TIMES):
        return key, value
    key = key.removeprefix(_TIMES)
    return key, max(1, round(value * own[key]))


@dataclass(frozen=True)
class Outcome:
    """What became of a trial; nothing is known of test networks.

    Arguments:
        dataset, method, number, changes: Which.
        metric: The name of the value.
        val: On the validation networks, at the best validation; None where it is undefined.
        epochs: Passes over the training networks.
        seconds: Of one core.
        recipe: The whole recipe; the zoo by its name.
        versions, zoo, machine: As in the record of a run.
    """

    dataset: str
    method: str
    number: int
    changes: dict[str, Any]
    metric: str
    val: float | None
    epochs: float
    seconds: float
    recipe: dict[str, Any]
    versions: dict[str, str]
    zoo: dict[str, Any]
    machine: dict[str, Any]


def read_outcomes(results: Path) -> list[Outcome]:
    """All records of trials beside the records of runs, in the order of their numbers."""
    found = []
    for path in sorted((results / "trials").glob("*.*.*.json")):
        try:
            found.append(Outcome(**read_json(path)))
        except TypeError as error:
            raise ScaleGMNError(f"{path}: not a record of a trial ({error}); delete it and run again") from None
    return sorted(found, key=lambda o: (o.dataset, o.method, o.number))


def _write(results: Path, trial: Trial, run: Run) -> None:
    found, config = run.results(), read_json(run.path / "config.json")
    dataset = trial.dataset
    outcome = Outcome(
        dataset.name,
        trial.method.name,
        trial.number,
        dict(trial.changes),
        dataset.metric,
        found["val"][dataset.metric],
        found["epochs"],
        found["seconds"],
        {**config["recipe"], "zoo": dataset.zoo},
        config["versions"],
        config["zoo"],
        machine(),
    )
    (results / "trials").mkdir(parents=True, exist_ok=True)
    write_json(results / "trials" / f"{trial.name}.json", strict(vars(outcome)))


def answer(trial: Trial, outcomes: Sequence[Outcome], place: Place) -> Outcome | None:
    """The record of a trial: of the same recipe and, where the zoo is here to compare with, of the same networks."""
    known = checksums(trial.dataset.zoo, place)
    for o in outcomes:
        which = (o.dataset, o.method, o.number) == (trial.dataset.name, trial.method.name, trial.number)
        if which and same_recipe(o.recipe, trial.recipe) and (not known or o.zoo["sha256"] in known):
            return o
    return None


def unanswered(
    table: Table, methods: Sequence[str], place: Place, results: Path, minutes: float | None = None
) -> list[Trial]:
    """The trials of which there is no record yet, every first one before every second one.

    Arguments:
        table, methods: Which.
        place: The scale, and where its zoos are.
        results: The folder of the records.
        minutes: Of each, instead of what the recipe says.
    """
    outcomes = read_outcomes(results)
    asked = [trial for method in methods for trial in trials(table, method, place, minutes)]
    left = [trial for trial in asked if answer(trial, outcomes, place) is None]
    return sorted(left, key=lambda trial: trial.number)


def conduct(
    todo: Sequence[Trial],
    place: Place,
    runs: Path,
    results: Path,
    *,
    lanes: int | None = None,
    watch: Watch | None = None,
) -> None:
    """Train trials; each leaves its record at once, and what was begun before goes on.

    Arguments:
        todo: What to train.
        place: Where zoos and images are.
        runs: The folder of the runs.
        results: The folder of the records.
        lanes: How many at the same time; one for each core if omitted. Each has one thread.
        watch: As in `train_all`.
    """
    named = {trial.folder: trial for trial in todo}
    written: set[str] = set()

    def look(name: str, run: Run) -> None:
        if watch is not None:
            watch(name, run)
        if run.finished and name not in written:
            written.add(name)
            _write(results, named[name], run)

    for zoo in dict.fromkeys(trial.dataset.zoo for trial in todo):
        open_zoo(zoo, place)
    for name in named:
        look(name, Run(runs / name))
    train_all({name: t.recipe for name, t in named.items()}, runs, lanes=lanes, threads=1, watch=look, pause=1.0)


def winner(table: Table, method: str, place: Place, results: Path, minutes: float | None = None) -> Trial:
    """The trial that was best on validation networks, the first of equals; all of them must have a record.

    Arguments:
        table, method: Which.
        place, results, minutes: As in `unanswered`.
    """
    outcomes = read_outcomes(results)
    asked = trials(table, method, place, minutes)
    found = [answer(trial, outcomes, place) for trial in asked]
    sign = 1.0 if task_class(asked[0].recipe.task.name).maximise else -1.0

    def score(trial: Trial) -> float:
        outcome = found[trial.number]
        if outcome is None:
            raise ScaleGMNError(f"trials: {trial.name} has no record in {results / 'trials'}; run it first")
        return -float("inf") if outcome.val is None else sign * outcome.val

    return max(asked, key=score)


def write_winner(table: Table, trial: Trial, recipes: Path, scale: Scale) -> list[Path]:
    """Write the recipe of a method's row, and make folders of single datasets follow it; the files written.

    Arguments:
        table: Of which table.
        trial: What won.
        recipes: The folder of recipes.
        scale: Whose.
    """
    kind, method = _kind(table), trial.method
    tables: dict[str, dict[str, Any]] = {}
    for key, value in trial.changes.items():
        name, _, option = key.partition(".")
        tables.setdefault(name, {})[option] = value
    first = f"# {method.title}: the best of its trials on the validation networks of {trial.dataset.title}.\n"
    files = {recipes / scale / kind / f"{method.name}.toml": {"base": f"trials/{kind}/{method.name}", **tables}}
    folders = {folder for name in table.datasets for folder in DATASETS[name].recipes} - {kind}
    for folder in sorted(folders):
        path = recipes / scale / folder / f"{method.name}.toml"
        if f"{scale}/{folder}/{method.name}" in shipped():
            files[path] = {"base": f"../{kind}/{method.name}.toml"}
    for path, values in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (first + to_toml(values)).encode())
    return list(files)
