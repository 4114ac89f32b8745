"""Rows, columns and tables of your own, for `scalegmn --plugin FILE.py reproduce`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..errors import ScaleGMNError
from ..zoo.store.zoo import Zoo
from .experiments import DATASETS, METHODS, Contender, Dataset
from .tables import TABLES, ResultTable, table
from .zoos import Folders, add_zoo


def add_method(name: str, title: str, tables: Sequence[str] = ()) -> None:
    """Add a method as a row of tables, trained with its recipe `SCALE/FOLDER/NAME` in a folder of each dataset.

    Arguments:
        name: The name of its recipes (`scalegmn.training.recipe.add_recipes`) and its records.
        title: The name in tables.
        tables: Their names; it comes last in each.
    """
    _add(METHODS, "method", Contender(name, title))
    for old in map(table, tables):
        TABLES[old.name] = replace(old, methods=tuple(dict.fromkeys((*old.methods, name))))


def add_dataset(dataset: Dataset, build: Callable[[str, Folders], Zoo], tables: Sequence[str] = ()) -> None:
    """Add a dataset as a column of tables.

    Arguments:
        dataset: What it is.
        build: Called with the name of its zoo and a place; makes `place.zoos / name` and returns it.
        tables: Their names; it comes last in each.
    """
    _add(DATASETS, "dataset", dataset)
    add_zoo(dataset.zoo, build)
    for old in map(table, tables):
        TABLES[old.name] = replace(old, datasets=tuple(dict.fromkeys((*old.datasets, dataset.name))))


def add_table(new: ResultTable) -> None:
    """Add a table: `scalegmn reproduce NAME`."""
    for known, names in ((METHODS, new.methods), (DATASETS, new.datasets)):
        wrong = next((name for name in names if name not in known), None)
        if wrong is not None:
            raise ScaleGMNError(f"table {new.name!r}: {wrong!r} is not known; add it first")
    _add(TABLES, "table", new)


def _add(known: dict[str, Any], what: str, new: Contender | Dataset | ResultTable) -> None:
    if known.setdefault(new.name, new) != new:
        raise ScaleGMNError(f"{what}: {new.name!r} is taken; give yours another name")
