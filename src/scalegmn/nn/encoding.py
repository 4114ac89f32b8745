r"""From networks to the first states: initialisation and positional encodings (paper, A.1.1, A.1.2 and A.3)."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.architecture import Architecture, Connection
from ..core.blocks import Block
from ..core.doubles import double
from ..core.networks import Networks
from ..core.wiring import spans
from ..native.formula import Edge
from .kernels import apart, crop_kernel, kernel_shape, largest
from .scale import ScaleEquivariant, start_linear
from .style import Style
from .symmetry import Symmetry


class Positions(nn.Module):
    """Learned positional encodings that break exactly the symmetries that networks do not have.

    They distinguish input neurons, output neurons, layers and blocks within them, but not the hidden neurons of one
    block, unless these may not be permuted, for instance because they are tied to the input or the output.

    Arguments:
        architectures: Sizes come from these.
        width: Of the encodings.
        points: Whether those of input neurons start as coordinates of points in the cube from -1 to 1.

    >>> a = Architecture.mlp([2, 8, 1], "tanh")
    >>> [tuple(p.shape) for p in Positions([a], 4)(a)]
    [(2, 4), (8, 4), (1, 4)]
    """

    def __init__(self, architectures: Sequence[Architecture], width: int, *, points: bool = False) -> None:
        super().__init__()
        depth = max(len(a.layers) for a in architectures)
        pinned = [b.stop for a in architectures for blocks in a.blocks[1:-1] for b in blocks if b.slot is None]
        several = [len(blocks) for a in architectures for blocks in a.blocks[1:-1]]
        self.input = _table(max(a.layers[0].size for a in architectures), width)
        self.output = _table(max(a.layers[-1].size for a in architectures), width)
        self.hidden = _table(depth, width)
        self.pinned = _table(max(pinned, default=0), width)
        self.block = _table(max([n for n in several if n > 1], default=0), width)
        if points:
            nn.init.uniform_(self.input, -1, 1)

    def forward(self, architecture: Architecture) -> list[Tensor]:
        """The encodings of all neurons, per layer (n, width)."""
        found = []
        for i, layer in enumerate(architecture.layers):
            match architecture.roles[i]:
                case "input":
                    p = self.input[: layer.size]
                case "output":
                    p = self.output[: layer.size]
                case "hidden":
                    p = self.hidden[i] + self._within(architecture.blocks[i])
            found.append(p)
        return found

    def _within(self, blocks: Sequence[Block]) -> Tensor:
        """What distinguishes neurons of one layer: their number if they may not be permuted, otherwise their block."""
        parts = []
        for number, b in enumerate(blocks):
            p = self.pinned[b.start : b.stop] if b.slot is None else self.hidden.new_zeros(b.size, self.hidden.shape[1])
            parts.append(p + self.block[number] if len(blocks) > 1 else p)
        return torch.cat(parts)


class EdgePositions(nn.Module):
    """Positional encodings of edges: per connection, and per input or output neuron at its ends.

    Arguments:
        architectures: Sizes come from these.
        width: Of the encodings.

    >>> a = Architecture.mlp([2, 8, 1], "tanh")
    >>> EdgePositions([a], 4)(Symmetry.full(a), 0).shape
    torch.Size([1, 2, 4])
    """

    def __init__(self, architectures: Sequence[Architecture], width: int) -> None:
        super().__init__()
        self.input = _table(max(a.layers[0].size for a in architectures), width)
        self.output = _table(max(a.layers[-1].size for a in architectures), width)
        self.connection = _table(max(len(a.connections) for a in architectures), width)

    def forward(self, symmetry: Symmetry, index: int) -> Tensor:
        """The encodings of the edges of one connection; they broadcast against (n_t, n_s, width)."""
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

    Small kernels are centred in the largest; the weight of a linear layer is a 1 x 1 kernel. The weights of each
    connection are multiplied by a constant that `measure` computes from training networks, so that states start with a
    common size. A constant commutes with every scaling.

    Arguments:
        architectures: Sizes come from these.

    >>> a = Architecture.mlp([2, 8, 1], "tanh")
    >>> networks = Networks(a, torch.randn(5, a.parameters))
    >>> Kernels([a])(networks, 0).shape
    torch.Size([5, 8, 2, 1])
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
        """Weights of one connection (B, n_t, n_s, K), or (B, n, 1, K) if elementwise."""
        a, w = networks.architecture, networks.weights[index]
        if w is None:
            w = networks.parameters.new_ones(len(networks), spans(a, a.connections[index])[0].size)
        if w.dim() == 2:
            w = w[:, :, None, None]
        return self.gain[index].to(w) * apart(w, a.connections[index].groups)

    def columns(self, connection: Connection) -> Tensor:
        """The places of the weights of a connection (K,) in the largest kernel."""
        everything = torch.arange(self.size, device=self.gain.device)
        return crop_kernel(everything, kernel_shape(connection), self.shape)

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


class FirstStates(nn.Module, ABC):
    """The states before the first iteration.

    Arguments:
        architectures: Sizes come from these.

    >>> from scalegmn.core.groups import Sign
    >>> a = Architecture.mlp([2, 8, 1], "tanh")
    >>> init = Init([a], Style((Sign,), (Sign,), 8), features=0, edge_positions=False)
    >>> init.encode_edge(Symmetry.full(a), 0, torch.randn(5, 8, 2, 1)).dense().shape
    torch.Size([5, 8, 2, 8])
    """

    edge: nn.Linear | None
    edge_positions: EdgePositions | None

    def __init__(self, architectures: Sequence[Architecture]) -> None:
        super().__init__()
        self.kernels = Kernels(architectures)

    @abstractmethod
    def encode_vertex(
        self, networks: Networks, symmetry: Symmetry, layer: int, position: Tensor, features: Sequence[Tensor]
    ) -> Tensor:
        """The first states (B, n, h) of one layer.

        Arguments:
            networks: The networks.
            symmetry: Of their architecture.
            layer: The layer.
            position: Its encodings (n, p).
            features: Further features of its neurons (B, n, F), moving as q.
        """

    @abstractmethod
    def encode_edge(self, symmetry: Symmetry, connection: int, w: Tensor) -> Edge:
        """The first states of the edges of one connection, from weights (B, n_t, n_s, K)."""

    @abstractmethod
    def measure(self, training: Sequence[Networks]) -> None:
        """Measure constants of size on training networks."""

    def project(self, symmetry: Symmetry, connection: int, w: Tensor, factor: Tensor | None = None) -> Edge:
        """Gamma_E w on the edges of one connection, times a factor that broadcasts against (n_t, n_s, h)."""
        assert self.edge is not None
        # The rows of the map that zeros would meet are left out instead.
        matrix = self.edge.weight
        if w.shape[-1] != self.kernels.size:
            matrix = matrix[:, self.kernels.columns(symmetry.architecture.connections[connection])]
        if symmetry.everywhere(connection) and w.shape[-1] == 1 and not w.requires_grad:
            # A weight times a vector, which the factor makes one of the sources or of the targets.
            if factor is None:
                return Edge(matrix.T, w.squeeze(-1))
            if factor.shape[0] == 1 or factor.shape[1] == 1:
                by_target = factor.shape[0] > 1
                x = matrix.T * factor.squeeze(1 if by_target else 0)
                return Edge(x if len(x) == 1 else x.unsqueeze(0), w.squeeze(-1), by_target=by_target)
        e = F.linear(w, matrix)
        return Edge(e if factor is None else e * factor)


def biases(networks: Networks, layer: int) -> Tensor:
    """The biases (B, n) of one layer; 1 for layers that nothing enters, the input and constants."""
    b = networks.biases[layer]
    if b is not None:
        return b
    silent = not networks.architecture.incoming[layer]
    return networks.parameters.new_full((len(networks), networks.architecture.layers[layer].size), float(silent))


class AugmentedStates(FirstStates):
    r"""\(\mathrm{INIT}_V(b, p) = \mathsf{AugScaleEq}(b, p)\), MLPs for input and output neurons.

    Arguments:
        architectures: Sizes come from these.
        style: What all functions have in common.
        features: Vertex features beside the bias.
        edge_positions: Whether edges are encoded.
        linear: Whether edges start as a linear map of weights.

    >>> [kind.__name__ for kind in AugmentedStates.__subclasses__()][:1]
    ['Init']
    """

    bias_gain: Tensor

    def __init__(
        self,
        architectures: Sequence[Architecture],
        style: Style,
        *,
        features: int,
        edge_positions: bool,
        linear: bool = True,
    ) -> None:
        super().__init__(architectures)
        inputs, width, nets = 1 + features, style.width, style.nets
        self.vertex = ScaleEquivariant(style.vertex_groups, inputs, width, nets, contexts=[width])
        self.input = nets.mlp(inputs + width, width)
        self.output = nets.mlp(inputs + width, width)
        self.edge = nn.Linear(self.kernels.size, width, bias=False) if linear else None
        if self.edge is not None:
            start_linear(self.edge)
        self.edge_positions = EdgePositions(architectures, width) if edge_positions else None
        self.register_buffer("bias_gain", torch.ones(max(len(a.layers) for a in architectures)))

    def encode_vertex(
        self, networks: Networks, symmetry: Symmetry, layer: int, position: Tensor, features: Sequence[Tensor]
    ) -> Tensor:
        b = biases(networks, layer)
        x = torch.cat([(self.bias_gain[layer].to(b) * b).unsqueeze(-1), *features], -1)
        if symmetry.is_hidden(layer):
            y: Tensor = self.vertex(symmetry.groups[layer], x, [position])
        else:
            mlp = self.input if layer == 0 else self.output
            y = mlp(torch.cat([x, position.expand(*x.shape[:-1], -1)], -1))
        return y


class Init(AugmentedStates):
    r"""The first states in our form: \(\mathrm{INIT}_E(w) = \Gamma_E w\).

    With edge positions, \(\mathrm{INIT}_E(w, p) = \Gamma_E w \odot (1 + p)\). Weights and biases are divided by their
    typical size.

    >>> from scalegmn.core.groups import Sign
    >>> a = Architecture.mlp([2, 8, 1], "tanh")
    >>> Init([a], Style((Sign,), (Sign,), 8), features=0, edge_positions=False).bias_gain.shape
    torch.Size([3])
    """

    def encode_edge(self, symmetry: Symmetry, connection: int, w: Tensor) -> Edge:
        factor = None if self.edge_positions is None else 1 + self.edge_positions(symmetry, connection)
        return self.project(symmetry, connection, w, factor)

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
    """The first dual states: output gradients at probes, or 0 without probes; MLPs at input and output neurons.

    Arguments:
        style: What all functions have in common.
        features: Number of gradients per neuron.

    >>> from scalegmn.core.groups import Sign
    >>> symmetry = Symmetry.full(Architecture.mlp([2, 8, 1], "tanh"))
    >>> init = DualInit(Style((Sign,), (Sign,), 8), features=0)
    >>> init(symmetry, 1, torch.randn(5, 8, 8), torch.randn(8, 8), []).shape
    torch.Size([5, 8, 8])
    """

    def __init__(self, style: Style, *, features: int) -> None:
        super().__init__()
        w, nets = style.width, style.nets
        self.vertex = ScaleEquivariant(style.vertex_groups, features, w, nets, contexts=[w]) if features else None
        self.input = nets.mlp(features + w, w)
        self.output = nets.mlp(features + w, w)

    def forward(
        self, symmetry: Symmetry, layer: int, x: Tensor, position: Tensor, features: Sequence[Tensor]
    ) -> Tensor:
        """The first dual states (B, n, h) of one layer, from its first states, encodings and gradients."""
        d = torch.zeros_like(x)
        if not symmetry.is_hidden(layer):
            mlp = self.input if layer == 0 else self.output
            d = mlp(torch.cat([position.expand(*x.shape[:-1], -1), *features], -1))
        elif self.vertex is not None:
            d = self.vertex(symmetry.groups[layer], features[0], [position])
        return d


def reciprocal(w: Tensor) -> Tensor:
    """1/w, and 0 if w is 0 or so small that the square of 1/w would overflow."""
    zero = w.abs() < math.sqrt(torch.finfo(w.dtype).tiny)
    return torch.where(zero, 0, 1 / w.masked_fill(zero, 1))


def _table(rows: int, width: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, width) if rows else torch.zeros(0, width))
