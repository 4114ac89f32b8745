"""`form = "paper"` is what the paper prints: it equals the model written from the equations, values and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from agreement import disagreement, scramble
from paper_oracle import Arrow, PaperOracle, Vertex
from subjects import ARCHITECTURES, fresh, transforms
from torch import Tensor

from scalegmn.audit import output_of
from scalegmn.core.activations import Phi
from scalegmn.core.architecture import Architecture
from scalegmn.core.networks import Networks
from scalegmn.errors import ScaleGMNError
from scalegmn.models.heads import Editor, InvariantModel, Regressor
from scalegmn.models.scalegmn import GMN, ScaleGMN

SMALL: dict[str, Any] = {"form": "paper", "width": 5, "layers": 2}
TINY = {name: Architecture.mlp([2, 3, 3, 2], name) for name in ("relu", "tanh", "cube")}
TINY["mixed"] = Architecture.mlp([2, 3, 3, 2], ["relu", "tanh"])
TINY["cnn"] = Architecture.cnn([1, 2, 2], 2, "relu")
TINY["tanh cnn"] = Architecture.cnn([1, 2, 2], 2, "tanh")


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def error(model: InvariantModel | Editor, networks: Networks, oracle: type[PaperOracle] = PaperOracle) -> float:
    return disagreement(model, output_of(model, networks), oracle(model)(networks))


OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "absolute": {"sign": "absolute"},
    "encodings": {"edge_positions": True, "positions_everywhere": True, "layers": 3},
    "encodings at the start": {"edge_positions": True, "readout": "output"},
    "encodings of vertices": {"positions_everywhere": True, "readout": "input+output", "skip": False},
    "outer, K = 2": {"rescale": "outer", "depth": 2, "width": 3},
    "reciprocal edges": {"edge_rule": "reciprocal", "layers": 3, "edge_positions": True, "positions_everywhere": True},
    "reciprocal edges, outer": {"edge_rule": "reciprocal", "rescale": "outer", "width": 3, "layers": 3},
    "neighbours, narrow": {"neighbours_only": True, "gate": 3, "aggregate": "mean"},
    "no edge updates": {"edge_updates": False},
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(("flow", "name"), [("none", "mixed"), ("auto", "relu"), ("auto", "tanh")])
def test_the_model_is_what_the_paper_prints(option: str, flow: str, name: str) -> None:
    options = SMALL | OPTIONS[option]
    model = Regressor(ScaleGMN([TINY[name]], backward=flow, **options), 3, sigmoid=option == "absolute").double()
    scramble(model)
    assert error(model, fresh(TINY[name], 2)) < 1e-8


@pytest.mark.parametrize(
    ("flow", "a"),
    [
        ("none", TINY["cube"]),
        ("none", ARCHITECTURES["residual", "mixed"]),
        ("auto", ARCHITECTURES["residual", "tanh"]),
        ("auto", ARCHITECTURES["residual", "relu"]),
        ("auto", TINY["cnn"]),
        ("auto", TINY["tanh cnn"]),
        ("auto", TINY["mixed"]),
        ("reciprocal", TINY["tanh"]),
    ],
    ids=["cube", "residual", "residual-shared", "residual-back", "cnn", "tanh-cnn", "mixed-auto", "reciprocal-signs"],
)
def test_so_it_is_for_every_kind_of_network(flow: str, a: Architecture) -> None:
    model = ScaleGMN([a], 3, backward=flow, **SMALL, edge_positions=True, positions_everywhere=True).double()
    scramble(model)
    assert error(model, fresh(a, 1)) < 1e-8


@pytest.mark.parametrize("name", ["relu", "tanh", "cnn"])
def test_editors_are_what_the_paper_prints(name: str) -> None:
    model = Editor(ScaleGMN([TINY[name]], backward="auto", **SMALL), copies=2).double()
    scramble(model)
    networks = fresh(TINY[name], 2)
    assert error(model, networks) < 1e-8
    # One gamma, and no units: preparing changes nothing.
    before = model(networks).parameters
    model.prepare([networks])
    assert torch.equal(model(networks).parameters, before)
    assert model.gamma.shape == (1,)
    direction = PaperOracle(model)(networks)
    expected = networks.parameters[:, None] + model.gamma * direction
    torch.testing.assert_close(model(networks).parameters, expected.flatten(0, 1))


def test_gmn_is_the_same_with_trivial_groups() -> None:
    model = GMN([TINY["mixed"]], 3, backward="auto", **SMALL).double()
    scramble(model)
    assert error(model, fresh(TINY["mixed"], 1)) < 1e-8


def test_weights_are_read_as_they_are() -> None:
    model = ScaleGMN([TINY["relu"]], 3, **SMALL).double()
    before = {name: b.clone() for name, b in model.named_buffers()}
    model.prepare([fresh(TINY["relu"], 8)])
    assert all(torch.equal(b, before[name]) for name, b in model.named_buffers())


def test_the_oracle_obeys_the_laws_by_itself() -> None:
    a = TINY["mixed"]
    model = ScaleGMN([a], 3, backward="auto", **SMALL).double()
    networks, oracle = fresh(a), PaperOracle(model)
    torch.testing.assert_close(oracle(transforms(a).apply(networks)), oracle(networks), rtol=1e-9, atol=1e-9)


# -- negative controls: one term of the oracle is wrong, and it shows ----------------------------------------------


class OneSign(PaperOracle):
    def symm(self, name: str, x: Tensor) -> Tensor:
        return 2 * self.mlp(name, x)


class OneBias(PaperOracle):
    def symm(self, name: str, x: Tensor) -> Tensor:
        return self.mlp(name, x) + self.mlp(name, -x) - self.p[f"{name}.last.bias"]


class NoCentre(PaperOracle):
    def msg_v(self, name: str, v: Vertex, x: Tensor, y: Tensor, e: Tensor, ps: list[Tensor], phi: Phi) -> Tensor:
        return super().msg_v(name, v, 0 * x, y, e, ps, phi)


class NoCentreAtOutputs(PaperOracle):
    def msg_v(self, name: str, v: Vertex, x: Tensor, y: Tensor, e: Tensor, ps: list[Tensor], phi: Phi) -> Tensor:
        return super().msg_v(name, v, x if v[0] < self.last else 0 * x, y, e, ps, phi)


class NoEdgeEncodings(PaperOracle):
    def along(self, arrow: Arrow, x: Vertex, y: Vertex) -> list[Tensor]:
        *ends, edge = super().along(arrow, x, y)
        return [*ends, 0 * edge]


class SwappedEnds(PaperOracle):
    def upd_e(self, name: str, arrow: Arrow, x: Tensor, y: Tensor, e: Tensor, i: Vertex, j: Vertex) -> Tensor:
        return super().upd_e(name, arrow, y, x, e, i, j)


class EdgesSkip(PaperOracle):
    def upd_e(self, name: str, arrow: Arrow, x: Tensor, y: Tensor, e: Tensor, i: Vertex, j: Vertex) -> Tensor:
        return e + super().upd_e(name, arrow, x, y, e, i, j)


class LinearEdges(PaperOracle):
    def init_e(self, arrow: Arrow, w: Tensor) -> Tensor:
        return self.linear("body.init.edge_net.gamma.0", w)


class NothingBack(PaperOracle):
    def upd_v(self, name: str, v: Vertex, x: Tensor, ms: list[Tensor]) -> Tensor:
        return super().upd_v(name, v, x, [ms[0], 0 * ms[1]])


class WeightsBack(PaperOracle):
    def backward_weight(self, network: Networks, arrow: Arrow) -> Tensor:
        return self.weight(network, arrow)


class FlatOuter(PaperOracle):
    def rescale_eq(self, name: str, g: Any, y: Tensor, e: Tensor, phi: Phi = Phi()) -> Tensor:  # noqa: B008
        return self.linear(f"{name}.product.gamma.0", torch.outer(phi(y), e).flatten())


WRONG: dict[type[PaperOracle], tuple[str, dict[str, Any]]] = {
    OneSign: ("tanh", {}),
    OneBias: ("tanh", {}),
    NoCentre: ("relu", {}),
    NoCentreAtOutputs: ("relu", {}),
    NoEdgeEncodings: ("relu", {"edge_positions": True, "positions_everywhere": True}),
    SwappedEnds: ("tanh", {}),
    EdgesSkip: ("relu", {}),
    LinearEdges: ("relu", {"edge_positions": True}),
    NothingBack: ("tanh", {"backward": "auto"}),
    WeightsBack: ("relu", {"backward": "auto"}),
    FlatOuter: ("relu", {"rescale": "outer", "width": 3}),
}


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__)
def test_a_wrong_term_would_be_noticed(wrong: type[PaperOracle]) -> None:
    name, options = WRONG[wrong]
    model = ScaleGMN([TINY[name]], 3, **SMALL | options).double()
    scramble(model)
    networks = fresh(TINY[name], 1)
    assert disagreement_of_values(model, networks, PaperOracle) < 1e-9
    assert disagreement_of_values(model, networks, wrong) > 1e-6


@torch.no_grad()
def disagreement_of_values(model: InvariantModel, networks: Networks, oracle: type[PaperOracle]) -> float:
    expected = oracle(model)(networks)
    return float((model(networks) - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("relu", {"form": "ours", "rescale": "outer"}, "rescale: 'outer' belongs to the paper's form"),
        ("relu", {"form": "ours", "edge_rule": "reciprocal"}, "edge_rule: 'reciprocal' belongs to the paper's form"),
        ("relu", {"form": "ours", "neighbours_only": True}, "neighbours_only: True belongs to the paper's form"),
        ("relu", {"backward": "dual"}, "'dual' is not in the paper"),
        ("relu", {"backward": "shared"}, "'shared' is equivariant for signs only"),
        ("cube", {"backward": "auto"}, "has another phi"),
        ("relu", {"form": "papers"}, "form: expected"),
    ],
)
def test_what_a_form_lacks_is_refused(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ScaleGMNError, match=words):
        ScaleGMN([TINY[name]], 3, **SMALL | options)
