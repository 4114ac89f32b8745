"""Products with the Jacobian against a Jacobian written down."""

from __future__ import annotations

import pytest
import torch
from strategies import generator
from torch import Tensor

from scalegmn.audit import residual
from scalegmn.core.architecture import Architecture, Connection, Layer, Normalise
from scalegmn.core.networks import Networks
from scalegmn.nn.tangent import OutputRows, Tangent, curved, moves
from scalegmn.testing import random_networks

B, P = 3, 4


def normalised() -> Architecture:
    """A LayerNorm, whose weights stay, and a gain."""
    layers = (Layer(2, bias=False), Layer(4, bias=False), Layer(4), Layer(2, offset=0.5))
    norm = Connection(1, 2, Normalise(kind="layer"))
    return Architecture(layers, (Connection(0, 1, gain=3.0), norm, Connection(2, 3)))


ARCHITECTURES = {
    "tanh": Architecture.mlp([2, 3, 4, 1], "tanh"),
    "sine, two outputs": Architecture.mlp([2, 3, 4, 2], "sine"),
    "relu without biases": Architecture.mlp([1, 3, 3], "relu", bias=False),
    "prelu": Architecture.mlp([2, 3, 2], "prelu"),
    "residual": residual(["tanh", "relu", "sine"]),
    "normalised": normalised(),
}


def rows_of(a: Architecture) -> OutputRows:
    points = torch.randn(P, a.layers[0].size, generator=generator(1), dtype=torch.float64)
    return OutputRows(points, a.layers[-1].size)


def jacobian(networks: Networks, rows: OutputRows) -> Tensor:
    """Written down (B, R, parameters), zero where parameters stay."""
    a = networks.architecture

    def outputs(parameters: Tensor) -> Tensor:
        return rows.of(Networks(a, parameters[None]))[0]

    found = [torch.func.jacrev(outputs)(p) for p in networks.parameters]
    moving = torch.cat([torch.full((s.size,), float(moves(a, s))) for s in a.segments])
    return torch.stack(found) * moving


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_products_are_those_with_the_jacobian(name: str) -> None:
    a = ARCHITECTURES[name]
    networks, rows = random_networks(a, B, generator=generator(0)), rows_of(a)
    tangent = Tangent.at(networks, rows)
    torch.testing.assert_close(tangent.outputs, rows.of(networks))
    j = jacobian(networks, rows)
    metric = torch.rand(len(a.segments), generator=generator(2), dtype=torch.float64) + 0.1
    alpha = torch.randn(B, j.shape[1], generator=generator(3), dtype=torch.float64)
    change = torch.randn(networks.parameters.shape, generator=generator(4), dtype=torch.float64)
    m = torch.cat([x.expand(s.size) for x, s in zip(metric, a.segments, strict=True)])
    kernel = j @ (m[:, None] * j.mT)
    torch.testing.assert_close(tangent.kernel(metric), kernel)
    torch.testing.assert_close(tangent.diagonal(metric), torch.diagonal(kernel, dim1=1, dim2=2))
    torch.testing.assert_close(tangent.pull(alpha), (alpha[:, None] @ j)[:, 0])
    torch.testing.assert_close(tangent.push(change), (j @ change[..., None])[..., 0])
    # All of it depends on where the networks are.
    if name != "normalised":
        elsewhere = Tangent.at(networks.replace(1.1 * networks.parameters), rows)
        assert not torch.allclose(elsewhere.kernel(metric), kernel)


def test_space_has_no_tangent() -> None:
    assert curved(Architecture.cnn([1, 4], 3, "relu")) == "layers with space"
    assert curved(Architecture.mlp([2, 3, 1])) is None
