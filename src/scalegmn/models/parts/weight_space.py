r"""Weight spaces of chains, and all linear maps between them that commute with permutations.

Neurons of some layers of a chain may be permuted (they are *movable*), those of the others may not. A weight between
two movable layers is an edge feature, a weight or bias with one movable end is a vertex feature of that layer, all else
is constant: axes that do not move become channels. In these terms an equivariant linear map is short:

    s_l   = [v_l, mean over sources of e_l, mean over targets of e_(l+1)]           summary of layer l
    t     = [c, mean of every v, mean of every e]                                   summary of everything
    e_l'  = A e_l + P s_l + Q s_(l-1) + R t,     v_l' = B s_l + D t,     c' = F t

Navon et al., Equivariant Architectures for Learning in Deep Weight Spaces, ICML 2023, and Zhou et al., Permutation
Equivariant Neural Functionals, NeurIPS 2023, list the same maps case by case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ...core.architecture import Architecture, Segment

Reduction = Literal["mean", "max"]


@dataclass(frozen=True)
class Channels:
    """Numbers of channels: of each edge block, of each movable layer, and of the constants.

    >>> Channels((4,), (12, 8), 1).total
    25
    """

    edges: tuple[int, ...]
    vertices: tuple[int, ...]
    constants: int

    @property
    def total(self) -> int:
        """All of them: what `summarise` gives."""
        return self.constants + sum(self.vertices) + sum(self.edges)


@dataclass(frozen=True)
class Features:
    """Features of a batch of chains.

    Arguments:
        edges: Between consecutive movable layers, (B, n_t, n_s, c).
        vertices: Of each movable layer, (B, n, c); c may be 0.
        constants: Features that do not move, (B, c); c may be 0.

    >>> features = hidden_folding(Architecture.mlp([2, 8, 1], "tanh")).fold(torch.randn(5, 33, 4))
    >>> features.map(torch.abs).vertices[0].shape
    torch.Size([5, 8, 16])
    """

    edges: tuple[Tensor, ...]
    vertices: tuple[Tensor, ...]
    constants: Tensor

    def map(self, function: Callable[[Tensor], Tensor]) -> Features:
        """Apply a function to every tensor."""
        return Features(tuple(map(function, self.edges)), tuple(map(function, self.vertices)), function(self.constants))


@dataclass(frozen=True)
class Place:
    """The place of a tensor of parameters among the features.

    Arguments:
        segment: The tensor.
        kind: `source` is a vertex feature of the source layer, whose axis comes second in the tensor.
        index: Which edge block or which movable layer.
        multiplicity: Parameters at one edge, vertex or constant.

    >>> [(p.kind, p.index, p.multiplicity) for p in hidden_folding(Architecture.mlp([2, 8, 1], "tanh")).places]
    [('target', 0, 2), ('target', 0, 1), ('source', 0, 1), ('constant', 0, 1)]
    """

    segment: Segment
    kind: Literal["edge", "target", "source", "constant"]
    index: int
    multiplicity: int


class Folding:
    """How the parameters of a chain are arranged as `Features`, and back.

    Arguments:
        architecture: A chain.
        movable: For every layer, whether its neurons may be permuted; movable layers must be consecutive.

    >>> folding = hidden_folding(Architecture.mlp([2, 8, 8, 1], "tanh"))
    >>> features = folding.fold(torch.randn(5, 105, 4))
    >>> [tuple(e.shape) for e in features.edges], [tuple(v.shape) for v in features.vertices]
    ([(5, 8, 8, 4)], [(5, 8, 12), (5, 8, 8)])
    """

    def __init__(self, architecture: Architecture, movable: Sequence[bool]) -> None:
        self.architecture = architecture
        self.number = {layer: i for i, layer in enumerate(j for j, m in enumerate(movable) if m)}
        self.sizes = tuple(architecture.layers[layer].size for layer in self.number)
        self.everything_moves = all(movable)
        self.places = tuple(self._place(s) for s in architecture.segments)

    def _place(self, segment: Segment) -> Place:
        if segment.kind == "slope":
            return Place(segment, "constant", 0, 1)
        if segment.kind == "bias":
            if segment.index in self.number:
                return Place(segment, "target", self.number[segment.index], 1)
            return Place(segment, "constant", 0, segment.size)
        connection = self.architecture.connections[segment.index]
        target, source = self.number.get(connection.target), self.number.get(connection.source)
        n_t, n_s, kernel = segment.shape
        if target is not None and source is not None:
            return Place(segment, "edge", source, kernel)
        if target is not None:
            return Place(segment, "target", target, n_s * kernel)
        if source is not None:
            return Place(segment, "source", source, n_t * kernel)
        return Place(segment, "constant", 0, segment.size)

    def channels(self, width: int) -> Channels:
        """Numbers of channels when every parameter has `width` of them."""

        def total(index: int, *kinds: str) -> int:
            found = [p.multiplicity for p in self.places if p.kind in kinds and p.index == index]
            return width * sum(found)

        layers = range(len(self.sizes))
        return Channels(
            tuple(total(i, "edge") for i in layers[:-1]),
            tuple(total(i, "target", "source") for i in layers),
            total(0, "constant"),
        )

    def fold(self, x: Tensor) -> Features:
        """Arrange (B, P, c), c numbers for every parameter."""
        edges: list[Tensor] = []
        vertices: list[list[Tensor]] = [[x.new_zeros(len(x), n, 0)] for n in self.sizes]
        constants = [x.new_zeros(len(x), 0)]
        parts = x.split([p.segment.size for p in self.places], dim=1)
        for place, part in zip(self.places, parts, strict=True):
            tensor = part.unflatten(1, place.segment.shape)
            match place.kind:
                case "edge":
                    edges.append(tensor.flatten(3))
                case "target":
                    vertices[place.index].append(tensor.flatten(2))
                case "source":
                    vertices[place.index].append(tensor.transpose(1, 2).flatten(2))
                case "constant":
                    constants.append(tensor.flatten(1))
        return Features(tuple(edges), tuple(torch.cat(v, -1) for v in vertices), torch.cat(constants, -1))

    def unfold(self, features: Features, width: int) -> Tensor:
        """The inverse of `fold`: (B, P, width)."""
        batch = len(features.constants)
        taken: dict[str | int, int] = dict.fromkeys(["constant", *range(len(self.sizes))], 0)
        parts = []
        for place in self.places:
            size = width * place.multiplicity
            shape = (batch, *place.segment.shape, width)
            if place.kind == "edge":
                parts.append(features.edges[place.index].reshape(batch, place.segment.size, width))
                continue
            key: str | int = "constant" if place.kind == "constant" else place.index
            tensor = features.constants if place.kind == "constant" else features.vertices[place.index]
            part = tensor[..., taken[key] : taken[key] + size]
            taken[key] += size
            if place.kind == "source":
                n_t, n_s, kernel = place.segment.shape
                part = part.reshape(batch, n_s, n_t, kernel, width).transpose(1, 2)
            parts.append(part.reshape(shape).flatten(1, -2))
        return torch.cat(parts, dim=1)


def hidden_folding(architecture: Architecture) -> Folding:
    """Only hidden neurons may be permuted."""
    return Folding(architecture, [slot is not None for slot in architecture.slots])


def full_folding(architecture: Architecture) -> Folding:
    """Input and output neurons may be permuted too."""
    return Folding(architecture, [True] * len(architecture.layers))


def reduce(x: Tensor, dim: int, reduction: Reduction) -> Tensor:
    """Mean or maximum over one dimension."""
    return x.mean(dim) if reduction == "mean" else x.amax(dim)


def summarise(features: Features, reduction: Reduction = "mean") -> Tensor:
    """Everything pooled over neurons: (B, total number of channels), invariant."""
    parts = [features.constants]
    parts += [reduce(v, 1, reduction) for v in features.vertices]
    parts += [reduce(e.flatten(1, 2), 1, reduction) for e in features.edges]
    return torch.cat(parts, -1)


class EquivariantLinear(nn.Module):
    """All affine maps between weight spaces that commute with permutations of the movable layers.

    With the reduction `mean` it is affine; `max` instead gives a map that is equivariant but not linear.

    Arguments:
        inputs, outputs: Numbers of channels.
        reduction: How features are pooled over neurons.

    >>> folding = hidden_folding(Architecture.mlp([2, 8, 8, 1], "tanh"))
    >>> layer = EquivariantLinear(folding.channels(1), folding.channels(16))
    >>> layer(folding.fold(torch.randn(5, 105, 1))).edges[0].shape
    torch.Size([5, 8, 8, 16])
    """

    def __init__(self, inputs: Channels, outputs: Channels, *, reduction: Reduction = "mean") -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        self.reduction: Reduction = reduction
        layers = range(len(inputs.vertices))
        before = [inputs.edges[i - 1] if i else 0 for i in layers]
        after = [inputs.edges[i] if i < len(inputs.edges) else 0 for i in layers]
        summaries = [v + b + a for v, b, a in zip(inputs.vertices, before, after, strict=True)]
        # A layer's summary serves three maps: to the edges that end in it, to those that start in it, to itself.
        self.splits = [
            [outputs.edges[i - 1] if i else 0, outputs.edges[i] if i < len(outputs.edges) else 0, outputs.vertices[i]]
            for i in layers
        ]
        self.total_split = [*outputs.edges, *outputs.vertices, outputs.constants]
        blocks = zip(inputs.edges, outputs.edges, strict=True)
        self.along = nn.ModuleList(nn.Linear(i, o, bias=False) for i, o in blocks)
        self.at = nn.ModuleList(
            nn.Linear(s, sum(split), bias=False) for s, split in zip(summaries, self.splits, strict=True)
        )
        self.everywhere = nn.Linear(inputs.total, outputs.total)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights so that local terms dominate and every output has about the size of its inputs."""
        for linear in [*self.along, *self.at]:
            assert isinstance(linear, nn.Linear)
            bound = math.sqrt(3 / max(1, linear.in_features))
            nn.init.uniform_(linear.weight, -bound, bound)
        bound = 1 / math.sqrt(max(1, self.everywhere.in_features))
        nn.init.uniform_(self.everywhere.weight, -bound, bound)
        nn.init.zeros_(self.everywhere.bias)

    def forward(self, x: Features) -> Features:
        """Features with `inputs` channels to features with `outputs` channels."""
        into = [reduce(e, 2, self.reduction) for e in x.edges]
        out_of = [reduce(e, 1, self.reduction) for e in x.edges]
        total = torch.cat([x.constants, *(reduce(v, 1, self.reduction) for v in (*x.vertices, *into))], dim=-1)
        edges_count, layers = len(x.edges), len(x.vertices)
        everywhere = self.everywhere(total).split(self.total_split, -1)
        parts = []
        for i, vertex in enumerate(x.vertices):
            summary = torch.cat([vertex, *into[max(0, i - 1) : i], *out_of[i : i + 1]], dim=-1)
            parts.append(self.at[i](summary).split(self.splits[i], -1))
        edges = [
            self.along[i](e) + (parts[i + 1][0] + everywhere[i][:, None])[:, :, None] + parts[i][1][:, None]
            for i, e in enumerate(x.edges)
        ]
        vertices = [parts[i][2] + everywhere[edges_count + i][:, None] for i in range(layers)]
        return Features(tuple(edges), tuple(vertices), everywhere[-1])

    def extra_repr(self) -> str:
        return f"{self.inputs} -> {self.outputs}, reduction={self.reduction}"


class Elementwise(nn.Module):
    """A function on every feature.

    Arguments:
        function: From a tensor to one of the same shape.

    >>> folding = hidden_folding(Architecture.mlp([2, 8, 8, 1], "tanh"))
    >>> features = folding.fold(torch.randn(5, 105, 4))
    >>> bool((Elementwise(torch.relu)(features).edges[0] >= 0).all())
    True
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Features) -> Features:
        """Features of the same shapes."""
        return x.map(self.function)


class Summary(nn.Module):
    """`summarise` as a module.

    Arguments:
        reduction: How features are pooled over neurons.

    >>> folding = hidden_folding(Architecture.mlp([2, 8, 8, 1], "tanh"))
    >>> features = folding.fold(torch.randn(5, 105, 4))
    >>> Summary()(features).shape
    torch.Size([5, 28])
    """

    def __init__(self, reduction: Reduction = "mean") -> None:
        super().__init__()
        self.reduction: Reduction = reduction

    def forward(self, features: Features) -> Tensor:
        """The pooled features (B, total number of channels)."""
        return summarise(features, self.reduction)


class WeightWriter(nn.Module):
    """A last equivariant map, whose features are put back into the order of the parameters.

    Arguments:
        folding: Of the parameters.
        last: To features with one channel per parameter and copy.
        copies: Number of parameter sets.

    >>> folding = hidden_folding(Architecture.mlp([2, 8, 8, 1], "tanh"))
    >>> features = folding.fold(torch.randn(5, 105, 4))
    >>> last = EquivariantLinear(folding.channels(4), folding.channels(2))
    >>> WeightWriter(folding, last, copies=2)(features).shape
    torch.Size([5, 2, 105])
    """

    def __init__(self, folding: Folding, last: nn.Module, copies: int) -> None:
        super().__init__()
        self.folding, self.last, self.copies = folding, last, copies

    def forward(self, features: Features) -> Tensor:
        """A value for every parameter (B, copies, P)."""
        return self.folding.unfold(self.last(features), self.copies).transpose(1, 2)


class ChannelDropout(nn.Module):
    """Drops whole channels of a network at once, which keeps the symmetry and needs few random numbers.

    >>> folding = hidden_folding(Architecture.mlp([2, 8, 8, 1], "tanh"))
    >>> features = folding.fold(torch.randn(5, 105, 4))
    >>> ChannelDropout(0.5).eval()(features) is features
    True
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Features) -> Features:
        """The features with some channels set to zero."""
        return x.map(self._drop) if self.training and self.probability else x

    def _drop(self, x: Tensor) -> Tensor:
        mask = x.new_ones(len(x), *[1] * (x.dim() - 2), x.shape[-1])
        return x * nn.functional.dropout(mask, self.probability)

    def extra_repr(self) -> str:
        return f"{self.probability:g}"
