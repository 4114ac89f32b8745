"""Tasks: what is predicted or changed, its loss and its metrics."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.architecture import Architecture
from ..core.schema import from_json
from ..errors import ScaleGMNError
from ..models.base import Metanetwork
from ..models.registry import build_equivariant, build_invariant
from .base import Task
from .classification import Classification
from .editing import Editing
from .regression import Regression

__all__ = ["TASKS", "Classification", "Editing", "Regression", "Task", "build_model", "task_class", "task_from_json"]

TASKS: dict[str, type[Task]] = {kind.name: kind for kind in (Classification, Regression, Editing)}


def task_class(name: str) -> type[Task]:
    """The task of a name.

    >>> task_class("regresion")
    Traceback (most recent call last):
    ...
    scalegmn.errors.ScaleGMNError: task: 'regresion' is not known; did you mean 'regression'?
    """
    if name not in TASKS:
        close = difflib.get_close_matches(name, TASKS, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(TASKS)}"
        raise ScaleGMNError(f"task: {name!r} is not known; {hint}")
    return TASKS[name]


def task_from_json(values: Mapping[str, Any]) -> Task:
    """The task that `Task.to_json` wrote.

    >>> task = Classification("label", (0, 1))
    >>> task_from_json(task.to_json()) == task
    True
    """
    return from_json(task_class(values["name"]), {k: v for k, v in values.items() if k != "name"}, "task")


def build_model(
    name: str, options: Mapping[str, Any], task: Task, architectures: Sequence[Architecture]
) -> Metanetwork:
    """A model with the head that a task needs.

    Arguments:
        name: As in `scalegmn models`.
        options: Keyword arguments of its constructor.
        task: What it shall learn.
        architectures: What it shall read.
    """
    if task.head == "equivariant":
        return build_equivariant(name, architectures, options)
    return build_invariant(name, architectures, task.outputs, options)
