"""The audit finds what is wrong, passes what is right, and `scalegmn check` says so."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from scalegmn.audit import Verdict, audit, audit_case, hostile_networks, small_architectures, subjects
from scalegmn.cli import app
from scalegmn.cli.application import run
from scalegmn.core.architecture import Architecture
from scalegmn.errors import ScaleGMNError
from scalegmn.models.method import Method
from scalegmn.models.peers.flat import FlatMLP
from scalegmn.models.registry import METHODS, method
from scalegmn.models.scalegmn import GMN, ScaleGMN, ScaleGMNSpec, ScaleGMNTrunk
from scalegmn.models.trunk import Pooling, Trunk

KEYS = ["model", "form", "architecture", "activation", "head", "law", "dtype", "error", "tolerance", "ok"]

# A program of its own, because a registered model stays registered.
BROKEN = """
import sys
from scalegmn.cli import app
from scalegmn.cli.application import run
from dataclasses import replace
from scalegmn.models.registry import register
from scalegmn.models.scalegmn import GMN
register(replace(GMN, name="boaster", symmetries=("permutation", "scale"), convolutions=False))
sys.exit(run(app, ["check", "--model", "boaster", *sys.argv[1:]]))
"""


def pretender(claimed: Method, *symmetries: str) -> Method:
    """A method that claims more or less than its trunk does."""
    return dataclasses.replace(claimed, name="pretender", symmetries=symmetries, convolutions=False, several=False)


def test_every_registered_method_has_cases_of_its_own() -> None:
    found = subjects(list(METHODS.values()))
    assert {c.method.name for c in found} == set(METHODS)
    for one in METHODS.values():
        kinds = {c.kind for c in found if c.method == one}
        assert kinds <= set(small_architectures())
        assert any(k.startswith("CNN") for k in kinds) == one.convolutions
        heads = {c.head for c in found if c.method == one}
        assert heads == ({"invariant", "equivariant"} if one.edits else {"invariant"})
    for name in ("scalegmn", "scalegmn-b"):
        assert len({c.activation for c in found if c.method.name == name}) == 6
        assert {c.form for c in found if c.method.name == name} == {"ours", "paper"}
    assert {c.form for c in found if c.method.name in ("gmn", "dws")} == {"ours", None}


def test_a_good_model_passes_with_its_negative_controls() -> None:
    rows = list(audit([dataclasses.replace(method("gmn"), convolutions=False)]))
    assert all(row.ok for row in rows)
    laws = {row.law for row in rows}
    assert laws == {
        "permutation", "not scale invariant", "not scale equivariant", "finite gradients", "order of the input",
    }  # fmt: skip
    for row in rows:
        assert row.ok == (row.error > row.tolerance if row.law.startswith("not ") else row.error <= row.tolerance)


@pytest.mark.parametrize(
    ("claimed", "symmetries", "law"),
    [
        (GMN, ("permutation", "scale"), "permutation and scale"),
        (FlatMLP, ("permutation",), "permutation"),
        (ScaleGMN, ("permutation",), "not scale invariant"),
        (GMN, (), "not permutation invariant"),
    ],
    ids=["not scale invariant", "not permutation invariant", "more than it says", "more than nothing"],
)
def test_a_method_that_is_not_what_it_says_fails(claimed: Method, symmetries: tuple[str, ...], law: str) -> None:
    rows = list(audit([pretender(claimed, *symmetries)]))
    # The head that edits breaks the law as well.
    broken = {row.law for row in rows if not row.ok and row.head == "invariant"}
    assert broken == {law}


class Spoiled(nn.Module):
    """Does something to an embedding."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, embedding: Tensor) -> Tensor:
        return self.function(embedding)


class Explosive(ScaleGMNTrunk):
    """The right symmetry, but its gradients are not finite."""

    def pooling(self) -> Pooling:
        found = super().pooling()
        return Pooling(found.one, Spoiled(lambda x: x + (0 * x.sum(1, keepdim=True)).sqrt()), found.size)


def invariant_rows(trunk: type[Trunk]) -> list[Verdict]:
    """The audit of ScaleGMN with another trunk, as far as its invariant head goes."""
    method = dataclasses.replace(pretender(ScaleGMN, "permutation", "scale"), trunk=trunk)
    return [row for case in subjects([method]) if case.head == "invariant" for row in audit_case(case)]


def test_gradients_that_are_not_finite_are_found() -> None:
    rows = invariant_rows(Explosive)
    assert {row.law for row in rows if not row.ok} == {"finite gradients"}


class Constant(ScaleGMNTrunk):
    """Every symmetry there is, and finite gradients."""

    def pooling(self) -> Pooling:
        found = super().pooling()
        return Pooling(found.one, Spoiled(lambda x: 0 * x), found.size)


def test_a_constant_is_no_model() -> None:
    rows = invariant_rows(Constant)
    assert {row.law for row in rows if not row.ok} == {"not constant"}


class Refusing(ScaleGMNTrunk):
    """Reads nothing."""

    def __init__(self, method: Method, architectures: Sequence[Architecture], spec: ScaleGMNSpec) -> None:
        raise ScaleGMNError("expected nothing")


def test_a_model_that_refuses_everything_fails() -> None:
    (row,) = audit([dataclasses.replace(pretender(GMN, "permutation"), trunk=Refusing)])
    assert (row.law, row.ok) == ("reads something", False)


def test_hostile_networks_are_hostile() -> None:
    a = small_architectures()["MLP"](("relu",) * 3)
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
    assert all(list(row) == KEYS == [f.name for f in dataclasses.fields(Verdict)] for row in rows)
    assert all(row["ok"] is True and isinstance(row["error"], float) for row in rows)
    assert {row["dtype"] for row in rows} == {"float32", "float64"}


def test_the_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["check", "--model", "statnn"]) == 0
    text = capsys.readouterr().out
    assert "not scale invariant" in text
    assert text.rstrip().endswith("cases, none failed")


def test_the_command_exits_with_one_if_a_law_is_broken() -> None:
    found = subprocess.run([sys.executable, "-c", BROKEN], capture_output=True, text=True)
    assert found.returncode == 1, found.stderr
    assert "NO" in found.stdout
    assert "none failed" not in found.stdout


def test_unknown_models_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["check", "--model", "scalegnm"]) == 2
    assert "did you mean 'scalegmn'?" in capsys.readouterr().err
