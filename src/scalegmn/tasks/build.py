"""From names and options to a model."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.architecture import Architecture
from ..core.spec import changed
from ..errors import ScaleGMNError, nearest
from ..models.heads import Metanetwork
from ..models.method import Method
from ..models.registry import method
from .base import Task


def build_model(
    name: str, options: Mapping[str, Any], task: Task, architectures: Sequence[Architecture]
) -> Metanetwork:
    """A trunk with the head that a task needs.

    Arguments:
        name: As in `scalegmn models`.
        options: Fields of the specifications of its trunk and of that head.
        task: What it learns.
        architectures: The architectures that it reads.
    """
    found = method(name)
    trunk, head = split_options(found, type(task), options)
    return task.attach(found.build(architectures, found.chosen(trunk)), head)


def split_options(
    chosen: Method, task: type[Task], options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of a model in a recipe, divided into those of the trunk and those of the head, and checked.

    >>> from scalegmn.tasks import Editing
    >>> split_options(method("scalegmn"), Editing, {"width": 32, "copies": 8.0})
    ({'width': 32}, {'copies': 8})
    >>> split_options(method("scalegmn"), Editing, {"copy": 8})
    Traceback (most recent call last):
    ...
    scalegmn.errors.ScaleGMNError: model 'scalegmn': unknown option 'copy'; did you mean 'copies'?
    """
    if task.head == "equivariant" and not chosen.edits:
        raise ScaleGMNError(f"model {chosen.name!r} has no equivariant head, which task {task.name!r} needs")
    specs = (chosen.spec, task.head_spec)
    known = [name for spec in specs for name in spec.names()]
    for name in options:
        if name not in known:
            raise ScaleGMNError(f"model {chosen.name!r}: unknown option {name!r}; {nearest(name, known)}")
    parts = []
    for spec in specs:
        given = {name: value for name, value in options.items() if name in spec.names()}
        try:
            found = changed(spec, given)
        except ScaleGMNError as error:
            raise ScaleGMNError(f"model {chosen.name!r}: {error}") from None
        parts.append({name: getattr(found, name) for name in given})
    return parts[0], parts[1]
