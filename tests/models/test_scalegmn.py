"""The laws of ScaleGMN in all its flows and of GMN: what must not change the answer does not, what must does."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from strategies import generator
from subjects import (
    ARCHITECTURES,
    SIGNS,
    fresh,
    hostile,
    of_all_conditions,
    trained,
    transforms,
)

from scalegmn.audit import output_of, violation
from scalegmn.core.architecture import Architecture
from scalegmn.core.networks import Networks
from scalegmn.core.transform import Transform
from scalegmn.errors import ScaleGMNError
from scalegmn.models.heads import Classifier, Editor, InvariantModel, Regressor
from scalegmn.models.scalegmn import GMN, ScaleGMN

SMALL: dict[str, Any] = {"width": 6, "layers": 2}
FLOWS = ("none", "shared", "reciprocal", "dual")
HEADS = ("invariant", "equivariant")


def legal(flow: str, name: str) -> bool:
    """The shared flow is for signs, the reciprocal one for phi = identity."""
    if flow == "shared":
        return name in SIGNS
    return flow != "reciprocal" or name not in ("cube", "mixed")


CASES = [(flow, kind, name) for flow in FLOWS for kind, name in ARCHITECTURES if legal(flow, name)]


def build(head: str, a: Architecture, *, permutations_only: bool = False, **options: Any) -> InvariantModel | Editor:
    torch.manual_seed(0)
    trunk = (GMN if permutations_only else ScaleGMN)([a], **SMALL | options)
    return (Classifier(trunk, 3) if head == "invariant" else Editor(trunk, copies=2)).double()


def train(model: InvariantModel | Editor, networks: Networks, steps: int) -> None:
    """Real steps towards random targets; every gradient on the way is finite."""
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(steps):
        optimiser.zero_grad()
        y = output_of(model, networks)
        # Directions move with their networks, so they are compared in units of themselves.
        size = y.detach().abs().amax() if isinstance(model, Editor) else 1.0
        target = torch.randn(y.shape, generator=generator(step), dtype=torch.float64).to(y.dtype)
        (y / size - target).square().mean().backward()
        assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())
        optimiser.step()


# -- laws ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(("flow", "kind", "name"), CASES)
def test_permutations_and_scalings_do_not_matter(flow: str, kind: str, name: str, head: str) -> None:
    """Scales in [1e-3, 1e3]; fresh, trained and hostile networks; before and after training; both precisions."""
    a = ARCHITECTURES[kind, name]
    model = build(head, a, backward=flow)
    networks = of_all_conditions(a)
    g = transforms(a, len(networks))
    assert violation(model, networks, g) < 1e-9
    train(model, g.apply(networks), 1)
    assert violation(model, networks, g) < 1e-9
    # Cubes of 1e-15 and products of several 1/1e-15 leave the range of float32.
    if flow == "reciprocal" or name == "cube":
        networks = Networks.cat([fresh(a), trained(a)])
    single = networks.to(dtype=torch.float32)
    assert violation(model.float(), single, transforms(a, len(single))) < 1e-4


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("kind", ["mlp", "cnn", "flatten", "residual"])
@pytest.mark.parametrize("name", ["relu", "sine", "cube"])
def test_gmn_respects_permutations_only(kind: str, name: str, head: str) -> None:
    a = ARCHITECTURES[kind, name]
    model = build(head, a, permutations_only=True, backward="auto")
    networks = of_all_conditions(a)
    permutation = Transform.sample(a, len(networks), generator(3), scale=False)
    assert violation(model, networks, permutation) < 1e-9
    train(model, networks, 1)
    assert violation(model, networks, permutation) < 1e-9
    assert violation(model.float(), networks.to(dtype=torch.float32), permutation) < 1e-4
    scaling = Transform.sample(a, len(networks), generator(3), permute=False)
    assert violation(model, networks.to(dtype=torch.float32), scaling) > 1e-2


OPTIONS: dict[str, dict[str, Any]] = {
    "absolute": {"sign": "absolute"},
    "mean": {"aggregate": "mean"},
    "positions everywhere": {"positions_everywhere": True},
    "edge positions": {"edge_positions": True},
    "no skip": {"skip": False},
    "probes": {"probes": 3},
    "checkpointing": {"checkpointing": True},
    "narrow gates": {"gate": 3},
    "fixed edges": {"edge_updates": False},
    "wide updates": {"hidden": 11},
}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(
    ("flow", "kind", "name"), [("dual", "mlp", "mixed"), ("shared", "mlp", "sine"), ("none", "cnn", "relu")]
)
def test_options_keep_the_laws(option: str, flow: str, kind: str, name: str, head: str) -> None:
    a = ARCHITECTURES[kind, name]
    options = OPTIONS[option] | ({"probe_image": (8, 8)} if option == "probes" and kind == "cnn" else {})
    model = build(head, a, backward=flow, **options)
    networks = of_all_conditions(a)
    g = transforms(a, len(networks), spread=1e2)
    assert violation(model, networks, g) < 1e-9
    model.prepare([networks])
    train(model, g.apply(networks), 1)
    assert violation(model, networks, g) < 1e-9


@pytest.mark.parametrize("readout", ["all", "output", "input+output"])
@pytest.mark.parametrize("flow", ["none", "dual"])
def test_every_readout_is_invariant(readout: str, flow: str) -> None:
    a = ARCHITECTURES["mlp", "mixed"]
    trunk = ScaleGMN([a], backward=flow, readout=readout, edge_updates=False, **SMALL)
    model = Regressor(trunk, 3, sigmoid=True).double()
    networks = of_all_conditions(a)
    assert violation(model, networks, transforms(a, len(networks))) < 1e-9
    y = output_of(model, networks)
    assert ((y > 0) & (y < 1)).all()


def test_preparation_brings_inputs_to_a_common_size_and_changes_the_answer() -> None:
    a = ARCHITECTURES["mlp", "relu"]
    model = build("invariant", a, backward="dual")
    networks = fresh(a)
    before = output_of(model, networks)
    small = networks.replace(1e-4 * networks.parameters)
    model.prepare([small])
    assert not torch.allclose(before, output_of(model, networks))
    w = model.trunk.body.init.kernels(small, 1)
    assert 0.1 < float(w.square().mean().sqrt()) < 10


# -- training on weights as zoos have them -------------------------------------------------------------------------


def test_a_thousand_steps_on_a_hostile_zoo_without_a_single_nan() -> None:
    """The dual stream on ReLU CNNs with zeros, values near 1e-15 and dead neurons, all along their orbits."""
    a = Architecture.cnn([1, 3, 3], 2, "relu", kernel=2)
    zoo = Networks.cat([fresh(a, 8), hostile(a, 24)]).to(dtype=torch.float32)
    targets = torch.rand(32, 1, generator=generator(0))
    torch.manual_seed(0)
    model = Regressor(ScaleGMN([a], width=4, layers=2, backward="dual", readout="output"), sigmoid=True)
    model.prepare([zoo])
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    losses = []
    for step in range(1000):
        chosen = torch.randint(32, (8,), generator=generator(step))
        g = Transform.sample(a, 8, generator(step), spread=1e3)
        loss = (model(g.apply(zoo[chosen])) - targets[chosen]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        assert math.isfinite(losses[-1]), step
    # A gradient that is not finite would have reached the parameters.
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert sum(losses[-100:]) < 0.7 * sum(losses[:100])


def test_the_reciprocal_flow_leaves_the_range_where_the_dual_stream_does_not() -> None:
    """Why the dual stream is the default: in float32, two layers of 1/1e-15 are enough."""
    a = Architecture.mlp([2, 6, 6, 6, 6, 2], "relu")
    networks = hostile(a).to(dtype=torch.float32)
    found = {}
    for flow in ("reciprocal", "dual"):
        model = build("invariant", a, backward=flow, layers=4).float()
        found[flow] = bool(torch.isfinite(output_of(model, networks)).all())
    assert found == {"reciprocal": False, "dual": True}


# -- negative controls ---------------------------------------------------------------------------------------------


def reorder(networks: Networks, layer: int) -> Networks:
    """Turn the neurons of one layer round, on all its connections and its bias: no symmetry at the ends."""
    a = networks.architecture
    weights = [
        None if w is None else w.flip(1) if c.target == layer else w.flip(2) if c.source == layer else w
        for c, w in zip(a.connections, networks.weights, strict=True)
    ]
    biases = [None if b is None else b.flip(1) if i == layer else b for i, b in enumerate(networks.biases)]
    return Networks.from_tensors(a, weights, biases)


@pytest.mark.parametrize("permutations_only", [False, True], ids=["scalegmn", "gmn"])
@pytest.mark.parametrize("flow", ["none", "dual"])
@pytest.mark.parametrize("name", ["relu", "tanh"])
def test_input_and_output_neurons_may_not_be_permuted(name: str, flow: str, permutations_only: bool) -> None:
    a = ARCHITECTURES["mlp", name]
    model = build("invariant", a, permutations_only=permutations_only, backward=flow)
    networks = fresh(a)
    expected = output_of(model, networks)
    size = expected.abs().max()
    last = len(a.layers) - 1
    assert (output_of(model, reorder(networks, 0)) - expected).abs().max() > 1e-4 * size
    assert (output_of(model, reorder(networks, last)) - expected).abs().max() > 1e-4 * size
    # The same in the middle is a symmetry: the controls above do not fail for another reason.
    torch.testing.assert_close(output_of(model, reorder(networks, 1)), expected)


@pytest.mark.parametrize("flow", ["none", "dual"])
def test_a_transform_of_one_connection_only_is_seen(flow: str) -> None:
    a = ARCHITECTURES["mlp", "relu"]
    model = build("invariant", a, backward=flow)
    networks = fresh(a)
    expected = output_of(model, networks)
    for torn in (lambda w: w.flip(1), lambda w: 2 * w, lambda w: -w):
        weights = [torn(w) if c == 1 else w for c, w in enumerate(networks.weights)]
        moved = Networks.from_tensors(a, weights, networks.biases)
        assert (output_of(model, moved) - expected).abs().max() > 1e-4 * expected.abs().max()


def test_a_larger_group_than_the_network_has_is_seen() -> None:
    """Scaling the neurons of a tanh network, or flipping those of a ReLU network, is no symmetry."""
    for name, q in (("tanh", 2.0), ("relu", -1.0)):
        a = ARCHITECTURES["mlp", name]
        model = build("invariant", a)
        networks = fresh(a)
        identity = Transform.identity(a, len(networks))
        scales = tuple(s * (q if i == 1 else 1) for i, s in enumerate(identity.scales))
        assert violation(model, networks, Transform(a, identity.permutations, scales)) > 1e-3


# -- several architectures -----------------------------------------------------------------------------------------

SEVERAL = (
    Architecture.mlp([2, 4, 3], "relu"),
    Architecture.mlp([2, 5, 4, 3], "sine"),
    Architecture.mlp([2, 4, 3], "tanh"),
    Architecture.cnn([1, 3, 4], 2, "relu"),
    Architecture.cnn([1, 4], 3, "tanh", kernel=2, positions=(3, 3)),
    ARCHITECTURES["residual", "mixed"],
)


@pytest.mark.parametrize("flow", ["none", "dual"])
def test_one_model_reads_all_architectures_in_the_order_of_the_input(flow: str) -> None:
    torch.manual_seed(0)
    model = ScaleGMN(SEVERAL, 3, backward=flow, **SMALL).double()
    batches = [fresh(a, 2, seed=i) for i, a in enumerate(SEVERAL)] + [fresh(SEVERAL[1], 1, seed=9)]
    alone = torch.cat([model(b[i]) for b in batches for i in range(len(b))])
    torch.testing.assert_close(model(batches), alone)
    assert model(batches).unique(dim=0).shape[0] == len(alone)
    moved = [transforms(b.architecture, len(b)).apply(b) for b in batches]
    torch.testing.assert_close(model(moved), alone, rtol=1e-9, atol=1e-9)


def test_networks_with_mixed_activations_in_any_order() -> None:
    """The same sizes with ReLU and tanh, interleaved: every network meets the nets of its own group."""
    torch.manual_seed(0)
    relu, tanh = SEVERAL[0], SEVERAL[2]
    model = ScaleGMN([relu, tanh], 3, backward="dual", **SMALL).double()
    parameters = fresh(relu, 6).parameters
    order = [relu, tanh, tanh, relu, tanh, relu]
    batches = [Networks(a, parameters[i : i + 1]) for i, a in enumerate(order)]
    y = model(batches)
    torch.testing.assert_close(y[[0, 3, 5]], model(Networks(relu, parameters))[[0, 3, 5]])
    torch.testing.assert_close(y[[1, 2, 4]], model(Networks(tanh, parameters))[[1, 2, 4]])
    assert (model(Networks(relu, parameters)) - model(Networks(tanh, parameters))).abs().min() > 1e-8


def test_an_editor_of_several_architectures() -> None:
    torch.manual_seed(0)
    model = Editor(ScaleGMN(SEVERAL, backward="dual", **SMALL), gamma=1.0).double()
    for a in SEVERAL:
        networks = fresh(a)
        assert violation(model, networks, transforms(a)) < 1e-9
        assert model(networks).architecture == a


# -- editors -------------------------------------------------------------------------------------------------------


def test_editing_adds_gamma_times_the_direction() -> None:
    a = ARCHITECTURES["mlp", "sine"]
    torch.manual_seed(0)
    model = Editor(ScaleGMN([a], backward="shared", **SMALL), copies=2, gamma=0.5).double()
    networks = fresh(a)
    direction = model.direction(networks)
    assert direction.shape == (3, 2, a.parameters)
    assert (direction.abs().amax((0, 1)) > 0).all()
    assert not torch.allclose(direction[:, 0], direction[:, 1])
    edited = model(networks)
    expected = networks.parameters[:, None] + 0.5 * direction
    torch.testing.assert_close(edited.parameters, expected.flatten(0, 1))
    x = torch.randn(7, 2, generator=generator(0), dtype=torch.float64)
    rendered = edited.evaluate(x).view(3, 2, 7, 3).mean(1)
    torch.testing.assert_close(model.render(networks, x), rendered)


def test_first_edits_are_small() -> None:
    torch.manual_seed(0)
    model = Editor(ScaleGMN(SEVERAL, backward="dual", **SMALL), gamma=0.01).double()
    training = [fresh(a) for a in SEVERAL]
    model.prepare(training)
    for networks in training:
        change = (model(networks).parameters - networks.parameters).detach()
        assert 1e-4 < float(change.norm() / networks.parameters.norm()) < 0.1


def test_reciprocals_of_vanishing_weights_do_not_overflow() -> None:
    a = ARCHITECTURES["mlp", "relu"]
    torch.manual_seed(0)
    model = ScaleGMN([a], 3, backward="reciprocal", **SMALL)
    parameters = torch.randn(4, a.parameters)
    parameters[:, ::3] = 1e-39
    y = model(Networks(a, parameters))
    y.sum().backward()
    assert y.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


# -- interface -----------------------------------------------------------------------------------------------------


def test_a_model_prints_as_a_short_summary() -> None:
    a, b = ARCHITECTURES["mlp", "relu"], ARCHITECTURES["mlp", "tanh"]
    model = ScaleGMN([a, b], 10, width=8, layers=3, backward="dual", readout="output")
    parameters = sum(p.numel() for p in model.parameters())
    text = repr(model)
    assert len(text.splitlines()) == 8
    spec = "ScaleGMNSpec(width=8, layers=3, backward='dual', readout='output')"
    for part in (spec, "PositiveScale, Sign", f"{parameters:,}", str(a), str(b)):
        assert part in text
    assert "depth: 3, width: 8, backward: dual, groups: PositiveScale, Sign" in repr(model.trunk)
    assert "copies: 2" in repr(Editor(ScaleGMN([a], **SMALL), copies=2))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"backward": "shared"}, "'shared' is equivariant for signs only.*use 'dual'"),
        ({"backward": "sideways"}, "backward: expected one of none, shared, reciprocal, dual, auto; got 'sideways'"),
        ({"layers": 0}, "layers: expected at least 1, got 0"),
        ({"readout": "hidden"}, "readout: expected one of all, output, input\\+output; got 'hidden'"),
        ({"sign": "none"}, "sign: expected"),
        ({"probes": 3, "probe_image": (8, 8)}, "probes: expected an image shape of 0 dimension"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ScaleGMNError, match=complaint):
        ScaleGMN([ARCHITECTURES["mlp", "relu"]], 3, **SMALL | options)


def test_the_reciprocal_flow_refuses_other_lifts() -> None:
    with pytest.raises(ScaleGMNError, match="'reciprocal' needs"):
        ScaleGMN([ARCHITECTURES["mlp", "cube"]], 3, backward="reciprocal", **SMALL)


def test_unknown_architectures_are_refused() -> None:
    model = build("invariant", ARCHITECTURES["mlp", "relu"])
    with pytest.raises(ScaleGMNError, match="this model was built for"):
        output_of(model, fresh(ARCHITECTURES["mlp", "tanh"]))


@pytest.mark.parametrize(("name", "flow"), [("tanh", "shared"), ("relu", "dual"), ("mixed", "dual")])
def test_the_automatic_flow_follows_the_groups(name: str, flow: str) -> None:
    model = build("invariant", ARCHITECTURES["mlp", name], backward="auto")
    assert model.trunk.body.backward == flow


# -- one trunk, several heads --------------------------------------------------------------------------------------


@pytest.mark.parametrize("flow", ["none", "dual"])
def test_heads_share_a_trunk(flow: str) -> None:
    """An editor that comes later adds to the trunk and changes nothing that is there."""
    a = ARCHITECTURES["mlp", "relu"]
    torch.manual_seed(0)
    trunk = ScaleGMN([a], backward=flow, **SMALL).double()
    digits = Classifier(trunk, 3)
    networks = fresh(a)
    before, parameters = output_of(digits, networks), {id(p) for p in digits.parameters()}
    edit = Editor(trunk, copies=2)
    assert torch.equal(output_of(digits, networks), before)
    assert parameters < {id(p) for p in digits.parameters()}
    again = Editor(trunk)
    assert {id(p) for p in edit.trunk.parameters()} == {id(p) for p in again.trunk.parameters()}
    for model in (digits, edit, again):
        assert violation(model, networks, transforms(a)) < 1e-9
    output_of(edit, networks).sum().backward()
    shared = [p for p in trunk.parameters() if p.grad is not None and p.grad.abs().max() > 0]
    assert {id(p) for p in shared} & parameters
