"""Tasks: what is predicted or changed, its loss and its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.schema import from_json
from ..errors import ScaleGMNError, nearest
from .base import Task
from .classification import Classification
from .editing import Editing
from .regression import Regression

__all__ = ["TASKS", "Classification", "Editing", "Regression", "Task", "task_class", "task_from_json"]

TASKS: dict[str, type[Task]] = {kind.name: kind for kind in (Classification, Regression, Editing)}


def task_class(name: str) -> type[Task]:
    """The task of a name.

    >>> task_class("regresion")
    Traceback (most recent call last):
    ...
    scalegmn.errors.ScaleGMNError: task: 'regresion' is not known; did you mean 'regression'?
    """
    if name not in TASKS:
        raise ScaleGMNError(f"task: {name!r} is not known; {nearest(name, TASKS)}")
    return TASKS[name]


def task_from_json(values: Mapping[str, Any]) -> Task:
    """The task that `Task.to_json` wrote.

    >>> task = Classification("label", (0, 1))
    >>> task_from_json(task.to_json()) == task
    True
    """
    return from_json(task_class(values["name"]), {k: v for k, v in values.items() if k != "name"}, "task")
