"""Laws of alignment, in float64 and against random symmetries."""

from __future__ import annotations

import pytest
import torch
from alignment.pairs import disguised, noisy
from convert.examples import EXAMPLES, randomise
from convert.gallery import GALLERY, build
from hypothesis import given, settings
from strategies import architectures, generator, laws, networks_of, seeds
from subjects import ARCHITECTURES, fresh, hostile, trained

from scalegmn.alignment.align import align, balanced
from scalegmn.alignment.fingerprint import fingerprint
from scalegmn.alignment.match import Search
from scalegmn.alignment.merge import merge
from scalegmn.alignment.states import signatures
from scalegmn.core.activations import activation
from scalegmn.core.architecture import Architecture
from scalegmn.core.networks import Networks
from scalegmn.core.transform import Transform
from scalegmn.errors import ScaleGMNError
from scalegmn.testing import assert_function_preserved, random_inputs, relative_error

few = settings(laws, max_examples=20)
SIREN = Architecture.mlp([2, 16, 16, 1], activation("sine", 30.0))


def still(transform: Transform) -> bool:
    """Whether a transform moves nothing."""
    orders = all(torch.equal(p, torch.arange(p.shape[1]).expand_as(p)) for p in transform.permutations)
    return orders and all(torch.allclose(s, torch.ones_like(s), atol=1e-9) for s in transform.scales)


@few
@given(architectures, seeds)
def test_the_result_does_not_depend_on_the_disguise(a: Architecture, seed: int) -> None:
    first, second = networks_of(a, seed), networks_of(a, seed + 1)
    plain, moved = align(first, second), align(first, disguised(second, seed))
    assert float(relative_error(moved.aligned, plain.aligned).max()) < 1e-9
    assert torch.allclose(moved.distance, plain.distance, atol=1e-9)


def test_plain_matching_does_depend_on_the_disguise() -> None:
    first, second = fresh(SIREN, 3, seed=1), fresh(SIREN, 3, seed=2)
    ends = []
    for other in (second, disguised(second)):
        plain = Search(first, other, signs=False)
        plain.refine()
        ends.append(plain.objective())
    assert not torch.isclose(*ends, rtol=0.01).any()


@few
@given(architectures, seeds)
def test_copies_are_found_and_functions_preserved(a: Architecture, seed: int) -> None:
    networks = networks_of(a, seed)
    other = disguised(networks, seed)
    found = align(networks, other)
    assert found.exact.all()
    assert float(relative_error(found.aligned, networks).max()) < 1e-9
    assert_function_preserved(other, found.aligned)
    assert float(relative_error(found.apply(other), found.aligned).max()) < 1e-12


@pytest.mark.parametrize("key", ARCHITECTURES, ids="-".join)
def test_equal_networks_stay(key: tuple[str, str]) -> None:
    networks = fresh(ARCHITECTURES[key])
    found = align(networks, networks)
    assert still(found.transform)
    assert not still(align(networks, disguised(networks)).transform)
    assert torch.allclose(found.aligned.parameters, networks.parameters, rtol=1e-12)
    assert not found.before.any()
    assert float(found.distance.max()) < 1e-12


@pytest.mark.parametrize("level", [0.01, 0.1])
@pytest.mark.parametrize("key", [k for k in ARCHITECTURES if k[1] in ("relu", "tanh", "sine", "mixed")], ids="-".join)
def test_noise_does_not_hide_what_was_planted(key: tuple[str, str], level: float) -> None:
    networks = trained(ARCHITECTURES[key])
    planted = Transform.sample(networks.architecture, len(networks), generator(3))
    changed = noisy(networks, level)
    found = align(networks, planted.apply(changed))
    undone = found.transform @ planted
    assert all(torch.equal(p, torch.arange(p.shape[1]).expand_as(p)) for p in undone.permutations)
    assert not found.exact.any()
    assert (found.distance < 2 * level).all()


@pytest.mark.parametrize("key", ARCHITECTURES, ids="-".join)
def test_dead_neurons_and_ties_do_no_harm(key: tuple[str, str]) -> None:
    networks = hostile(ARCHITECTURES[key])
    for w in networks.weights:  # two neurons alike
        if w is not None and w.dim() == 4 and w.shape[1] > 3:
            w[:, 2] = w[:, 1]
    other = disguised(networks)
    found = align(networks, other)
    assert torch.isfinite(found.aligned.parameters).all()
    assert_function_preserved(other, found.aligned)
    assert float(found.distance.max()) < 1e-5


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_architecture_that_converts(name: str) -> None:
    draw = generator(5)
    torch.manual_seed(5)
    modules = [randomise(EXAMPLES[name].make(), draw).double() for _ in range(2)]
    networks = Networks.from_modules(modules)
    found = align(networks, disguised(networks))
    assert found.exact.all()
    x = torch.rand(4, *EXAMPLES[name].shape, dtype=torch.float64, generator=draw)
    with torch.no_grad():
        for module, moved in zip(modules, found.aligned.to_modules(), strict=True):
            assert torch.allclose(moved.eval()(x), module(x), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", GALLERY)
def test_blocks_heads_and_shared_weights(name: str) -> None:
    network = Networks.from_modules(build(GALLERY[name], 1))
    both = Networks.cat([network, noisy(network, 0.1)])
    planted = Transform.sample(network.architecture, 2, generator(2))
    found = align(network, planted.apply(both))
    assert found.exact.tolist() == [True, False]
    assert float((found.aligned[0].parameters - network.parameters).abs().max()) < 1e-9
    undone = found.transform @ planted
    assert all(torch.equal(p, torch.arange(p.shape[1]).expand_as(p)) for p in undone.permutations)


@pytest.mark.parametrize("name", ["ResNeXt", "TransformerEncoder", "InstanceNorm and upsampling", "NeRF", "GPT"])
def test_fingerprints_and_merged_copies_of_blocks(name: str) -> None:
    network = Networks.from_modules(build(GALLERY[name], 1))
    other = disguised(network)
    assert torch.allclose(fingerprint(network).vectors, fingerprint(other).vectors, atol=1e-7)
    x = random_inputs(network.architecture, 8, generator=generator(3))
    merged = merge([network, other], inputs=x)
    assert torch.allclose(merged.parameters, network.parameters, atol=1e-9)


@pytest.mark.parametrize("name", ["ResNeXt", "MultiheadAttention", "DenseNet", "Gated MLP with RMSNorm"])
def test_blocks_that_differ_are_told_apart(name: str) -> None:
    modules = build(GALLERY[name])
    networks = Networks.from_modules(modules)
    found = align(networks[0], networks[1])
    assert not found.exact.any()
    assert float(found.distance) > 0.3
    changed = networks.replace(networks.parameters.clone())
    changed.parameters[:, -5] += 0.01
    assert not align(networks, disguised(changed)).exact.any()


def test_independent_networks_are_not_the_same() -> None:
    for a in (SIREN, *ARCHITECTURES.values()):
        found = align(fresh(a, 2, seed=1), fresh(a, 2, seed=2))
        assert not found.exact.any()
        assert (found.distance > 0.3).all()


def test_no_step_makes_the_objective_larger() -> None:
    a = ARCHITECTURES["residual", "tanh"]
    (left, _), (right, _) = balanced(fresh(a, 4, seed=1)), balanced(fresh(a, 4, seed=2))
    search = Search(left, right)
    search.start_from_states(signatures(left), signatures(right))
    before = search.objective()
    for _ in range(10):
        search._sweep()
        now = search.objective()
        assert (now <= before + 1e-12).all()
        before = now
    search.refine()
    assert (search.objective() <= before + 1e-12).all()


def test_permutations_alone_leave_scales_and_signs() -> None:
    networks = fresh(ARCHITECTURES["mlp", "tanh"])
    permuted = Transform.sample(networks.architecture, 3, generator(1), scale=False).apply(networks)
    found = align(networks, permuted, scale=False)
    assert float(relative_error(found.aligned, networks).max()) < 1e-12
    other = align(networks, disguised(networks), scale=False)
    assert all((s == 1).all() for s in other.transform.scales)
    assert not other.exact.any()


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize(
    "key", [("mlp", "relu"), ("mlp", "sine"), ("cnn", "tanh"), ("residual", "mixed")], ids="-".join
)
def test_answers_to_data_match_neurons_too(key: tuple[str, str], share: float) -> None:
    networks = trained(ARCHITECTURES[key])
    x = random_inputs(networks.architecture, 64, generator=generator(4))
    found = align(networks, disguised(networks), inputs=x, share=share)
    assert found.exact.all()


def test_one_against_many_and_float32() -> None:
    networks = fresh(SIREN, 3).to(dtype=torch.float32)
    other = disguised(networks[[1, 1, 1]])
    found = align(networks[1], other)
    assert found.exact.all()
    assert found.aligned.dtype == torch.float32
    assert len(align(networks, other[0]).distance) == 3


def test_batches_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = fresh(SIREN, 5, seed=1), fresh(SIREN, 5, seed=2)
    whole = align(first, second)
    monkeypatch.setattr("scalegmn.alignment.align._CHUNK", 2 * SIREN.parameters)
    parts = align(first, second)
    assert torch.allclose(parts.aligned.parameters, whole.aligned.parameters, atol=1e-12)
    assert torch.allclose(parts.distance, whole.distance, atol=1e-12)
    assert float(relative_error(parts.apply(second), parts.aligned).max()) < 1e-12


def test_complaints() -> None:
    networks = fresh(SIREN, 3)
    with pytest.raises(ScaleGMNError, match="expected one architecture, got 2-16-16-1"):
        align(networks, fresh(Architecture.mlp([2, 3, 1])))
    with pytest.raises(ScaleGMNError, match="expected pairs, or one network and several, got 3 and 2"):
        align(networks, networks[:2])
    with pytest.raises(ScaleGMNError, match="share: expected a number from 0 to 1, got 2"):
        align(networks, networks, inputs=torch.zeros(1, 2), share=2)
