"""The plain multilayer perceptron on the flat parameter vector: the baseline without any symmetry."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from ..core.architecture import Architecture
from ..core.networks import Networks
from ..errors import ScaleGMNError
from .base import Editor, InvariantModel
from .normalise import Kind, normaliser
from .registry import ModelCard, register


def perceptron(sizes: Sequence[int], *, dropout: float = 0.0) -> nn.Sequential:
    """Linear maps with ReLU and dropout between them.

    Arguments:
        sizes: Inputs, hidden neurons, outputs.
        dropout: After every activation.
    """
    if len(sizes) < 2:
        raise ScaleGMNError("layers: expected at least 2, got 1")
    parts: list[nn.Module] = [nn.Linear(sizes[0], sizes[1])]
    for i, o in pairwise(sizes[1:]):
        parts += [nn.ReLU(), nn.Dropout(dropout), nn.Linear(i, o)] if dropout else [nn.ReLU(), nn.Linear(i, o)]
    return nn.Sequential(*parts)


def same_shapes(architectures: Sequence[Architecture], who: str) -> Architecture:
    """The first architecture, if all have parameters of the same shapes (they may differ in activations).

    Arguments:
        architectures: That one model shall read.
        who: The model that asks, for the message.
    """
    if not architectures:
        raise ScaleGMNError(f"{who}: expected at least one architecture, got none")
    first = architectures[0]
    for other in architectures[1:]:
        if other.segments != first.segments:
            raise ScaleGMNError(
                f"{who}: expected architectures with parameters of the same shapes, got {first} and {other}; "
                "train one model for each, or use gmn or scalegmn"
            )
    return first


class MLP(InvariantModel):
    r"""\(f(\theta) = \mathrm{MLP}(\mathrm{normalise}(\theta))\) on the flat parameter vector.

    Arguments:
        architectures: With parameters of the same shapes.
        outputs: Numbers per network.
        width: Hidden neurons.
        layers: Linear maps.
        dropout: After every activation.
        normalisation: Of the inputs.

    >>> import torch
    >>> architecture = Architecture.mlp([2, 8, 1], "tanh")
    >>> MLP([architecture], 10)(Networks(architecture, torch.randn(5, architecture.parameters))).shape
    torch.Size([5, 10])
    """

    def __init__(
        self,
        architectures: Sequence[Architecture],
        outputs: int,
        *,
        width: int = 512,
        layers: int = 3,
        dropout: float = 0.0,
        normalisation: Kind = "parameter",
    ) -> None:
        super().__init__(architectures)
        inputs = same_shapes(self.architectures, "mlp").parameters
        self.normalise = normaliser(normalisation, self.architectures)
        self.trunk = perceptron([inputs, *[width] * (layers - 1)], dropout=dropout)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(width, outputs))

    def prepare(self, training: Sequence[Networks]) -> None:
        """Fit the input normalisation."""
        self.normalise.fit(training)

    def embed_one(self, networks: Networks) -> Tensor:
        """Hidden state (B, width) before the last map."""
        hidden: Tensor = self.trunk(self.normalise(networks).parameters)
        return hidden

    def read(self, embedding: Tensor) -> Tensor:
        """Outputs (B, outputs)."""
        result: Tensor = self.head(embedding)
        return result


class MLPEditor(Editor):
    """Changes every parameter by an MLP of the flat parameter vector.

    Arguments:
        architectures: With parameters of the same shapes.
        width, layers, dropout, normalisation: As in `MLP`.
        gamma, copies: As in `Editor`.
    """

    def __init__(
        self,
        architectures: Sequence[Architecture],
        *,
        width: int = 512,
        layers: int = 4,
        dropout: float = 0.0,
        normalisation: Kind = "parameter",
        gamma: float = 0.01,
        copies: int = 1,
    ) -> None:
        super().__init__(architectures, gamma=gamma, copies=copies)
        size = same_shapes(self.architectures, "mlp").parameters
        self.normalise = normaliser(normalisation, self.architectures)
        self.trunk = perceptron([size, *[width] * (layers - 1), copies * size], dropout=dropout)

    def prepare(self, training: Sequence[Networks]) -> None:
        """Fit the input normalisation."""
        self.normalise.fit(training)
        super().prepare(training)

    def direction(self, networks: Networks) -> Tensor:
        """The change (B, copies, P)."""
        change: Tensor = self.trunk(self.normalise(networks).parameters)
        return change.view(len(networks), self.copies, networks.architecture.parameters)


register(
    ModelCard(
        name="mlp",
        title="MLP",
        paper="Plain perceptron on the flat parameters, as in Navon et al., ICML 2023",
        year=2023,
        symmetries=(),
        invariant=MLP,
        equivariant=MLPEditor,
        several=False,
    )
)
