"""Batches of networks: what they are made from, what they carry along, and what they are turned back into."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from convert.examples import DWSINR, EXAMPLES
from devices import without_double
from hypothesis import given, settings
from hypothesis import strategies as st
from modules import assert_same_states, mlp, resnets
from torch import Tensor, nn

from scalegmn.convert.feedforward import Feedforward
from scalegmn.core.activations import activation
from scalegmn.core.architecture import Architecture, Shared
from scalegmn.core.networks import Networks
from scalegmn.core.transform import Transform
from scalegmn.errors import ScaleGMNError
from scalegmn.testing import random_networks

# -- state dicts -------------------------------------------------------------------------------------------------


def test_integers_travel_along_and_come_back() -> None:
    module = DWSINR()
    states = [{**copy.deepcopy(module.state_dict()), "label": torch.tensor(i)} for i in range(3)]
    networks = Networks.from_state_dicts(states, like=module)
    assert networks.passengers["label"].tolist() == [0, 1, 2]
    assert_same_states(networks.to_state_dicts(), states)
    assert len(networks.to_modules()) == 3


def test_an_architecture_names_the_entries_of_a_file_in_order() -> None:
    architecture = Architecture.mlp([2, 8, 8, 1], activation("sine", 30.0))
    states = [{k: t for k, t in DWSINR().state_dict().items() if "w0" not in k} for _ in range(2)]
    networks = Networks.from_state_dicts(states, like=architecture)
    assert networks.architecture == architecture
    assert_same_states(networks.to_state_dicts(), states)
    x = torch.rand(4, 2)
    module = DWSINR()
    module.load_state_dict(states[1], strict=False)
    torch.testing.assert_close(networks[1].evaluate(x)[0] + 0.5, module(x).detach())


def test_a_bare_state_dict_is_a_chain_with_a_given_activation() -> None:
    module = mlp(3, 5, 4, 2)
    networks = Networks.from_state_dicts([module.state_dict()], activation="relu")
    x = torch.rand(6, 3)
    torch.testing.assert_close(networks.evaluate(x)[0], module(x).detach())
    assert_same_states(networks.to_state_dicts(), [module.state_dict()])
    (exported,) = networks.to_modules()
    torch.testing.assert_close(exported(x), module(x))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Conv2d(1, 2, 3), "weight is a convolution; its stride"),
        (nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), "1.running_mean belongs to a BatchNorm"),
        (nn.Sequential(nn.Linear(2, 3), nn.PReLU(), nn.Linear(3, 1)), r"1.weight of shape \(1,\) does not continue"),
        (nn.Sequential(nn.Linear(2, 3), nn.Linear(4, 1)), r"1.weight of shape \(1, 4\) does not continue .* 2-3;"),
    ],
)
def test_an_ambiguous_state_dict_is_refused(module: nn.Module, message: str) -> None:
    with pytest.raises(ScaleGMNError, match=f"state dict 0: state dict: {message}"):
        Networks.from_state_dicts([module.state_dict()], activation="relu")


def test_the_activation_must_be_told() -> None:
    with pytest.raises(ScaleGMNError, match="the activation is not in a state dict; give it as `activation`"):
        Networks.from_state_dicts([mlp(2, 3, 1).state_dict()])
    with pytest.raises(ScaleGMNError, match="got both"):
        Networks.from_state_dicts([mlp(2, 3, 1).state_dict()], like=mlp(2, 3, 1), activation="relu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("0.bias"), "the state dict lacks 0.bias"),
        (lambda s: s.update({"0.bias": torch.zeros(4)}), r"0.bias: expected shape \(3,\), got \(4,\)"),
        (lambda s: s.update({"9.bias": torch.zeros(4)}), "has 9.bias, which the architecture has not"),
        (lambda s: s.update({"label": torch.tensor(1)}), "other entries than in the first network: label"),
        (lambda s: s["2.weight"].fill_(torch.inf), "2.weight has a weight that is inf"),
        (lambda s: s.update({k: t.double() for k, t in s.items()}), "0.weight is .*float64.* in the first .*float32"),
        (lambda s: s.update({"0.bias": "text"}), "expected a dictionary of names and tensors"),
    ],
)
def test_a_state_dict_that_differs_is_named(change: object, message: str) -> None:
    module = mlp(2, 3, 1)
    states = [copy.deepcopy(dict(module.state_dict())) for _ in range(3)]
    assert callable(change)
    change(states[2])
    with pytest.raises(ScaleGMNError, match=f"state dict 2: .*{message}"):
        Networks.from_state_dicts(states, like=module)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m: Networks.from_modules(m), "modules: expected a list of modules, got one Sequential"),
        (lambda m: Networks.from_modules([type(m)]), "module: expected an nn.Module .* got the class Sequential"),
        (lambda m: Networks.from_state_dicts(m.state_dict(), like=m), "state dicts: expected a list of them, got one"),
        (lambda m: Networks.from_state_dicts([m], like=m), "state dict 0: expected a dictionary .* got a Sequential"),
        (lambda m: Networks.from_state_dicts([m.state_dict()], like=type(m)), "^module: .* got the class Sequential"),
        (lambda m: Networks.from_state_dicts([m.state_dict()], like=3), "^module: expected an nn.Module .* got int"),
        (lambda m: Networks.from_state_dicts([m.state_dict()], like=m.to("meta")), "^0: expected a weight with values"),
        (lambda m: Networks.from_files("a.pt", like=m), "paths: expected a list of files, got a.pt"),
    ],
)
def test_what_is_not_a_list_of_networks_is_refused(make: Callable[[nn.Module], Networks], message: str) -> None:
    with pytest.raises(ScaleGMNError, match=message):
        make(mlp(2, 3, 1))


def test_a_constant_that_differs_is_noticed() -> None:
    module = DWSINR()
    state = copy.deepcopy(module.state_dict())
    state["seq.1.w0"].fill_(20.0)
    with pytest.raises(ScaleGMNError, match=r"seq.1.w0: expected 30 .* got 20"):
        Networks.from_state_dicts([module.state_dict(), state], like=module)


def test_mixed_types_in_one_network_are_refused() -> None:
    module = mlp(2, 3, 1)
    module[0].double()
    with pytest.raises(ScaleGMNError, match="expected one floating-point type"):
        Networks.from_modules([module])


def test_entries_that_the_network_does_not_use_keep_their_type() -> None:
    module = mlp(2, 3, 1)
    module.register_buffer("grid", torch.linspace(0, 1, 5, dtype=torch.float64))
    networks = Networks.from_modules([module])
    assert_same_states(networks.to_state_dicts(), [dict(module.state_dict())])
    assert networks.to(dtype=torch.float16).to_state_dicts()[0]["grid"].dtype == torch.float64
    siren = DWSINR()
    siren.seq[0].w0 = torch.tensor(30)
    assert_same_states(Networks.from_modules([siren]).to_state_dicts(), [dict(siren.state_dict())])


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "_orig_mod.module."])
def test_a_prefix_of_all_names_is_removed(prefix: str) -> None:
    module = mlp(2, 3, 1)
    state = dict(module.state_dict())
    wrapped = {prefix + k: t for k, t in state.items()}
    networks = Networks.from_state_dicts([wrapped, state], like=module)
    assert_same_states(networks.to_state_dicts(), [state, state])
    wrapped.pop(f"{prefix}0.bias")
    with pytest.raises(ScaleGMNError, match=f"lacks 0.weight.* it has {prefix}0.weight"):
        Networks.from_state_dicts([wrapped], like=module)


def test_an_index_may_come_from_another_library() -> None:
    networks = random_networks(Architecture.mlp([2, 3, 1]), 3)
    for index in (np.int64(1), torch.tensor(1), torch.tensor([1]), np.array([1]), -2):
        assert torch.equal(networks[index].parameters, networks.parameters[1:2])
    assert torch.equal(networks[:1][torch.tensor([True])].parameters, networks.parameters[:1])
    with pytest.raises(IndexError, match="network 3 of 3"):
        networks[np.int64(3)]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("prelu", {"slopes": ()}, r"slope of layer 1: expected shape \(1, 1\), got none"),
        ("relu", {"biases": (None, None, None)}, r"bias of layer 1: expected shape \(1, 3\), got none"),
        ("relu", {"weights": (torch.ones(1, 2, 2, 1),)}, r"weight of connection 0: .* got \(1, 2, 2, 1\)"),
        ("relu", {"weights": (torch.ones(1, 2, 3), torch.ones(1, 1, 3))}, r"weight of connection 0: .* \(1, 2, 3\)"),
        ("relu", {"biases": (torch.ones(1, 2),)}, r"bias 0: expected none in 2-3-1 \[relu\], got \(1, 2\)"),
        ("relu", {"biases": (None, torch.ones(2, 3), None)}, r"bias of layer 1: expected shape \(1, 3\), got \(2, 3\)"),
    ],
)
def test_a_missing_tensor_is_named(name: str, change: dict[str, tuple[Tensor | None, ...]], message: str) -> None:
    networks = random_networks(Architecture.mlp([2, 3, 1], name), 1)
    given = {"weights": networks.weights, "biases": networks.biases, "slopes": networks.views.slopes}
    assert torch.equal(Networks.from_tensors(networks.architecture, **given).parameters, networks.parameters)
    with pytest.raises(ScaleGMNError, match=message):
        Networks.from_tensors(networks.architecture, **{**given, **change})


def test_two_names_of_one_tensor_must_agree() -> None:
    module = EXAMPLES["aliased"].make()
    state = {k: t.clone() for k, t in module.state_dict().items()}
    Networks.from_state_dicts([state], like=module)
    state["net.0.weight"] += 1
    with pytest.raises(ScaleGMNError, match=r"shares its tensor with .* but they differ here"):
        Networks.from_state_dicts([state], like=module)


def test_ten_thousand_state_dicts_are_quick() -> None:
    state = DWSINR().state_dict()
    states = [state] * 10_000
    start = time.perf_counter()
    networks = Networks.from_state_dicts(states, like=DWSINR())
    assert len(networks) == 10_000
    assert time.perf_counter() - start < 20


# -- what is carried along ---------------------------------------------------------------------------------------


def test_batches_carry_names_and_passengers() -> None:
    modules = resnets(4)
    expected = [dict(m.state_dict()) for m in modules]
    networks = Networks.from_modules(modules)
    assert_same_states(networks[2].to_state_dicts(), expected[2:3])
    assert_same_states(networks[[3, 0]].to_state_dicts(), [expected[3], expected[0]])
    assert_same_states(networks[torch.tensor([True, False, False, True])].to_state_dicts(), [expected[0], expected[3]])
    assert_same_states(Networks.cat([networks[2:], networks[:2]]).to_state_dicts(), expected[2:] + expected[:2])
    assert_same_states(networks.to(dtype=torch.float64).to(dtype=torch.float32).to_state_dicts(), expected)
    assert_same_states(networks.replace(networks.parameters.clone()).to_state_dicts(), expected)
    assert_same_states(networks.detach().to_state_dicts(), expected)


def test_networks_of_equal_modules_that_were_read_apart_join() -> None:
    modules = resnets(2)
    joined = Networks.cat([Networks.from_modules([m]) for m in modules])
    assert_same_states(joined.to_state_dicts(), [dict(m.state_dict()) for m in modules])


def test_names_are_dropped_where_batches_disagree() -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp(2, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    joined = Networks.cat([Networks.from_modules([mlp(2, 3, 1)]), Networks.from_modules([Other()])])
    assert [list(s) for s in joined.to_state_dicts()] == [["1.weight", "1.bias", "2.weight", "2.bias"]] * 2
    repeated = joined[:1].replace(joined.parameters.repeat(3, 1))
    assert len(repeated.to_state_dicts()) == 6


def test_only_the_changed_batch_norms_are_neutralised() -> None:
    modules = [m.double() for m in resnets(3)]
    networks = Networks.from_modules(modules)
    parameters = networks.parameters.clone()
    parameters[1] *= 1.5
    states = networks.replace(parameters).to_state_dicts()
    assert_same_states([states[0], states[2]], [dict(modules[0].state_dict()), dict(modules[2].state_dict())])
    changed = states[1]
    for key in changed:
        if key.endswith("running_mean"):
            assert not changed[key].any()
    changed_module = networks.replace(parameters).to_modules()[1]
    x = torch.rand(2, 1, 12, 12, dtype=torch.float64)
    expected = networks.replace(parameters)[1].evaluate(x)[0]
    torch.testing.assert_close(changed_module(x), expected, atol=1e-10, rtol=1e-10)
    assert not torch.allclose(expected, modules[1](x))


def test_batch_norms_are_folded_on_a_device_without_double_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Networks.from_modules(resnets(1)).layout
    assert layout is not None
    with without_double(monkeypatch) as device:
        state = {key: torch.empty(2, *shape, device=device) for key, shape in layout.shapes}
        parameters, passengers = layout.pack(state)
        states = layout.unpack(parameters, passengers)
    assert {t.device.type for t in (parameters, *states.values())} == {device}
    assert parameters.dtype == torch.float32


def test_exported_memory_is_not_shared() -> None:
    networks = Networks.from_modules([mlp(2, 3, 1)])
    before = networks.parameters.clone()
    for tensor in networks.to_state_dicts()[0].values():
        assert tensor.untyped_storage().nbytes() == tensor.numel() * 4
        tensor.zero_()
    assert torch.equal(networks.parameters, before)


def test_modules_come_back_in_the_type_of_the_networks() -> None:
    networks = Networks.from_modules([mlp(2, 3, 1)]).to(dtype=torch.float64)
    (module,) = networks.to_modules()
    assert {p.dtype for p in module.parameters()} == {torch.float64}


# -- networks that came from no module ---------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 7), min_size=2, max_size=5),
    name=st.sampled_from(["relu", "prelu", "tanh", "sine", "gelu"]),
    bias=st.booleans(),
)
def test_any_mlp_is_exported_and_read_again(sizes: list[int], name: str, bias: bool) -> None:
    a = Architecture.mlp(sizes, name, bias=bias)
    generator = torch.Generator().manual_seed(0)
    networks = Networks(a, torch.randn(2, a.parameters, generator=generator, dtype=torch.float64))
    modules = networks.to_modules()
    x = torch.rand(3, sizes[0], generator=generator, dtype=torch.float64)
    torch.testing.assert_close(torch.stack([m(x) for m in modules]), networks.evaluate(x))
    again = Networks.from_modules(modules)
    assert again.architecture == a
    assert torch.equal(again.parameters, networks.parameters)
    assert_same_states(networks.to_state_dicts(), [dict(m.state_dict()) for m in modules])


def test_export_draws_no_random_numbers() -> None:
    a = Architecture.mlp([2, 8, 1])
    networks = Networks(a, torch.ones(1, a.parameters))
    before = torch.random.get_rng_state()
    networks.to_modules()
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("name", ["resnet", "scaled residual", "layer norm", "conv1d"])
def test_any_graph_is_exported(name: str) -> None:
    example = EXAMPLES[name]
    a = Networks.from_modules([example.make()]).architecture
    module = Feedforward(a)
    networks = Networks.from_modules([module])
    assert networks.architecture == a
    x = torch.rand(2, *example.shape)
    torch.testing.assert_close(networks.evaluate(x)[0], module(x).detach())


def test_shared_and_constant_weights_are_exported() -> None:
    chain = Architecture.mlp([2, 3, 3, 3, 1], "tanh")
    fixed = dataclasses.replace(chain.connections[0], constant=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0))
    a = Architecture(chain.layers, (fixed, *chain.connections[1:]), (Shared("weight", 2, 1),))
    networks, x = Networks(a, torch.randn(2, a.parameters)), torch.rand(5, 2)
    outputs = torch.stack([module(x) for module in networks.to_modules()])
    torch.testing.assert_close(outputs, networks.evaluate(x))


# -- graphs -----------------------------------------------------------------------------------------------------


def test_pyg_graphs_compute_the_same_function() -> None:
    pytest.importorskip("torch_geometric")
    networks = Networks.from_modules([mlp(3, 5, 4, 2) for _ in range(2)])
    x = torch.rand(3)
    expected = networks.evaluate(x[None])[:, 0]
    for data, y in zip(networks.to_pyg(), expected, strict=True):
        z = data.x[:, 0].clone()
        state = torch.cat([x, torch.zeros(11)])
        for layer in (1, 2, 3):
            edges = data.layer[data.edge_index[1]] == layer
            source, target = data.edge_index[:, edges]
            total = z.index_add(0, target, data.edge_attr[edges, 0] * state[source])
            own = data.layer == layer
            state[own] = total[own] if layer == 3 else total[own].relu()
        torch.testing.assert_close(state[-2:], y)


def test_pyg_graphs_of_residual_convolutions() -> None:
    pytest.importorskip("torch_geometric")
    networks = Networks.from_modules(resnets(1))
    (data,) = networks.to_pyg()
    a = networks.architecture
    assert data.x.shape == (sum(layer.size for layer in a.layers), 1)
    assert data.edge_attr.shape == (data.edge_index.shape[1], 9)
    skips = [i for i, c in enumerate(a.connections) if not c.dense]
    assert skips
    for i in skips:
        mine = data.connection == i
        assert data.edge_attr[mine, 0].tolist() == [1.0] * a.layers[a.connections[i].target].size
        assert data.layer[data.edge_index[0, mine]].unique().tolist() == [a.connections[i].source]


def test_a_transform_and_its_inverse_return_the_networks() -> None:
    networks = Networks.from_modules([m.double() for m in resnets(2)])
    g = Transform.sample(networks.architecture, 2, torch.Generator().manual_seed(3))
    back = g.inverse().apply(g.apply(networks))
    torch.testing.assert_close(back.parameters, networks.parameters, atol=1e-12, rtol=1e-12)
    assert back.layout is networks.layout
