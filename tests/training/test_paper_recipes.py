"""The settings of the authors, one row per public configuration: every value of every recipe against this table."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from scalegmn.training.recipe import RECIPES, make_recipe, override, read_recipe, read_values

SYMMETRISE, ABSOLUTE, NO_SIGNS = "symmetrise", "absolute", None


class Row(NamedTuple):
    """One configuration.

    Arguments:
        batch, width, layers: Sizes.
        readout: What is read; None where networks are edited.
        skip: Whether states are added to those before.
        edge_encodings: Whether edges have positional encodings.
        encodings_everywhere: Whether messages and updates see encodings too.
        dropout: Of the states between iterations.
        everywhere: Whether it acts inside all MLPs as well.
        signs: How signs are removed; None where there are none.
        lr, decay: Of AdamW.
        epochs, steps: Length, in the one or the other.
    """

    batch: int | None
    width: int
    layers: int
    readout: str | None
    skip: bool
    edge_encodings: bool
    encodings_everywhere: bool
    dropout: float
    everywhere: bool
    signs: str | None
    lr: float
    decay: float
    epochs: int | None
    steps: int | None = None


IO = "input+output"
YES, NO = True, False
TABLE = {
    "mnist/scalegmn": Row(128, 128, 4, "output", YES, YES, NO, 0.2, NO, SYMMETRISE, 1e-3, 0.01, 150),
    "mnist/scalegmn-b": Row(128, 128, 4, IO, NO, NO, YES, 0.2, NO, SYMMETRISE, 1e-3, 0.001, 150),
    "fashion-mnist/scalegmn": Row(128, 128, 2, "all", YES, YES, NO, 0.2, YES, SYMMETRISE, 1e-3, 0.01, 150),
    "fashion-mnist/scalegmn-b": Row(128, 128, 2, "all", YES, YES, NO, 0.2, YES, SYMMETRISE, 1e-3, 0.01, 150),
    "cifar10/scalegmn": Row(64, 64, 4, "output", NO, NO, NO, 0.2, NO, ABSOLUTE, 1e-3, 5e-4, 200),
    "cifar10/scalegmn-b": Row(64, 64, 4, IO, NO, NO, NO, 0.2, NO, ABSOLUTE, 1e-3, 5e-4, 200),
    "cifar10-views/scalegmn": Row(256, 128, 4, "all", YES, NO, NO, 0.1, NO, SYMMETRISE, 1e-3, 1e-3, None, 20_000),
    "cifar10-views/scalegmn-b": Row(256, 128, 4, IO, YES, NO, NO, 0.2, NO, SYMMETRISE, 1e-3, 1e-4, None, 20_000),
    "cifar10-gs-relu/scalegmn": Row(64, 128, 4, "output", NO, NO, NO, 0.0, NO, NO_SIGNS, 1e-3, 0.01, 200),
    "cifar10-gs-relu/scalegmn-b": Row(64, 128, 4, IO, NO, NO, NO, 0.0, NO, NO_SIGNS, 1e-3, 0.01, 200),
    "cifar10-gs-tanh/scalegmn": Row(64, 128, 4, "all", NO, NO, NO, 0.0, NO, SYMMETRISE, 1e-3, 0.01, 200),
    "cifar10-gs-tanh/scalegmn-b": Row(32, 128, 4, "all", NO, NO, NO, 0.2, NO, SYMMETRISE, 5e-4, 0.01, 200),
    "cifar10-gs-both/scalegmn": Row(64, 128, 4, "output", NO, NO, NO, 0.2, NO, ABSOLUTE, 1e-3, 0.001, 200),
    "cifar10-gs-both/scalegmn-b": Row(64, 128, 5, IO, YES, NO, NO, 0.1, NO, SYMMETRISE, 1e-3, 0.001, 250),
    "svhn-gs-relu/scalegmn": Row(16, 64, 4, "all", YES, NO, NO, 0.0, NO, NO_SIGNS, 1e-3, 0.0, 200),
    "svhn-gs-relu/scalegmn-b": Row(64, 64, 3, "all", YES, NO, NO, 0.0, NO, NO_SIGNS, 1e-3, 0.0, 200),
    # The authors state no batch size for this one.
    "svhn-gs-tanh/scalegmn": Row(None, 64, 4, "output", NO, NO, NO, 0.0, NO, SYMMETRISE, 1e-3, 5e-4, 200),
    "svhn-gs-tanh/scalegmn-b": Row(128, 128, 3, "all", YES, NO, NO, 0.0, NO, SYMMETRISE, 1e-3, 0.01, 200),
    "dilation/scalegmn": Row(64, 128, 10, None, YES, NO, NO, 0.1, YES, ABSOLUTE, 1e-3, 0.001, 300),
    "dilation/scalegmn-b": Row(64, 128, 10, None, YES, NO, NO, 0.1, NO, ABSOLUTE, 1e-3, 0.001, 300),
}
# What the model does where a recipe says nothing.
DEFAULTS = {
    "readout": None,
    "skip": True,
    "edge_positions": False,
    "positions_everywhere": False,
    "dropout": 0.0,
    "sign": "symmetrise",
    "edge_updates": True,
    "aggregate": "sum",
    "probes": 0,
    "gate": None,
}


@pytest.mark.parametrize("name", TABLE)
def test_a_recipe_has_the_values_of_the_table(name: str) -> None:
    row, recipe = TABLE[name], read_recipe(f"paper/{name}")
    options, training = {**DEFAULTS, **recipe.model.options}, recipe.training
    assert recipe.model.name == name.rpartition("/")[2]
    assert (options["width"], options["layers"], options["readout"]) == (row.width, row.layers, row.readout)
    assert options["skip"] is row.skip
    assert (options["edge_positions"], options["positions_everywhere"]) == (
        row.edge_encodings,
        row.encodings_everywhere,
    )
    assert options["dropout"] == row.dropout
    assert options["sign"] == (row.signs or "symmetrise")
    assert (options["edge_updates"], options["aggregate"], options["probes"], options["gate"]) == (True, "sum", 0, None)
    assert row.batch in (None, training.batch)
    assert (training.lr, training.weight_decay) == (row.lr, row.decay)
    assert training.steps == row.steps
    assert row.epochs in (None, training.epochs)
    assert (training.warmup, training.schedule, training.clip) == (1000, "constant", 10.0)
    assert (training.augment, training.noise, training.move, training.minutes) == ("none", 0.0, 0.0, None)


@pytest.mark.parametrize("name", TABLE)
def test_a_recipe_has_the_equations_of_the_paper_and_its_place_of_dropout(name: str) -> None:
    options = read_recipe(f"paper/{name}").model.options
    assert options["dropout_in"] == ("everywhere" if TABLE[name].everywhere else "states")
    # "In our experiments, we used only y and e"; "a single layer K = 1 was sufficient"; an invariant edge update.
    assert (options["form"], options["neighbours_only"]) == ("paper", True)
    assert not options.keys() & {"depth", "rescale", "edge_rule", "backward"}


@pytest.mark.parametrize("name", TABLE)
def test_losses_and_canonical_forms_are_those_of_the_paper(name: str) -> None:
    recipe = read_recipe(f"paper/{name}")
    cnns = "-gs-" in name
    assert recipe.canonical == ("none" if cnns else "phase")
    expected = "editing" if "dilation" in name else "regression" if cnns else "classification"
    assert recipe.task.name == expected
    # The squared error after a sigmoid.
    assert recipe.task.options.get("sigmoid", False) is cnns


def test_there_is_no_configuration_without_a_row() -> None:
    files = {path.relative_to(RECIPES / "paper").with_suffix("").as_posix() for path in RECIPES.glob("paper/*/*.toml")}
    assert {name for name in files if name.rpartition("/")[2] in ("scalegmn", "scalegmn-b")} == set(TABLE)


@pytest.mark.parametrize("grid", ["inr-classification", "cnn-generalisation"])
def test_the_search_space_has_every_readout(grid: str) -> None:
    assert read_values(f"grids/{grid}")["model"]["readout"] == ["all", "output", "input+output"]
    for readout in ("all", "output", "input+output"):
        make_recipe(override(read_values("paper/mnist/scalegmn-b"), [f"model.readout={readout}"]))


@pytest.mark.parametrize(
    ("name", "model", "training"),
    [
        ("inr/dws", {"width": 32, "layers": 4, "reduction": "max"}, {"lr": 5e-3, "batch": 512, "epochs": 100}),
        ("inr/nfn-np", {"width": 512, "layers": 3, "frequencies": 128, "dropout": 0.1}, {"steps": 200_000, "lr": 1e-4}),
        ("inr/nfn-hnp", {"width": 512, "layers": 3, "frequencies": 128}, {"batch": 32, "warmup": 10_000}),
        ("cifar10/nfn-np", {"width": 512, "frequencies": 128, "dropout": 0.5}, {"steps": 200_000}),
        ("cnn/nfn-hnp", {"width": 16, "layers": 3}, {"epochs": 50, "batch": 8, "lr": 1e-3, "warmup": 0}),
        ("inr/ng-gnn", {"width": 32, "layers": 4, "frequencies": 128, "sigma": 3.0}, {"epochs": 300, "batch": 128}),
        ("inr/ng-gnn-64", {"width": 32, "probes": 64}, {"weight_decay": 5e-4, "warmup": 1000, "clip": 10.0}),
        ("inr/ng-t-64", {"width": 64, "heads": 8, "probes": 64}, {"epochs": 300}),
        ("cnn/ng-gnn", {"width": 32, "layers": 4}, {"epochs": 200, "batch": 256, "weight_decay": 5e-4, "clip": 10.0}),
        ("cnn/ng-t", {"width": 64, "layers": 4, "heads": 8, "sigma": 1.0}, {"epochs": 200, "batch": 256}),
        ("dilation/ng-t-64", {"heads": 4, "frequencies": 128, "sigma": 3.0, "probes": 64}, {"epochs": 200}),
        ("dilation/mlp", {"width": 1000}, {"epochs": 200}),
        ("dilation/ng-gnn", {"width": 128, "frequencies": 0}, {"epochs": 200, "warmup": 10_000, "clip": 1.0}),
        ("dilation/nfn-np", {"width": 128, "layers": 3, "frequencies": 128}, {"batch": 128}),
        ("inr/probegen", {"width": 256, "layers": 6, "probes": 128}, {"epochs": 30, "batch": 32, "lr": 3e-4}),
        ("cnn/probegen", {"probes": 128}, {"epochs": 150, "lr": 3e-4}),
        ("inr/inr2vec", {"embedding": 1024}, {"prepare": 0}),
        ("mnist/gmn", {"width": 128, "layers": 4}, {"epochs": 150}),
    ],
)
def test_peers_have_the_settings_of_their_authors(
    name: str, model: dict[str, object], training: dict[str, object]
) -> None:
    recipe = read_recipe(f"paper/{name}")
    assert {key: recipe.model.options[key] for key in model} == model
    found = recipe.training.model_dump()
    assert {key: found[key] for key in training} == training
