"""Probes: images of every shape; constants of size are taken in small portions and are those of all networks."""

from __future__ import annotations

import pytest
import torch
from strategies import generator

from scalegmn.core.architecture import Architecture
from scalegmn.core.evaluate import respond_with_gradients
from scalegmn.core.networks import Networks
from scalegmn.nn import probes as module
from scalegmn.nn.probes import ImageGenerator, Probes
from scalegmn.testing import random_networks


@pytest.mark.parametrize("image", [(1,), (5,), (28,), (1, 1), (4, 4), (5, 5), (9, 9), (32, 32), (5, 28), (16, 3)])
def test_probe_images(image: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    images = ImageGenerator(6, 3, image)()
    assert images.shape == (6, 3, *image)
    assert images.abs().max() < 1
    assert torch.pdist(images.flatten(1)).min() > 0


def test_images_learn_through_their_generator() -> None:
    a = Architecture.cnn([1, 3, 2], 2, "relu", kernel=2)
    probes = Probes([a], 3, image=(5, 5)).double()
    probes.responses(random_networks(a, 4, generator=generator(0)))[-1].sum().backward()
    assert probes.images is not None
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in probes.images.parameters())


def test_preparation_runs_few_networks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    a = Architecture.cnn([1, 3, 2], 2, "relu", kernel=2)
    networks = random_networks(a, 75, generator=generator(0))
    torch.manual_seed(0)
    probes = Probes([a], 3, image=(5, 5)).double()
    seen: list[int] = []

    def counted(architecture, parameters, x):  # type: ignore[no-untyped-def]
        seen.append(len(parameters.weights[0]))
        return respond_with_gradients(architecture, parameters, x)

    monkeypatch.setattr(module, "respond_with_gradients", counted)
    both = Networks.cat([networks, networks[:10]])
    probes.measure([networks, networks[:10]])
    assert seen == [32, 32, 11, 10]
    for values in probes.responses_and_gradients(both):
        for layer in values[1:]:
            sizes = layer.detach().flatten(1).square().mean(1).sqrt()
            assert float(sizes[sizes > 0].log().mean()) == pytest.approx(0, abs=1e-9)
