"""What every peer must do: shapes, gradients, save and load, repr, and the symmetries on its card."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import pytest
import torch

from scalegmn.core.architecture import Architecture, Connection, Layer, Skip
from scalegmn.core.networks import Networks
from scalegmn.core.schema import from_json, to_json
from scalegmn.core.transform import Transform
from scalegmn.errors import ScaleGMNError
from scalegmn.models.heads import Classifier, Editor, Metanetwork
from scalegmn.models.method import Method
from scalegmn.models.parts.dense import BatchNorm
from scalegmn.models.registry import METHODS, method

MLPS = {
    "siren": Architecture.mlp([2, 6, 5, 3], "sine"),
    "relu": Architecture.mlp([3, 5, 4, 6, 2], "relu"),
    "shallow": Architecture.mlp([2, 7, 1], "tanh"),
}
EQUAL = {"siren": Architecture.mlp([2, 6, 6, 6, 3], "sine")}
CNNS = {
    "cnn": Architecture.cnn([1, 4, 5, 3], 3, "relu"),
    "flattened": Architecture.cnn([2, 3, 4], 2, "tanh", positions=(2, 2)),
}
RESIDUAL = Architecture(
    (Layer(2, bias=False), Layer(4), Layer(4), Layer(1)),
    (Connection(0, 1), Connection(1, 2), Connection(1, 2, Skip()), Connection(2, 3)),
)


@dataclass(frozen=True)
class Peer:
    """A model and small options for it."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    architectures: dict[str, Architecture] = field(default_factory=lambda: MLPS | CNNS)
    any_graph: bool = False


SMALL: dict[str, Any] = {"width": 8, "layers": 2}
PEERS = [
    Peer("mlp", SMALL, any_graph=True),
    Peer("statnn", SMALL, any_graph=True),
    Peer("dws", SMALL, MLPS),
    Peer("nfn-np", SMALL | {"head_width": 24}),
    Peer("nfn-hnp", SMALL | {"head_width": 24}),
    Peer("nft", SMALL | {"heads": 2, "queries": 3}),
    Peer("inr2vec", SMALL | {"embedding": 8, "pretraining": 3}, architectures=EQUAL),
    Peer("monomial-nfn", SMALL | {"mixing": 1, "head_width": 24}),
    Peer("probegen", SMALL | {"image": 9}, architectures=MLPS | {"cnn": CNNS["cnn"]}, any_graph=True),
    Peer("probegen", SMALL | {"image": 6}, architectures={"flattened": CNNS["flattened"]}, any_graph=True),
]
CASES = [(peer, key) for peer in PEERS for key in peer.architectures]
EDITORS = [(peer, key) for peer, key in CASES if method(peer.name).edits]


def case_id(value: object) -> str:
    return value.name if isinstance(value, Peer) else str(value)


cases = pytest.mark.parametrize(("peer", "key"), CASES, ids=case_id)
editors = pytest.mark.parametrize(("peer", "key"), EDITORS, ids=case_id)


def networks_of(architecture: Architecture, count: int = 6, seed: int = 0) -> Networks:
    generator = torch.Generator().manual_seed(seed)
    return Networks(architecture, torch.randn(count, architecture.parameters, generator=generator).double())


def invariant(peer: Peer, architecture: Architecture, outputs: int = 4) -> Classifier:
    """A prepared model in evaluation mode and double precision."""
    torch.manual_seed(0)
    model = method(peer.name)([architecture], outputs, **peer.options).double()
    model.prepare([networks_of(architecture, 20, seed=1)])
    return model.eval()


def editor(peer: Peer, architecture: Architecture, **more: Any) -> Editor:
    torch.manual_seed(0)
    model = Editor(method(peer.name)([architecture], **peer.options), **more).double()
    model.prepare([networks_of(architecture, 20, seed=1)])
    return model.eval()


def error(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).abs().max() / b.abs().max()).item()


def moves(architecture: Architecture, permute: bool, scale: bool) -> Transform:
    return Transform.sample(architecture, 6, torch.Generator().manual_seed(2), permute=permute, scale=scale)


# -- interface -----------------------------------------------------------------------------------------------------


@cases
def test_shapes_and_gradients(peer: Peer, key: str) -> None:
    networks = networks_of(peer.architectures[key])
    model = invariant(peer, networks.architecture)
    model.train()
    outputs = model(networks)
    assert outputs.shape == (6, 4)
    assert model.embed(networks).shape[0] == 6
    outputs.square().sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all(), name


@cases
def test_different_networks_give_different_outputs(peer: Peer, key: str) -> None:
    outputs = invariant(peer, peer.architectures[key])(networks_of(peer.architectures[key]))
    assert outputs.std(0).min().item() > 1e-6 * outputs.abs().max().item()


@cases
def test_saved_and_loaded_models_agree(peer: Peer, key: str) -> None:
    networks = networks_of(peer.architectures[key])
    model = invariant(peer, networks.architecture)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    torch.manual_seed(1)
    other = method(peer.name)([networks.architecture], 4, **peer.options).double().eval()
    assert not torch.equal(other(networks), model(networks))
    other.load_state_dict(torch.load(file, weights_only=True))
    torch.testing.assert_close(other(networks), model(networks), rtol=0, atol=0)


@cases
def test_repr_names_the_inputs(peer: Peer, key: str) -> None:
    architecture = peer.architectures[key]
    assert str(architecture) in repr(invariant(peer, architecture))


@cases
def test_networks_do_not_see_each_other(peer: Peer, key: str) -> None:
    networks = networks_of(peer.architectures[key])
    model = invariant(peer, networks.architecture)
    torch.testing.assert_close(model(networks[2:4]), model(networks)[2:4])


@pytest.mark.parametrize("peer", PEERS, ids=case_id)
def test_options_that_do_not_exist_are_refused(peer: Peer) -> None:
    architecture = next(iter(peer.architectures.values()))
    with pytest.raises(ScaleGMNError, match="unknown option"):
        method(peer.name)([architecture], 4, widht=8)


@pytest.mark.parametrize("peer", PEERS, ids=case_id)
def test_no_architecture_is_refused(peer: Peer) -> None:
    with pytest.raises(ScaleGMNError, match="expected at least one"):
        method(peer.name)([], 4, **peer.options)


@pytest.mark.parametrize("peer", [p for p in PEERS if not p.any_graph], ids=case_id)
def test_residual_graphs_are_refused(peer: Peer) -> None:
    with pytest.raises(ScaleGMNError, match=f"{peer.name}: expected a chain"):
        method(peer.name)([RESIDUAL], 4, **peer.options)


@pytest.mark.parametrize("peer", [p for p in PEERS if not method(p.name).convolutions], ids=case_id)
def test_convolutions_are_refused(peer: Peer) -> None:
    with pytest.raises(ScaleGMNError, match=f"{peer.name}: .*convolution"):
        method(peer.name)([CNNS["cnn"]], 4, **peer.options)


@pytest.mark.parametrize("peer", [p for p in PEERS if p.any_graph], ids=case_id)
def test_residual_graphs_are_read(peer: Peer) -> None:
    assert invariant(peer, RESIDUAL)(networks_of(RESIDUAL)).shape == (6, 4)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("scalegmn", {"width": 0}, "model 'scalegmn': width: expected at least 1, got 0"),
        ("scalegmn-b", {"gate": 0}, "model 'scalegmn-b': gate: expected at least 1, got 0"),
        ("scalegmn", {"probes": -3}, "model 'scalegmn': probes: expected at least 0, got -3"),
        ("scalegmn", {"dropout": 1.5}, "dropout: expected at least 0 and less than 1, got 1.5"),
        ("scalegmn", {"aggregate": "max"}, "aggregate: expected one of sum, mean; got 'max'"),
        ("dws", {"reduction": "sum"}, "reduction: expected one of mean, max; got 'sum'"),
        ("nft", {"heads": 0}, "model 'nft': heads: expected at least 1, got 0"),
        ("probegen", {"probes": 0}, "probes: expected at least 1, got 0"),
        ("mlp", {"layers": 1}, "layers: expected at least 2, got 1"),
    ],
)
def test_impossible_options_are_one_line(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ScaleGMNError, match=re.escape(message)):
        method(name)([EQUAL["siren"]], 4, **options)


@pytest.mark.parametrize("one", METHODS.values(), ids=lambda m: m.name)
def test_a_specification_prints_compares_and_says_what_it_means(one: Method) -> None:
    spec = one.chosen({"layers": 3})
    assert spec == one.chosen({"layers": 3}) != one.chosen({"layers": 2})
    assert from_json(type(spec), to_json(spec), "spec") == spec
    names = {kind.__name__: kind for kind in (type(spec),)}
    assert eval(repr(spec), names) == spec  # the text is Python
    assert list(spec.meanings()) == [f.name for f in fields(spec)]
    assert all(text.endswith((".", ")")) for text in spec.meanings().values())


@pytest.mark.parametrize("one", [m for m in METHODS.values() if not m.edits], ids=lambda m: m.name)
def test_what_cannot_edit_says_so(one: Method) -> None:
    with pytest.raises(ScaleGMNError, match=f"model: '{one.name}' has no equivariant head, so it cannot edit"):
        Editor(one([EQUAL["siren"]]))


@pytest.mark.parametrize("one", [m for m in METHODS.values() if m.edits], ids=lambda m: m.name)
def test_the_same_three_lines_with_every_method(one: Method) -> None:
    torch.manual_seed(0)
    trunk = one([EQUAL["siren"]], width=8, layers=2).double()
    digits, dilate = Classifier(trunk, outputs=10), Editor(trunk, copies=8)
    networks = networks_of(EQUAL["siren"], 3)
    assert (digits(networks).shape, len(dilate(networks))) == ((3, 10), 24)
    assert digits.trunk is dilate.trunk


DEEPER = (Architecture.mlp([2, 6, 3], "sine"), Architecture.mlp([2, 5, 4, 3], "relu"))


@pytest.mark.parametrize("peer", [p for p in PEERS if method(p.name).several], ids=case_id)
def test_several_architectures_in_the_order_of_the_input(peer: Peer) -> None:
    torch.manual_seed(0)
    model = method(peer.name)(DEEPER, 4, **peer.options).double()
    batches = [networks_of(DEEPER[0]), networks_of(DEEPER[1]), networks_of(DEEPER[0], seed=1)]
    model.prepare(batches)
    model.eval()
    expected = torch.cat([model(b) for b in batches])
    torch.testing.assert_close(model(batches), expected)


@pytest.mark.parametrize("name", ["dws", "nfn-np", "nfn-hnp", "nft", "inr2vec", "monomial-nfn", "ng-gnn", "ng-t"])
def test_batch_statistics_are_those_of_the_whole_batch(name: str) -> None:
    """Whatever the architectures, and though NG-T takes large networks in portions."""
    architectures = [Architecture.mlp([2, 64, 64, 1], activation) for activation in ("sine", "tanh")]
    batches = [networks_of(architectures[0], 3), networks_of(architectures[1], 5)]
    options = {"inr2vec": {"pretraining": 1}}.get(name, {})
    model = method(name)(architectures, 4, layers=2, **options).double()
    model.prepare(batches)
    seen = []
    for part in model.modules():
        if isinstance(part, BatchNorm):
            part.register_forward_hook(lambda m, inputs, _: seen.append(len(inputs[0])) if m.training else None)
    model.train()
    model(batches)
    assert set(seen) == {8}


@pytest.mark.parametrize("peer", [p for p in PEERS if not method(p.name).several], ids=case_id)
def test_architectures_of_other_shapes_are_refused(peer: Peer) -> None:
    with pytest.raises(ScaleGMNError, match="same shapes"):
        method(peer.name)(DEEPER, 4, **peer.options)


# -- laws ----------------------------------------------------------------------------------------------------------


def change_under(model: Metanetwork, networks: Networks, g: Transform) -> float:
    if isinstance(model, Editor):
        return error(model(g.apply(networks)).parameters, g.apply(model(networks)).parameters)
    return error(model(g.apply(networks)), model(networks))


def check_law(build: Callable[[Peer, Architecture], Metanetwork], peer: Peer, key: str, what: str) -> None:
    """The symmetry holds to rounding if it is on the card, and is clearly broken if it is not."""
    networks = networks_of(peer.architectures[key])
    model = build(peer, networks.architecture)
    g = moves(networks.architecture, permute=what == "permutation", scale=what == "scale")
    found = change_under(model, networks, g)
    if what in method(peer.name).symmetries:
        assert found < 1e-9
    else:
        assert found > 1e-6


@cases
@pytest.mark.parametrize("what", ["permutation", "scale"])
def test_invariance_is_as_on_the_card(peer: Peer, key: str, what: str) -> None:
    check_law(invariant, peer, key, what)


@editors
@pytest.mark.parametrize("what", ["permutation", "scale"])
def test_equivariance_is_as_on_the_card(peer: Peer, key: str, what: str) -> None:
    def build(peer: Peer, architecture: Architecture) -> Editor:
        return editor(peer, architecture, gamma=1.0)

    check_law(build, peer, key, what)


def tear(networks: Networks) -> Networks:
    """Permute the rows of every hidden layer's incoming weights only: no symmetry of the network."""
    a = networks.architecture
    g = moves(a, permute=True, scale=False)
    weights = [
        None if w is None or a.slots[c.target] is None else w[torch.arange(6)[:, None], g.permutations[c.target]]
        for c, w in zip(a.connections, networks.weights, strict=True)
    ]
    kept = [n if w is None else w for n, w in zip(networks.weights, weights, strict=True)]
    return Networks.from_tensors(a, kept, networks.biases)


@cases
def test_permuting_one_side_of_a_layer_only(peer: Peer, key: str) -> None:
    """It changes the function, and so the output, except where a model ignores the order of rows by design."""
    networks = networks_of(peer.architectures[key])
    model = invariant(peer, networks.architecture)
    found = error(model(tear(networks)), model(networks))
    if peer.name in ("statnn", "inr2vec"):
        assert found < 1e-9
    else:
        assert found > 1e-6


# -- editors -------------------------------------------------------------------------------------------------------


@editors
def test_editors_start_near_the_identity(peer: Peer, key: str) -> None:
    networks = networks_of(peer.architectures[key])
    unchanged = editor(peer, networks.architecture, gamma=0.0)
    assert torch.equal(unchanged(networks).parameters, networks.parameters)
    model = editor(peer, networks.architecture)
    assert (model(networks).parameters != networks.parameters).all(dim=0).any()


@editors
def test_first_edits_are_a_share_of_every_tensor(peer: Peer, key: str) -> None:
    networks = networks_of(peer.architectures[key])
    model = editor(peer, networks.architecture, gamma=0.01)
    model.prepare([networks])
    sizes = [s.size for s in networks.architecture.segments]
    change = (model(networks).parameters - networks.parameters).detach().split(sizes, 1)
    for part, old in zip(change, networks.parameters.split(sizes, 1), strict=True):
        assert float(part.square().mean().sqrt() / old.square().mean().sqrt()) == pytest.approx(0.01, rel=1e-3)


@editors
def test_editors_change_every_parameter_and_learn(peer: Peer, key: str) -> None:
    networks = networks_of(peer.architectures[key])
    model = editor(peer, networks.architecture, copies=2)
    model.train()
    edited = model(networks)
    assert len(edited) == 12
    changed = edited.parameters != networks.parameters.repeat_interleave(2, 0)
    assert changed.any(0).double().mean() > 0.9
    edited.parameters.square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())
