"""Neural functionals: permutation-equivariant linear layers with and without input and output neurons.

Zhou et al., Permutation Equivariant Neural Functionals, NeurIPS 2023. NFN-HNP permutes hidden neurons only. NFN-NP
permutes all neurons, which needs fewer parameters, and tells input and output neurons apart by an encoding.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from ...core.networks import Networks
from ...core.spec import Count, Number
from ..method import Method
from ..normalise import NormalisedSpec
from ..parts.dense import standardised
from ..parts.fourier import FourierFeatures
from ..parts.weight_space import (
    ChannelDropout,
    Channels,
    Elementwise,
    EquivariantLinear,
    Features,
    Folding,
    WeightWriter,
    full_folding,
    hidden_folding,
    summarise,
)
from ..trunk import EditingTrunk, Pooling, chain

_BANDS = 6


def positions(count: int) -> Tensor:
    """Sinusoids of `count` places in [-1, 1], shape (count, 13)."""
    place = torch.linspace(-1, 1, count)[:, None] if count > 1 else torch.zeros(1, 1)
    phase = math.pi * place * torch.linspace(1, 5, _BANDS)
    codes = torch.cat((place, phase.sin(), phase.cos()), dim=1)
    # Together they weigh about as much as one parameter of unit variance, so that the weights are not drowned.
    return codes / math.sqrt(_BANDS)


class Encoding(nn.Module):
    """Channels that encode the layer of a parameter, and the input or output neuron it belongs to.

    They restore the order of input and output neurons for NFN-NP.

    Arguments:
        folding: With all layers movable.

    >>> from scalegmn import Architecture
    >>> folding = full_folding(Architecture.mlp([2, 8, 1], "tanh"))
    >>> encoding = Encoding(folding)
    >>> features = encoding(folding.fold(torch.randn(5, 33, 1)))
    >>> features.edges[0].shape[:3]
    torch.Size([5, 8, 2])
    """

    size = 2 * _BANDS + 1

    def __init__(self, folding: Folding) -> None:
        super().__init__()
        layers = positions(len(folding.sizes))
        inputs, outputs = positions(folding.sizes[0]), positions(folding.sizes[-1])
        self.blocks = len(folding.sizes) - 1
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


def nfn_block(inputs: Channels, outputs: Channels, *, dropout: float) -> nn.Sequential:
    """An equivariant linear map, ReLU, dropout of channels."""
    return nn.Sequential(EquivariantLinear(inputs, outputs), Elementwise(nn.ReLU()), ChannelDropout(dropout))


class NFNPool(nn.Module):
    """Means over hidden neurons; input and output neurons stay apart, whether or not they may be permuted.

    Arguments:
        folding: Of the parameters.

    >>> from scalegmn import Architecture
    >>> folding = hidden_folding(Architecture.mlp([2, 8, 8, 1], "tanh"))
    >>> NFNPool(folding)(folding.fold(torch.randn(5, 105, 4))).shape[0]
    5
    """

    def __init__(self, folding: Folding) -> None:
        super().__init__()
        self.everything_moves = folding.everything_moves

    def forward(self, features: Features) -> Tensor:
        """The pooled features (B, total number of channels of the hidden folding)."""
        if not self.everything_moves:
            return summarise(features)
        parts = [features.constants, *(v.mean(1) for v in features.vertices[1:-1]), features.vertices[-1].flatten(1)]
        last = len(features.edges) - 1
        for i, e in enumerate(features.edges):
            by_source = e.flatten(1, 2) if i == last else e.mean(1)
            parts.append(by_source.flatten(1) if i == 0 else e.mean(2).flatten(1) if i == last else by_source.mean(1))
        return torch.cat(parts, dim=-1)


@dataclass(frozen=True, repr=False)
class NFNSpec(NormalisedSpec):
    """The options of neural functionals.

    Arguments:
        head_width: Hidden neurons of the MLP of an invariant head.
        frequencies: Random Fourier features of each parameter; 0 for none.
        neurons: Which neurons may be permuted: `hidden` (HNP), or `all` (NP), with an encoding that tells inputs and
            outputs apart.

    >>> NFNSpec(width=16)
    NFNSpec(width=16)
    """

    head_width: Count = 256
    frequencies: Number = 0
    neurons: Literal["hidden", "all"] = "hidden"


class NFNTrunk(EditingTrunk):
    """Fourier features, the encoding if all neurons may be permuted, and equivariant blocks.

    Zhou et al., Permutation Equivariant Neural Functionals, NeurIPS 2023. Kernel positions of CNNs are channels.

    Reads chains with parameters of the same shapes.

    >>> from scalegmn import Architecture
    >>> architecture = Architecture.mlp([2, 8, 8, 1], "tanh")
    >>> networks = Networks(architecture, torch.randn(5, architecture.parameters))
    >>> NFNHNP([architecture], 10)(networks).shape, NFNNP([architecture], 10)(networks).shape
    (torch.Size([5, 10]), torch.Size([5, 10]))
    """

    spec: NFNSpec

    def build(self) -> None:
        spec = self.spec
        first = chain(self.architectures, self.method.name)
        self.folding = folding = full_folding(first) if spec.neurons == "all" else hidden_folding(first)
        self.fourier = FourierFeatures(1, spec.frequencies, sigma=0.5) if spec.frequencies else None
        self.encoding = Encoding(folding) if folding.everything_moves else None
        self.outputs = folding.channels(spec.width)
        sizes = [folding.channels(2 * spec.frequencies or 1), *[self.outputs] * (spec.layers - 1)]
        if self.encoding is not None:
            sizes = [self.encoding.channels(channels) for channels in sizes]
        self.blocks = nn.ModuleList(nfn_block(channels, self.outputs, dropout=spec.dropout) for channels in sizes)

    def forward(self, networks: Networks) -> Features:
        """Features of the parameters."""
        x = self.normalise(networks).parameters[..., None]
        features = self.folding.fold(x if self.fourier is None else self.fourier(x))
        for block in self.blocks:
            features = block(features if self.encoding is None else self.encoding(features))
        return features

    def pooling(self) -> Pooling:
        pooled = hidden_folding(self.folding.architecture).channels(self.spec.width).total
        size = self.spec.head_width
        return Pooling(NFNPool(self.folding), standardised([pooled, size, size], dropout=self.spec.dropout), size)

    def writing(self, copies: int) -> nn.Module:
        return WeightWriter(self.folding, EquivariantLinear(self.outputs, self.folding.channels(copies)), copies)


NFNHNP = Method(
    "nfn-hnp", "NFN (HNP)", "Zhou et al., NeurIPS 2023", ("permutation",), NFNTrunk, NFNSpec(), several=False
)
"""NFN that permutes hidden neurons only (`nfn-hnp`); options as in `NFNSpec`."""
NFNNP = replace(NFNHNP, name="nfn-np", title="NFN (NP)", spec=NFNSpec(neurons="all"))
"""NFN that permutes all neurons (`nfn-np`); options as in `NFNSpec`."""
