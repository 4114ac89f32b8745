"""Perceptrons, batch normalisation and options that several peers share."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from torch import Tensor, nn

from ...core.spec import Count, Depth, Range, Share, Spec


@dataclass(frozen=True, repr=False)
class PeerSpec(Spec):
    """The options of every peer; the defaults of a method are given where it is defined.

    Arguments:
        width: Hidden neurons, or channels of each neuron or parameter.
        layers: The depth of the trunk.
        dropout: After activations, in trunk and head.

    >>> PeerSpec(width=16)
    PeerSpec(width=16)
    """

    width: Count = 64
    layers: Depth = 3
    dropout: Share = 0.0


@dataclass(frozen=True, repr=False)
class DenseSpec(PeerSpec):
    """The options of a peer that is a multilayer perceptron.

    Arguments:
        layers: Number of linear maps; the last of them is in the head.

    >>> DenseSpec(layers=1)
    Traceback (most recent call last):
    ...
    scalegmn.errors.ScaleGMNError: layers: expected at least 2, got 1
    """

    layers: Annotated[int, Range(2, most=1000)] = 3


def rectified(sizes: Sequence[int], *, dropout: float = 0.0) -> nn.Sequential:
    """Linear maps, each followed by ReLU and dropout.

    Arguments:
        sizes: Of the input and after every map.
        dropout: After every activation.

    >>> rectified([3, 8, 4])
    Sequential(
      (0): Linear(in_features=3, out_features=8, bias=True)
      (1): ReLU()
      (2): Linear(in_features=8, out_features=4, bias=True)
      (3): ReLU()
    )
    """
    parts: list[nn.Module] = []
    for i, o in pairwise(sizes):
        parts += [nn.Linear(i, o), nn.ReLU(), nn.Dropout(dropout)] if dropout else [nn.Linear(i, o), nn.ReLU()]
    return nn.Sequential(*parts)


class BatchNorm(nn.Module):
    """Batch normalisation of the last dimension over all others; a batch of one uses the running statistics.

    Arguments:
        channels: Size of the last dimension.

    >>> import torch
    >>> BatchNorm(3)(torch.randn(5, 7, 3)).shape
    torch.Size([5, 7, 3])
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """A tensor of the same shape."""
        flat = x.reshape(-1, x.shape[-1])
        n = self.norm
        fresh = self.training and len(flat) > 1
        y = nn.functional.batch_norm(flat, n.running_mean, n.running_var, n.weight, n.bias, fresh, 0.1, n.eps)
        return y.view_as(x)


def standardised(sizes: Sequence[int], *, dropout: float = 0.0) -> nn.Sequential:
    """Batch normalisation, then `rectified` maps: means over many neurons differ little between networks."""
    return nn.Sequential(BatchNorm(sizes[0]), rectified(sizes, dropout=dropout))
