r"""Monomial-NFN: linear layers equivariant to permutations and scalings of hidden neurons (Tran et al., NeurIPS 2024).

A monomial matrix is a permutation matrix times a diagonal one. Few linear maps commute with all of them: a weight
between hidden layers may only be mixed with its own channels, and of the features of one neuron only those with the
same multiplier may be mixed. For positive scales the outgoing weights of the last hidden layer move as 1/q and its bias
as q, so they stay apart; for signs 1/q = q and they mix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from ..core.architecture import Architecture
from ..core.groups import Group, PositiveScale, Sign
from ..core.networks import Networks
from ..errors import ScaleGMNError
from ..nn.scale import unit
from .base import Editor, InvariantModel
from .mlp import perceptron
from .nfn import NFNBlock
from .normalise import Kind, normaliser
from .registry import ModelCard, register
from .weight_space import BatchNorm, Features, Layout, chain, hidden_layout, summarise


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


def vertex_parts(layout: Layout, group: Group) -> tuple[tuple[int, ...], ...]:
    """For every hidden layer, how many parameters of a neuron move with each of its multipliers (q, and 1/q)."""
    found = []
    for i in range(len(layout.sizes)):
        own = [p for p in layout.places if p.index == i]
        parts = [sum(p.multiplicity for p in own if p.kind == kind) for kind in ("target", "source")]
        found.append((sum(parts),) if group == Sign else tuple(m for m in parts if m))
    return tuple(found)


class MonomialLinear(nn.Module):
    """All affine maps between weight spaces that commute with permutations and scalings of hidden neurons.

    Arguments:
        layout: Of the parameters.
        group: Sign or PositiveScale.
        inputs, outputs: Channels of each parameter.
    """

    def __init__(self, layout: Layout, group: Group, inputs: int, outputs: int) -> None:
        super().__init__()
        one = layout.channels(1)
        self.splits = [[inputs * m for m in parts] for parts in vertex_parts(layout, group)]

        def mixing(multiplicity: int) -> nn.Linear:
            linear = nn.Linear(inputs * multiplicity, outputs * multiplicity, bias=False)
            bound = math.sqrt(6 / linear.in_features)
            nn.init.uniform_(linear.weight, -bound, bound)
            return linear

        self.edges = nn.ModuleList(map(mixing, one.edges))
        self.vertices = nn.ModuleList(nn.ModuleList(map(mixing, p)) for p in vertex_parts(layout, group))
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
        layout: Of the parameters.
        group: Sign or PositiveScale.
        width: Channels of each parameter.
    """

    def __init__(self, layout: Layout, group: Group, width: int) -> None:
        super().__init__()
        self.group = group
        self.splits = [[width * m for m in parts] for parts in vertex_parts(layout, group)]

    def forward(self, x: Features) -> Features:
        """Features of the same shapes, invariant to scalings."""
        if self.group == Sign:
            return Features(tuple(e.abs() for e in x.edges), tuple(v.abs() for v in x.vertices), x.constants)
        vertices = [
            torch.cat([unit(part) for part in v.split(split, -1)], -1) if split else v
            for v, split in zip(x.vertices, self.splits, strict=True)
        ]
        return Features(tuple(map(unit, x.edges)), tuple(vertices), x.constants)


class MonomialTrunk(nn.Module):
    """Equivariant maps with an activation between them that commutes with the group: ReLU or, for signs, the sine.

    Arguments:
        layout: Of the parameters.
        group: Sign or PositiveScale.
        widths: Channels of each parameter, before, between and after the maps.
    """

    def __init__(self, layout: Layout, group: Group, widths: Sequence[int]) -> None:
        super().__init__()
        self.activation: Callable[[Tensor], Tensor] = torch.relu if group == PositiveScale else torch.sin
        self.maps = nn.ModuleList(MonomialLinear(layout, group, i, o) for i, o in pairwise(widths))

    def forward(self, x: Features) -> Features:
        """Features with the last number of channels; no activation after the last map."""
        for i, linear in enumerate(self.maps):
            x = linear(x.map(self.activation) if i else x)
        return x


class MonomialNFN(InvariantModel):
    """Equivariant layers, canonical forms of their features, permutation equivariant blocks, pooling, an MLP.

    Tran et al., Monomial Matrix Group Equivariant Neural Functional Networks, NeurIPS 2024.

    Arguments:
        architectures: Chains with parameters of the same shapes and one group for all hidden layers.
        outputs: Numbers per network.
        width: Channels of each parameter.
        layers: Layers equivariant to permutations and scalings.
        mixing: Blocks of NFN-HNP on the canonical, scale invariant features.
        head_width: Hidden neurons of the MLP.
        dropout: Of channels, and in the MLP.
        normalisation: Of the inputs; `scale` and `none` keep the symmetry.

    >>> architecture = Architecture.mlp([2, 8, 8, 1], "relu")
    >>> MonomialNFN([architecture], 10)(Networks(architecture, torch.randn(5, architecture.parameters))).shape
    torch.Size([5, 10])
    """

    def __init__(
        self,
        architectures: Sequence[Architecture],
        outputs: int,
        *,
        width: int = 32,
        layers: int = 2,
        mixing: int = 2,
        head_width: int = 256,
        dropout: float = 0.0,
        normalisation: Kind = "scale",
    ) -> None:
        super().__init__(architectures)
        self.layout, group = _layout(self.architectures)
        self.normalise = normaliser(normalisation, self.architectures)
        self.trunk = MonomialTrunk(self.layout, group, [1, *[width] * layers])
        self.canonical = Canonical(self.layout, group, width)
        channels = self.layout.channels(width)
        self.mixing = nn.Sequential(*(NFNBlock(channels, channels, dropout=dropout) for _ in range(mixing)))
        sizes = [channels.total, head_width, head_width]
        self.pool = nn.Sequential(BatchNorm(channels.total), perceptron(sizes, dropout=dropout))
        self.head = nn.Sequential(nn.ReLU(), nn.Dropout(dropout), nn.Linear(head_width, outputs))

    def prepare(self, training: Sequence[Networks]) -> None:
        """Fit the input normalisation."""
        self.normalise.fit(training)

    def embed_one(self, networks: Networks) -> Tensor:
        """Normalised parameters (B, P)."""
        parameters: Tensor = self.normalise(networks).parameters
        return parameters

    def finish(self, found: Tensor) -> Tensor:
        """Invariant embedding (B, head_width)."""
        x = self.layout.fold(found[..., None])
        embedding: Tensor = self.pool(summarise(self.mixing(self.canonical(self.trunk(x)))))
        return embedding

    def read(self, embedding: Tensor) -> Tensor:
        """Outputs (B, outputs)."""
        result: Tensor = self.head(embedding)
        return result


class MonomialNFNEditor(Editor):
    """Layers equivariant to permutations and scalings, down to one change for each parameter.

    Arguments:
        architectures, width, layers, normalisation: As in `MonomialNFN`.
        gamma, copies: As in `Editor`.
    """

    def __init__(
        self,
        architectures: Sequence[Architecture],
        *,
        width: int = 32,
        layers: int = 3,
        normalisation: Kind = "scale",
        gamma: float = 0.01,
        copies: int = 1,
    ) -> None:
        super().__init__(architectures, gamma=gamma, copies=copies)
        self.layout, group = _layout(self.architectures)
        self.normalise = normaliser(normalisation, self.architectures)
        self.trunk = MonomialTrunk(self.layout, group, [1, *[width] * (layers - 1), copies])

    def prepare(self, training: Sequence[Networks]) -> None:
        """Fit the input normalisation."""
        self.normalise.fit(training)
        super().prepare(training)

    def direction(self, networks: Networks) -> Tensor:
        """The change (B, copies, P)."""
        x = self.layout.fold(self.normalise(networks).parameters[..., None])
        return self.layout.unfold(self.trunk(x), self.copies).transpose(1, 2)


def _layout(architectures: Sequence[Architecture]) -> tuple[Layout, Group]:
    first = chain(architectures, "monomial-nfn")
    groups = {group_of(a) for a in architectures}
    if len(groups) > 1:
        raise ScaleGMNError(
            "monomial-nfn: expected one scaling group, got positive scales and signs; train one model for each"
        )
    return hidden_layout(first), groups.pop()


register(
    ModelCard(
        name="monomial-nfn",
        title="Monomial-NFN",
        paper="Tran et al., NeurIPS 2024",
        year=2024,
        symmetries=("permutation", "scale"),
        invariant=MonomialNFN,
        equivariant=MonomialNFNEditor,
        several=False,
    )
)
