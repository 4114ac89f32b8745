"""Equal scales: one place for all members of an orbit, of least norm."""

from __future__ import annotations

import pytest
import torch
from alignment.pairs import disguised
from convert.gallery import GALLERY, build
from hypothesis import given, settings
from strategies import architectures, generator, laws, networks_of, seeds
from subjects import ARCHITECTURES, fresh, hostile
from torch import Tensor

from scalegmn.alignment.balance import balance, imbalance, quantised, rounding_error
from scalegmn.alignment.scales import RoundingNoise, equalising, least_noise
from scalegmn.alignment.structure import Term
from scalegmn.core.architecture import Architecture
from scalegmn.core.networks import Networks
from scalegmn.core.transform import Transform
from scalegmn.testing import assert_function_preserved, random_inputs, relative_error

few = settings(laws, max_examples=15)


@few
@given(architectures, seeds)
def test_all_members_of_an_orbit_meet(a: Architecture, seed: int) -> None:
    networks = networks_of(a, seed)
    moved = Transform.sample(a, 3, generator(seed), permute=False).apply(networks)
    for leading in (equalising, least_noise):
        places = [leading(n).apply(n) for n in (networks, moved)]
        assert float(relative_error(*places).max()) < 1e-9


@pytest.mark.parametrize("key", [("mlp", "relu"), ("cnn", "relu"), ("mlp", "mixed"), ("mlp", "cube")], ids="-".join)
def test_the_norm_is_least(key: tuple[str, str]) -> None:
    networks = fresh(ARCHITECTURES[key])
    place = equalising(networks).apply(networks)
    least = place.parameters.norm(dim=1)
    for seed in range(20):
        near = Transform.sample(place.architecture, 3, generator(seed), spread=1.05, permute=False).apply(place)
        assert (near.parameters.norm(dim=1) >= least - 1e-9).all()


@few
@given(architectures, seeds)
def test_balance_is_idempotent_and_preserves_functions(a: Architecture, seed: int) -> None:
    networks = networks_of(a, seed)
    once = balance(networks)
    assert_function_preserved(networks, once.networks)
    assert float(relative_error(balance(once.networks).networks, once.networks).max()) < 1e-9
    assert all(torch.equal(p, torch.arange(p.shape[1]).expand_as(p)) for p in once.transform.permutations)


@pytest.mark.parametrize("key", ARCHITECTURES, ids="-".join)
def test_dead_neurons_do_no_harm(key: tuple[str, str]) -> None:
    networks = hostile(ARCHITECTURES[key])
    found = balance(networks, int8=True)
    assert torch.isfinite(found.networks.parameters).all()
    assert_function_preserved(networks, found.networks)


@pytest.mark.parametrize(
    "name", ["ResNeXt", "MobileNetV2", "U-Net", "GPT", "Gated MLP with RMSNorm"]
)
def test_balance_of_blocks(name: str) -> None:
    networks = Networks.from_modules(build(GALLERY[name], 1))
    moved = Transform.sample(networks.architecture, 1, generator(1), permute=False).apply(networks)
    once, other = balance(moved), balance(networks)
    assert_function_preserved(networks, once.networks)
    assert torch.allclose(once.networks.parameters.abs(), other.networks.parameters.abs(), atol=1e-9)
    assert torch.allclose(balance(once.networks).networks.parameters, once.networks.parameters, atol=1e-9)
    assert (once.imbalance[1] < once.imbalance[0]).all()


@pytest.mark.parametrize("key", [("mlp", "relu"), ("cnn", "leaky"), ("residual", "relu")], ids="-".join)
def test_balance_saves_bits(key: tuple[str, str]) -> None:
    networks = fresh(ARCHITECTURES[key], 8)
    scaled = Transform.sample(networks.architecture, 8, generator(1), permute=False).apply(networks)
    found = balance(scaled, int8=True)
    assert found.int8 is not None
    assert (found.imbalance[1] < found.imbalance[0]).all()
    assert found.int8[1].mean() < 0.5 * found.int8[0].mean()
    assert found.int8[1].mean() < 1.5 * rounding_error(networks, random_inputs(networks.architecture, 64)).mean()


def noise(networks: Networks) -> Tensor:
    """What rounding adds to the outputs (B,), by drawing it."""
    x, draw = random_inputs(networks.architecture, 16, generator=generator(1)), generator(2)
    right, total = networks.evaluate(x).flatten(1), networks.parameters.new_zeros(len(networks))
    for _ in range(6):
        wrong = networks.replace(networks.parameters.clone())
        for w in (w for w in wrong.weights if w is not None and w.dim() > 2):
            step = w.abs().flatten(1).amax(1).reshape(-1, *[1] * (w.dim() - 1)) / 127
            w += step * (torch.rand(w.shape, generator=draw, dtype=w.dtype) - 0.5)
        total += (wrong.evaluate(x).flatten(1) - right).square().sum(1) / right.square().sum(1)
    return total.sqrt()


class Ranges(RoundingNoise):
    """Cross-layer equalisation: equal largest weights into and out of every neuron."""

    power = 64.0

    def sizes(self, term: Term, square: Tensor) -> dict[float, Tensor]:
        now = square * self._factor(term)
        return {self.power: (now / now.amax((1, 2), keepdim=True)) ** self.power}


def equal_ranges(networks: Networks) -> Networks:
    least = equalising(networks).apply(networks)
    ranges = Ranges(least)
    ranges.settle(60)
    identity = Transform.identity(least.architecture, len(least))
    return Transform(least.architecture, identity.permutations, tuple(u.exp() for u in ranges.logs)).apply(least)


@pytest.mark.parametrize("name", ["VGG", "Inception", "ResNet, padded shortcuts", "DCGAN generator"])
def test_balanced_networks_lose_no_more_than_the_originals(name: str) -> None:
    networks = Networks.from_modules(build(GALLERY[name], 12)).to(dtype=torch.float64)
    scaled = Transform.sample(networks.architecture, 12, generator(3), permute=False).apply(networks)
    found = balance(scaled)
    before = noise(networks)
    rescaled, after, ranges = (
        float((noise(n) / before)[before > 1e-9].log().mean()) for n in (scaled, found.networks, equal_ranges(scaled))
    )
    assert rescaled > 1.0
    assert ranges > after + 0.1
    assert after < 0.02
    assert float(found.imbalance[1].mean()) < float(imbalance(networks).mean())


def test_no_near_member_has_less_noise() -> None:
    networks = fresh(ARCHITECTURES["mlp", "relu"])
    least, best = equalising(networks).apply(networks), least_noise(networks).apply(networks)
    gradients = RoundingNoise(least).gradients.values()

    def modelled(moved: Networks) -> Tensor:
        """The noise as it is defined: of each tensor its largest entry, and what its step does to the outputs."""
        total = moved.parameters.new_zeros(len(moved))
        for w, first, squares in zip(moved.weights, least.weights, gradients, strict=True):
            assert w is not None
            assert first is not None
            total += w.square().flatten(1).amax(1) * ((first / w)[..., 0].square() * squares).flatten(1).sum(1)
        return total

    lowest = modelled(best)
    assert (lowest < 0.95 * modelled(least)).all()
    for seed in range(20):
        near = Transform.sample(best.architecture, 3, generator(seed), spread=1.1, permute=False).apply(best)
        assert (modelled(near) > 0.99 * lowest).all()


def test_networks_without_scales_stay() -> None:
    networks = fresh(ARCHITECTURES["mlp", "tanh"])
    found = balance(networks)
    assert torch.equal(found.networks.parameters, networks.parameters)
    assert found.int8 is None


def test_eight_bits() -> None:
    networks = fresh(ARCHITECTURES["mlp", "relu"])
    rounded = quantised(networks)
    for w in rounded.weights:
        assert w is not None
        assert all(len(torch.unique(row)) <= 255 for row in w.flatten(1))
    assert all(torch.equal(a, b) for a, b in zip(networks.biases[1:], rounded.biases[1:], strict=True) if a is not None)  # type: ignore[arg-type]
    assert torch.allclose(quantised(rounded).parameters, rounded.parameters)


def test_imbalance_counts_bits() -> None:
    a = Architecture.mlp([1, 2, 1], bias=False)
    networks = Networks(a, torch.tensor([[1.0, 0.25, 1.0, 1.0], [1.0, 1.0, 2.0, 2.0]], dtype=torch.float64))
    assert imbalance(networks).tolist() == [0.5, 0.0]


def test_disguise_does_not_change_the_balanced_size() -> None:
    networks = fresh(ARCHITECTURES["residual", "relu"])
    norms = [equalising(n).apply(n).parameters.norm(dim=1) for n in (networks, disguised(networks))]
    assert torch.allclose(*norms)
