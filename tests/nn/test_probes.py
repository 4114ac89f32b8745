"""Probes: constants of size are taken in small portions and are those of all networks together."""

from __future__ import annotations

import pytest
import torch
from strategies import generator

from scalegmn.core.architecture import Architecture
from scalegmn.core.evaluate import respond_with_gradients
from scalegmn.core.networks import Networks
from scalegmn.nn import probes as module
from scalegmn.nn.probes import Probes
from scalegmn.testing import random_networks


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
