"""Layers of neurons that are updated in turn: the laws hold, every weight is read once, and every layer is reached."""

import pytest
import torch
from subjects import ARCHITECTURES, transforms
from torch import Tensor

from scalegmn.core.architecture import Architecture
from scalegmn.errors import ScaleGMNError
from scalegmn.models.scalegmn import ScaleGMN, ScaleGMNTrunk
from scalegmn.native.formula import Edge
from scalegmn.nn.layers import ForwardLayer
from scalegmn.nn.states import States
from scalegmn.testing import random_networks, relative_error


def trunk(a: Architecture, **options: object) -> ScaleGMNTrunk:
    torch.manual_seed(0)
    found = ScaleGMN([a], **{"width": 6, "layers": len(a.layers) - 1, "edge_updates": False, **options}).double()
    assert isinstance(found, ScaleGMNTrunk)
    return found


@pytest.mark.parametrize("form", ["ours", "paper"])
@pytest.mark.parametrize("name", ["relu", "sine", "mixed"])
@pytest.mark.parametrize("extra", [0, 2])
def test_answers_are_invariant(name: str, form: str, extra: int) -> None:
    a = ARCHITECTURES["mlp", name]
    model = ScaleGMN([a], outputs=3, width=6, layers=len(a.layers) - 1 + extra, order="in_turn", form=form).double()
    networks = random_networks(a, 5)
    g = transforms(a, len(networks), spread=1e2)
    assert relative_error(model(g.apply(networks)), model(networks)).max() < 1e-8
    # Not because it sees nothing: another weight, another answer.
    changed = networks.replace(networks.parameters * torch.linspace(0.5, 1.5, a.parameters, dtype=torch.float64))
    assert relative_error(model(changed), model(networks)).max() > 1e-6


def test_one_layer_changes_in_each_iteration() -> None:
    a = Architecture.mlp([2, 5, 4, 3], "tanh")
    model = trunk(a, order="in_turn")
    networks = random_networks(a, 5)
    steps: list[States] = []
    states = model(networks)
    while hasattr(states, "old"):
        steps.insert(0, states)
        states = states.old
    assert len(steps) == 3
    for i, step in enumerate(steps, 1):
        before: States = step.old  # type: ignore[attr-defined]
        assert [torch.equal(step.x(k), before.x(k)) for k in range(4)] == [k != i for k in range(4)]


def test_a_gradient_reaches_every_parameter_of_the_networks() -> None:
    a = Architecture.mlp([2, 5, 4, 3], "tanh")
    networks = random_networks(a, 5)
    theta = networks.parameters.clone().requires_grad_()
    trunk(a, order="in_turn")(networks.replace(theta)).x(3).square().sum().backward()
    assert theta.grad is not None
    assert (theta.grad.abs() > 0).all()


def test_every_weight_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    a = Architecture.mlp([2, 5, 4, 3], "tanh")
    read: list[int] = []
    gather = ForwardLayer.gather

    def counted(self: ForwardLayer, old: States, layer: int, *rest: object, **more: object) -> Tensor:
        read.extend(c for c in old.symmetry.architecture.incoming[layer])
        return gather(self, old, layer, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(ForwardLayer, "gather", counted)
    found = {}
    for order in ("together", "in_turn"):
        read.clear()
        trunk(a, order=order)(random_networks(a, 5)).x(3)
        found[order] = sorted(read)
    assert found["in_turn"] == [0, 1, 2]
    assert len(found["together"]) > 3


@pytest.mark.parametrize("form", ["ours", "paper"])
def test_what_cannot_take_turns_is_refused(form: str) -> None:
    a = Architecture.mlp([2, 5, 4, 3], "tanh")
    with pytest.raises(ScaleGMNError, match="order: 'in_turn' is for messages forwards"):
        ScaleGMN([a], order="in_turn", backward="auto", form=form)
    with pytest.raises(ScaleGMNError, match="layers: order = 'in_turn' needs 3 or more to reach the outputs"):
        ScaleGMN([a], order="in_turn", layers=2, form=form)


def test_a_deeper_network_is_refused_and_a_shallower_one_read() -> None:
    deep, shallow = (Architecture.mlp(sizes, "tanh") for sizes in ([2, 5, 4, 3], [2, 5, 3]))
    model = ScaleGMN([deep, shallow], outputs=3, width=6, layers=3, order="in_turn").double()
    assert model(random_networks(shallow, 5)).shape == (5, 3)
    reason = model.reads(Architecture.mlp([2, 5, 4, 4, 3], "tanh"))
    assert reason is not None


def test_edges_are_updated_as_well() -> None:
    a = ARCHITECTURES["mlp", "relu"]
    states = trunk(a, order="in_turn", edge_updates=True)(random_networks(a, 5))
    assert isinstance(states.e(0), Edge)
    assert states.x(len(a.layers) - 1).isfinite().all()
