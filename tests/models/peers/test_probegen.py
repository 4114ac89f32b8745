"""ProbeGen: the shapes of its probes, and that they learn."""

from __future__ import annotations

import pytest
import torch

from scalegmn.core.architecture import Architecture
from scalegmn.core.networks import Networks
from scalegmn.errors import ScaleGMNError
from scalegmn.models.peers.probegen import PointGenerator, ProbeGen


def test_the_point_generator_is_linear_in_its_latents() -> None:
    torch.manual_seed(0)
    generator = PointGenerator(5, 3, depth=3).double()
    with torch.no_grad():
        first = generator()
        offset = generator.maps(torch.zeros(32, dtype=torch.float64))
        generator.latents.mul_(2)
        torch.testing.assert_close(generator() - offset, 2 * (first - offset))


def test_it_sees_outputs_only() -> None:
    """A constant network has outputs that do not depend on its first layer."""
    torch.manual_seed(0)
    architecture = Architecture.mlp([2, 4, 1], "tanh")
    parameters = torch.randn(6, architecture.parameters)
    last = architecture.segments[2]
    parameters[:, last.start : last.start + last.size] = 0
    parameters[:, -1] = 0.3
    outputs = ProbeGen([architecture], 2, width=16)(Networks(architecture, parameters))
    torch.testing.assert_close(outputs, outputs[:1].expand(6, -1))


def test_probes_move_when_it_learns() -> None:
    torch.manual_seed(0)
    architecture = Architecture.mlp([2, 4, 1], "tanh")
    networks = Networks(architecture, torch.randn(128, architecture.parameters))
    # The sign of the function far from where the probes begin.
    labels = (networks.evaluate(torch.tensor([[3.0, -3.0]]))[:, 0, 0] > 0).long()
    model = ProbeGen([architecture], 2, width=32, layers=3, probes=16)
    before = model.trunk.generator().detach()
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(150):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(networks), labels).backward()
        optimiser.step()
    assert (model(networks).argmax(1) == labels).double().mean().item() > 0.95
    assert (model.trunk.generator() - before).norm(dim=1).min() > 0.01


def test_ends_must_agree() -> None:
    with pytest.raises(ScaleGMNError, match="probegen: expected architectures with the same inputs and outputs"):
        ProbeGen([Architecture.mlp([2, 4, 1]), Architecture.mlp([3, 4, 1])], 2)
