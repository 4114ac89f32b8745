"""The tables: which methods, on which datasets, and the published results (`tables.toml`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ScaleGMNError
from .experiments import DATASETS, METHODS, TOLD


@dataclass(frozen=True)
class ResultTable:
    """Methods on datasets.

    Arguments:
        name: As on the command line.
        title: As a heading.
        datasets: Columns.
        methods: Rows.
        paper: By dataset and method, published mean and standard deviation (None if none was published), in the
            paper's tables and text, and of NG-T and ProbeGen in those of their authors.
        figures: Zoos whose distributions are drawn instead.
        transformed: Whether the values are those on permuted and rescaled copies of the test networks.
        tuned: The dataset on which settings are tried, for methods that have trials.
    """

    name: str
    title: str
    datasets: tuple[str, ...]
    methods: tuple[str, ...]
    paper: Mapping[str, Mapping[str, tuple[float, float | None]]] = field(default_factory=dict)
    figures: tuple[str, ...] = ()
    transformed: bool = False
    tuned: str = ""


def _table(name: str, told: dict[str, Any]) -> ResultTable:
    lists: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in told.items()}
    published = {
        dataset: {method: (mean, *spread, None)[:2] for method, (mean, *spread) in values.items()}
        for dataset, values in lists.pop("paper", {}).items()
    }
    return ResultTable(name, paper=published, **lists)


TABLES = {name: _table(name, told) for name, told in TOLD["tables"].items()}


def table(name: str) -> ResultTable:
    """A table by its name."""
    if name not in TABLES:
        raise ScaleGMNError(f"table: expected one of {', '.join(TABLES)}, got {name!r}")
    return TABLES[name]


def chosen(given: str | None, known: tuple[str, ...], what: str) -> tuple[str, ...]:
    """Some of the names, in their order; all if none are given.

    >>> chosen("b,a", ("a", "b", "c"), "methods")
    ('a', 'b')
    """
    if given is None:
        return known
    names = given.split(",")
    wrong = [name for name in names if name not in known]
    if wrong:
        raise ScaleGMNError(f"{what}: expected some of {','.join(known)}; got {wrong[0]!r}")
    return tuple(name for name in known if name in names)


assert all(m in METHODS for t in TABLES.values() for m in t.methods)
assert all(d in DATASETS for t in TABLES.values() for d in t.datasets)
