"""Tasks: what is predicted or changed, its loss and its metrics."""

from collections.abc import Mapping
from typing import Any

from ..core.schema import from_json
from ..errors import known
from .base import Task
from .build import build_model
from .classification import Classification
from .editing import Editing
from .regression import Regression

__all__ = ["TASKS", "Classification", "Editing", "Regression", "Task", "build_model", "task_class", "task_from_json"]

TASKS: dict[str, type[Task]] = {kind.name: kind for kind in (Classification, Regression, Editing)}


def task_class(name: str) -> type[Task]:
    """The class of the task with this name."""
    return known("task", name, TASKS)


def task_from_json(values: Mapping[str, Any]) -> Task:
    """The task that `Task.to_json` wrote.

    >>> task = Classification("label", (0, 1))
    >>> task_from_json(task.to_json()) == task
    True
    """
    return from_json(task_class(values["name"]), {k: v for k, v in values.items() if k != "name"}, "task")
