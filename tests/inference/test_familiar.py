"""What a model remembers of its training networks: no symmetry changes a distance, and strangers are far."""

from __future__ import annotations

import pytest
import torch
from tiny_zoos import siren

from scalegmn.core.architecture import Architecture
from scalegmn.core.networks import Networks
from scalegmn.core.transform import Transform
from scalegmn.errors import ScaleGMNError
from scalegmn.inference.familiar import Familiar, answers, sizes
from scalegmn.tasks import Classification
from scalegmn.zoo.store.zoo import Zoo


@pytest.fixture(scope="module")
def familiar(digits: Zoo) -> Familiar:
    return Familiar.measure(Classification.from_zoo(digits), digits)


def test_no_symmetry_changes_a_distance(digits: Zoo, familiar: Familiar) -> None:
    networks = digits.batch([0, 1, 2]).to(dtype=torch.float64)
    before = familiar.distance(digits.architectures, networks)
    draw = torch.Generator().manual_seed(0)
    moved = Transform.sample(networks.architecture, 3, draw).apply(networks)
    assert torch.allclose(familiar.distance(digits.architectures, moved), before)
    # A half turn of a phase with a flip is a symmetry of sines as well, one that is no Transform.
    turned = moved.replace(moved.parameters.clone())
    weight, bias = turned.weights[0], turned.biases[1]
    assert weight is not None
    assert bias is not None
    weight *= -1
    bias.copy_(torch.pi / 30 - bias)
    assert torch.allclose(familiar.distance(digits.architectures, turned), before)
    bigger = networks.replace(networks.parameters * 1.1)
    assert not torch.allclose(familiar.distance(digits.architectures, bigger), before)


def test_sizes_forget_scales_of_relu_networks() -> None:
    a = Architecture.cnn([1, 4, 4], 3, "relu")
    networks = Networks(a, torch.randn(4, a.parameters, dtype=torch.float64))
    moved = Transform.sample(a, 4).apply(networks)
    assert torch.allclose(sizes(moved), sizes(networks))
    assert not torch.allclose(sizes(networks.replace(networks.parameters * 2)), sizes(networks))


def test_training_networks_are_near_and_strangers_far(digits: Zoo, familiar: Familiar) -> None:
    def far(networks: Networks) -> float:
        return (familiar.distance(digits.architectures, networks) > 1).double().mean().item()

    own = digits.batch(digits.split("test"))
    assert far(own) <= 0.2
    draw = torch.Generator().manual_seed(0)
    noise = torch.randn(own.parameters.shape, generator=draw) * own.parameters.std(0)
    assert far(own.replace(noise)) == 1
    assert far(own.replace(torch.zeros_like(own.parameters))) == 1
    mixed = own.parameters[:, torch.randperm(own.parameters.shape[1], generator=draw)]
    assert far(own.replace(mixed)) == 1


def test_an_unknown_architecture_has_no_distance(digits: Zoo, familiar: Familiar) -> None:
    wide = siren(9)
    found = familiar.distance(digits.architectures, Networks(wide, torch.randn(2, wide.parameters)))
    assert bool(found.isnan().all())


def test_it_survives_its_file(digits: Zoo, familiar: Familiar) -> None:
    tensors = familiar.tensors()
    again = Familiar.from_tensors(tensors)
    networks = digits.batch([0, 5, 9])
    expected = familiar.distance(digits.architectures, networks)
    assert torch.allclose(again.distance(digits.architectures, networks), expected, rtol=1e-3)
    with pytest.raises(ScaleGMNError, match=r"lacks '0\.sizes\.limit'"):
        Familiar.from_tensors({name: t for name, t in tensors.items() if name != "0.sizes.limit"})


def test_answers_are_rows(digits: Zoo) -> None:
    assert answers(digits.batch([0, 1]), digits.grid()).shape == (2, 64)
