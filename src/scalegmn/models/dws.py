"""DWSNets: all linear permutation-equivariant maps between weight and bias spaces (Navon et al., ICML 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from ..core.architecture import Architecture
from ..core.networks import Networks
from .base import Editor, InvariantModel
from .mlp import perceptron
from .normalise import Kind, normaliser
from .registry import ModelCard, register
from .weight_space import (
    BatchNorm,
    ChannelDropout,
    Channels,
    EquivariantLinear,
    Features,
    Reduction,
    chain,
    hidden_layout,
    summarise,
)


class FeatureBatchNorm(nn.Module):
    """Batch normalisation of edge and vertex channels over networks and neurons; constants are left alone.

    Arguments:
        channels: Of the features.
    """

    def __init__(self, channels: Channels) -> None:
        super().__init__()
        self.edges = nn.ModuleList(map(BatchNorm, channels.edges))
        self.vertices = nn.ModuleList(BatchNorm(c) if c else nn.Identity() for c in channels.vertices)

    def forward(self, x: Features) -> Features:
        """Features of the same shapes."""
        edges = [norm(e) for norm, e in zip(self.edges, x.edges, strict=True)]
        vertices = [norm(v) for norm, v in zip(self.vertices, x.vertices, strict=True)]
        return Features(tuple(edges), tuple(vertices), x.constants)


class DWSBlock(nn.Sequential):
    """An equivariant linear map, batch normalisation, ReLU, dropout."""

    def __init__(self, inputs: Channels, outputs: Channels, *, reduction: Reduction, dropout: float) -> None:
        linear = EquivariantLinear(inputs, outputs, reduction=reduction)
        super().__init__(linear, FeatureBatchNorm(outputs), Rectify(), ChannelDropout(dropout))


class Rectify(nn.Module):
    """ReLU on every feature."""

    def forward(self, x: Features) -> Features:
        """Features of the same shapes."""
        return x.map(nn.functional.relu)


class DWS(InvariantModel):
    r"""Equivariant blocks, then pooling over neurons and an MLP.

    Each block is \(x \mapsto \mathrm{ReLU}(\mathrm{BN}(L x))\), L any linear map that commutes with permutations of
    hidden neurons. Navon et al., Equivariant Architectures for Learning in Deep Weight Spaces, ICML 2023.

    Arguments:
        architectures: Chains without convolutions and with parameters of the same shapes.
        outputs: Numbers per network.
        width: Channels of each parameter.
        layers: Equivariant blocks.
        dropout: Of channels.
        reduction: How layers and the readout pool over neurons; `mean` keeps the layers linear.
        normalisation: Of the inputs. The original's is `parameter`, which breaks the symmetry.

    >>> import torch
    >>> architecture = Architecture.mlp([2, 8, 8, 1], "tanh")
    >>> DWS([architecture], 10)(Networks(architecture, torch.randn(5, architecture.parameters))).shape
    torch.Size([5, 10])
    """

    def __init__(
        self,
        architectures: Sequence[Architecture],
        outputs: int,
        *,
        width: int = 32,
        layers: int = 4,
        dropout: float = 0.0,
        reduction: Reduction = "mean",
        normalisation: Kind = "layer",
    ) -> None:
        super().__init__(architectures)
        self.layout = hidden_layout(chain(self.architectures, "dws", convolutions=False))
        self.normalise = normaliser(normalisation, self.architectures)
        self.reduction: Reduction = reduction
        hidden = self.layout.channels(width)
        sizes = [self.layout.channels(1), *[hidden] * layers]
        self.trunk = nn.Sequential(
            *(DWSBlock(i, o, reduction=reduction, dropout=dropout) for i, o in pairwise(sizes))
        )
        self.pool = nn.Sequential(BatchNorm(hidden.total), perceptron([hidden.total, 4 * width]))
        self.head = nn.Sequential(nn.ReLU(), nn.Dropout(dropout), nn.Linear(4 * width, outputs))

    def prepare(self, training: Sequence[Networks]) -> None:
        """Fit the input normalisation."""
        self.normalise.fit(training)

    def embed_one(self, networks: Networks) -> Tensor:
        """Normalised parameters (B, P)."""
        parameters: Tensor = self.normalise(networks).parameters
        return parameters

    def finish(self, found: Tensor) -> Tensor:
        """Invariant embedding (B, 4 width)."""
        x = self.layout.fold(found[..., None])
        embedding: Tensor = self.pool(summarise(self.trunk(x), self.reduction))
        return embedding

    def read(self, embedding: Tensor) -> Tensor:
        """Outputs (B, outputs)."""
        result: Tensor = self.head(embedding)
        return result


class DWSEditor(Editor):
    """Equivariant blocks, then an equivariant linear map to one change for each parameter.

    Arguments:
        architectures: As in `DWS`.
        width, layers, dropout, reduction, normalisation: As in `DWS`.
        gamma, copies: As in `Editor`.
    """

    def __init__(
        self,
        architectures: Sequence[Architecture],
        *,
        width: int = 32,
        layers: int = 4,
        dropout: float = 0.0,
        reduction: Reduction = "mean",
        normalisation: Kind = "layer",
        gamma: float = 0.01,
        copies: int = 1,
    ) -> None:
        super().__init__(architectures, gamma=gamma, copies=copies)
        self.layout = hidden_layout(chain(self.architectures, "dws", convolutions=False))
        self.normalise = normaliser(normalisation, self.architectures)
        hidden = self.layout.channels(width)
        sizes = [self.layout.channels(1), *[hidden] * layers]
        self.trunk = nn.Sequential(
            *(DWSBlock(i, o, reduction=reduction, dropout=dropout) for i, o in pairwise(sizes)),
            EquivariantLinear(hidden, self.layout.channels(copies), reduction=reduction),
        )

    def prepare(self, training: Sequence[Networks]) -> None:
        """Fit the input normalisation."""
        self.normalise.fit(training)
        super().prepare(training)

    def direction(self, networks: Networks) -> Tensor:
        """The change (B, copies, P)."""
        x = self.layout.fold(self.normalise(networks).parameters[..., None])
        return self.layout.unfold(self.trunk(x), self.copies).transpose(1, 2)


register(
    ModelCard(
        name="dws",
        title="DWSNets",
        paper="Navon et al., ICML 2023",
        year=2023,
        symmetries=("permutation",),
        invariant=DWS,
        equivariant=DWSEditor,
        convolutions=False,
        several=False,
    )
)
