"""Monomial-NFN: its linear layer is complete, its canonical form forgets scales and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from scalegmn.core.architecture import Architecture
from scalegmn.core.groups import PositiveScale, Sign
from scalegmn.core.networks import Networks
from scalegmn.core.transform import Transform
from scalegmn.errors import ScaleGMNError
from scalegmn.models.parts.weight_space import hidden_folding
from scalegmn.models.peers.monomial import Canonical, MonomialLinear, MonomialNFN, group_of, vertex_parts

SMALL = {
    "relu": Architecture.mlp([2, 3, 3, 1], "relu"),
    "tanh": Architecture.mlp([2, 3, 3, 1], "tanh"),
    "shallow": Architecture.mlp([2, 3, 2], "sine"),
    "cnn": Architecture.cnn([1, 2, 2], 1, "relu", kernel=2),
}


def representation(architecture: Architecture, seed: int) -> Tensor:
    """The matrix by which a random symmetry acts on the flat parameters."""
    g = Transform.sample(architecture, 1, torch.Generator().manual_seed(seed), spread=2.0)
    size = architecture.parameters
    same = Transform(
        architecture, tuple(p.expand(size, -1) for p in g.permutations), tuple(s.expand(size, -1) for s in g.scales)
    )
    return same.apply(Networks(architecture, torch.eye(size, dtype=torch.float64))).parameters.T.contiguous()


def solved_dimensions(architecture: Architecture) -> tuple[int, int]:
    """Dimensions of the commuting maps and of the fixed vectors, from the constraints of many random symmetries."""
    size = architecture.parameters
    identity = torch.eye(size, dtype=torch.float64)
    maps = torch.zeros(size**2, size**2, dtype=torch.float64)
    vectors = []
    for seed in range(12):
        g = representation(architecture, seed)
        difference = torch.kron(identity, g.T.contiguous()) - torch.kron(g, identity)
        maps += difference.T @ difference
        vectors.append(g - identity)
    rank = torch.linalg.matrix_rank(maps, hermitian=True, rtol=1e-10)
    return size**2 - int(rank), size - int(torch.linalg.matrix_rank(torch.cat(vectors), rtol=1e-10))


@pytest.mark.parametrize("key", SMALL)
def test_the_layer_spans_all_equivariant_maps(key: str) -> None:
    architecture = SMALL[key]
    folding = hidden_folding(architecture)
    layer = MonomialLinear(folding, group_of(architecture), 1, 1)
    parameters = sum(p.numel() for p in layer.parameters())
    assert parameters == sum(solved_dimensions(architecture))


def test_parts_that_move_alike() -> None:
    relu, tanh = SMALL["relu"], SMALL["tanh"]
    assert vertex_parts(hidden_folding(relu), group_of(relu)) == ((3,), (1, 1))
    assert vertex_parts(hidden_folding(tanh), group_of(tanh)) == ((3,), (2,))
    assert (group_of(relu), group_of(tanh)) == (PositiveScale, Sign)


@pytest.mark.parametrize("name", ["relu", "tanh"])
def test_the_canonical_form_forgets_scales_but_not_permutations(name: str) -> None:
    architecture = Architecture.mlp([2, 5, 4, 1], name)
    folding, group = hidden_folding(architecture), group_of(architecture)
    networks = Networks(architecture, torch.randn(6, architecture.parameters, dtype=torch.float64))
    torch.manual_seed(0)
    linear = MonomialLinear(folding, group, 1, 3).double()
    canonical = Canonical(folding, group, 3)

    def features(n: Networks) -> Tensor:
        return folding.unfold(canonical(linear(folding.fold(n.parameters[..., None]))), 3)

    scaled = Transform.sample(architecture, 6, permute=False).apply(networks)
    permuted = Transform.sample(architecture, 6, scale=False).apply(networks)
    torch.testing.assert_close(features(scaled), features(networks), rtol=1e-9, atol=1e-12)
    assert not torch.allclose(features(permuted), features(networks))


def test_zero_weights_have_finite_gradients() -> None:
    architecture = SMALL["relu"]
    parameters = torch.zeros(3, architecture.parameters, requires_grad=True)
    MonomialNFN([architecture], 2, width=4)(Networks(architecture, parameters)).sum().backward()
    assert parameters.grad is not None
    assert parameters.grad.isfinite().all()


@pytest.mark.parametrize("hidden", ["gelu", "abs", "cos", "identity", ["relu", "tanh"]], ids=str)
def test_other_groups_are_refused(hidden: str | list[str]) -> None:
    with pytest.raises(ScaleGMNError, match="monomial-nfn: expected hidden layers"):
        MonomialNFN([Architecture.mlp([2, 3, 3, 1], hidden)], 2)


def test_two_groups_need_two_models() -> None:
    with pytest.raises(ScaleGMNError, match="monomial-nfn: expected one scaling group"):
        MonomialNFN([SMALL["relu"], SMALL["tanh"]], 2)
