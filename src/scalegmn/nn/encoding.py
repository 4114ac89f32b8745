r"""From networks to the first states: initialisation and positional encodings (paper, A.1.1, A.1.2 and A.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..core.architecture import Architecture, Connection
from ..core.doubles import double
from ..core.groups import Group
from ..core.networks import Networks
from .edges import Edge, Factored
from .kernels import crop_kernel, kernel_shape, largest, pad_kernel
from .layers import States
from .mlp import MLP
from .scale import ScaleEquivariant, start_linear
from .spec import SignRule
from .symmetry import Symmetry


class Positions(nn.Module):
    """Learned positional encodings that break exactly the symmetries that networks do not have.

    Input neurons, output neurons and layers are told apart; hidden neurons of one layer are not, unless the layer is
    tied to the input or the output and so may not be permuted.

    Arguments:
        architectures: Sizes come from these.
        width: Of the encodings.
    """

    def __init__(self, architectures: Sequence[Architecture], width: int) -> None:
        super().__init__()
        depth = max(len(a.layers) for a in architectures)
        pinned = [
            layer.size for a in architectures for i, layer in enumerate(a.layers[:-1]) if i and a.slots[i] is None
        ]
        self.input = _table(max(a.layers[0].size for a in architectures), width)
        self.output = _table(max(a.layers[-1].size for a in architectures), width)
        self.hidden = _table(depth, width)
        self.pinned = _table(max(pinned, default=0), width)

    def forward(self, architecture: Architecture) -> list[Tensor]:
        """Per layer (n, width)."""
        found = []
        for i, layer in enumerate(architecture.layers):
            match architecture.roles[i]:
                case "input":
                    p = self.input[: layer.size]
                case "output":
                    p = self.output[: layer.size]
                case "hidden":
                    p = self.hidden[i].expand(layer.size, -1)
                    if architecture.slots[i] is None:
                        p = p + self.pinned[: layer.size]
            found.append(p)
        return found


class EdgePositions(nn.Module):
    """Positional encodings of edges: per connection, and per input or output neuron at its ends.

    Arguments:
        architectures: Sizes come from these.
        width: Of the encodings.
    """

    def __init__(self, architectures: Sequence[Architecture], width: int) -> None:
        super().__init__()
        self.input = _table(max(a.layers[0].size for a in architectures), width)
        self.output = _table(max(a.layers[-1].size for a in architectures), width)
        self.connection = _table(max(len(a.connections) for a in architectures), width)

    def forward(self, symmetry: Symmetry, index: int) -> Tensor:
        """Of one connection: broadcasts against (n_t, n_s, width)."""
        a = symmetry.architecture
        c = a.connections[index]
        p = self.connection[index].expand(1, 1, -1)
        if c.source == 0:
            p = p + symmetry.source(index, self.input[: a.layers[0].size])
        if c.target == len(a.layers) - 1:
            p = p + symmetry.target(index, self.output[: a.layers[-1].size])
        return p


class Kernels(nn.Module):
    """Puts the weights of every connection on its edges, padded with zeros to the largest kernel.

    Small kernels sit in the middle of the largest; a linear layer's weight is a 1 x 1 kernel. The weights of each
    connection are multiplied by a constant that `measure` takes from training networks, so that states begin at a
    common size. A constant commutes with every scaling.

    Arguments:
        architectures: Sizes come from these.
    """

    gain: Tensor

    def __init__(self, architectures: Sequence[Architecture]) -> None:
        super().__init__()
        self.shape = largest([(1, 1), *(kernel_shape(c) for a in architectures for c in a.connections)])
        self.register_buffer("gain", torch.ones(max(len(a.connections) for a in architectures)))

    @property
    def size(self) -> int:
        """Number of weights on an edge."""
        return math.prod(self.shape)

    def forward(self, networks: Networks, index: int) -> Tensor:
        """Weights of one connection (B, n_t, n_s, size), or (B, n, 1, size) if elementwise."""
        w = networks.weights[index]
        if w is None:
            size = networks.architecture.layers[networks.architecture.connections[index].target].size
            w = networks.parameters.new_ones(len(networks), size)
        if w.dim() == 2:
            w = w[:, :, None, None]
        return self.gain[index].to(w) * self.pad(networks.architecture.connections[index], w)

    def pad(self, connection: Connection, w: Tensor) -> Tensor:
        """(..., K) to (..., size)."""
        return pad_kernel(w, kernel_shape(connection), self.shape)

    def crop(self, connection: Connection, w: Tensor) -> Tensor:
        """(..., size) to (..., K)."""
        return crop_kernel(w, kernel_shape(connection), self.shape)

    @torch.no_grad()
    def measure(self, training: Sequence[Networks]) -> None:
        """Choose the constants: messages of typical networks then have a size near 1."""
        sizes: dict[int, list[Tensor]] = {}
        for networks in training:
            for i, w in enumerate(networks.weights):
                if w is not None:
                    fan_in = w[0, 0].numel() if w.dim() == 4 else 1
                    sizes.setdefault(i, []).append(typical(w.flatten(1)) * math.sqrt(fan_in))
        for i, found in sizes.items():
            self.gain[i] = 1 / torch.cat(found).log().mean().exp()


def typical(values: Tensor) -> Tensor:
    """Root mean square of every row (B, n), 1 for rows of zeros."""
    size = double(values).square().mean(1).sqrt()
    return size.masked_fill(size == 0, 1)


class Init(nn.Module):
    r"""\(\mathrm{INIT}_V(b, p) = \mathsf{AugScaleEq}(b, p)\) and \(\mathrm{INIT}_E(w) = \Gamma_E w\).

    With edge positions, \(\mathrm{INIT}_E(w, p) = \Gamma_E w \odot (1 + p)\). Input and output neurons have MLPs.

    Arguments:
        architectures: Sizes come from these.
        groups: Groups of hidden neurons.
        width: Of the states.
        features: Vertex features beside the bias.
        positions: Width of the vertex encodings.
        edge_positions: Whether edges are encoded.
        sign, dropout: As in `ScaleInvariant`.
    """

    bias_gain: Tensor

    def __init__(
        self,
        architectures: Sequence[Architecture],
        groups: tuple[Group, ...],
        width: int,
        *,
        features: int,
        positions: int,
        edge_positions: bool,
        sign: SignRule,
        dropout: float,
    ) -> None:
        super().__init__()
        self.kernels = Kernels(architectures)
        inputs = 1 + features
        self.vertex = ScaleEquivariant(groups, inputs, width, contexts=[positions], sign=sign, dropout=dropout)
        self.input = MLP(inputs + positions, width, dropout=dropout)
        self.output = MLP(inputs + positions, width, dropout=dropout)
        self.edge = nn.Linear(self.kernels.size, width, bias=False)
        start_linear(self.edge)
        self.edge_positions = EdgePositions(architectures, width) if edge_positions else None
        self.register_buffer("bias_gain", torch.ones(max(len(a.layers) for a in architectures)))

    def forward(
        self, networks: Networks, symmetry: Symmetry, positions: Sequence[Tensor], features: Sequence[Tensor]
    ) -> States:
        """The first vertex and edge states.

        Arguments:
            networks: The networks.
            symmetry: Of their architecture.
            positions: Per layer (n, p).
            features: Per layer (B, n, F), moving as q; empty where there are none.
        """
        states = States()
        for i, layer in enumerate(networks.architecture.layers):
            b = networks.biases[i]
            if b is None:
                b = networks.parameters.new_full((len(networks), layer.size), float(i == 0))
            x = torch.cat([(self.bias_gain[i].to(b) * b).unsqueeze(-1), *features[i : i + 1]], -1)
            if symmetry.is_hidden(i):
                states.x[i] = self.vertex(symmetry.groups[i], x, [positions[i]])
            else:
                mlp = self.input if i == 0 else self.output
                states.x[i] = mlp(torch.cat([x, positions[i].expand(*x.shape[:-1], -1)], -1))
        for c in range(len(networks.architecture.connections)):
            states.e[c] = self.encode_edge(symmetry, c, self.kernels(networks, c))
        return states

    def encode_edge(self, symmetry: Symmetry, connection: int, w: Tensor) -> Edge:
        """Edge states (B, n_t, n_s, h) from weights (B, n_t, n_s, K)."""
        everywhere = symmetry.architecture.connections[connection].dense
        if everywhere and self.kernels.size == 1 and not w.requires_grad and self.edge_positions is None:
            return Factored(w.squeeze(-1), self.edge.weight.T)
        e: Tensor = self.edge(w)
        return e if self.edge_positions is None else e * (1 + self.edge_positions(symmetry, connection))

    @torch.no_grad()
    def measure(self, training: Sequence[Networks]) -> None:
        """Bring biases and weights to a common size with constants from training networks."""
        self.kernels.measure(training)
        sizes: dict[int, list[Tensor]] = {}
        for networks in training:
            for i, b in enumerate(networks.biases):
                if b is not None:
                    sizes.setdefault(i, []).append(typical(b))
        for i, found in sizes.items():
            self.bias_gain[i] = 1 / torch.cat(found).log().mean().exp()


class DualInit(nn.Module):
    """The first dual states: output gradients at probes where there are any, else 0; MLPs at both ends.

    Arguments:
        groups: Groups of hidden neurons.
        width: Of the states.
        features: Number of gradients per neuron.
        positions: Width of the vertex encodings.
        sign, dropout: As in `ScaleInvariant`.
    """

    def __init__(
        self, groups: tuple[Group, ...], width: int, *, features: int, positions: int, sign: SignRule, dropout: float
    ) -> None:
        super().__init__()
        self.vertex = (
            ScaleEquivariant(groups, features, width, contexts=[positions], sign=sign, dropout=dropout)
            if features
            else None
        )
        self.input = MLP(features + positions, width, dropout=dropout)
        self.output = MLP(features + positions, width, dropout=dropout)

    def forward(
        self, symmetry: Symmetry, x: dict[int, Tensor], positions: Sequence[Tensor], features: Sequence[Tensor]
    ) -> dict[int, Tensor]:
        """Per layer (B, n, h)."""
        found = {}
        for i, state in x.items():
            p = positions[i].expand(*state.shape[:-1], -1)
            if not symmetry.is_hidden(i):
                mlp = self.input if i == 0 else self.output
                found[i] = mlp(torch.cat([p, *features[i : i + 1]], -1))
            elif self.vertex is not None:
                found[i] = self.vertex(symmetry.groups[i], features[i], [positions[i]])
            else:
                found[i] = torch.zeros_like(state)
        return found


def reciprocal(w: Tensor) -> Tensor:
    """1/w, and 0 where w is 0 or so small that the square of 1/w would overflow."""
    zero = w.abs() < math.sqrt(torch.finfo(w.dtype).tiny)
    return torch.where(zero, 0, 1 / w.masked_fill(zero, 1))


def _table(rows: int, width: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, width) if rows else torch.zeros(0, width))
