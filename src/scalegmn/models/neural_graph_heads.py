"""What is read from a neural graph: one vector per network, or a value for every parameter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.architecture import Architecture, Connection
from .kernels import crop_kernel, kernel_shape, kind, largest_kernels
from .weight_space import BatchNorm


class OutputReadout(nn.Module):
    """Output neurons side by side, standardised, then an MLP: they have an order, so nothing is pooled.

    The batch normalisation is not in the original. Output neurons are means over many neighbours and differ little
    between networks at first; without it small runs stay at chance for hundreds of steps.

    Arguments:
        architectures: The one with most output neurons sets the size.
        nodes: Size of the node states.
        width: Size of the hidden layers and of the result.
        layers: Number of hidden layers.
    """

    def __init__(self, architectures: Sequence[Architecture], nodes: int, width: int, *, layers: int) -> None:
        inputs = nodes * max(a.layers[-1].size for a in architectures)
        sizes = [inputs] + [width] * layers
        maps = [m for i, o in pairwise(sizes) for m in (nn.Linear(i, o), nn.ReLU())]
        super().__init__()
        self.inputs = inputs
        self.maps = nn.Sequential(BatchNorm(inputs), *maps)

    def side_by_side(self, x: Tensor) -> Tensor:
        """The states (B, n_L, d) of the output neurons as vectors (B, inputs)."""
        flat = x.flatten(1)
        return F.pad(flat, (0, self.inputs - flat.shape[1]))

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings (B, width) of such vectors."""
        embedding: Tensor = self.maps(x)
        return embedding


class ParameterHead(nn.Module):
    """States to parameters: two-layer MLPs on edges (one per kind of connection) and on nodes.

    Arguments:
        architectures: Every architecture it will meet.
        nodes, edges: Sizes of the states.
        copies: Number of parameter sets.
    """

    def __init__(self, architectures: Sequence[Architecture], *, nodes: int, edges: int, copies: int) -> None:
        super().__init__()
        self.copies = copies
        self.kernels = largest_kernels(architectures)
        self.edge_maps = nn.ModuleDict({
            name: _two_layers(edges, copies * math.prod(shape)) for name, shape in self.kernels.items()
        })
        self.node_map = _two_layers(nodes, copies)
        self.slope_map = _two_layers(nodes, copies)

    def forward(self, architecture: Architecture, x: Mapping[int, Tensor], e: Sequence[Tensor]) -> Tensor:
        """One value (B, copies, P) for every parameter.

        Arguments:
            architecture: Of the networks.
            x: Node states per layer (B, n, d), for those that have parameters.
            e: Edge states per connection (B, n_t, n_s, d), or (B, n, d).
        """
        parts = []
        for s in architecture.segments:
            if s.kind == "weight":
                parts.append(self._weights(architecture.connections[s.index], e[s.index]))
            elif s.kind == "bias":
                parts.append(self.node_map(x[s.index]).transpose(1, 2))
            else:
                parts.append(self.slope_map(x[s.index].mean(1)).unsqueeze(2))
        return torch.cat(parts, dim=2)

    def _weights(self, connection: Connection, e: Tensor) -> Tensor:
        largest = self.kernels[kind(connection)]
        flat = self.edge_maps[kind(connection)](e).unflatten(-1, (self.copies, math.prod(largest)))
        weights = crop_kernel(flat, kernel_shape(connection), largest)
        return weights.movedim(-2, 1).flatten(2)


def _two_layers(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, inputs), nn.ReLU(), nn.Linear(inputs, outputs))
