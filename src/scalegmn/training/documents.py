"""The JSON files of a run: what they must contain, checked before it is used."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, FiniteFloat, TypeAdapter, ValidationError

from ..core.canonical import Canonical
from ..files import believing, read_object
from .options import complain

Metrics = dict[str, float | None]


class _Table(BaseModel):
    """A JSON object; further entries are ignored."""

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())


class Named(_Table):
    """The entries `model` and `task` of config.json: a name, and options that are checked when they are used."""

    name: str


class UsedZoo(_Table):
    """The entry `zoo` of config.json."""

    sha256: str


class Asked(_Table):
    """The entry `recipe` of config.json: what is needed of it after training."""

    zoo: str
    seed: int


class Config(_Table):
    """The content of config.json."""

    format: Literal["scalegmn model"]
    version: Literal[1]
    task: Named
    model: Named
    canonical: Canonical
    architectures: list[dict[str, Any]]
    layouts: list[dict[str, Any]] = []
    recipe: Asked
    zoo: UsedZoo
    versions: dict[str, str]


class Line(_Table):
    """A line of metrics.jsonl."""

    step: int
    epoch: FiniteFloat


class Results(_Table):
    """The content of results.json."""

    metric: str
    task: str
    parameters: int
    steps: int
    epochs: FiniteFloat
    seconds: FiniteFloat
    val: Metrics = {}
    test: Metrics = {}


def checked(kind: Any, value: Any, path: Path) -> Any:
    """The same value, if it is valid for a file of this kind; otherwise a one-line error that names the file.

    Arguments:
        kind: One of the classes above, or any other type that pydantic understands.
        value: What the file holds.
        path: Of the file.

    >>> checked(UsedZoo, {"sha256": 3}, Path("config.json"))
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


def read_config(path: Path) -> dict[str, Any]:
    """The content of a config.json."""
    found: dict[str, Any] = checked(Config, read_object(path), path)
    return found
