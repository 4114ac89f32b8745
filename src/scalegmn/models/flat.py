"""The plain multilayer perceptron on the flat parameter vector: the baseline without any symmetry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from ..core.architecture import Architecture
from ..core.networks import Networks
from .method import Method
from .normalise import NormalisedSpec
from .parts import DenseSpec, rectified
from .trunk import EditingTrunk, Pooling


@dataclass(frozen=True, repr=False)
class FlatSpec(DenseSpec, NormalisedSpec):
    """The options of the flat perceptron.

    >>> FlatSpec(layers=4)
    FlatSpec(layers=4)
    """


class FlatTrunk(EditingTrunk):
    r"""\(f(\theta) = \mathrm{MLP}(\mathrm{normalise}(\theta))\) on the flat parameter vector.

    Arguments:
        method: Whose trunk it is.
        architectures: With parameters of the same shapes.
        spec: What a person chose.

    >>> import torch
    >>> architecture = Architecture.mlp([2, 8, 1], "tanh")
    >>> FlatMLP([architecture], 10)(Networks(architecture, torch.randn(5, architecture.parameters))).shape
    torch.Size([5, 10])
    """

    spec: FlatSpec

    def __init__(self, method: Method, architectures: Sequence[Architecture], spec: FlatSpec) -> None:
        super().__init__(method, architectures, spec)
        self.inputs = self.architectures[0].parameters
        self.maps = rectified([self.inputs, *[spec.width] * (spec.layers - 1)], dropout=spec.dropout)

    def forward(self, networks: Networks) -> Tensor:
        """Hidden states (B, width)."""
        hidden: Tensor = self.maps(self.normalise(networks).parameters)
        return hidden

    def pooling(self) -> Pooling:
        return Pooling(nn.Identity(), nn.Identity(), self.spec.width)

    def writing(self, copies: int) -> nn.Module:
        last = nn.Linear(self.spec.width, copies * self.inputs)
        return nn.Sequential(last, nn.Unflatten(1, (copies, self.inputs)))


_PAPER = "Plain perceptron on the flat parameters, as in Navon et al., ICML 2023"
FlatMLP = Method("mlp", "MLP", _PAPER, (), FlatTrunk, FlatSpec(512, normalisation="parameter"), several=False)
"""The plain perceptron (`mlp`), the baseline without symmetry; options as in `FlatSpec`."""
