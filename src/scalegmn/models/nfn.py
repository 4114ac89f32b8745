"""Neural functionals: permutation-equivariant linear layers with and without input and output neurons.

Zhou et al., Permutation Equivariant Neural Functionals, NeurIPS 2023. NFN-HNP permutes hidden neurons only. NFN-NP
permutes all neurons, which needs fewer parameters, and tells input and output neurons apart by an encoding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..core.architecture import Architecture
from ..core.networks import Networks
from .base import Editor, InvariantModel
from .fourier import RandomFourierFeatures
from .mlp import perceptron
from .normalise import Kind, normaliser
from .registry import ModelCard, register
from .weight_space import (
    BatchNorm,
    ChannelDropout,
    Channels,
    EquivariantLinear,
    Features,
    Layout,
    chain,
    full_layout,
    hidden_layout,
    summarise,
)

_BANDS = 6


def positions(count: int) -> Tensor:
    """Sinusoids of `count` places in [-1, 1], shape (count, 13)."""
    place = torch.linspace(-1, 1, count)[:, None] if count > 1 else torch.zeros(1, 1)
    phase = math.pi * place * torch.linspace(1, 5, _BANDS)
    codes = torch.cat((place, phase.sin(), phase.cos()), dim=1)
    # Together they weigh about as much as one parameter of unit variance, so that the weights are not drowned.
    return codes / math.sqrt(_BANDS)


class Encoding(nn.Module):
    """Channels that say which layer a parameter belongs to, which input it reads and which output it serves.

    It gives NFN-NP back the order of input and output neurons.

    Arguments:
        layout: With all layers movable.
    """

    size = 2 * _BANDS + 1

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        layers = positions(len(layout.sizes))
        inputs, outputs = positions(layout.sizes[0]), positions(layout.sizes[-1])
        self.blocks = len(layout.sizes) - 1
        for i in range(self.blocks):
            edge = layers[i + 1].expand(1, 1, 1, -1)
            vertex = layers[i + 1].expand(1, 1, -1)
            if i == 0:
                edge = edge + inputs
            if i == self.blocks - 1:
                edge, vertex = edge + outputs[:, None], vertex + outputs
            self.register_buffer(f"edge_{i}", edge, persistent=False)
            self.register_buffer(f"vertex_{i}", vertex, persistent=False)

    def channels(self, before: Channels) -> Channels:
        """Numbers of channels after encoding."""
        edges = tuple(c + self.size for c in before.edges)
        return Channels(edges, tuple(c + self.size if c else 0 for c in before.vertices), before.constants)

    def forward(self, x: Features) -> Features:
        """The features with the encoding as more channels."""
        edges = [_append(e, self.get_buffer(f"edge_{i}")) for i, e in enumerate(x.edges)]
        vertices = [x.vertices[0]]
        vertices += [
            _append(v, self.get_buffer(f"vertex_{i}")) if v.shape[-1] else v for i, v in enumerate(x.vertices[1:])
        ]
        return Features(tuple(edges), tuple(vertices), x.constants)


def _append(x: Tensor, encoding: Tensor) -> Tensor:
    return torch.cat((x, encoding.expand(*x.shape[:-1], -1)), dim=-1)


class NFNBlock(nn.Module):
    """An equivariant linear map, ReLU, dropout of channels."""

    def __init__(self, inputs: Channels, outputs: Channels, *, dropout: float) -> None:
        super().__init__()
        self.linear = EquivariantLinear(inputs, outputs)
        self.dropout = ChannelDropout(dropout)

    def forward(self, x: Features) -> Features:
        """Features with `outputs` channels."""
        result: Features = self.dropout(self.linear(x).map(nn.functional.relu))
        return result


class NFNTrunk(nn.Module):
    """Fourier features, the encoding where all neurons may be permuted, and blocks.

    Arguments:
        layout: Of the parameters.
        width: Channels of each parameter.
        layers: Blocks.
        dropout: Of channels.
        frequencies: Random Fourier features of each parameter; 0 leaves the parameters as they are.
    """

    def __init__(self, layout: Layout, *, width: int, layers: int, dropout: float, frequencies: int) -> None:
        super().__init__()
        self.layout = layout
        self.fourier = RandomFourierFeatures(frequencies) if frequencies else None
        everything_moves = len(layout.sizes) == len(layout.architecture.layers)
        self.encoding = Encoding(layout) if everything_moves else None
        self.outputs = layout.channels(width)
        self.pooled = hidden_layout(layout.architecture).channels(width).total
        sizes = [layout.channels(2 * frequencies or 1), *[self.outputs] * (layers - 1)]
        if self.encoding is not None:
            sizes = [self.encoding.channels(channels) for channels in sizes]
        self.blocks = nn.ModuleList(NFNBlock(channels, self.outputs, dropout=dropout) for channels in sizes)

    def forward(self, parameters: Tensor) -> Features:
        """Features of parameters (B, P)."""
        x = parameters[..., None]
        features = self.layout.fold(x if self.fourier is None else self.fourier(x))
        for block in self.blocks:
            features = block(features if self.encoding is None else self.encoding(features))
        return features


def pool(features: Features, layout: Layout) -> Tensor:
    """Means over hidden neurons; input and output neurons stay apart, whether or not they may be permuted."""
    if len(layout.sizes) < len(layout.architecture.layers):
        return summarise(features)
    parts = [features.constants, *(v.mean(1) for v in features.vertices[1:-1]), features.vertices[-1].flatten(1)]
    last = len(features.edges) - 1
    for i, e in enumerate(features.edges):
        over_targets = e.flatten(1, 2) if i == last else e.mean(1)
        parts.append(over_targets.flatten(1) if i == 0 else e.mean(2).flatten(1) if i == last else over_targets.mean(1))
    return torch.cat(parts, dim=-1)


class NFNHNP(InvariantModel):
    """Blocks that are equivariant to permutations of hidden neurons, pooling over neurons, an MLP.

    Zhou et al., Permutation Equivariant Neural Functionals, NeurIPS 2023. Kernel positions of CNNs are channels.

    Arguments:
        architectures: Chains with parameters of the same shapes.
        outputs: Numbers per network.
        width: Channels of each parameter.
        layers: Equivariant blocks.
        head_width: Hidden neurons of the MLP.
        dropout: Of channels, and in the MLP.
        frequencies: Random Fourier features of each parameter; 0 leaves the parameters as they are.
        normalisation: Of the inputs.

    >>> architecture = Architecture.mlp([2, 8, 8, 1], "tanh")
    >>> NFNHNP([architecture], 10)(Networks(architecture, torch.randn(5, architecture.parameters))).shape
    torch.Size([5, 10])
    """

    layout = staticmethod(hidden_layout)
    label = "nfn-hnp"

    def __init__(
        self,
        architectures: Sequence[Architecture],
        outputs: int,
        *,
        width: int = 64,
        layers: int = 3,
        head_width: int = 256,
        dropout: float = 0.0,
        frequencies: int = 0,
        normalisation: Kind = "layer",
    ) -> None:
        super().__init__(architectures)
        self.normalise = normaliser(normalisation, self.architectures)
        layout = self.layout(chain(architectures, self.label))
        self.trunk = NFNTrunk(layout, width=width, layers=layers, dropout=dropout, frequencies=frequencies)
        pooled = self.trunk.pooled
        self.pool = nn.Sequential(BatchNorm(pooled), perceptron([pooled, head_width, head_width], dropout=dropout))
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
        embedding: Tensor = self.pool(pool(self.trunk(found), self.trunk.layout))
        return embedding

    def read(self, embedding: Tensor) -> Tensor:
        """Outputs (B, outputs)."""
        result: Tensor = self.head(embedding)
        return result


class NFNNP(NFNHNP):
    """The same with permutations of all neurons; an encoding keeps inputs and outputs in order.

    >>> architecture = Architecture.mlp([2, 8, 8, 1], "tanh")
    >>> NFNNP([architecture], 10)(Networks(architecture, torch.randn(5, architecture.parameters))).shape
    torch.Size([5, 10])
    """

    layout = staticmethod(full_layout)
    label = "nfn-np"


class NFNHNPEditor(Editor):
    """Edits networks: a trunk, then an equivariant linear map to one change for each parameter.

    Arguments:
        architectures, width, layers, dropout, frequencies, normalisation: As in `NFNHNP`.
        gamma, copies: As in `Editor`.
    """

    layout = staticmethod(hidden_layout)
    label = "nfn-hnp"

    def __init__(
        self,
        architectures: Sequence[Architecture],
        *,
        width: int = 64,
        layers: int = 3,
        dropout: float = 0.0,
        frequencies: int = 0,
        normalisation: Kind = "layer",
        gamma: float = 0.01,
        copies: int = 1,
    ) -> None:
        super().__init__(architectures, gamma=gamma, copies=copies)
        self.normalise = normaliser(normalisation, self.architectures)
        layout = self.layout(chain(architectures, self.label))
        self.trunk = NFNTrunk(layout, width=width, layers=layers, dropout=dropout, frequencies=frequencies)
        self.last = EquivariantLinear(self.trunk.outputs, layout.channels(copies))

    def prepare(self, training: Sequence[Networks]) -> None:
        """Fit the input normalisation."""
        self.normalise.fit(training)
        super().prepare(training)

    def direction(self, networks: Networks) -> Tensor:
        """The change (B, copies, P)."""
        x = self.last(self.trunk(self.normalise(networks).parameters))
        return self.trunk.layout.unfold(x, self.copies).transpose(1, 2)


class NFNNPEditor(NFNHNPEditor):
    """The same with permutations of all neurons, inputs and outputs encoded."""

    layout = staticmethod(full_layout)
    label = "nfn-np"


for _name, _title, _invariant, _editor in (
    ("nfn-np", "NFN (NP)", NFNNP, NFNNPEditor),
    ("nfn-hnp", "NFN (HNP)", NFNHNP, NFNHNPEditor),
):
    register(
        ModelCard(
            name=_name,
            title=_title,
            paper="Zhou et al., NeurIPS 2023",
            year=2023,
            symmetries=("permutation",),
            invariant=_invariant,
            equivariant=_editor,
            several=False,
        )
    )
