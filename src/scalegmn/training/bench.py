"""The published experiments as lines of the benchmark, as their recipes have them."""

from __future__ import annotations

from pathlib import PurePath

from ..core.architecture import Architecture
from ..models.bench import Case
from ..models.registry import method
from ..models.scalegmn import ScaleGMNSpec
from ..tasks import task_class
from ..tasks.build import split_options
from ..zoo.cnn.shape import Cnn
from ..zoo.imports.inr import COLLECTIONS
from ..zoo.inr.build import inr_architecture
from ..zoo.inr.conventions import inr
from .recipe import read_recipe, shipped

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
    """One of them.

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
        architectures(recipe.zoo),
        recipe.training.batch,
        spec,
        training,
        editing=task.head == "equivariant",
        method=known,
        recipe=name,
    )


def architectures(zoo: str) -> tuple[Architecture, ...]:
    """What a published collection holds, by the name of its zoo.

    >>> [a.parameters for a in architectures("zoos/mnist-inr") + architectures("zoos/cifar10-gs-both")]
    [1185, 4970, 4970]
    """
    name = PurePath(zoo).name.removesuffix("-augmented")
    if name in COLLECTIONS:
        known = COLLECTIONS[name]
        return (inr_architecture(inr(known.channels, convention_name=known.convention)),)
    kind = name.rpartition("-")[2]
    return tuple(Cnn(32, activation=a).architecture for a in (("relu", "tanh") if kind == "both" else (kind,)))
