"""DWSNets: all linear permutation-equivariant maps between weight and bias spaces (Navon et al., ICML 2023)."""

from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from ...core.networks import Networks
from ..method import Method
from ..normalise import NormalisedSpec
from ..parts.dense import BatchNorm, standardised
from ..parts.weight_space import (
    ChannelDropout,
    Channels,
    Elementwise,
    EquivariantLinear,
    Features,
    Reduction,
    Summary,
    WeightWriter,
    hidden_folding,
)
from ..trunk import EditingTrunk, Pooling, chain


@dataclass(frozen=True, repr=False)
class DWSSpec(NormalisedSpec):
    """The options of DWSNets.

    Arguments:
        reduction: How layers and the readout pool over neurons; `mean` keeps the layers linear.

    >>> DWSSpec(reduction="max")
    DWSSpec(reduction='max')
    """

    reduction: Reduction = "mean"


class FeatureBatchNorm(nn.Module):
    """Batch normalisation of edge and vertex channels over networks and neurons; constants stay unchanged.

    Arguments:
        channels: Of the features.

    >>> from scalegmn import Architecture
    >>> import torch
    >>> folding = hidden_folding(Architecture.mlp([2, 8, 8, 1], "tanh"))
    >>> norm = FeatureBatchNorm(folding.channels(4))
    >>> norm(folding.fold(torch.randn(5, 105, 4))).edges[0].shape
    torch.Size([5, 8, 8, 4])
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


class DWSTrunk(EditingTrunk):
    r"""Equivariant blocks; heads pool over neurons, or map to every parameter.

    Each block is \(x \mapsto \mathrm{ReLU}(\mathrm{BN}(L x))\), L any linear map that commutes with permutations of
    hidden neurons. Navon et al., Equivariant Architectures for Learning in Deep Weight Spaces, ICML 2023. (The
    original normalises by `parameter`, which breaks the symmetry.)

    Reads chains without convolutions and with parameters of the same shapes.

    >>> from scalegmn import Architecture
    >>> import torch
    >>> architecture = Architecture.mlp([2, 8, 8, 1], "tanh")
    >>> DWS([architecture], 10)(Networks(architecture, torch.randn(5, architecture.parameters))).shape
    torch.Size([5, 10])
    """

    spec: DWSSpec

    def build(self) -> None:
        spec = self.spec
        self.folding = hidden_folding(chain(self.architectures, self.method.name, convolutions=False))
        self.channels = self.folding.channels(spec.width)
        self.blocks = nn.Sequential()
        for i, o in pairwise([self.folding.channels(1), *[self.channels] * spec.layers]):
            self.blocks.append(EquivariantLinear(i, o, reduction=spec.reduction))
            self.blocks.extend([FeatureBatchNorm(o), Elementwise(nn.ReLU()), ChannelDropout(spec.dropout)])

    def forward(self, networks: Networks) -> Features:
        """Features of the parameters."""
        found: Features = self.blocks(self.folding.fold(self.normalise(networks).parameters[..., None]))
        return found

    def pooling(self) -> Pooling:
        size = 4 * self.spec.width
        finish = standardised([self.channels.total, size], dropout=self.spec.dropout)
        return Pooling(Summary(self.spec.reduction), finish, size)

    def writing(self, copies: int) -> nn.Module:
        last = EquivariantLinear(self.channels, self.folding.channels(copies), reduction=self.spec.reduction)
        return WeightWriter(self.folding, last, copies)


DWS = Method(
    "dws", "DWSNets", "Navon et al., ICML 2023", ("permutation",), DWSTrunk, DWSSpec(32, 4),
    convolutions=False, several=False,
)  # fmt: skip
"""DWSNets (`dws`), by name in recipes; options as in `DWSSpec`."""
