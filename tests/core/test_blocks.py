"""Blocks and monomials: what each operation ties, and that nothing more is tied."""

from __future__ import annotations

import pytest
import torch

from scalegmn.core.activations import activation
from scalegmn.core.architecture import (
    Architecture,
    Attention,
    Connection,
    Conv,
    Layer,
    Linear,
    Normalise,
    Product,
    Scale,
    Shared,
    Skip,
    Table,
)
from scalegmn.core.canonical import canonicalize
from scalegmn.core.transform import Transform
from scalegmn.errors import ScaleGMNError
from scalegmn.testing import assert_function_preserved, random_inputs, random_networks

INPUT, OUTPUT = Layer(3, bias=False), Layer(2)
RELU, TANH, CUBE, SQUARE = (activation(n) for n in ("relu", "tanh", "cube", "square"))

POINT = Conv((1,), (1,), (0,), (1,))


def gated(first: str, second: str) -> Architecture:
    """relu and the like times another layer, then a linear output."""
    layers = (INPUT, Layer(4, activation(first)), Layer(4, activation(second)), Layer(4, combine=Product(), bias=False))
    wires = Connection(1, 3, Skip()), Connection(2, 3, Skip())
    return Architecture((*layers, OUTPUT), (Connection(0, 1), Connection(0, 2), *wires, Connection(3, 4)))


def grouped(*counts: int, size: int = 8) -> Architecture:
    """Convolutions with these numbers of groups, one after the other."""
    convs = [Conv((1,), (1,), (0,), (1,), n) for n in (1, *counts)]
    layers = (INPUT, *(Layer(size, RELU) for _ in convs), OUTPUT)
    ends = [Connection(i, i + 1, c) for i, c in enumerate(convs)]
    return Architecture(layers, (*ends, Connection(len(convs), len(convs) + 1)))


ARCHITECTURES = {
    "gate": gated("relu", "sigmoid"),
    "two factors": gated("cube", "square"),
    "groups": grouped(2),
    "groups of groups": grouped(2, 4),
    "depthwise": grouped(8),
    "channels that multiply": Architecture(
        (INPUT, Layer(4, RELU), Layer(8, TANH), OUTPUT),
        (Connection(0, 1, POINT), Connection(1, 2, Conv((3,), (1,), (1,), (1,), 4)), Connection(2, 3)),
    ),
    "channels that are joined": Architecture(
        (INPUT, Layer(8, TANH), Layer(4, RELU), OUTPUT),
        (Connection(0, 1, POINT), Connection(1, 2, Conv((3,), (1,), (1,), (1,), 4)), Connection(2, 3)),
    ),
    "fixed filters, two per channel": Architecture(
        (INPUT, Layer(4, RELU), Layer(8, RELU), Layer(3, RELU), OUTPUT),
        (
            Connection(0, 1, POINT),
            Connection(1, 2, Conv((3,), (1,), (1,), (1,), 4), constant=(1.0, 0.0, -1.0, 1.0, 2.0, 1.0) * 4),
            Connection(2, 3, POINT),
            Connection(3, 4),
        ),
    ),
    "factors and a table": Architecture(
        (INPUT, Layer(1, bias=False, offset=1.0), Layer(4, TANH), Layer(4, RELU), OUTPUT),
        (Connection(0, 2, POINT), Connection(1, 2, Table((5,))), Connection(2, 3, Scale()), Connection(3, 4)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("architecture", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_laws(architecture: Architecture) -> None:
    generator = torch.Generator().manual_seed(0)
    networks = random_networks(architecture, 3, generator=generator)
    x = random_inputs(architecture, 8, generator=generator)
    g, h = (Transform.sample(architecture, 3, generator) for _ in range(2))
    moved = g.apply(networks)
    assert not torch.allclose(moved.parameters, networks.parameters)
    assert_function_preserved(networks, moved, x)
    torch.testing.assert_close((h @ g).apply(networks).parameters, h.apply(moved).parameters)
    torch.testing.assert_close(g.inverse().apply(moved).parameters, networks.parameters)
    torch.testing.assert_close(canonicalize(moved).parameters, canonicalize(networks).parameters)


def test_a_product_adds_exponents() -> None:
    (product,) = gated("cube", "square").blocks[3]
    assert product.scales == ((0, 3.0), (1, 2.0))
    assert product.signs == (0,)  # a square has no sign
    assert gated("relu", "sigmoid").blocks[3][0].scales == ((0, 1.0),)


def test_a_product_under_an_activation_leaves_one_factor_the_inverse_of_the_other() -> None:
    a = gated("relu", "relu")
    sigmoid = Layer(4, activation("sigmoid"), combine=Product(), bias=False)
    b = Architecture((*a.layers[:3], sigmoid, OUTPUT), a.connections)
    assert b.blocks[2][0].scales == ((0, -1.0),)
    assert b.blocks[3][0].scales == ()


def test_groups_that_contradict_each_other_stay_in_place() -> None:
    agreeing, other = grouped(2, 2), grouped(2, 4)
    assert [b[0].heads for b in agreeing.blocks] == [1, 2, 2, 2, 1]
    assert len({b[0].head_slot for b in agreeing.blocks[1:-1]}) == 1
    # The middle layer cannot be two groups and four at once: nothing but order within the smaller ones is left.
    assert [len(b) for b in other.blocks] == [1, 2, 4, 4, 1]
    assert all(block.heads == 1 for layer in other.blocks for block in layer)


def test_signs_survive_an_rms_norm_but_not_a_layer_norm() -> None:
    def normalised(norm: Normalise) -> Architecture:
        layers = (INPUT, Layer(4, TANH), Layer(4, RELU), OUTPUT)
        return Architecture(layers, (Connection(0, 1), Connection(1, 2, norm), Connection(2, 3)))

    assert normalised(Normalise(1e-5, "rms")).blocks[1][0].signs == (0,)
    assert normalised(Normalise(1e-5, "group", 4)).blocks[1][0].signs == (0,)
    assert normalised(Normalise()).blocks[1][0].signs == ()
    assert normalised(Normalise(learned=False)).blocks[2][0].scales == ()


def test_a_transposed_tensor_ties_inversely() -> None:
    layers = (INPUT, Layer(4, RELU), Layer(5, RELU), Layer(4, RELU), OUTPUT)
    steps = tuple(Connection(i, i + 1) for i in range(4))
    a = Architecture(layers, steps, (Shared("weight", 2, 1, transposed=True),))
    assert a.slots == (None, 0, 1, 0, None)
    assert a.blocks[3][0].scales == ((a.blocks[1][0].scales[0][0], -1.0),)
    assert_function_preserved(n := random_networks(a, 2), Transform.sample(a, 2).apply(n))


def test_fixed_weights_pin_what_they_join() -> None:
    fixed = Connection(0, 1, Linear(), constant=tuple(range(1, 13)))
    a = Architecture((INPUT, Layer(4, TANH), Layer(5, TANH), OUTPUT), (fixed, Connection(1, 2), Connection(2, 3)))
    assert a.slots == (None, None, 0, None)
    assert a.blocks[1][0].signs == ()
    alike = Connection(1, 2, Scale(), constant=(2.0,) * 4)
    b = Architecture((INPUT, Layer(4, TANH), Layer(4, TANH), OUTPUT), (Connection(0, 1), alike, Connection(2, 3)))
    assert b.slots == (None, 0, 0, None)
    assert b.blocks[1][0].signs == b.blocks[2][0].signs == (0,)


@pytest.mark.parametrize(
    ("layers", "connections", "message"),
    [
        ((INPUT, Layer(2, combine=Product())), (Connection(0, 1),), "combines wires"),
        ((INPUT, Layer(3, combine=Attention(1, 1.0))), (Connection(0, 1, Skip()),), "needs queries, keys and values"),
        ((INPUT, OUTPUT), (Connection(0, 1, Conv((1,), (1,), (0,), (1,), 2)),), "do not fall into 2 groups"),
        ((INPUT, OUTPUT), (Connection(0, 1, Table()),), "a table needs a layer of one constant neuron"),
        ((INPUT, Layer(4)), (Connection(0, 1, Skip(0, 2, 3)),), "needs equal sizes"),
        ((INPUT, Layer(4)), (Connection(0, 1, Scale()),), "needs equal sizes"),
    ],
)
def test_graphs_that_make_no_sense(
    layers: tuple[Layer, ...], connections: tuple[Connection, ...], message: str
) -> None:
    with pytest.raises(ScaleGMNError, match=message):
        Architecture(layers, connections)
