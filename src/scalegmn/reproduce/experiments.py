"""Datasets, methods, and the recipe that one makes with the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..models.registry import method as method_of
from ..training.recipe import Recipe, make_recipe, read_values
from .zoos import Scale

MINUTES = 4.0
CNN_MINUTES = 2.0
EPOCHS = 150
WIDTH = 64


@dataclass(frozen=True)
class Dataset:
    """Networks and what to learn from them.

    Arguments:
        name: Its key in records.
        title: As a heading.
        zoo: Name of its zoo.
        task: As in a recipe.
        metric: What is reported, a key of the task's metrics.
        unit: What a value is multiplied by in tables.
        digits: After the point, in tables.
        paper: Name of its recipe at the paper's scale; empty if the paper has no such dataset.
    """

    name: str
    title: str
    zoo: str
    task: Mapping[str, Any]
    metric: str
    unit: float
    digits: int
    paper: str

    @property
    def sines(self) -> bool:
        """Whether its networks are SIRENs."""
        return "-gs-" not in self.zoo

    @property
    def minutes(self) -> float:
        """Processor time of a run at the small scale: CNN zoos have a third of the training networks."""
        return MINUTES if self.sines else CNN_MINUTES


@dataclass(frozen=True)
class Method:
    """A model with its options.

    Arguments:
        name: Its key in records.
        title: As in tables.
        model: Name of the model.
        options: Of the model, at the small scale.
        training: What differs from the common settings of training.
        phase: Whether sine networks are brought to a canonical phase first.
    """

    name: str
    title: str
    model: str
    options: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    phase: bool = True


def _classification(name: str, title: str, paper: str) -> Dataset:
    return Dataset(name, title, name, {"name": "classification"}, "accuracy", 100.0, 1, paper)


def _generalisation(images: str, title: str, kind: str) -> Dataset:
    name = f"{images}-gs-{kind}"
    shown = {"relu": "ReLU", "tanh": "tanh", "both": "both"}[kind]
    task = {"name": "regression", "column": "test_accuracy", "sigmoid": True}
    return Dataset(name, f"{title} {shown}", name, task, "tau", 1.0, 3, "" if name == "svhn-gs-both" else name)


DATASETS = {
    dataset.name: dataset
    for dataset in (
        _classification("mnist", "MNIST", "mnist"),
        _classification("fashion-mnist", "Fashion-MNIST", "fashion-mnist"),
        _classification("cifar10", "CIFAR-10", "cifar10"),
        _classification("cifar10-views", "CIFAR-10, several views", "cifar10-augmented"),
        *(_generalisation("cifar10", "CIFAR-10-GS", kind) for kind in ("relu", "tanh", "both")),
        *(_generalisation("svhn", "SVHN-GS stand-in", kind) for kind in ("relu", "tanh", "both")),
        Dataset(
            "dilation",
            "Dilation of MNIST, MSE x 100",
            "mnist",
            {"name": "editing", "target": "dilation"},
            "mse",
            100.0,
            2,
            "mnist-dilation",
        ),
    )
}

_GRAPH = {"width": WIDTH, "layers": 3}
_SCALE = {**_GRAPH, "edge_updates": False}
# Answers to probes are learnt by heart sooner than weights are: one layer, and dropout.
_PROBED = {**_SCALE, "layers": 1, "probes": 128, "dropout": 0.3}
_MOVED = {"move": 0.12}
# Learnt within a run.
_QUICK = ("mnist", "fashion-mnist")
_PERMUTATIONS = (
    Method("gmn", "GMN", "gmn", _SCALE),
    Method("dws", "DWS", "dws"),
    Method("nfn-np", "NFN-NP", "nfn-np"),
    Method("nfn-hnp", "NFN-HNP", "nfn-hnp"),
    Method("ng-gnn", "NG-GNN", "ng-gnn", {**_GRAPH, "frequencies": 0}),
)
METHODS = {
    method.name: method
    for method in (
        Method("mlp", "MLP", "mlp"),
        Method("inr2vec", "Inr2Vec", "inr2vec"),
        Method("statnn", "StatNN", "statnn"),
        *_PERMUTATIONS,
        Method("ng-gnn-64", "NG-GNN, 64 probes", "ng-gnn", {**_GRAPH, "frequencies": 0, "probes": 64}),
        Method("ng-t", "NG-T", "ng-t", {**_GRAPH, "frequencies": 0}),
        Method("nft", "NFT", "nft"),
        Method("monomial-nfn", "Monomial-NFN", "monomial-nfn"),
        Method("probegen", "ProbeGen", "probegen"),
        Method("probegen-moved", "ProbeGen, inputs moved", "probegen", training=_MOVED),
        Method("scalegmn", "ScaleGMN", "scalegmn", _SCALE),
        Method("scalegmn-b", "ScaleGMN-B", "scalegmn-b", _SCALE),
        Method("scalegmn-128", "ScaleGMN, 128 probes", "scalegmn", _PROBED),
        Method("scalegmn-128-moved", "ScaleGMN, 128 probes, inputs moved", "scalegmn", _PROBED, _MOVED),
        Method("scalegmn-b-128-moved", "ScaleGMN-B, 128 probes, inputs moved", "scalegmn-b", _PROBED, _MOVED),
        Method("scalegmn-reciprocal", "ScaleGMN-B, reciprocal", "scalegmn-b", {**_SCALE, "backward": "reciprocal"}),
        Method("scalegmn-b-64", "ScaleGMN-B, 64 probes", "scalegmn-b", {**_SCALE, "probes": 64}),
        Method("scalegmn-b-4", "ScaleGMN-B, 4 copies", "scalegmn-b", {**_SCALE, "copies": 4}),
        Method("scalegmn-no-phase", "ScaleGMN, phases as they are", "scalegmn", _SCALE, phase=False),
        *(
            Method(f"{m.name}-augmented", f"{m.title} + augmentation", m.model, m.options, {"augment": "scale"})
            for m in _PERMUTATIONS
            if m.name != "gmn"
        ),
    )
}


def possible(dataset: Dataset, method: Method, scale: Scale) -> bool:
    """Whether a scale has a dataset, and a method can read its networks and answer as asked.

    >>> [possible(DATASETS[name], METHODS["dws"], "small") for name in ("mnist", "svhn-gs-relu")]
    [True, False]
    """
    model = method_of(method.model)
    if scale == "paper" and not dataset.paper:
        return False
    return (dataset.sines or model.convolutions) and (dataset.metric != "mse" or model.edits)


def recipe(dataset: Dataset, method: Method, scale: Scale, seed: int, zoos: Path) -> Recipe:
    """The recipe of one run.

    Arguments:
        dataset, method, scale, seed: Which.
        zoos: The folder of the zoos.

    >>> made = recipe(DATASETS["mnist"], METHODS["scalegmn"], "small", 0, Path("zoos/small"))
    >>> made.zoo, made.model.name, made.training.minutes
    ('zoos/small/mnist', 'scalegmn', 4.0)
    """
    values = _paper(dataset, method) if scale == "paper" else _small(dataset, method)
    training = {**values["training"], **method.training}
    canonical = "phase" if dataset.sines and method.phase else "none"
    shared = {"zoo": str(zoos / dataset.zoo), "task": dict(dataset.task), "canonical": canonical, "seed": seed}
    return make_recipe({**shared, "model": values["model"], "training": training}, f"{dataset.name}/{method.name}")


def _small(dataset: Dataset, method: Method) -> dict[str, Any]:
    options = dict(method.options)
    ours = method.model in ("scalegmn", "scalegmn-b", "gmn")
    if dataset.metric == "mse":
        # At half the width there is time for more than three epochs.
        if "width" in options:
            options["width"] = WIDTH // 2
        if method.model == "mlp":
            options["layers"] = 4
    elif ours:
        options["readout"] = "output"
        if not dataset.sines:
            # A thousand networks are soon learnt by heart.
            options["dropout"] = 0.2
        elif "probes" not in options and dataset.name in _QUICK:
            # Narrow gates leave time for more epochs, and with them three thousand networks are learnt by heart as
            # well. Those of CIFAR-10 are not, and both made it worse.
            options |= {"gate": 16, "dropout": 0.2}
    elif method.model in ("nfn-np", "nfn-hnp") and not dataset.sines:
        # Every weight of a kernel has channels of its own: nine times as many.
        options["width"] = 16
    training: dict[str, Any] = {
        "epochs": EPOCHS,
        "minutes": dataset.minutes,
        "clock": "cpu",
        "batch": 32,
        "lr": 2e-3,
        "schedule": "cosine",
        "warmup": 50,
        "device": "cpu",
    }
    if dataset.metric == "mse":
        # A picture says more than a label: smaller batches, and more and larger steps.
        training |= {"batch": 16, "clip": 1.0, "lr": 4e-3}
    return {"model": {"name": method.model, **options}, "training": training}


def _paper(dataset: Dataset, method: Method) -> dict[str, Any]:
    """The published settings of ScaleGMN; peers have those of training, and their own defaults."""
    values = read_values(f"paper/{dataset.paper}{'-b' if method.model == 'scalegmn-b' else ''}")
    model = values["model"] if method.model in ("scalegmn", "scalegmn-b") else {"name": method.model}
    special = {k: method.options[k] for k in ("probes", "backward", "copies") if k in method.options}
    return {"model": {**model, **special}, "training": values["training"]}
