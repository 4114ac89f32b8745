"""Architectures that people use: same function, the same after any symmetry, one canonical form, and back."""

from __future__ import annotations

import json
import pickle

import pytest
import torch
from convert.attentions import SelfAttention
from convert.gallery import GALLERY, Example, build, randomise
from torch import nn
from torch.nn.utils import parametrizations, prune

from scalegmn.core.architecture import Architecture, Skip, Sum
from scalegmn.core.canonical import canonicalize
from scalegmn.core.groups import NonZeroScale
from scalegmn.core.networks import Networks
from scalegmn.core.schema import architecture_from_json, architecture_to_json
from scalegmn.core.transform import Transform

CLOSE = {"atol": 1e-9, "rtol": 1e-9}


@pytest.fixture(params=GALLERY.values(), ids=GALLERY)
def example(request: pytest.FixtureRequest) -> Example:
    found = request.param
    assert isinstance(found, Example)
    return found


def test_converts_with_its_exact_symmetry(example: Example) -> None:
    modules = build(example)
    networks = Networks.from_modules(modules)
    generator = torch.Generator().manual_seed(1)
    x = example.inputs(3, generator)
    expected, inputs = example.answers(modules, x), example.moved(x)
    torch.testing.assert_close(networks.evaluate(inputs), expected, **CLOSE)
    g = Transform.sample(networks.architecture, 2, generator)
    moved = g.apply(networks)
    assert not torch.allclose(moved.parameters, networks.parameters)
    torch.testing.assert_close(moved.evaluate(inputs), expected, **CLOSE)
    torch.testing.assert_close(example.answers(moved.to_modules(), x), expected, **CLOSE)
    torch.testing.assert_close((g.inverse() @ g).apply(networks).parameters, networks.parameters, **CLOSE)
    assert not torch.allclose(untied(networks, generator).evaluate(inputs), expected, rtol=1e-3)
    standard = canonicalize(moved)
    torch.testing.assert_close(standard.evaluate(inputs), expected, **CLOSE)
    torch.testing.assert_close(standard.parameters, canonicalize(networks).parameters, **CLOSE)


def untied(networks: Networks, generator: torch.Generator) -> Networks:
    """A negative control: every hidden layer goes its own way."""
    a = networks.architecture
    g = Transform.identity(a, len(networks))
    sizes = [layer.size for layer in a.layers[1:-1]]
    orders = [torch.rand(len(networks), n, generator=generator).argsort(1) for n in sizes]
    factors = [NonZeroScale.sample(len(networks), n, generator=generator, dtype=torch.float64) for n in sizes]
    ends = g.permutations[0], g.permutations[-1], g.scales[0], g.scales[-1]
    return Transform(a, (ends[0], *orders, ends[1]), (ends[2], *factors, ends[3])).apply(networks)


def test_unmodified_weights_come_back_bit_for_bit(example: Example) -> None:
    modules = build(example)
    networks = Networks.from_modules(modules)
    states = [m.state_dict() for m in modules]
    if any("parametrizations" in key for key in states[0]):
        return  # they come back as the weights they make
    for state, expected in zip(networks.to_state_dicts(), states, strict=True):
        assert list(state) == list(expected)
        assert all(torch.equal(state[key], tensor) for key, tensor in expected.items())


def test_architectures_survive_json_and_pickle(example: Example) -> None:
    a = Networks.from_modules(build(example, 1)).architecture
    again = architecture_from_json(json.loads(json.dumps(architecture_to_json(a))))
    assert again == a
    assert hash(pickle.loads(pickle.dumps(a))) == hash(a)


def architecture(name: str) -> Architecture:
    return Networks.from_modules(build(GALLERY[name], 1)).architecture


def test_attention_has_heads_and_inverse_keys() -> None:
    a = architecture("MultiheadAttention")
    query, key, value = a.blocks[2]
    assert (query.heads, key.heads, value.heads) == (4, 4, 4)
    assert query.slot == key.slot != value.slot
    assert query.head_slot == key.head_slot == value.head_slot
    ((variable, power),) = query.scales
    assert key.scales == ((variable, -power),)
    assert key.signs == query.signs
    assert a.blocks[3][0].scales == value.scales


def test_blocks_lie_side_by_side() -> None:
    a = architecture("SqueezeNet")
    small, large, joined = a.blocks[3][0], a.blocks[4][0], a.blocks[5]
    assert [b.slot for b in joined] == [small.slot, large.slot]
    assert [b.scales for b in joined] == [small.scales, large.scales]
    padded = architecture("ResNet, padded shortcuts")
    assert [len(b) for b in padded.blocks] == [1, 1, 1, 1, 1, 3, 1, 3, 1]


def test_products_add_exponents() -> None:
    a = architecture("SE-ResNet")
    (gated,), (maps,) = a.blocks[-2], a.blocks[-5]
    assert gated.scales == maps.scales  # a sigmoid has no factors
    assert gated.slot == maps.slot == a.blocks[-3][0].slot


def test_groups_move_as_wholes() -> None:
    a = architecture("ResNeXt")
    (source,), (target,) = a.blocks[2], a.blocks[3]
    assert (source.heads, target.heads) == (4, 4)
    assert source.head_slot == target.head_slot
    assert source.slot != target.slot


def test_depthwise_filters_tie_order_and_leave_factors() -> None:
    a = architecture("ConvNeXt")
    (patch,), (filtered,), (normed,) = a.blocks[1], a.blocks[2], a.blocks[3]
    assert patch.slot == filtered.slot == normed.slot is not None
    # The stream is read by filters of single channels alone, which absorb its factors; the LayerNorm's source has none.
    assert (len(patch.scales), len(filtered.scales), len(normed.scales)) == (1, 0, 1)
    bare = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=4), nn.ReLU(), nn.Conv2d(4, 2, 3))
    one, two = (blocks[0] for blocks in Networks.from_modules([bare]).architecture.blocks[1:3])
    assert one.slot == two.slot
    assert {v for v, _ in one.scales}.isdisjoint({v for v, _ in two.scales})
    assert len(one.scales) == len(two.scales) == 1


def test_normalisations_of_maps() -> None:
    a = architecture("InstanceNorm and upsampling")
    (before,), (after,) = a.blocks[1], a.blocks[2]
    assert (before.scales, len(before.signs)) == ((), 1)  # each channel is normalised alone: its sign stays free
    assert (len(after.scales), before.slot) == (1, after.slot)
    bare = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 2, 3))
    (before,), (after,) = Networks.from_modules([bare]).architecture.blocks[1:3]
    assert (before.scales, before.signs) == ((), ())
    assert before.heads == after.heads == 2
    assert len(after.scales) == 1


def test_fixed_features_stay_where_they_are() -> None:
    assert [b.slot for b in architecture("Fourier features").blocks[1]] == [None]
    blurred = architecture("Fixed filter")
    (before,), (after,) = blurred.blocks[1], blurred.blocks[2]
    assert (before.slot, before.scales) == (after.slot, after.scales)  # the same filter for all channels
    assert before.slot is not None


def test_the_stream_of_a_transformer_is_one() -> None:
    for name in ("TransformerEncoder, norm first", "ViT", "GPT"):
        a = architecture(name)
        stream = [b for blocks in a.blocks for b in blocks if b.slot == a.blocks[-2][0].slot]
        assert len(stream) > 8
        adding = [i for i in range(len(a.layers)) if any(isinstance(a.connections[c].map, Skip) and
                  a.connections[c].map == Skip() for c in a.incoming[i]) and isinstance(a.layers[i].combine, Sum)]
        assert len(adding) >= 4
        assert all(a.blocks[i][0].scales == () and a.blocks[i][0].slot == stream[0].slot for i in adding)
    encoder = architecture("TransformerEncoder, norm first")
    layers = zip(encoder.layers, encoder.blocks, strict=True)
    hidden = [blocks[0] for layer, blocks in layers if layer.activation.name == "relu"]
    assert [(len(b.scales), b.signs) for b in hidden] == [(1, ()), (1, ())]  # positive factors of their own


def test_tokens_and_positions_are_free_tables() -> None:
    """What an embedding writes to has the symmetry of its readers: here the residual stream, without factors."""
    a = architecture("GPT")
    (first,) = a.blocks[a.connections[a.outgoing[0][0]].target]
    assert first.slot == a.blocks[-2][0].slot
    assert first.scales == ()
    module = nn.Sequential(nn.Embedding(5, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    networks = Networks.from_modules([module])
    assert networks.architecture.blocks[1][0].signs == (0,)
    tokens = torch.arange(5)
    moved = Transform.sample(networks.architecture, 1).apply(networks)
    found = moved.evaluate(nn.functional.one_hot(tokens).double())
    torch.testing.assert_close(found[0], module(tokens).detach(), **CLOSE)


def test_shared_weights_share_slots() -> None:
    a = architecture("Tied autoencoder")
    assert a.slots == (None, 0, 1, 0, None)
    assert a.blocks[1][0].signs == a.blocks[3][0].signs
    again = architecture("Recurrent depth")
    assert len(set(again.slots[1:-1])) == 1
    assert len(again.segments) == 6


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_wrappers_are_looked_through() -> None:
    (module,) = build(GALLERY["ResNet"], 1)
    plain = Networks.from_modules([module])
    for wrapped in (nn.DataParallel(module), torch.compile(module)):
        found = Networks.from_modules([wrapped])  # type: ignore[list-item]
        assert torch.equal(found.parameters, plain.parameters)
        again = Networks.from_state_dicts([wrapped.state_dict()], like=module)  # type: ignore[attr-defined]
        assert torch.equal(again.parameters, plain.parameters)


@pytest.mark.parametrize("make", [
    lambda m: parametrizations.weight_norm(m),
    lambda m: parametrizations.orthogonal(m),
    lambda m: nn.utils.spectral_norm(m),
    lambda m: prune.l1_unstructured(m, "weight", 0.5),
], ids=["weight norm", "orthogonal", "spectral hook", "pruned"])  # fmt: skip
def test_computed_weights_are_read_as_they_are(make: object) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(make(nn.Linear(3, 3)), nn.ReLU(), nn.Linear(3, 2)).double().eval()  # type: ignore[operator]
    x = torch.randn(5, 3, dtype=torch.float64)
    expected = module(x).detach()
    networks = Networks.from_modules([module])
    torch.testing.assert_close(networks.evaluate(x)[0], expected)
    torch.testing.assert_close(networks.to_modules()[0](x).detach(), expected)
    read = Networks.from_state_dicts([module.state_dict()], like=module)
    torch.testing.assert_close(read.evaluate(x)[0], expected)
    torch.testing.assert_close(module(x).detach(), expected)  # and the module is as it was


def test_tokens_may_be_numbers_or_vectors() -> None:
    example = GALLERY["GPT"]
    networks = Networks.from_modules(build(example))
    tokens = example.inputs(4, torch.Generator().manual_seed(0))
    vectors = nn.functional.one_hot(tokens, example.tokens).movedim(-1, 1)
    torch.testing.assert_close(networks.evaluate(tokens), networks.evaluate(vectors.double()))


def test_queries_are_not_free_of_their_keys() -> None:
    """Scaling queries without their keys changes the function."""
    modules = [randomise(SelfAttention(), torch.Generator().manual_seed(0))]
    networks = Networks.from_modules(modules)
    g = Transform.identity(networks.architecture, 1)
    g.scales[2][:, :8] = 2.0
    x = torch.randn(4, 3, 5, dtype=torch.float64)
    assert not torch.allclose(g.apply(networks).evaluate(x), networks.evaluate(x), rtol=1e-3)
    g.scales[2][:, 8:16] = 0.5
    torch.testing.assert_close(g.apply(networks).evaluate(x), networks.evaluate(x), **CLOSE)
