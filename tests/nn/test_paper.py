"""The paper's form: laws of its nets and of whole models, with negative controls; dropout in both forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from agreement import scramble
from strategies import generator
from subjects import ARCHITECTURES, SIGNS, fresh, hostile, transforms
from torch import Tensor

from scalegmn.audit import violation
from scalegmn.core.activations import Phi
from scalegmn.core.groups import GROUPS, Group, PositiveScale, Sign, Trivial
from scalegmn.core.networks import Networks
from scalegmn.core.transform import Transform
from scalegmn.models.heads import Classifier, Editor
from scalegmn.models.scalegmn import ScaleGMN, ScaleGMNTrunk
from scalegmn.native.formula import Edge
from scalegmn.nn.invariant import PaperInvariant
from scalegmn.nn.paper import Outer
from scalegmn.nn.style import Nets

RULES = ("symmetrise", "absolute")


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def multipliers(group: Group, *shape: int, seed: int) -> Tensor:
    return group.sample(*shape, generator=generator(seed), spread=1e3, dtype=torch.float64)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_every_argument_may_have_a_multiplier_of_its_own(group: Group, rule: Any) -> None:
    net = PaperInvariant(group, [5, 3], 4, contexts=[2], hidden=6, sign=rule).double()
    scramble(net)
    x, y, p = draw(7, 5), draw(7, 3, seed=1), draw(7, 2, seed=2)
    a, b = multipliers(group, 7, 1, seed=3), multipliers(group, 7, 1, seed=4)
    torch.testing.assert_close(net([a * x, b * y], [p]), net([x, y], [p]), rtol=1e-9, atol=1e-9)
    assert not torch.allclose(net([x, y], [p + 1]), net([x, y], [p]))
    assert not torch.allclose(net([x.flip(1), y], [p]), net([x, y], [p]))


@pytest.mark.parametrize(("group", "factor"), [(Sign, 2.0), (PositiveScale, -1.0), (Trivial, -1.0)])
def test_it_sees_what_is_not_in_the_group(group: Group, factor: float) -> None:
    net = PaperInvariant(group, [5], 4).double()
    scramble(net)
    x = draw(7, 5)
    assert not torch.allclose(net([factor * x]), net([x]), rtol=1e-3)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_ends_of_edges_are_what_they_are_on_every_edge(group: Group, rule: Any) -> None:
    net = PaperInvariant(group, [5, 3], 4, sign=rule).double()
    scramble(net)
    x, y = draw(2, 3, 1, 5), draw(2, 1, 4, 3, seed=1)
    found = net.along([x, y], (2, 3, 4))
    torch.testing.assert_close(found, net([x.expand(2, 3, 4, 5), y.expand(2, 3, 4, 3)]))


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_outer_products_move_as_both_together(group: Group) -> None:
    net = Outer([group], 3, Nets(kind=PaperInvariant, depth=2), hidden=None).double()
    scramble(net)
    y, e = draw(2, 4, 3), draw(2, 5, 4, 3, seed=1)
    a, b = multipliers(group, 2, 4, 1, seed=2), multipliers(group, 2, 5, 4, 1, seed=3)
    still = net.of(group, y, Edge(e), lift=Phi(), by_target=False).dense()
    moved = net.of(group, a * y, Edge(b * e), lift=Phi(), by_target=False).dense()
    torch.testing.assert_close(moved / (a.unsqueeze(1) * b), still, rtol=1e-9, atol=1e-9)


OPTIONS: list[dict[str, Any]] = [
    {"edge_positions": True, "positions_everywhere": True},
    {"rescale": "outer", "depth": 2, "sign": "absolute"},
    {"edge_rule": "reciprocal", "neighbours_only": True, "skip": False},
]
CASES = [
    (kind, name, flow)
    for kind in ("mlp", "cnn", "residual")
    for name in ("relu", "tanh", "cube", "mixed")
    for flow in ("none", "shared", "reciprocal")
    if flow == "none" or (name in SIGNS and flow == "shared") or (name in ("relu", "tanh") and flow == "reciprocal")
]


@pytest.mark.parametrize(("kind", "name", "flow"), CASES)
def test_models_obey_the_laws(kind: str, name: str, flow: str) -> None:
    a = ARCHITECTURES[kind, name]
    networks = Networks.cat([fresh(a, 2), hostile(a, 2)])
    g = transforms(a, 4)
    for options in OPTIONS:
        torch.manual_seed(0)
        # States near 1e-15 have reciprocals near 1e15: no digits are left of what they are added to.
        tame = options.get("edge_rule") == "reciprocal"
        batch, moves = (networks[:2], transforms(a, 2)) if tame else (networks, g)
        trunk = ScaleGMN([a], form="paper", width=4, layers=3, backward=flow, **options)
        for model in (Classifier(trunk, 3), Editor(trunk)):
            assert violation(model.double().eval(), batch, moves) < 1e-8


def test_a_net_that_forgets_to_canonicalise_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    a = ARCHITECTURES["mlp", "tanh"]
    model = ScaleGMN([a], 3, form="paper", width=4, layers=2).double().eval()
    scramble(model)
    assert violation(model, fresh(a), transforms(a)) < 1e-9
    symm = PaperInvariant.mapped

    def careless(self: PaperInvariant, i: int, x: Edge, matrix: Tensor) -> Tensor:
        return symm(self, i, x, matrix) + x.dense().sum(-1, True) * matrix.sum(1)

    monkeypatch.setattr(PaperInvariant, "mapped", careless)
    assert violation(model, fresh(a), transforms(a)) > 1e-3


# -- dropout -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "omitted"), [("ours", "mlps"), ("paper", "states")])
@pytest.mark.parametrize("place", ["mlps", "states", "everywhere", None])
def test_dropout_acts_where_it_should(form: str, omitted: str, place: str | None) -> None:
    a = ARCHITECTURES["mlp", "tanh"]
    trunk = ScaleGMN([a], form=form, width=16, layers=2, dropout=0.4, dropout_in=place).double()
    assert isinstance(trunk, ScaleGMNTrunk)
    rates = {m.p for m in trunk.modules() if isinstance(m, torch.nn.Dropout)}
    place = place or omitted
    assert rates == ({0.0} if place == "states" else {0.4})
    networks = fresh(a, 8)
    dropped = float((trunk.train()(networks).x(2) == 0).double().mean())
    assert (0.3 < dropped < 0.5) if place != "mlps" else dropped == 0
    assert not (trunk.eval()(networks).x(2) == 0).any()


@pytest.mark.parametrize("form", ["ours", "paper"])
def test_dropout_of_states_moves_with_them(form: str) -> None:
    """Scalings change no place, so that equal seeds drop equal entries; a permutation does."""
    a = ARCHITECTURES["mlp", "mixed"]
    model = ScaleGMN([a], 3, form=form, width=8, layers=2, dropout=0.4, dropout_in="everywhere").double().train()
    networks = fresh(a)

    def error(permute: bool) -> float:
        g = Transform.sample(a, len(networks), generator(5), spread=1e3, permute=permute)
        found = []
        for batch in (networks, g.apply(networks)):
            torch.manual_seed(3)
            found.append(model(batch).detach())
        return float((found[0] - found[1]).abs().max())

    assert error(permute=False) < 1e-9
    assert error(permute=True) > 1e-3
