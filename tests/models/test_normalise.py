"""Input normalisation and random Fourier features."""

from __future__ import annotations

import pytest
import torch

from scalegmn.core.architecture import Architecture
from scalegmn.core.networks import Networks
from scalegmn.core.transform import Transform
from scalegmn.errors import ScaleGMNError
from scalegmn.models.normalise import Kind, normaliser
from scalegmn.models.parts.fourier import FourierFeatures

ARCHITECTURE = Architecture.mlp([2, 5, 4, 1], "relu")


def training(count: int = 50) -> Networks:
    generator = torch.Generator().manual_seed(0)
    shape = (count, ARCHITECTURE.parameters)
    offset = torch.rand(ARCHITECTURE.parameters, generator=generator, dtype=torch.float64)
    return Networks(ARCHITECTURE, offset + offset * torch.randn(shape, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("kind", ["parameter", "layer", "scale"])
def test_moments_after_fitting(kind: Kind) -> None:
    networks = training()
    normalise = normaliser(kind, [ARCHITECTURE]).double()
    normalise.fit([networks[:20], networks[20:]])
    found = normalise(networks).parameters
    if kind == "parameter":
        torch.testing.assert_close(found.mean(0), torch.zeros_like(found[0]))
        torch.testing.assert_close(found.std(0, correction=0), torch.ones_like(found[0]))
    for s in ARCHITECTURE.segments:
        part = found[:, s.start : s.start + s.size]
        assert part.square().mean().item() == pytest.approx(1)
        assert part.mean().item() == pytest.approx(0, abs=1e-9) or kind == "scale"


def test_architectures_that_differ_in_activations_share_their_constants() -> None:
    networks, other = training(), Architecture.mlp([2, 5, 4, 1], "tanh")
    normalise = normaliser("layer", [ARCHITECTURE, other]).double()
    normalise.fit([networks[:20], Networks(other, networks.parameters[20:])])
    alone = normaliser("layer", [ARCHITECTURE]).double()
    alone.fit([networks])
    assert torch.equal(normalise(Networks(other, networks.parameters)).parameters, alone(networks).parameters)


def test_without_normalisation_nothing_changes() -> None:
    normalise = normaliser("none", [ARCHITECTURE]).double()
    normalise.fit([training()])
    assert torch.equal(normalise(training()).parameters, training().parameters)


@pytest.mark.parametrize(("kind", "permutation", "scale"), [
    ("parameter", False, False), ("layer", True, False), ("scale", True, True), ("none", True, True),
])  # fmt: skip
def test_what_it_commutes_with(kind: Kind, permutation: bool, scale: bool) -> None:
    networks = training()
    normalise = normaliser(kind, [ARCHITECTURE]).double()
    normalise.fit([networks])
    for expected, g in (
        (permutation, Transform.sample(ARCHITECTURE, 50, scale=False)),
        (scale, Transform.sample(ARCHITECTURE, 50, permute=False)),
    ):
        a, b = normalise(g.apply(networks)).parameters, g.apply(normalise(networks)).parameters
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12) == expected


def test_constant_parameters_stay_finite() -> None:
    networks = Networks(ARCHITECTURE, torch.ones(10, ARCHITECTURE.parameters))
    for kind in ("parameter", "layer"):
        normalise = normaliser(kind, [ARCHITECTURE])
        normalise.fit([networks])
        torch.testing.assert_close(normalise(networks).parameters, torch.zeros_like(networks.parameters))


def test_statistics_are_saved() -> None:
    normalise = normaliser("layer", [ARCHITECTURE])
    normalise.fit([training()])
    other = normaliser("layer", [ARCHITECTURE])
    other.load_state_dict(normalise.state_dict())
    assert torch.equal(other(training()).parameters, normalise(training()).parameters)


def test_architectures_that_do_not_occur_keep_their_statistics() -> None:
    other = Architecture.mlp([2, 3, 1], "relu")
    normalise = normaliser("layer", [ARCHITECTURE, other])
    normalise.fit([training()])
    networks = Networks(other, torch.randn(4, other.parameters))
    assert torch.equal(normalise(networks).parameters, networks.parameters)
    with pytest.raises(ScaleGMNError, match="normalisation: made for"):
        normaliser("layer", [ARCHITECTURE])(networks)


def test_fourier_features_lie_on_circles_and_keep_their_frequencies() -> None:
    torch.manual_seed(0)
    features = FourierFeatures(3, 8, sigma=0.3).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    found = features(x).unflatten(-1, (2, 8))
    torch.testing.assert_close(found.square().sum(-2), torch.ones(4, 8, dtype=torch.float64))
    other = FourierFeatures(3, 8, sigma=0.3).double()
    assert not torch.equal(other(x), features(x))
    other.load_state_dict(features.state_dict())
    assert torch.equal(other(x), features(x))
