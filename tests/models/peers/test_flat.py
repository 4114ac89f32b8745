"""The plain MLP: the negative control of every law."""

from __future__ import annotations

import pytest
import torch

from scalegmn.core.architecture import Architecture
from scalegmn.core.networks import Networks
from scalegmn.errors import ScaleGMNError
from scalegmn.models.parts.dense import rectified
from scalegmn.models.peers.flat import FlatMLP


def test_sizes_of_rectified_maps() -> None:
    net = rectified([3, 5, 7, 2], dropout=0.1)
    assert [tuple(p.shape) for p in net.parameters() if p.dim() == 2] == [(5, 3), (7, 5), (2, 7)]
    assert sum(isinstance(m, torch.nn.Dropout) for m in net) == 3
    assert (net(torch.randn(9, 3)) >= 0).all()


def test_architectures_that_differ_in_activation_only_share_a_model() -> None:
    relu, tanh = (Architecture.mlp([2, 5, 1], name) for name in ("relu", "tanh"))
    model = FlatMLP([relu, tanh], 3)
    parameters = torch.randn(4, relu.parameters)
    torch.testing.assert_close(model(Networks(relu, parameters)), model(Networks(tanh, parameters)))
    with pytest.raises(ScaleGMNError, match="mlp: expected architectures with parameters of the same shapes"):
        FlatMLP([relu, Architecture.mlp([2, 6, 1], "relu")])


def test_it_learns_what_it_is_shown() -> None:
    torch.manual_seed(0)
    architecture = Architecture.mlp([2, 5, 1], "relu")
    networks = Networks(architecture, 1e-3 * torch.randn(64, architecture.parameters))
    labels = (networks.parameters[:, 3] > 0).long()
    model = FlatMLP([architecture], 2, width=32)
    model.prepare([networks])
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(networks), labels).backward()
        optimiser.step()
    assert (model(networks).argmax(1) == labels).double().mean().item() == 1
