"""The plain multilayer perceptron on the flat parameter vector: the baseline without any symmetry."""

from dataclasses import dataclass

from torch import Tensor, nn

from ...core.networks import Networks
from ..method import Method
from ..normalise import NormalisedSpec
from ..parts.dense import DenseSpec, rectified
from ..trunk import EditingTrunk, Pooling


@dataclass(frozen=True, repr=False)
class FlatSpec(DenseSpec, NormalisedSpec):
    """The options of the flat perceptron.

    >>> FlatSpec(layers=4)
    FlatSpec(layers=4)
    """


class FlatTrunk(EditingTrunk):
    r"""\(f(\theta) = \mathrm{MLP}(\mathrm{normalise}(\theta))\) on the flat parameter vector.

    Reads architectures with parameters of the same shapes.

    >>> from scalegmn import Architecture
    >>> import torch
    >>> architecture = Architecture.mlp([2, 8, 1], "tanh")
    >>> FlatMLP([architecture], 10)(Networks(architecture, torch.randn(5, architecture.parameters))).shape
    torch.Size([5, 10])
    """

    spec: FlatSpec

    def build(self) -> None:
        spec = self.spec
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
