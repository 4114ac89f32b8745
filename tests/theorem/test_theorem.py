"""The theorem: a bidirectional ScaleGMN can run the network that it reads, forwards and backwards (docs/theorem.md)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from strategies import generator
from subjects import fresh, hostile, transforms
from torch import Tensor

from scalegmn.audit import residual
from scalegmn.core.activations import activation
from scalegmn.core.architecture import Architecture
from scalegmn.core.networks import Networks
from scalegmn.errors import ScaleGMNError
from scalegmn.nn.spec import Flow
from scalegmn.theorem.proof import AnalyticInvariant
from scalegmn.theorem.simulate import Passes, Simulation

SIZES = {2: [2, 4, 3], 3: [2, 4, 5, 3], 4: [2, 4, 3, 5, 2]}
FLOWS: dict[str, tuple[Flow, ...]] = {
    "relu": ("dual", "reciprocal"),
    "tanh": ("dual", "shared", "reciprocal"),
    "sine": ("dual", "shared", "reciprocal"),
}
CASES = [(name, flow, depth) for name, flows in FLOWS.items() for flow in flows for depth in SIZES]
cases = pytest.mark.parametrize(("name", "flow", "depth"), CASES)
P = 3


def inputs_and_cotangent(a: Architecture) -> tuple[Tensor, Tensor]:
    x = torch.randn(P, a.layers[0].size, generator=generator(1), dtype=torch.float64)
    return x, torch.randn(P, a.layers[-1].size, generator=generator(2), dtype=torch.float64)


def simulate(a: Architecture, networks: Networks, layers: int, flow: Flow) -> Passes:
    passes: Passes = Simulation(a, *inputs_and_cotangent(a), layers=layers, backward=flow)(networks)
    return passes


def truth(networks: Networks) -> Passes:
    """What automatic differentiation says."""
    x, cotangent = inputs_and_cotangent(networks.architecture)
    r = networks.responses(x)
    batch = len(networks)
    expand = lambda ts: tuple(t.expand(batch, *t.shape[1:]) for t in ts)  # noqa: E731
    gradients = networks.gradients(x, cotangent)
    # The gradient at a post-activation is that of a linear layer in its place.
    a = networks.architecture
    post = []
    for i in range(len(a.layers)):
        total = cotangent.expand(batch, -1, -1) if i == len(a.layers) - 1 else torch.zeros_like(r.post[i])
        for c in a.outgoing[i]:
            w = networks.weights[c]
            g = gradients[a.connections[c].target]
            total = total + (g if w is None else torch.einsum("bpt,bts->bps", g, w.squeeze(-1)))
        post.append(total)
    return Passes(expand(r.pre), expand(r.post), gradients, tuple(post))


def right(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], tolerance: float = 1e-8) -> list[int]:
    """The layers whose values agree, relative to the largest of the layer."""
    return [
        i
        for i, (f, e) in enumerate(zip(found, expected, strict=True))
        if (f - e).abs().max() <= tolerance * e.abs().max().clamp(min=1e-3)
    ]


@cases
def test_activations_are_right_after_l_layers_and_gradients_after_2l(name: str, flow: Flow, depth: int) -> None:
    a = Architecture.mlp(SIZES[depth], name)
    networks = fresh(a, 4)
    expected = truth(networks)
    everything = list(range(depth + 1))
    forward = simulate(a, networks, depth, flow)
    assert right(forward.pre, expected.pre) == everything
    assert right(forward.post, expected.post) == everything
    both = simulate(a, networks, 2 * depth, flow)
    assert right(both.pre, expected.pre) == everything
    assert right(both.post, expected.post) == everything
    assert right(both.pre_gradients, expected.pre_gradients) == everything
    assert right(both.post_gradients, expected.post_gradients) == everything


@pytest.mark.parametrize(("name", "flow"), [("relu", "dual"), ("relu", "reciprocal"), ("sine", "shared")])
def test_information_travels_one_layer_per_iteration(name: str, flow: Flow) -> None:
    """Layer l is right from t = l on and not before; its gradients from t = 2 L - l on at the latest."""
    depth = 3
    a = Architecture.mlp(SIZES[depth], name)
    networks = fresh(a, 4)
    expected = truth(networks)
    for t in range(1, 2 * depth + 1):
        found = simulate(a, networks, t, flow)
        assert right(found.post, expected.post) == list(range(min(t, depth) + 1))
        layers = right(found.pre_gradients, expected.pre_gradients)
        assert set(layers) >= {i for i in range(depth + 1) if t >= 2 * depth - i}
    # Negative control: gradients need more than the forward pass.
    assert 0 not in right(simulate(a, networks, depth, flow).pre_gradients, expected.pre_gradients)


@pytest.mark.parametrize("flow", ["dual", "reciprocal"])
def test_dead_neurons_and_zero_weights(flow: Flow) -> None:
    """1/0 := 0 makes the inverses of the paper's proof exact where gradients vanish."""
    a = Architecture.mlp([2, 6, 5, 2], "relu")
    networks = hostile(a, 4)
    networks.parameters[networks.parameters.abs() < 1e-12] = 0
    expected, found = truth(networks), simulate(a, networks, 6, flow)
    assert (expected.pre_gradients[1] == 0).double().mean() > 0.3
    for f, e in ((found.post, expected.post), (found.pre_gradients, expected.pre_gradients)):
        assert right(f, e) == [0, 1, 2, 3]


@pytest.mark.parametrize("flow", ["dual", "reciprocal"])
def test_residual_networks_and_several_groups(flow: Flow) -> None:
    a = residual(("relu", "tanh", "relu"))
    networks = fresh(a, 4)
    expected, found = truth(networks), simulate(a, networks, 8, flow)
    for part in ("pre", "post", "pre_gradients", "post_gradients"):
        assert right(getattr(found, part), getattr(expected, part)) == [0, 1, 2, 3, 4]


def test_frequencies_of_sines() -> None:
    a = Architecture.mlp([2, 5, 4, 1], activation("sine", 30.0))
    networks = fresh(a, 4)
    expected, found = truth(networks), simulate(a, networks, 6, "dual")
    assert right(found.pre_gradients, expected.pre_gradients) == [0, 1, 2, 3]


@pytest.mark.parametrize(("name", "flow"), [("relu", "dual"), ("tanh", "shared"), ("relu", "reciprocal")])
def test_states_move_as_pre_activations_and_gradients_do(name: str, flow: Flow) -> None:
    a = Architecture.mlp([2, 4, 3, 2], name)
    networks, g = fresh(a), transforms(a)
    still, moved = simulate(a, networks, 6, flow), simulate(a, g.apply(networks), 6, flow)
    for i in range(4):
        z, d = still.pre[i].transpose(1, 2), still.pre_gradients[i].transpose(1, 2)
        torch.testing.assert_close(g.inverse().vertex(i, moved.pre[i].transpose(1, 2)), z, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(g.inverse().dual(i, moved.pre_gradients[i].transpose(1, 2)), d, rtol=1e-9, atol=1e-9)


def analytic_nets(simulation: Simulation) -> list[AnalyticInvariant]:
    return [m for m in simulation.modules() if isinstance(m, AnalyticInvariant)]


@pytest.mark.parametrize("name", FLOWS)
def test_only_the_reciprocal_form_for_scales_needs_a_net_that_is_not_invariant(name: str) -> None:
    a = Architecture.mlp([2, 4, 2], name)
    for flow in FLOWS[name]:
        nets = analytic_nets(Simulation(a, *inputs_and_cotangent(a), layers=2, backward=flow))
        assert nets
        assert all(net.canonical for net in nets) == ((name, flow) != ("relu", "reciprocal"))


def test_the_reciprocal_form_fails_with_invariant_nets() -> None:
    """Where the proof assumes more than the architecture gives: the inverse message is no scale equivariant net."""
    a = Architecture.mlp([2, 4, 5, 3], "relu")
    networks = fresh(a, 4)
    simulation = Simulation(a, *inputs_and_cotangent(a), layers=6, backward="reciprocal")
    assert right(simulation(networks).pre_gradients, truth(networks).pre_gradients) == [0, 1, 2, 3]
    for net in analytic_nets(simulation):
        net.canonical = True
    assert right(simulation(networks).post, truth(networks).post) == [0, 1, 2, 3]
    assert right(simulation(networks).pre_gradients, truth(networks).pre_gradients) == [3]


@pytest.mark.parametrize(
    ("a", "complaint"),
    [
        (Architecture.mlp([2, 3, 1], "cube"), "sigma\\(a x\\) = a sigma\\(x\\)"),
        (Architecture.mlp([2, 3, 3, 1], ["tanh", "sine"]), "one activation for Sign, got tanh and sine"),
        (Architecture.mlp([2, 3, 1], "tanh", "sigmoid"), "a linear output, got sigmoid"),
        (Architecture.cnn([2, 3], 1), "linear layers and residual additions"),
    ],
)
def test_what_is_not_covered_is_refused(a: Architecture, complaint: str) -> None:
    with pytest.raises(ScaleGMNError, match=complaint):
        Simulation(a, *inputs_and_cotangent(a), layers=2)
    with pytest.raises(ScaleGMNError, match="gradients flow backwards"):
        Simulation(Architecture.mlp([2, 3, 1]), *inputs_and_cotangent(a), layers=2, backward="none")


def test_the_example_in_the_documentation_runs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "theorem.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    exec(compile(code, "docs/theorem.md", "exec"), {})
