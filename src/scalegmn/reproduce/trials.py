"""The same few trials for every method that readers compare, and the recipe of the best one.

A table has one dataset on which settings are tried, and a list of them, `grids/SCALE/TABLE`. Every method starts from
its own recipe, `trials/FOLDER/METHOD`, has the budget of a run for each trial, and is judged on validation networks
alone. The best trial becomes `SCALE/FOLDER/METHOD`, the recipe of the method's row in all columns of the table.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.schema import strict
from ..errors import ScaleGMNError
from ..files import read_object, write_atomically, write_json
from ..tasks import task_class
from ..training.lanes import Watch
from ..training.recipe import Recipe, flat, make_recipe, override, read_values, shipped, to_toml
from ..training.run import Run
from ..training.sweep import parse_grid
from .experiments import DATASETS, METHODS, Contender, Dataset, run_folder, run_name, with_budget
from .identity import checksums
from .records import Measured, measured, same_recipe
from .run import train_recorded
from .tables import ResultTable
from .zoos import Folders, Scale, open_zoo, zoo_path

_TIMES = "times."


@dataclass(frozen=True)
class Trial:
    """One method with one choice of settings.

    Arguments:
        dataset, method: What is trained on which networks.
        number: Its number among the trials of the method.
        changes: What differs from the method's own recipe, by dotted key.
        recipe: The whole recipe.
    """

    dataset: Dataset
    method: Contender
    number: int
    changes: Mapping[str, Any]
    recipe: Recipe

    @property
    def name(self) -> str:
        """The name of its record."""
        return run_name(self.dataset, self.method, self.number)

    @property
    def folder(self) -> str:
        """The folder of its run; if it wins, this is also the run of the row's first seed."""
        return run_folder(run_name(self.dataset, self.method, 0), self.recipe)


def tried(table: ResultTable, scale: Scale) -> tuple[str, ...]:
    """The methods of a table that have trials at a scale.

    >>> from .tables import TABLES
    >>> tried(TABLES["editing"], "small")
    ('gmn', 'dws', 'nfn-hnp', 'ng-gnn', 'ng-gnn-64', 'scalegmn', 'scalegmn-b')
    """
    if not table.tuned or f"grids/{scale}/{table.name}" not in shipped():
        return ()
    known = set(shipped())
    return tuple(m for m in table.methods if f"trials/{_kind(table)}/{m}" in known)


def _kind(table: ResultTable) -> str:
    """The folder of recipes that all datasets of a table share."""
    return DATASETS[table.tuned].recipes[-1]


def trials(table: ResultTable, method: str, place: Folders, minutes: float | None = None) -> list[Trial]:
    """The trials of a method.

    Arguments:
        table: Of which table.
        method: The method.
        place: The scale, and where its zoos are.
        minutes: Of each, instead of what the recipe says.

    >>> from pathlib import Path
    >>> from .tables import TABLES
    >>> found = trials(TABLES["inr-classification"], "dws", Folders("small", Path("zoos"), None))
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


@dataclass(frozen=True, kw_only=True)
class TrialRecord(Measured):
    """The outcome of a trial, on validation networks only.

    Arguments:
        number, changes: As in `Trial`.
    """

    number: int
    changes: dict[str, Any]


def read_outcomes(results: Path) -> list[TrialRecord]:
    """All records of trials beside the records of runs, in the order of their numbers."""
    found = []
    for path in sorted((results / "trials").glob("*.*.*.json")):
        try:
            found.append(TrialRecord(**read_object(path)))
        except TypeError as error:
            raise ScaleGMNError(f"{path}: not a record of a trial ({error}); delete it and run again") from None
    return sorted(found, key=lambda o: (o.dataset, o.method, o.number))


def _write(results: Path, trial: Trial, run: Run) -> None:
    fields = measured(trial.dataset, trial.method, run)
    record = TrialRecord(**fields, number=trial.number, changes=dict(trial.changes))
    (results / "trials").mkdir(parents=True, exist_ok=True)
    write_json(results / "trials" / f"{trial.name}.json", strict(vars(record)))


def recorded(trial: Trial, outcomes: Sequence[TrialRecord], place: Folders) -> TrialRecord | None:
    """The record of a trial: of the same recipe and, where the zoo is here to compare with, of the same networks."""
    known = checksums(trial.dataset.zoo, place)
    for o in outcomes:
        which = (o.dataset, o.method, o.number) == (trial.dataset.name, trial.method.name, trial.number)
        if which and same_recipe(o.recipe, trial.recipe) and (not known or o.zoo["sha256"] in known):
            return o
    return None


def unanswered(table: ResultTable, methods: Sequence[str], place: Folders, minutes: float | None = None) -> list[Trial]:
    """The trials without a record; the first of every method come before the second ones.

    Arguments:
        table, methods: The table and its methods.
        place: The scale, and where its zoos and records are.
        minutes: Of each, instead of what the recipe says.
    """
    outcomes = read_outcomes(place.results)
    asked = [trial for method in methods for trial in trials(table, method, place, minutes)]
    left = [trial for trial in asked if recorded(trial, outcomes, place) is None]
    return sorted(left, key=lambda trial: trial.number)


def conduct(
    todo: Sequence[Trial],
    place: Folders,
    *,
    lanes: int | None = None,
    watch: Watch | None = None,
) -> None:
    """Train trials; each leaves its record at once, and unfinished ones continue.

    Arguments:
        todo, place, lanes, watch: As in `perform`.
    """
    named = {trial.folder: trial for trial in todo}
    for zoo in dict.fromkeys(trial.dataset.zoo for trial in todo):
        open_zoo(zoo, place)
    recipes = {name: trial.recipe for name, trial in named.items()}
    train_recorded(
        recipes, place.runs, lambda name, run: _write(place.results, named[name], run), lanes=lanes, watch=watch
    )


def winner(table: ResultTable, method: str, place: Folders, minutes: float | None = None) -> Trial:
    """The best trial on validation networks (the first, if several are equal); all of them must have a record.

    Arguments:
        table, method: The table and the method.
        place, minutes: As in `unanswered`.
    """
    outcomes = read_outcomes(place.results)
    asked = trials(table, method, place, minutes)
    found = [recorded(trial, outcomes, place) for trial in asked]
    sign = 1.0 if task_class(asked[0].recipe.task.name).maximise else -1.0

    def score(trial: Trial) -> float:
        outcome = found[trial.number]
        if outcome is None:
            raise ScaleGMNError(f"trials: {trial.name} has no record in {place.results / 'trials'}; run it first")
        return -float("inf") if outcome.val is None else sign * outcome.val

    return max(asked, key=score)


def write_winner(table: ResultTable, trial: Trial, recipes: Path, scale: Scale) -> list[Path]:
    """Write the recipe of a method's row, and let recipes of single datasets follow it; returns the files written.

    Arguments:
        table: Of which table.
        trial: The best trial.
        recipes: The folder of recipes.
        scale: Of the table.
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
