"""Distances, copies and fingerprints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from alignment.pairs import disguised, noisy
from hypothesis import given, settings
from strategies import architectures, laws, networks_of, seeds
from subjects import ARCHITECTURES, fresh, trained
from torch import nn

from scalegmn.alignment.balance import balance
from scalegmn.alignment.compare import distance, same
from scalegmn.alignment.dedupe import find_copies, groups
from scalegmn.alignment.fingerprint import WIDTH, fingerprint
from scalegmn.alignment.merge import merge
from scalegmn.core.activations import activation
from scalegmn.core.architecture import Architecture
from scalegmn.core.networks import Networks
from scalegmn.errors import ScaleGMNError

few = settings(laws, max_examples=15)
SIREN = Architecture.mlp([2, 16, 16, 1], activation("sine", 30.0))


@pytest.mark.parametrize("key", ARCHITECTURES, ids="-".join)
def test_the_distance_is_one_of_orbits(key: tuple[str, str]) -> None:
    a, b = fresh(ARCHITECTURES[key], 2, seed=1), fresh(ARCHITECTURES[key], 2, seed=2)
    d = distance(a, b)
    assert torch.allclose(distance(disguised(a, 3), disguised(b, 4)), d, atol=1e-9)
    assert float(distance(a, disguised(a)).max()) < 1e-9
    assert (d > 0.2).all()


def test_the_distance_grows_with_noise() -> None:
    networks = trained(ARCHITECTURES["mlp", "relu"])
    found = [distance(networks, disguised(noisy(networks, level))).mean() for level in (0.01, 0.03, 0.1)]
    assert found[0] < found[1] < found[2] < 0.2


def test_a_neuron_that_nobody_hears_does_not_count() -> None:
    networks = fresh(ARCHITECTURES["mlp", "relu"])
    other = networks.replace(networks.parameters.clone())
    for n in (networks, other):
        assert n.weights[1] is not None
        n.weights[1][:, :, 0] = 0
    assert other.weights[0] is not None
    other.weights[0][:, 0] += 1
    assert float(distance(networks, other).max()) < 1e-9


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_copies_are_the_same_in_every_type(dtype: torch.dtype) -> None:
    for a in (SIREN, ARCHITECTURES["mlp", "relu"], ARCHITECTURES["residual", "relu"]):
        networks = fresh(a).to(dtype=dtype)
        found = same(networks, disguised(networks.to(dtype=torch.float64)).to(dtype=dtype))
        # Half turns of a phase are no round numbers in few bits.
        if dtype.itemsize > 2 or a is not SIREN:
            assert found, dtype
            assert float(found.gap.max()) < 100 * torch.finfo(dtype).eps
        assert not same(networks, fresh(a, seed=9).to(dtype=dtype)).same.any()


def test_one_weight_that_differs_is_noticed() -> None:
    networks = fresh(ARCHITECTURES["mlp", "relu"])
    other = networks.replace(networks.parameters.clone())
    other.parameters[1, 3] *= 1.001
    assert same(networks, disguised(other)).same.tolist() == [True, False, True]


@few
@given(architectures, seeds)
def test_fingerprints_are_invariant(a: Architecture, seed: int) -> None:
    networks = networks_of(a, seed)
    one, two = fingerprint(networks), fingerprint(disguised(networks, seed))
    assert one.vectors.shape == (3, WIDTH)
    assert torch.allclose(one.vectors, two.vectors, atol=1e-9)
    assert one.digests == two.digests


@pytest.mark.parametrize(
    "key", [("mlp", "relu"), ("mlp", "sine"), ("cnn", "tanh"), ("residual", "mixed")], ids="-".join
)
def test_fingerprints_are_stable_and_tell_networks_apart(key: tuple[str, str]) -> None:
    networks = trained(ARCHITECTURES[key], 3)
    one = fingerprint(networks).vectors
    near = [(fingerprint(noisy(networks, level)).vectors - one).norm(dim=1).mean() for level in (1e-4, 1e-2)]
    apart = torch.pdist(one).min()
    assert near[0] < 0.1 * near[1] < 0.05 * apart
    assert len(set(fingerprint(networks).digests)) == 3


def test_copies_are_found_among_many() -> None:
    base = fresh(SIREN, 40).to(dtype=torch.float32)
    everything = Networks.cat([base, disguised(base[:5]), disguised(base[:5], 1), disguised(noisy(base[5:8], 0.05))])
    found = find_copies(everything)
    clusters = [set(g) for g in groups(len(everything), found.links) if len(g) > 1]
    assert all({i, 40 + i, 45 + i} in clusters for i in range(5))
    assert all({5 + i, 50 + i} in clusters for i in range(3))
    assert len(clusters) == 8
    assert found.compared < 53 * 4
    assert {link.kind for link in found.links} == {"same", "near"}


def test_a_single_network_has_no_copies() -> None:
    assert find_copies(fresh(SIREN, 1)).links == []


@pytest.mark.parametrize(
    "ask", [lambda m: same(m, m), fingerprint, balance, lambda m: merge([m])], ids=["same", "print", "balance", "merge"]
)
def test_modules_are_no_networks(ask: Callable[[Any], object]) -> None:
    with pytest.raises(ScaleGMNError, match="networks: expected Networks, got Linear"):
        ask(nn.Linear(2, 1))
