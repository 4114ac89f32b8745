"""The model in our form equals the literal edge-list implementation of our equations, values and gradients."""

from __future__ import annotations

from typing import Any

import agreement
import pytest
import torch
from oracle import Oracle
from subjects import ARCHITECTURES, SIGNS, fresh, trained, transforms
from torch import nn

from scalegmn.audit import output_of, residual
from scalegmn.core.architecture import Architecture
from scalegmn.core.networks import Networks
from scalegmn.models.heads import Editor, InvariantModel, Regressor
from scalegmn.models.scalegmn import GMN, ScaleGMN

FLOWS = ("none", "shared", "reciprocal", "dual")
NAMES = ("relu", "tanh", "cube", "mixed")
SMALL: dict[str, Any] = {"width": 6, "layers": 3}


def legal(flow: str, name: str) -> bool:
    if flow == "shared":
        return name in SIGNS
    return flow != "reciprocal" or name in ("relu", "tanh")


def scramble(model: nn.Module) -> None:
    """Leave the initial parameters and constants."""
    agreement.scramble(model)
    for name, b in model.named_buffers():
        if "gain" in name:
            b.copy_(torch.linspace(0.5, 2, len(b)))


def disagreement(model: InvariantModel | Editor, networks: Networks) -> float:
    """The largest relative error of values and of gradients."""
    return agreement.disagreement(model, output_of(model, networks), Oracle(model)(networks))


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize(("flow", "name"), [(flow, name) for flow in FLOWS for name in NAMES if legal(flow, name)])
def test_the_model_is_what_the_equations_say(flow: str, name: str, kind: str) -> None:
    a = ARCHITECTURES[kind, name]
    model = ScaleGMN([a], 3, backward=flow, **SMALL).double()
    scramble(model)
    assert disagreement(model, Networks.cat([fresh(a, 2), trained(a, 2)])) < 1e-9


OPTIONS: dict[str, dict[str, Any]] = {
    "absolute": {"sign": "absolute"},
    "mean": {"aggregate": "mean"},
    "positions": {"positions_everywhere": True},
    "edge positions": {"edge_positions": True},
    "no skip, no edge updates": {"skip": False, "edge_updates": False},
    "output": {"readout": "output"},
    "narrow gates": {"gate": 3},
    "input+output": {"readout": "input+output"},
    "K = 2": {"depth": 2},
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(
    ("flow", "kind", "name"),
    [
        ("none", "mlp", "mixed"),
        ("shared", "residual", "tanh"),
        ("reciprocal", "flatten", "relu"),
        ("dual", "mlp", "mixed"),
    ],
)
def test_so_it_is_with_every_option(option: str, flow: str, kind: str, name: str) -> None:
    a = ARCHITECTURES[kind, name]
    trunk = ScaleGMN([a], backward=flow, **SMALL | {"layers": 2} | OPTIONS[option])
    model = Regressor(trunk, 3, sigmoid=option == "output").double()
    scramble(model)
    assert disagreement(model, fresh(a, 2)) < 1e-9


@pytest.mark.parametrize(
    ("flow", "a"),
    [
        ("none", ARCHITECTURES["flatten", "sine"]),
        ("shared", Architecture.mlp([2, 4, 3, 2], "cos")),
        ("reciprocal", ARCHITECTURES["residual", "relu"]),
        ("dual", residual(("relu", "cos", "leaky_relu"))),
        ("dual", ARCHITECTURES["cnn", "mixed"]),
    ],
    ids=["none-flatten", "shared-cos", "reciprocal-residual", "dual-residual", "dual-cnn"],
)
def test_editors_are_what_the_equations_say(flow: str, a: Architecture) -> None:
    model = Editor(ScaleGMN([a], backward=flow, **SMALL | {"layers": 2}), copies=2).double()
    scramble(model)
    assert disagreement(model, fresh(a, 2)) < 1e-9


def test_gmn_is_the_same_with_trivial_groups() -> None:
    a = ARCHITECTURES["mlp", "mixed"]
    model = GMN([a], 3, backward="shared", **SMALL).double()
    scramble(model)
    assert disagreement(model, fresh(a, 2)) < 1e-9


def test_models_of_several_architectures_pad_in_the_same_way() -> None:
    several = [ARCHITECTURES["mlp", "relu"], ARCHITECTURES["cnn", "tanh"], ARCHITECTURES["flatten", "relu"]]
    model = ScaleGMN(several, 3, backward="dual", **SMALL | {"layers": 2}).double()
    scramble(model)
    for a in several:
        assert disagreement(model, fresh(a, 2)) < 1e-9


def test_it_runs_in_single_precision() -> None:
    a = Architecture.mlp([2, 8, 8, 1], "sine")
    model = ScaleGMN([a], 3, **SMALL)
    networks = fresh(a, 16).to(dtype=torch.float32)
    torch.testing.assert_close(Oracle(model)(networks), model(networks), rtol=1e-4, atol=1e-5)


def test_the_oracle_obeys_the_laws_by_itself() -> None:
    a = ARCHITECTURES["mlp", "mixed"]
    model = ScaleGMN([a], 3, backward="dual", **SMALL).double()
    networks = fresh(a)
    oracle = Oracle(model)
    torch.testing.assert_close(oracle(transforms(a).apply(networks)), oracle(networks), rtol=1e-9, atol=1e-9)


def test_a_difference_would_be_seen() -> None:
    """Negative control: another sign rule, another parameter."""
    a = ARCHITECTURES["mlp", "tanh"]
    model = ScaleGMN([a], 3, **SMALL).double()
    networks = fresh(a)
    oracle = Oracle(model)
    expected = model(networks)
    oracle.sign = "absolute"
    assert (oracle(networks) - expected).abs().max() > 1e-4
    oracle.sign = "symmetrise"
    with torch.no_grad():
        model.trunk.body.layers[0].message.rescale.edge.weight[0, 0] += 0.1
        assert (oracle(networks) - expected).abs().max() > 1e-6
