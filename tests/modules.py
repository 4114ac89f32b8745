"""Modules to make networks from, and how their states are compared."""

from __future__ import annotations

import itertools

import torch
from convert.examples import ResNet, randomise
from torch import Tensor, nn


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, o in itertools.pairwise(sizes):
        layers += [nn.Linear(i, o), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def resnets(count: int) -> list[nn.Module]:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    modules = [randomise(ResNet(), generator) for _ in range(count)]
    for i, m in enumerate(modules):
        for key, tensor in m.state_dict().items():
            if key.endswith("num_batches_tracked"):
                tensor.fill_(i)
    return modules


def assert_same_states(found: list[dict[str, Tensor]], expected: list[dict[str, Tensor]]) -> None:
    for a, b in zip(found, expected, strict=True):
        assert list(a) == list(b)
        for key in b:
            assert a[key].dtype == b[key].dtype, key
            assert torch.equal(a[key], b[key]), key
