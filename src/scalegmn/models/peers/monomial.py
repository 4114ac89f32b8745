r"""Monomial-NFN: linear layers equivariant to permutations and scalings of hidden neurons (Tran et al., NeurIPS 2024).

A monomial matrix is a permutation matrix times a diagonal one. Few linear maps commute with all of them: a weight
between hidden layers may only be mixed with its own channels, and of the features of one neuron only those with the
same multiplier may be mixed. For positive scales the outgoing weights of the last hidden layer are multiplied by 1/q
and its bias by q, so they are kept apart; for signs 1/q = q, and they mix.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ...core.architecture import Architecture
from ...core.groups import Group, PositiveScale, Sign
from ...core.networks import Networks
from ...core.spec import Count, Depth, Number
from ...errors import ScaleGMNError
from ...native.unit import unit
from ..method import Method
from ..normalise import NormalisedSpec
from ..parts.dense import standardised
from ..parts.weight_space import Elementwise, Features, Folding, Summary, WeightWriter, hidden_folding
from ..trunk import EditingTrunk, Pooling, chain
from .nfn import nfn_block


def group_of(architecture: Architecture) -> Group:
    """The scaling group of all hidden layers: Sign or PositiveScale, else an error."""
    groups = set(architecture.groups[1:-1])
    plain = all(phi.is_identity for phi in architecture.phis[1:-1])
    if len(groups) != 1 or not groups <= {Sign, PositiveScale} or not plain:
        raise ScaleGMNError(
            "monomial-nfn: expected hidden layers that are all relu-like (positive scales) or all odd (signs), got "
            f"{architecture}; use scalegmn"
        )
    return groups.pop()


def vertex_parts(folding: Folding, group: Group) -> tuple[tuple[int, ...], ...]:
    """For every hidden layer, how many parameters of a neuron have each of its multipliers (q, and 1/q)."""
    found = []
    for i in range(len(folding.sizes)):
        own = [p for p in folding.places if p.index == i]
        parts = [sum(p.multiplicity for p in own if p.kind == kind) for kind in ("target", "source")]
        found.append((sum(parts),) if group == Sign else tuple(m for m in parts if m))
    return tuple(found)


class MonomialLinear(nn.Module):
    """All affine maps between weight spaces that commute with permutations and scalings of hidden neurons.

    Arguments:
        folding: Of the parameters.
        group: Sign or PositiveScale.
        inputs, outputs: Channels of each parameter.

    >>> from scalegmn.core.groups import Sign
    >>> folding = hidden_folding(Architecture.mlp([2, 8, 8, 1], "tanh"))
    >>> MonomialLinear(folding, Sign, 1, 4)(folding.fold(torch.randn(5, 105, 1))).edges[0].shape
    torch.Size([5, 8, 8, 4])
    """

    def __init__(self, folding: Folding, group: Group, inputs: int, outputs: int) -> None:
        super().__init__()
        one = folding.channels(1)
        self.splits = [[inputs * m for m in parts] for parts in vertex_parts(folding, group)]

        def mixing(multiplicity: int) -> nn.Linear:
            linear = nn.Linear(inputs * multiplicity, outputs * multiplicity, bias=False)
            bound = math.sqrt(6 / linear.in_features)
            nn.init.uniform_(linear.weight, -bound, bound)
            return linear

        self.edges = nn.ModuleList(map(mixing, one.edges))
        self.vertices = nn.ModuleList(nn.ModuleList(map(mixing, p)) for p in vertex_parts(folding, group))
        self.constants = nn.Linear(inputs * one.constants, outputs * one.constants) if one.constants else nn.Identity()

    def forward(self, x: Features) -> Features:
        """Features with more or fewer channels."""
        edges = [linear(e) for linear, e in zip(self.edges, x.edges, strict=True)]
        vertices = []
        for linears, split, v in zip(self.vertices, self.splits, x.vertices, strict=True):
            assert isinstance(linears, nn.ModuleList)
            parts = [linear(part) for linear, part in zip(linears, v.split(split, -1), strict=True)] if split else [v]
            vertices.append(torch.cat(parts, -1))
        return Features(tuple(edges), tuple(vertices), self.constants(x.constants))


class Canonical(nn.Module):
    r"""Features without their multipliers: \(x / \|x\|\) over channels for positive scales, \(|x|\) for signs.

    Arguments:
        folding: Of the parameters.
        group: Sign or PositiveScale.
        width: Channels of each parameter.

    >>> from scalegmn.core.groups import Sign
    >>> folding = hidden_folding(Architecture.mlp([2, 8, 8, 1], "tanh"))
    >>> x = torch.randn(5, 105, 1)
    >>> canonical = Canonical(folding, Sign, 1)
    >>> torch.equal(canonical(folding.fold(-x)).edges[0], canonical(folding.fold(x)).edges[0])
    True
    """

    def __init__(self, folding: Folding, group: Group, width: int) -> None:
        super().__init__()
        self.group = group
        self.splits = [[width * m for m in parts] for parts in vertex_parts(folding, group)]

    def forward(self, x: Features) -> Features:
        """Features of the same shapes, invariant to scalings."""
        if self.group == Sign:
            return Features(tuple(e.abs() for e in x.edges), tuple(v.abs() for v in x.vertices), x.constants)
        vertices = [
            torch.cat([unit(part) for part in v.split(split, -1)], -1) if split else v
            for v, split in zip(x.vertices, self.splits, strict=True)
        ]
        return Features(tuple(map(unit, x.edges)), tuple(vertices), x.constants)


@dataclass(frozen=True, repr=False)
class MonomialSpec(NormalisedSpec):
    """The options of Monomial-NFN; only the normalisations `scale` and `none` keep the symmetry.

    Arguments:
        layers: Layers equivariant to permutations and scalings; an editor adds one.
        mixing: Blocks of NFN-HNP on the canonical, scale invariant features of an invariant head.
        head_width: Hidden neurons of its MLP.

    >>> MonomialSpec(mixing=0)
    MonomialSpec(mixing=0)
    """

    layers: Depth = 2
    mixing: Number = 2
    head_width: Count = 256


class MonomialTrunk(EditingTrunk):
    """Equivariant maps with an activation between them that commutes with the group: ReLU or, for signs, the sine.

    An invariant head takes canonical forms of their features and mixes them with permutation equivariant blocks.
    Tran et al., Monomial Matrix Group Equivariant Neural Functional Networks, NeurIPS 2024.

    Reads chains with parameters of the same shapes and one group for all hidden layers.

    >>> architecture = Architecture.mlp([2, 8, 8, 1], "relu")
    >>> MonomialNFN([architecture], 10)(Networks(architecture, torch.randn(5, architecture.parameters))).shape
    torch.Size([5, 10])
    """

    spec: MonomialSpec

    def build(self) -> None:
        spec = self.spec
        self.folding = hidden_folding(chain(self.architectures, self.method.name))
        self.group = common_group(self.architectures)
        self.activation = Elementwise(torch.relu if self.group == PositiveScale else torch.sin)
        self.maps = nn.Sequential(self._map(1, spec.width))
        for _ in range(spec.layers - 1):
            self.maps.extend([self.activation, self._map(spec.width, spec.width)])

    def _map(self, inputs: int, outputs: int) -> MonomialLinear:
        return MonomialLinear(self.folding, self.group, inputs, outputs)

    def forward(self, networks: Networks) -> Features:
        """Features of the parameters, transformed like them."""
        found: Features = self.maps(self.folding.fold(self.normalise(networks).parameters[..., None]))
        return found

    def pooling(self) -> Pooling:
        spec, channels = self.spec, self.folding.channels(self.spec.width)
        mixing = [nfn_block(channels, channels, dropout=spec.dropout) for _ in range(spec.mixing)]
        one = nn.Sequential(Canonical(self.folding, self.group, spec.width), *mixing, Summary())
        finish = standardised([channels.total, spec.head_width, spec.head_width], dropout=spec.dropout)
        return Pooling(one, finish, spec.head_width)

    def writing(self, copies: int) -> nn.Module:
        last = nn.Sequential(self.activation, self._map(self.spec.width, copies))
        return WeightWriter(self.folding, last, copies)


def common_group(architectures: Sequence[Architecture]) -> Group:
    """The scaling group that all architectures have."""
    groups = {group_of(a) for a in architectures}
    if len(groups) > 1:
        raise ScaleGMNError(
            "monomial-nfn: expected one scaling group, got positive scales and signs; train one model for each"
        )
    return groups.pop()


MonomialNFN = Method(
    "monomial-nfn", "Monomial-NFN", "Tran et al., NeurIPS 2024", ("permutation", "scale"),
    MonomialTrunk, MonomialSpec(32, normalisation="scale"), several=False,
)  # fmt: skip
"""Monomial-NFN (`monomial-nfn`); options as in `MonomialSpec`."""
