"""Messages that are activations: training starts as the forward pass, and the laws hold."""

import pytest
import torch
from strategies import generator
from subjects import ARCHITECTURES, of_all_conditions, transforms

from scalegmn.core.architecture import Architecture
from scalegmn.core.groups import Trivial
from scalegmn.core.networks import Networks
from scalegmn.errors import ScaleGMNError
from scalegmn.models.heads import Classifier, Editor
from scalegmn.models.method import Method
from scalegmn.models.scalegmn import GMN, ScaleGMN
from scalegmn.models.trunk import Trunk
from scalegmn.native.formula import Edge
from scalegmn.nn.symmetry import Way
from scalegmn.testing import random_networks, relative_error

OPTIONS = {"width": 6, "order": "in_turn", "edge_updates": False, "messages": "activations"}


def trunk(a: Architecture, method: Method = ScaleGMN, **options: object) -> Trunk:
    torch.manual_seed(0)
    found = method([a], **{**OPTIONS, "layers": len(a.layers) - 1, **options}).double()
    assert isinstance(found, Trunk)
    return found


def shaken(model: torch.nn.Module) -> torch.nn.Module:
    """The same model away from its start, where no part of it does nothing."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator(1), dtype=p.dtype))
    return model


@pytest.mark.parametrize("kind", ["mlp", "residual"])
@pytest.mark.parametrize("name", ["relu", "tanh", "sine", "cube", "mixed"])
def test_training_starts_as_the_forward_pass_at_the_encodings_of_inputs(kind: str, name: str) -> None:
    a = ARCHITECTURES[kind, name]
    networks = of_all_conditions(a)
    model = trunk(a)
    model.prepare([networks])
    points = model.body.positions.input.T
    assert points.abs().max() <= 1
    states = model(networks).x(len(a.layers) - 1)
    assert relative_error(states.mT, networks.evaluate(points)).max() < 1e-12


@pytest.mark.parametrize("kind", ["mlp", "cnn", "flatten", "residual"])
@pytest.mark.parametrize("name", ["relu", "leaky", "tanh", "sine", "cube", "mixed"])
@pytest.mark.parametrize("probes", [0, 4])
def test_answers_are_invariant(kind: str, name: str, probes: int) -> None:
    a = ARCHITECTURES[kind, name]
    if probes and kind in ("cnn", "flatten"):
        pytest.skip("images are probes of their own")
    model = shaken(Classifier(trunk(a, probes=probes), outputs=3).double())
    networks = of_all_conditions(a)
    g = transforms(a, len(networks), spread=10)
    assert relative_error(model(g.apply(networks)), model(networks)).max() < 1e-6
    # Not because it sees nothing: another weight, another answer.
    changed = networks.replace(networks.parameters * torch.linspace(0.5, 1.5, a.parameters, dtype=torch.float64))
    assert relative_error(model(changed), model(networks)).max() > 1e-4


def test_states_are_those_of_the_equations_one_neuron_at_a_time() -> None:
    a = ARCHITECTURES["mlp", "mixed"]
    networks = random_networks(a, 2)
    body = shaken(trunk(a)).body
    positions, h = body.positions(a), body.width
    x = [list(positions[0].expand(2, -1, -1).unbind(1))]
    for t, (layer, found) in enumerate(zip(a.layers[1:], body.layers, strict=True)):
        update = found.update
        group = Trivial if t == len(body.layers) - 1 else layer.activation.group
        x.append([])
        for i in range(layer.size):
            z = networks.biases[t + 1][:, i, None] * body.init.bias
            for j, sender in enumerate(x[t]):
                sent = sender if t == 0 else a.layers[t].activation(sender)
                z = z + networks.weights[t][:, i, j] * body.init.edge.weight[:, 0] * sent
            gate = update.invariant(group, [z.unsqueeze(1)], [positions[t + 1][i : i + 1]]).view_as(z)
            x[-1].append((z + z @ update.gamma.weight.T / h) * (1 + gate / h))
    states = body(networks)
    for i, expected in enumerate(x):
        assert (states.x(i) - torch.stack(expected, 1)).abs().max() < 1e-10


def test_another_activation_than_the_networks_own_is_not_equivariant(monkeypatch: pytest.MonkeyPatch) -> None:
    a = ARCHITECTURES["mlp", "relu"]
    model = shaken(Classifier(trunk(a), outputs=3).double())
    networks = random_networks(a, 5)
    moved = transforms(a, len(networks), spread=10).apply(networks)
    assert relative_error(model(moved), model(networks)).max() < 1e-9
    monkeypatch.setattr(Way, "activation", property(lambda way: torch.sin))
    assert relative_error(model(moved), model(networks)).max() > 1e-3


@pytest.mark.parametrize("name", ["relu", "sine"])
def test_an_editor_is_equivariant(name: str) -> None:
    a = ARCHITECTURES["mlp", name]
    model = shaken(Editor(trunk(a)).double())
    networks = random_networks(a, 5)
    g = transforms(a, len(networks), spread=10)
    assert relative_error(model(g.apply(networks)).parameters, g.apply(model(networks)).parameters).max() < 1e-6


def test_gradients_reach_the_points_and_every_map() -> None:
    a = ARCHITECTURES["mlp", "sine"]
    model = shaken(Classifier(trunk(a), outputs=3).double())
    model(random_networks(a, 5)).square().sum().backward()
    without = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0}
    # Every iteration has nets for hidden neurons and for outputs, and updates one layer.
    assert not {name for name in without if ".invariant." not in name and "positions" not in name}
    assert "trunk.body.positions.input" not in without
    assert not all(name in without for name, _ in model.named_parameters() if ".invariant." in name)


def test_permutations_alone_are_respected_by_gmn() -> None:
    a = ARCHITECTURES["mlp", "relu"]
    model = shaken(Classifier(trunk(a, GMN), outputs=3).double())
    networks = random_networks(a, 5)
    permuted, scaled = transforms(a, 5, spread=1.0), transforms(a, 5, spread=10)
    assert relative_error(model(permuted.apply(networks)), model(networks)).max() < 1e-9
    assert relative_error(model(scaled.apply(networks)), model(networks)).max() > 1e-4


def test_sums_along_a_connection_are_those_of_its_edges() -> None:
    x, w = torch.randn(1, 4), torch.randn(5, 8, 3)
    y, t = torch.randn(5, 3, 4), torch.randn(5, 8, 4)
    factored, dense = Edge(x, w), Edge(Edge(x, w).dense())
    torch.testing.assert_close(factored.passed(y), (dense.x * y.unsqueeze(1)).sum(2))
    torch.testing.assert_close(dense.passed(y), factored.passed(y))
    torch.testing.assert_close(factored.passed(t, by_target=True), (dense.x * t.unsqueeze(2)).sum(2))


@pytest.mark.parametrize(
    ("option", "value"),
    [("order", "together"), ("edge_updates", True), ("gate", 4), ("edge_positions", True), ("aggregate", "mean")],
)
def test_what_a_forward_pass_leaves_no_choice_of_is_refused(option: str, value: object) -> None:
    a = ARCHITECTURES["mlp", "relu"]
    with pytest.raises(ScaleGMNError, match=f"^{option}: messages = 'activations' needs"):
        trunk(a, **{option: value})
    with pytest.raises(ScaleGMNError, match="messages: 'activations' are not in the paper; use form"):
        trunk(a, form="paper")


def test_a_model_that_was_stored_answers_the_same() -> None:
    a = ARCHITECTURES["mlp", "sine"]
    model = shaken(Classifier(trunk(a), outputs=3).double())
    other = Classifier(trunk(a), outputs=3).double()
    other.load_state_dict(model.state_dict())
    networks: Networks = random_networks(a, 5)
    assert torch.equal(model(networks), other(networks))
