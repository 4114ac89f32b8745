"""Augmentation: symmetries leave the function alone, moved and mirrored networks are the old ones at other inputs."""

import pytest
import torch

from scalegmn.core.activations import activation
from scalegmn.core.architecture import Architecture
from scalegmn.core.networks import Networks
from scalegmn.errors import ScaleGMNError
from scalegmn.training.augment import MirrorAugment, MoveAugment, NoiseAugment, ScaleAugment


@pytest.mark.parametrize("hidden", ["relu", "tanh", "abs", "gelu"])
@pytest.mark.parametrize("permute", [True, False])
def test_augmented_networks_compute_the_same(hidden: str, permute: bool) -> None:
    architecture = Architecture.mlp([3, 16, 16, 2], hidden)
    networks = Networks(architecture, torch.randn(20, architecture.parameters, dtype=torch.float64))
    moved = ScaleAugment(rate=2.0, permute=permute)(networks, torch.Generator().manual_seed(0))
    x = torch.randn(50, 3, dtype=torch.float64)
    assert torch.allclose(moved.evaluate(x), networks.evaluate(x), rtol=1e-6, atol=1e-8)
    # gelu has no scaling symmetry: without permutations nothing may move.
    assert torch.equal(moved.parameters, networks.parameters) == (hidden == "gelu" and not permute)


def test_scales_follow_the_paper() -> None:
    def ratios(hidden: str, rate: float) -> torch.Tensor:
        architecture = Architecture.mlp([1, 200, 1], hidden)
        networks = Networks(architecture, torch.ones(200, architecture.parameters, dtype=torch.float64))
        return ScaleAugment(rate)(networks, torch.Generator().manual_seed(1)).biases[1]  # type: ignore[return-value]

    signs = ratios("tanh", 1.0)
    assert signs.abs().eq(1).all()
    assert abs(float((signs < 0).double().mean()) - 0.5) < 0.02
    scales = ratios("relu", 4.0)
    assert (scales > 0).all()
    # An exponential distribution has equal mean and deviation, 1 / rate, and median ln 2 / rate.
    assert abs(float(scales.mean()) * 4 - 1) < 0.03
    assert abs(float(scales.std()) * 4 - 1) < 0.05
    assert abs(float(scales.median()) * 4 - 0.693) < 0.03


def test_augmentation_repeats_with_its_generator() -> None:
    architecture = Architecture.mlp([2, 8, 1], "relu")
    networks = Networks(architecture, torch.randn(5, architecture.parameters))
    for augment in (ScaleAugment(), NoiseAugment(0.1), MoveAugment(0.1)):
        first, second, third = (augment(networks, torch.Generator().manual_seed(s)).parameters for s in (0, 0, 1))
        assert torch.equal(first, second)
        assert not torch.equal(first, third)


def test_noise_is_relative_to_each_layer() -> None:
    architecture = Architecture.mlp([20, 50, 20], "relu")
    theta = torch.randn(50, architecture.parameters, dtype=torch.float64)
    first = architecture.segments[0]
    theta[:, : first.size] *= 1000
    noise = NoiseAugment(0.1)(Networks(architecture, theta), torch.Generator().manual_seed(0)).parameters - theta
    assert abs(float(noise[:, : first.size].std()) - 100) < 3
    assert abs(float(noise[:, first.size :].std()) - 0.1) < 0.01
    assert torch.equal(NoiseAugment(0.0)(Networks(architecture, theta)).parameters, theta)


def test_moved_networks_are_the_old_ones_at_moved_inputs() -> None:
    siren = Architecture.mlp([3, 16, 16, 2], activation("sine", 30.0))
    networks = Networks(siren, 0.1 * torch.randn(6, siren.parameters, dtype=torch.float64))
    moved = MoveAugment(0.2)(networks, torch.Generator().manual_seed(0))
    # What was drawn shows in the first layer: 16 equations for the map of 3 inputs and its offset.
    old, new = networks.weights[0], moved.weights[0]
    assert old is not None
    assert new is not None
    matrix = torch.linalg.lstsq(old[..., 0], new[..., 0]).solution
    slope = siren.connections[0].gain * old[..., 0]
    shift = torch.linalg.lstsq(slope, (moved.biases[1] - networks.biases[1]).unsqueeze(-1)).solution  # type: ignore[operator]
    x = torch.randn(6, 50, 3, dtype=torch.float64)
    assert torch.allclose(moved.evaluate(x), networks.evaluate(x @ matrix.mT + shift.mT), rtol=0, atol=1e-9)
    assert 0.1 < float((matrix - torch.eye(3)).abs().max()) < 0.2
    assert 0.1 < float(shift.abs().max()) < 0.2
    assert not torch.allclose(matrix[0], matrix[1])


def test_about_half_of_the_networks_are_mirrored() -> None:
    siren = Architecture.mlp([2, 8, 1], activation("sine", 30.0))
    networks = Networks(siren, 0.1 * torch.randn(64, siren.parameters, dtype=torch.float64))
    mirrored = MirrorAugment(1)(networks, torch.Generator().manual_seed(0))
    x = torch.randn(9, 2, dtype=torch.float64)
    before, there, back = networks.evaluate(x), mirrored.evaluate(x), mirrored.evaluate(x * torch.tensor([1.0, -1.0]))
    same = (there - before).abs().amax((1, 2)) < 1e-9
    turned = (back - before).abs().amax((1, 2)) < 1e-9
    assert bool((same ^ turned).all())
    assert 16 < int(turned.sum()) < 48
    with pytest.raises(ScaleGMNError, match="from 0 to 1, got 2"):
        MirrorAugment(2)(networks)


def test_only_networks_of_coordinates_are_moved() -> None:
    cnn = Architecture.cnn([1, 4], 3, "relu")
    for augment in (MoveAugment(0.1), MirrorAugment(0)):
        with pytest.raises(ScaleGMNError, match="coordinates"):
            augment(Networks(cnn, torch.randn(2, cnn.parameters)))


@pytest.mark.parametrize("make", [lambda: ScaleAugment(0.0), lambda: NoiseAugment(-1.0), lambda: MoveAugment(-0.1)])
def test_bad_strengths_are_refused(make: object) -> None:
    with pytest.raises(ScaleGMNError, match="expected a"):
        make()  # type: ignore[operator]
