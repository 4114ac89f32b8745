"""From names and options to a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.architecture import Architecture
from ..models.base import Metanetwork
from ..models.registry import build_equivariant, build_invariant
from ..tasks import Task


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
