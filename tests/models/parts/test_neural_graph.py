"""Neural graphs, NG-GNN and NG-T: permutation laws, controls that must fail, and slow references."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from scalegmn.core.activations import activation
from scalegmn.core.architecture import Architecture, Connection, Conv, Layer, Linear, Normalise, Skip
from scalegmn.core.networks import Networks
from scalegmn.core.transform import Transform
from scalegmn.errors import ScaleGMNError
from scalegmn.models.heads import Classifier, Editor, InvariantModel
from scalegmn.models.parts.neural_graph import GraphSpec, NeuralGraph, edge_blocks
from scalegmn.models.parts.pna import PNA, PNALayer, _DenseMessages, degrees, plan
from scalegmn.models.parts.relational import RelationalAttention
from scalegmn.models.peers.ng_gnn import NGGNN
from scalegmn.models.peers.ng_t import NGT
from scalegmn.models.registry import method
from scalegmn.nn.kernels import crop_kernel, largest_kernels, pad_kernel

MLPS = {
    "mlp": Architecture.mlp([2, 6, 5, 3], "relu"),
    "mixed": Architecture.mlp([3, 4, 6, 2], ["sine", "relu"]),
    "prelu": Architecture.mlp([2, 5, 4, 2], "prelu"),
}
CNNS = {
    "cnn": Architecture.cnn([1, 4, 5], 3),
    "flattened": Architecture.cnn([2, 3, 4], 2, "tanh", positions=(2, 3)),
    "two kernels": Architecture(
        (Layer(1, bias=False), Layer(4, activation("relu")), Layer(3, activation("relu")), Layer(2)),
        (
            Connection(0, 1, Conv((5, 5), (1, 1), (0, 0), (1, 1))),
            Connection(1, 2, Conv((3, 3), (1, 1), (0, 0), (1, 1))),
            Connection(2, 3, Linear((2, 2))),
        ),
    ),
}
RESIDUAL = {
    "residual": Architecture(
        (Layer(2, bias=False), *[Layer(4, activation("relu"))] * 3, Layer(2)),
        (Connection(0, 1), Connection(1, 2, Normalise()), Connection(1, 3, Skip()), *map(Connection, (2, 3), (3, 4))),
    ),
    "skip beside a matrix": Architecture(
        (Layer(2, bias=False), Layer(4, activation("tanh")), Layer(4, activation("tanh")), Layer(1)),
        (Connection(0, 1), Connection(1, 2), Connection(1, 2, Skip()), Connection(2, 3)),
    ),
}
GRAPHS = MLPS | CNNS | RESIDUAL
MODELS = {"ng-gnn": NGGNN, "ng-t": NGT}
SIREN = Architecture.mlp([2, 6, 6, 3], "sine")

each_model = pytest.mark.parametrize("name", MODELS)
each_graph = pytest.mark.parametrize("graph", GRAPHS)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """These tensors are too small to share."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def sample(architecture: Architecture, count: int = 4, seed: int = 0) -> Networks:
    generator = torch.Generator().manual_seed(seed)
    parameters = torch.randn(count, architecture.parameters, generator=generator, dtype=torch.float64)
    return Networks(architecture, 0.1 + parameters)


def invariant(name: str, *architectures: Architecture, **options: int) -> Classifier:
    torch.manual_seed(1)
    model = MODELS[name](architectures, 5, **{"width": 8, "layers": 3, **options}).double()
    model.prepare([sample(a, 20, seed=7) for a in architectures])
    return model.eval()


def editor(name: str, *architectures: Architecture, copies: int = 1, **options: int) -> Editor:
    torch.manual_seed(1)
    trunk = MODELS[name](architectures, **{"width": 8, "layers": 3, "frequencies": 0, **options})
    model = Editor(trunk, copies=copies).double()
    model.prepare([sample(a, 20, seed=7) for a in architectures])
    return model


def permutation(networks: Networks) -> Transform:
    generator = torch.Generator().manual_seed(3)
    return Transform.sample(networks.architecture, len(networks), generator, scale=False)


def change(model: InvariantModel, before: Networks, after: Networks) -> float:
    return (model(before) - model(after)).abs().max().item()


# -- laws ------------------------------------------------------------------------------------------------------


@each_model
@each_graph
def test_invariant_to_permutations(name: str, graph: str) -> None:
    networks = sample(GRAPHS[graph])
    moved = permutation(networks).apply(networks)
    assert not torch.equal(networks.parameters, moved.parameters)
    model = invariant(name, networks.architecture)
    assert model(networks).std(0).min() > 1e-4
    assert change(model, networks, moved) < 1e-9


@each_model
@each_graph
def test_editors_commute_with_permutations(name: str, graph: str) -> None:
    networks = sample(GRAPHS[graph])
    g = permutation(networks)
    model = editor(name, networks.architecture)
    edited = model(networks)
    assert (edited.parameters - networks.parameters).abs().min() > 0
    assert (g.apply(edited).parameters - model(g.apply(networks)).parameters).abs().max() < 1e-9


@each_model
@pytest.mark.parametrize("graph", MLPS)
def test_laws_with_probes(name: str, graph: str) -> None:
    networks = sample(MLPS[graph])
    g = permutation(networks)
    model = invariant(name, networks.architecture, probes=8)
    assert change(model, networks, g.apply(networks)) < 1e-9
    edit = editor(name, networks.architecture, probes=8)
    assert (g.apply(edit(networks)).parameters - edit(g.apply(networks)).parameters).abs().max() < 1e-9


@each_model
def test_images_are_probed_with_images(name: str) -> None:
    networks = sample(CNNS["cnn"])
    torch.manual_seed(0)
    model = MODELS[name]([networks.architecture], 5, width=8, layers=2, probes=3, probe_image=(6, 6)).double().eval()
    model.prepare([networks])
    assert change(model, networks, permutation(networks).apply(networks)) < 1e-9
    expected = model(networks).detach()
    with torch.no_grad():
        model.trunk.graph.probed.probes.images.latents.mul_(2)
    assert (model(networks) - expected).abs().max() > 1e-6


@each_model
@settings(max_examples=10, deadline=None)
@given(sizes=st.lists(st.integers(1, 6), min_size=2, max_size=5), layers=st.integers(1, 4), seed=st.integers(0, 99))
def test_invariant_on_any_mlp(name: str, sizes: list[int], layers: int, seed: int) -> None:
    networks = sample(Architecture.mlp(sizes, "tanh"), 2, seed)
    model = invariant(name, networks.architecture, layers=layers)
    assert change(model, networks, permutation(networks).apply(networks)) < 1e-9
    edit = editor(name, networks.architecture, layers=layers)
    assert edit(networks).parameters.shape == networks.parameters.shape


# -- controls: what must change the answer ---------------------------------------------------------------------


@each_model
@pytest.mark.parametrize("probes", [0, 8])
@pytest.mark.parametrize("what", ["one side", "inputs", "outputs", "scale"])
def test_not_too_symmetric(name: str, what: str, probes: int) -> None:
    networks = sample(SIREN)
    weights, biases = [w.clone() for w in networks.weights if w is not None], list(networks.biases)
    if what == "one side":
        weights[1] = weights[1].flip(1)
    elif what == "inputs":
        weights[0] = weights[0].flip(2)
    elif what == "outputs":
        weights[2] = weights[2].flip(1)
        biases[3] = biases[3].flip(1) if biases[3] is not None else None
    moved = Networks.from_tensors(SIREN, weights, biases)
    if what == "scale":
        moved = Transform.sample(SIREN, len(networks), permute=False).apply(networks)
    assert change(invariant(name, SIREN, probes=probes), networks, moved) > 1e-4


@each_model
def test_hidden_layers_are_told_apart(name: str) -> None:
    """The graph of 3-4-4-3 read backwards is the same graph but for the encodings."""
    a = Architecture.mlp([3, 4, 4, 3], "tanh", bias=False)
    networks = sample(a)
    w = [w for w in networks.weights if w is not None]
    mirrored = Networks.from_tensors(a, [x.transpose(1, 2) for x in reversed(w)], networks.biases)
    assert change(invariant(name, a), networks, mirrored) > 1e-4


# -- several architectures, batches, units ---------------------------------------------------------------------


@each_model
def test_several_architectures_in_one_model(name: str) -> None:
    batches = [sample(a, 2, seed) for seed, a in enumerate((*MLPS.values(), *CNNS.values(), *RESIDUAL.values()))]
    model = invariant(name, *GRAPHS.values())
    together = model([batches[0], *batches[1:], batches[0][[1]]])
    apart = torch.cat([model(b) for b in (*batches, batches[0][[1]])])
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-12)
    edit = editor(name, *GRAPHS.values())
    for b in batches:
        g = permutation(b)
        assert (g.apply(edit(b)).parameters - edit(g.apply(b)).parameters).abs().max() < 1e-9


@each_model
def test_a_network_does_not_see_its_batch(name: str) -> None:
    networks = sample(SIREN, 6)
    model = invariant(name, SIREN, probes=4)
    torch.testing.assert_close(model(networks)[2:3], model(networks[2]), rtol=0, atol=1e-12)


@each_model
def test_invariant_while_training(name: str) -> None:
    networks = sample(SIREN)
    model = invariant(name, SIREN).train()
    assert change(model, networks, permutation(networks).apply(networks)) < 1e-9


@each_model
def test_normalisation_makes_units_irrelevant(name: str) -> None:
    networks = sample(SIREN)
    small = networks.replace(1e-3 * networks.parameters)
    model = invariant(name, SIREN)
    model.prepare([networks])
    expected = model(networks)
    assert (model(small) - expected).abs().max() > 1e-4
    model.prepare([small])
    torch.testing.assert_close(model(small), expected)


# -- training, saving, errors ----------------------------------------------------------------------------------


@each_model
@pytest.mark.parametrize("probes", [0, 8])
def test_every_parameter_learns(name: str, probes: int) -> None:
    networks = sample(SIREN)
    for model in (invariant(name, SIREN, probes=probes), editor(name, SIREN, probes=probes)):
        found = model.train()(networks)
        (found if isinstance(found, Tensor) else found.parameters).square().sum().backward()
        for key, p in model.named_parameters():
            if "slope_map" in key:
                continue  # there are no slopes here
            assert p.grad is not None, key
            assert p.grad.isfinite().all(), key
            assert p.grad.abs().max() > 0, key


@each_model
def test_it_learns_what_it_is_shown(name: str) -> None:
    torch.manual_seed(0)
    a = Architecture.mlp([2, 4, 4, 2], "sine")
    networks = Networks(a, 1e-2 * torch.randn(24, a.parameters))
    weight = networks.weights[1]
    assert weight is not None
    labels = (weight.abs().mean((1, 2, 3)) > weight.abs().mean()).long()
    model = MODELS[name]([a], 2, width=16, layers=2, frequencies=16)
    model.prepare([networks])
    optimiser = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(60):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(networks), labels).backward()
        optimiser.step()
    assert (model.eval()(networks).argmax(1) == labels).double().mean() > 0.9


@each_model
def test_save_and_load(name: str, tmp_path: Path) -> None:
    networks = sample(SIREN)
    model = invariant(name, SIREN, probes=4)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other = MODELS[name]([SIREN], 5, width=8, layers=3, probes=4).double().eval()
    assert change(other, networks, networks) == 0
    assert (other(networks) - model(networks)).abs().max() > 1e-4
    other.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    assert torch.equal(other(networks), model(networks))


@each_model
def test_copies_and_gamma(name: str) -> None:
    networks = sample(SIREN)
    model = editor(name, SIREN, copies=3)
    assert len(model(networks)) == 3 * len(networks)
    x = torch.rand(7, 2, dtype=torch.float64)
    assert model.render(networks, x).shape == (len(networks), 7, 3)
    with torch.no_grad():
        model.gamma.zero_()
    torch.testing.assert_close(model.render(networks, x), networks.evaluate(x))


def test_errors() -> None:
    with pytest.raises(ScaleGMNError, match="probes: expected an image shape of 2 dimension"):
        NGGNN([CNNS["cnn"]], 3, probes=8)
    with pytest.raises(ScaleGMNError, match="width: the attention needs a multiple of 8 channels, got 20"):
        NGT([SIREN], 3, width=10)
    with pytest.raises(ScaleGMNError, match="this model was built for"):
        NGT([SIREN], 3)(sample(MLPS["mlp"]))


@each_model
def test_card(name: str) -> None:
    found = method(name)
    assert found.symmetries == ("permutation",)
    assert found is MODELS[name]
    assert found.edits


# -- parts against slow references -----------------------------------------------------------------------------


def test_kernels_are_centred_and_come_back() -> None:
    assert largest_kernels(list(CNNS.values())) == {"Conv": (5, 5), "Linear": (2, 3)}
    w = torch.randn(2, 9)
    padded = pad_kernel(w, (3, 3), (5, 5))
    assert torch.equal(padded.unflatten(1, (5, 5))[:, 1:4, 1:4].flatten(1), w)
    assert padded.count_nonzero() == w.count_nonzero()
    for shape in ((), (3,), (2, 3), (4, 5)):
        x = torch.randn(3, math.prod(shape))
        assert torch.equal(crop_kernel(pad_kernel(x, shape, (4, 5)), shape, (4, 5)), x)


def test_one_round_against_a_loop_over_edges() -> None:
    a = RESIDUAL["skip beside a matrix"]
    networks = sample(a, 1)
    graph = NeuralGraph([a], GraphSpec(width=5), edges=5).double()
    layer = PNALayer(5, dropout=0.0, last=False).double()
    x, e = graph.node_states(networks, networks), graph.edge_states(networks)
    step = plan(a, 2, editing=True)[0]
    amplification = [0.3, 1.0, 1.5, 2.0]
    new, edges = layer(dict(enumerate(x)), e, step, amplification)
    alpha, beta, carried = (layer.edge.weight[i * 5 : i * 5 + 5] for i in range(3))
    bias = layer.edge.bias.chunk(3)
    for t, states in enumerate(x):
        for i in range(states.shape[1]):
            messages = []
            for b in edge_blocks(a):
                for j in range(x[b.source].shape[1]) if b.target == t else ():
                    if b.dense or i == j:
                        s = e[b][0, i, j] if b.dense else e[b][0, i]
                        pair = layer.receive(states[0, i]) + layer.send(x[b.source][0, j])
                        messages.append((alpha @ s + bias[0]) * pair + beta @ s + bias[1])
            m = torch.stack(messages)
            assert len(m) == degrees(a)[t]
            four = torch.cat([m.mean(0), (m.var(0, correction=0) + 1e-5).sqrt(), m.amin(0), m.amax(0)])
            expected = layer.after(layer.combine(torch.cat([states[0, i], four, amplification[t] * four])))
            torch.testing.assert_close(new[t][0, i], expected)
    for b, found in edges.items():
        i, j = (0, x[b.source].shape[1] - 1) if b.dense else (2, 2)
        s, f = (e[b][0, i, j], found[0, i, j]) if b.dense else (e[b][0, i], found[0, i])
        ends = layer.ends(new[b.target][0, i])[:5] + layer.ends(new[b.source][0, j])[5:]
        torch.testing.assert_close(f, torch.nn.functional.silu(carried @ s + bias[2] + ends))


def test_what_nobody_reads_makes_no_difference() -> None:
    """The pruned rounds of a classifier give the same output neurons as rounds on the whole graph."""
    a = Architecture.mlp([2, 4, 4, 4, 3], "relu")
    networks = sample(a)
    graph = NeuralGraph([a], GraphSpec(width=8), edges=8).double()
    pna = PNA([a], width=8, layers=4, dropout=0.0).double()
    x, e = graph.node_states(networks, networks), graph.edge_states(networks)
    pruned, whole = (pna(a, x, e, editing=editing)[0][4] for editing in (False, True))
    torch.testing.assert_close(pruned, whole, rtol=0, atol=1e-12)
    assert [len(s.messages) for s in plan(a, 4, editing=False)] == [7, 5, 3, 1]
    assert [len(s.messages) for s in plan(a, 4, editing=True)] == [8, 8, 8, 7]


def test_gradient_of_dense_messages() -> None:
    generator = torch.Generator().manual_seed(0)
    y, u, v = (torch.randn(s, generator=generator, dtype=torch.float64) for s in ((2, 3, 4, 9), (2, 3, 3), (2, 4, 3)))
    # Two neighbours that say the same share the gradient of an extreme.
    y[:, :, 1], v[:, 1] = y[:, :, 0], v[:, 0]

    def plain(y: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        alpha, beta, rest = y.chunk(3, dim=-1)
        m = torch.addcmul(beta, alpha, u.unsqueeze(2) + v.unsqueeze(1))
        return m.sum(2), m.square().sum(2), m.amin(2), m.amax(2), rest

    inputs = [t.requires_grad_() for t in (y, u, v)]
    expected, found = plain(y, u, v), _DenseMessages.apply(y, u, v)
    seeds = [torch.randn(o.shape, generator=generator, dtype=o.dtype) for o in expected]
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(a, b)
    gradients = [torch.autograd.grad(outputs, inputs, seeds) for outputs in (expected, found)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_attention_against_its_equation() -> None:
    torch.manual_seed(0)
    attention = RelationalAttention(6, 3, hidden=8, heads=2).double()
    x, e = torch.randn(2, 5, 6).double(), torch.randn(2, 5, 5, 3).double()
    rows = slice(3, 5)
    k_map, v_map = attention.key_value.weight.chunk(2)
    q_edge, k_edge, m_edge, v_edge = attention.edge.weight.chunk(4)
    q = (x @ attention.query.weight.T)[:, rows, None] + e[:, rows] @ q_edge.T
    k = (x @ k_map.T)[:, None] + e[:, rows] @ k_edge.T
    v = (x @ v_map.T)[:, None] * (e[:, rows] @ m_edge.T) + e[:, rows] @ v_edge.T
    per_head = []
    for h in (slice(0, 4), slice(4, 8)):
        weight = ((q * k)[..., h].sum(-1) / math.sqrt(8)).softmax(-1)
        per_head.append((weight.unsqueeze(-1) * v[..., h]).sum(2))
    torch.testing.assert_close(attention(x, x[:, rows], e[:, rows]), attention.out(torch.cat(per_head, dim=-1)))
