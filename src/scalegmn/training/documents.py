"""The JSON files of a run: what must stand in them, checked before anything believes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, FiniteFloat, TypeAdapter, ValidationError

from ..core.canonical import Canonical
from ..files import believing
from .options import complain

Metrics = dict[str, float | None]


class _Table(BaseModel):
    """Entries beside those named are not looked at."""

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())


class Named(_Table):
    """`model` and `task` of config.json: a name, and options that are checked where they are used."""

    name: str


class Origin(_Table):
    """`zoo` of config.json."""

    sha256: str


class Asked(_Table):
    """`recipe` of config.json, as far as others than training need it."""

    zoo: str
    seed: int


class Config(_Table):
    """config.json."""

    format: Literal["scalegmn model"]
    version: Literal[1]
    task: Named
    model: Named
    canonical: Canonical
    architectures: list[dict[str, Any]]
    layouts: list[dict[str, Any]] = []
    recipe: Asked
    zoo: Origin
    versions: dict[str, str]


class Line(_Table):
    """A line of metrics.jsonl."""

    step: int
    epoch: FiniteFloat


class Results(_Table):
    """results.json."""

    metric: str
    task: str
    parameters: int
    steps: int
    epochs: FiniteFloat
    seconds: FiniteFloat
    val: Metrics = {}
    test: Metrics = {}


def checked(kind: Any, value: Any, path: Path) -> Any:
    """The same value, if it is what a file of this kind holds; else one line that names the file.

    Arguments:
        kind: One of the classes above, or any other type that pydantic understands.
        value: What the file holds.
        path: Of the file.

    >>> checked(Origin, {"sha256": 3}, Path("config.json"))
    Traceback (most recent call last):
    ...
    scalegmn.errors.ScaleGMNError: config.json: sha256: input should be a valid string, got 3
    """
    with believing(path):
        try:
            TypeAdapter(kind).validate_python(value)
        except ValidationError as error:
            raise complain(error, str(path), lambda place: ()) from None
    return value
