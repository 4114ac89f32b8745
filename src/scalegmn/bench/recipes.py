"""The published experiments as lines of the benchmark, with the settings of their recipes."""

from __future__ import annotations

from pathlib import PurePath

from ..core.architecture import Architecture
from ..models.registry import method
from ..models.scalegmn import ScaleGMNSpec
from ..tasks import task_class
from ..tasks.build import split_options
from ..training.recipe import read_recipe, shipped
from ..zoo.cnn.shape import Cnn
from ..zoo.imports.inr import COLLECTIONS
from ..zoo.inr.build import inr_architecture
from ..zoo.inr.conventions import inr
from .scalegmn import Case

# What the authors trained; other recipes beside these add something of ours.
_PUBLISHED = ("scalegmn", "scalegmn-b", "scalegmn-reciprocal")


def published() -> list[Case]:
    """A training step and inference of every published experiment.

    >>> [case.name for case in published() if case.recipe == "paper/mnist/scalegmn"]
    ['paper/mnist/scalegmn, training step', 'paper/mnist/scalegmn, inference']
    """
    names = [name for name in shipped() if name.startswith("paper/") and PurePath(name).name in _PUBLISHED]
    return [case(name, training=training) for name in names for training in (True, False)]


def case(name: str, *, training: bool = True) -> Case:
    """One line of the benchmark.

    Arguments:
        name: Of a recipe of ScaleGMN that is shipped, or its file.
        training: A training step, not inference.
    """
    recipe = read_recipe(name)
    known, task = method(recipe.model.name), task_class(recipe.task.name)
    spec = known.chosen(split_options(known, task, recipe.model.options)[0])
    assert isinstance(spec, ScaleGMNSpec)
    return Case(
        f"{name}, {'training step' if training else 'inference'}",
        published_architectures(recipe.zoo),
        recipe.training.batch,
        spec,
        training,
        editing=task.head == "equivariant",
        method=known,
        recipe=name,
    )


def published_architectures(zoo: str) -> tuple[Architecture, ...]:
    """The architectures of a published collection, by the name of its zoo.

    >>> [a.parameters for a in published_architectures("zoos/cifar10-gs-both")]
    [4970, 4970]
    """
    name = PurePath(zoo).name.removesuffix("-augmented")
    if name in COLLECTIONS:
        known = COLLECTIONS[name]
        return (inr_architecture(inr(known.channels, convention_name=known.convention)),)
    kind = name.rpartition("-")[2]
    return tuple(Cnn(32, activation=a).architecture for a in (("relu", "tanh") if kind == "both" else (kind,)))
