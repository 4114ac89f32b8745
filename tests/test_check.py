"""The audit finds what is wrong, passes what is right, and `scalegmn check` says so."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from functools import partial

import pytest
import torch

import scalegmn.models  # noqa: F401
from scalegmn.audit import Row, architectures, audit, cases, hostile_networks
from scalegmn.cli import app
from scalegmn.cli.application import run
from scalegmn.errors import ScaleGMNError
from scalegmn.models.gmn import GMN
from scalegmn.models.mlp import MLP
from scalegmn.models.registry import ModelCard, card, cards
from scalegmn.models.scalegmn import ScaleGMN

KEYS = ["model", "architecture", "activation", "head", "law", "dtype", "error", "tolerance", "ok"]

# A program of its own, because a registered model stays registered.
BROKEN = """
import sys
from scalegmn.cli import app
from scalegmn.cli.application import run
from scalegmn.models.gmn import GMN
from scalegmn.models.registry import ModelCard, register
register(ModelCard("boaster", "Boaster", "nobody", 2024, ("permutation", "scale"), GMN, None, convolutions=False))
sys.exit(run(app, ["check", "--model", "boaster", *sys.argv[1:]]))
"""


def pretender(builder: type, *symmetries: str) -> ModelCard:
    """A card that claims more or less than the model does."""
    return ModelCard("pretender", "", "", 2024, symmetries, builder, None, convolutions=False, several=False)


def test_every_registered_model_has_cases_of_its_own() -> None:
    found = cases(cards())
    assert {c.card.name for c in found} == {c.name for c in cards()}
    for one in cards():
        kinds = {c.kind for c in found if c.card == one}
        assert kinds <= set(architectures())
        assert any(k.startswith("CNN") for k in kinds) == one.convolutions
        heads = {c.head for c in found if c.card == one}
        builders = {"invariant": one.invariant, "equivariant": one.equivariant}
        assert heads == {head for head, builder in builders.items() if builder is not None}
    for name in ("scalegmn", "scalegmn-b"):
        assert len({c.activation for c in found if c.card.name == name}) == 6


def test_a_good_model_passes_with_its_negative_controls() -> None:
    rows = list(audit([dataclasses.replace(card("gmn"), convolutions=False)]))
    assert all(row.ok for row in rows)
    laws = {row.law for row in rows}
    assert laws == {
        "permutation", "not scale invariant", "not scale equivariant", "finite gradients", "order of the input",
    }  # fmt: skip
    for row in rows:
        assert row.ok == (row.error > row.tolerance if row.law.startswith("not ") else row.error <= row.tolerance)


@pytest.mark.parametrize(
    ("builder", "symmetries", "law"),
    [
        (GMN, ("permutation", "scale"), "permutation and scale"),
        (MLP, ("permutation",), "permutation"),
        (ScaleGMN, ("permutation",), "not scale invariant"),
        (GMN, (), "not permutation invariant"),
    ],
    ids=["not scale invariant", "not permutation invariant", "more than it says", "more than nothing"],
)
def test_a_model_that_is_not_what_its_card_says_fails(builder: type, symmetries: tuple[str, ...], law: str) -> None:
    rows = list(audit([pretender(builder, *symmetries)]))
    assert {row.law for row in rows if not row.ok} == {law}


class Explosive(ScaleGMN):
    """The right symmetry, but its gradients are not finite."""

    def read(self, embedding: torch.Tensor) -> torch.Tensor:
        return super().read(embedding) + (0 * embedding.sum(1, keepdim=True)).sqrt()


def test_gradients_that_are_not_finite_are_found() -> None:
    rows = list(audit([pretender(Explosive, "permutation", "scale")]))
    assert {row.law for row in rows if not row.ok} == {"finite gradients"}


class Constant(ScaleGMN):
    """Every symmetry there is, and finite gradients."""

    def read(self, embedding: torch.Tensor) -> torch.Tensor:
        return super().read(0 * embedding)


def test_a_constant_is_no_model() -> None:
    rows = list(audit([pretender(Constant, "permutation", "scale")]))
    assert {row.law for row in rows if not row.ok} == {"not constant"}


def refuse(*_: object, **__: object) -> ScaleGMN:
    raise ScaleGMNError("expected nothing")


def test_a_model_that_refuses_everything_fails() -> None:
    (row,) = audit([pretender(partial(refuse), "permutation")])  # type: ignore[arg-type]
    assert (row.law, row.ok) == ("reads something", False)


def test_hostile_networks_are_hostile() -> None:
    a = architectures()["MLP"](("relu",) * 3)
    networks = hostile_networks(a, 5, torch.Generator().manual_seed(0))
    sizes = networks.parameters.abs()
    assert (sizes == 0).double().mean() > 0.1
    assert ((sizes > 0) & (sizes < 1e-13)).double().mean() > 0.05
    assert (networks.weights[1][:, 0] == 0).all()
    assert (networks.weights[1][:, :, -1] == 0).all()
    assert (networks.biases[1][:, 0] == 0).all()
    assert networks.weights[0].abs().max() > 0.1


def test_the_command_prints_rows_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["check", "--model", "statnn", "--model", "dws", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["model"] for row in rows} == {"statnn", "dws"}
    assert all(list(row) == KEYS == [f.name for f in dataclasses.fields(Row)] for row in rows)
    assert all(row["ok"] is True and isinstance(row["error"], float) for row in rows)
    assert {row["dtype"] for row in rows} == {"float32", "float64"}


def test_the_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["check", "--model", "statnn"]) == 0
    text = capsys.readouterr().out
    assert "not scale invariant" in text
    assert text.rstrip().endswith("rows, none failed")


def test_the_command_exits_with_one_if_a_law_is_broken() -> None:
    found = subprocess.run([sys.executable, "-c", BROKEN], capture_output=True, text=True)
    assert found.returncode == 1, found.stderr
    assert "NO" in found.stdout
    assert "none failed" not in found.stdout


def test_unknown_models_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["check", "--model", "scalegnm"]) == 2
    assert "did you mean 'scalegmn'?" in capsys.readouterr().err
