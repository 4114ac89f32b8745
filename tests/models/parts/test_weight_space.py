"""Layouts of weight spaces and the equivariant linear layer: laws, and that no map is missing or superfluous."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from scalegmn.core.architecture import Architecture
from scalegmn.errors import ScaleGMNError
from scalegmn.models.parts.weight_space import (
    ChannelDropout,
    Channels,
    EquivariantLinear,
    Features,
    Folding,
    full_folding,
    hidden_folding,
    summarise,
)
from scalegmn.models.trunk import chain, same_shapes

LAYOUTS: dict[str, Callable[[Architecture], Folding]] = {"hidden": hidden_folding, "full": full_folding}
layouts = pytest.mark.parametrize("which", LAYOUTS)

sizes = st.lists(st.integers(1, 5), min_size=2, max_size=5)
architectures = st.one_of(
    st.builds(lambda s, bias: Architecture.mlp(s, "prelu", bias=bias), sizes, st.booleans()),
    st.builds(lambda s, n: Architecture.cnn(s, n, "relu", kernel=2), sizes, st.integers(1, 3)),
    st.builds(lambda s, n: Architecture.cnn(s, n, "relu", positions=(1, 2)), sizes, st.integers(1, 3)),
)


def permuted(folding: Folding, x: Tensor, permutations: list[Tensor]) -> Tensor:
    """Permute the movable layers of the parameters (P, ...) of one chain."""
    a = folding.architecture
    orders = [torch.arange(layer.size) for layer in a.layers]
    for layer, i in folding.number.items():
        orders[layer] = permutations[i]
    parts = []
    for s in a.segments:
        part = x[s.start : s.start + s.size].unflatten(0, s.shape)
        if s.kind == "weight":
            c = a.connections[s.index]
            part = part[orders[c.target]][:, orders[c.source]]
        elif s.kind == "bias":
            part = part[orders[s.index]]
        parts.append(part.reshape(s.size, *x.shape[1:]))
    return torch.cat(parts)


def random_permutations(folding: Folding) -> list[Tensor]:
    return [torch.randperm(n) for n in folding.sizes]


@layouts
@given(architecture=architectures, width=st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_fold_and_unfold(which: str, architecture: Architecture, width: int) -> None:
    folding = LAYOUTS[which](architecture)
    x = torch.randn(2, architecture.parameters, width)
    features = folding.fold(x)
    expected = folding.channels(width)
    found = [tuple(t.shape[-1] for t in part) for part in (features.edges, features.vertices)]
    assert [*found, features.constants.shape[-1]] == [expected.edges, expected.vertices, expected.constants]
    assert torch.equal(folding.unfold(features, width), x)


@layouts
@given(architecture=architectures)
@settings(max_examples=25, deadline=None)
def test_the_linear_layer_is_equivariant_and_the_summary_invariant(which: str, architecture: Architecture) -> None:
    folding = LAYOUTS[which](architecture)
    for reduction in ("mean", "max"):
        layer = EquivariantLinear(folding.channels(2), folding.channels(3), reduction=reduction).double()
        x = torch.randn(architecture.parameters, 2, dtype=torch.float64)
        g = random_permutations(folding)
        y, moved = layer(folding.fold(x[None])), layer(folding.fold(permuted(folding, x, g)[None]))
        expected = permuted(folding, folding.unfold(y, 3)[0], g)
        torch.testing.assert_close(folding.unfold(moved, 3)[0], expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(summarise(moved), summarise(y), rtol=1e-9, atol=1e-9)


# -- dimensions ----------------------------------------------------------------------------------------------------


def generators(folding: Folding) -> Iterator[list[Tensor]]:
    """A transposition and a cycle of each movable layer generate all permutations."""
    for i, n in enumerate(folding.sizes):
        swap = torch.arange(n)
        swap[: min(2, n)] = swap[: min(2, n)].flip(0)
        for order in (swap, torch.arange(n).roll(1)):
            yield [order if j == i else torch.arange(m) for j, m in enumerate(folding.sizes)]


def solved_dimensions(folding: Folding) -> tuple[int, int]:
    """Dimensions of {M : M g = g M for all g} and of {v : g v = v for all g}, from the constraints alone."""
    size = folding.architecture.parameters
    identity = torch.eye(size, dtype=torch.float64)
    maps, vectors = [torch.zeros(size**2, size**2, dtype=torch.float64)], [torch.zeros_like(identity)]
    for g in generators(folding):
        p = permuted(folding, identity, g)
        difference = torch.kron(identity, p.T.contiguous()) - torch.kron(p, identity)
        maps.append(difference.T @ difference)
        vectors.append(p - identity)
    rank = torch.linalg.matrix_rank(torch.stack(maps).sum(0), hermitian=True)
    return size**2 - int(rank), size - int(torch.linalg.matrix_rank(torch.cat(vectors)))


def spanned_dimensions(folding: Folding) -> tuple[int, int, int]:
    """Dimensions of the linear and of the constant part of the layer, and its number of parameters."""
    layer = EquivariantLinear(folding.channels(1), folding.channels(1)).double()
    identity = torch.eye(folding.architecture.parameters, dtype=torch.float64)
    inputs = folding.fold(torch.cat([torch.zeros_like(identity[:1]), identity])[..., None])
    names = list(dict(layer.named_parameters()))

    def outputs(*values: Tensor) -> Tensor:
        result = torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (inputs,))
        return folding.unfold(result, 1)[..., 0]

    jacobians = torch.func.jacrev(outputs, tuple(range(len(names))))(*layer.parameters())
    jacobian = torch.cat([j.flatten(2) for j in jacobians], dim=2)
    constant, linear = jacobian[0], (jacobian[1:] - jacobian[:1]).flatten(0, 1)
    parameters = sum(p.numel() for p in layer.parameters())
    return int(torch.linalg.matrix_rank(linear)), int(torch.linalg.matrix_rank(constant)), parameters


def stated_dimension(folding: Folding) -> int:
    """The papers' tables: 4 maps of a weight to itself, 2 where two tensors share a movable layer, else 1.

    A tensor is a set of movable layers, repeated for each of its entries along axes that do not move; the number of
    maps between two of them is 2 to the power of the number of layers that they share.
    """
    a = folding.architecture
    tensors: list[frozenset[int]] = []
    for s in a.segments:
        ends = {a.connections[s.index].target, a.connections[s.index].source} if s.kind == "weight" else {s.index}
        moving = frozenset(ends & set(folding.number))
        size = 1
        for layer in moving:
            size *= a.layers[layer].size
        tensors += [moving] * (s.size // size)
    return sum(2 ** len(x & y) for x in tensors for y in tensors)


@layouts
@pytest.mark.parametrize("widths", [[2, 3, 3, 1], [2, 3, 4, 1], [1, 2, 3, 2, 2], [2, 3, 2], [2, 2]], ids=str)
def test_the_layer_spans_all_equivariant_maps(which: str, widths: list[int]) -> None:
    folding = LAYOUTS[which](Architecture.mlp(widths))
    maps, constants = solved_dimensions(folding)
    linear, constant, parameters = spanned_dimensions(folding)
    assert (linear, constant) == (maps, constants)
    # No map is counted twice: as many parameters as dimensions. A movable layer of one neuron is an exception,
    # since it makes some maps equal.
    if min(folding.sizes, default=2) > 1:
        assert parameters == maps + constants
        assert stated_dimension(folding) == maps


def test_kernel_positions_are_channels() -> None:
    folding = hidden_folding(Architecture.cnn([1, 2, 2], 2, kernel=2))
    maps, constants = solved_dimensions(folding)
    assert spanned_dimensions(folding) == (maps, constants, maps + constants)


# -- the rest ------------------------------------------------------------------------------------------------------


def test_channels_are_dropped_as_a_whole() -> None:
    torch.manual_seed(0)
    x = Features((torch.ones(20, 3, 4, 10),), (torch.ones(20, 4, 10), torch.ones(20, 3, 10)), torch.ones(20, 5))
    drop = ChannelDropout(0.5)
    (edge,) = drop(x).edges
    assert torch.equal(edge.amin((1, 2)), edge.amax((1, 2)))
    assert set(edge.unique().tolist()) == {0.0, 2.0}
    assert 0.3 < (edge[:, 0, 0] == 0).double().mean().item() < 0.7
    assert drop.eval()(x) is x


def test_only_chains() -> None:
    mlp, cnn = Architecture.mlp([2, 3, 1]), Architecture.cnn([1, 2], 2)
    assert chain([mlp, Architecture.mlp([2, 3, 1], "tanh")], "me") is mlp
    assert chain([cnn], "me") is cnn
    with pytest.raises(ScaleGMNError, match="me: reads networks without convolutions"):
        chain([cnn], "me", convolutions=False)
    with pytest.raises(ScaleGMNError, match="me: expected architectures with parameters of the same shapes"):
        same_shapes([mlp, Architecture.mlp([2, 4, 1])], "me")


def test_channels_of_a_small_chain() -> None:
    architecture = Architecture.mlp([2, 3, 4, 1])
    assert hidden_folding(architecture).channels(10) == Channels((10,), (30, 20), 10)
    assert full_folding(architecture).channels(10) == Channels((10, 10, 10), (0, 10, 10, 10), 0)
