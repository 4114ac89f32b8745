"""Merging and what lies between networks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from alignment.pairs import disguised, noisy
from hypothesis import given, settings
from strategies import architectures, generator, laws, networks_of, seeds
from subjects import ARCHITECTURES, fresh, trained
from torch import Tensor

from scalegmn.alignment.align import align
from scalegmn.alignment.barrier import barrier
from scalegmn.alignment.merge import merge, restored
from scalegmn.core.architecture import Architecture
from scalegmn.core.networks import Networks
from scalegmn.errors import ScaleGMNError
from scalegmn.testing import random_inputs, relative_error

few = settings(laws, max_examples=10)
RELU = ARCHITECTURES["mlp", "relu"]


@few
@given(architectures, seeds)
def test_merging_copies_gives_a_copy(a: Architecture, seed: int) -> None:
    networks = networks_of(a, seed, count=1)
    for how in ("average", "mean", "interpolate"):
        merged = merge([networks, disguised(networks, seed)], how)  # type: ignore[arg-type]
        assert float(relative_error(merged, networks).max()) < 1e-9


def test_a_plain_mean_of_copies_is_no_copy() -> None:
    networks = fresh(RELU, 1)
    plain = networks.replace((networks.parameters + disguised(networks).parameters) / 2)
    assert float(align(networks, plain).distance) > 0.3


@pytest.mark.parametrize("key", [("mlp", "relu"), ("mlp", "tanh"), ("cnn", "relu"), ("residual", "relu")], ids="-".join)
def test_statistics_of_copies_stay(key: tuple[str, str]) -> None:
    networks = fresh(ARCHITECTURES[key], 1)
    x = random_inputs(networks.architecture, 64, generator=generator(1))
    merged = merge([networks, disguised(networks)], inputs=x)
    assert float(relative_error(merged, networks).max()) < 1e-9


@pytest.mark.parametrize("key", [("mlp", "relu"), ("cnn", "tanh"), ("residual", "tanh")], ids="-".join)
def test_statistics_are_restored(key: tuple[str, str]) -> None:
    a = ARCHITECTURES[key]
    first, second = fresh(a, 1, seed=1), fresh(a, 1, seed=2)
    parents = Networks.cat([first, align(first, second).aligned])
    x = random_inputs(a, 64, generator=generator(1))
    middle = first.replace(parents.parameters.mean(0, keepdim=True))
    mended = restored(middle, parents, [0.5, 0.5], x)

    def deviation(networks: Networks, layer: int) -> Tensor:
        return networks.responses(x).pre[layer].transpose(1, 2).flatten(2).std(2).mean(0)

    # The first hidden layer hears no residual connection.
    assert torch.allclose(deviation(mended, 1), deviation(parents, 1))
    assert not torch.allclose(deviation(middle, 1), deviation(parents, 1))


def test_the_average_of_near_networks_is_nearer() -> None:
    network = trained(RELU, 1)
    many = Networks.cat([disguised(noisy(network, 0.1, seed), seed) for seed in range(0, 8000, 1000)])
    for how in ("average", "mean"):
        merged = merge(many, how)  # type: ignore[arg-type]
        each = align(network, many).distance.mean()
        assert float(align(network, merged).distance) < 0.6 * float(each)


def test_interpolation_begins_and_ends_at_its_networks() -> None:
    a, b = fresh(RELU, 1, seed=1), fresh(RELU, 1, seed=2)
    assert torch.allclose(merge([a, b], "interpolate", at=0.0).parameters, a.parameters)
    end = merge([a, b], "interpolate", at=1.0)
    x = random_inputs(RELU, 16, generator=generator(1))
    assert torch.allclose(end.evaluate(x), b.evaluate(x))


def test_barriers_before_and_after(tmp_path: Path) -> None:
    network = trained(RELU, 1)
    x = random_inputs(RELU, 64, generator=generator(1))
    targets = network.evaluate(x)

    def loss(networks: Networks) -> Tensor:
        return (networks.evaluate(x) - targets).square().mean((1, 2))

    found = barrier(network, disguised(network), loss, points=5, inputs=x)
    heights = found.heights
    assert heights["as stored"] > 0.01
    assert heights["as stored"] >= heights["permuted"] > 1e-6
    assert abs(heights["aligned"]) < 1e-12
    assert abs(heights["restored"]) < 1e-12
    found.plot(tmp_path / "barrier.png")
    assert (tmp_path / "barrier.png").stat().st_size > 1000


def test_complaints() -> None:
    networks = fresh(RELU, 3)
    with pytest.raises(ScaleGMNError, match="expected at least 2 to merge, got 1"):
        merge(networks[0])
    with pytest.raises(ScaleGMNError, match="expected 2 to interpolate, got 3"):
        merge(networks, "interpolate")
    with pytest.raises(ScaleGMNError, match="how: expected average, mean or interpolate, got 'sum'"):
        merge(networks, "sum")  # type: ignore[arg-type]
    with pytest.raises(ScaleGMNError, match="expected one pair and at least 2 points"):
        barrier(networks, networks, lambda n: n.parameters[:, 0])
