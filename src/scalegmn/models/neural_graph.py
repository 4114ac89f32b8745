"""Neural graphs: a network as a graph of neurons whose edges carry the weights.

Kofinas et al., Graph neural networks for learning equivariant representations of neural networks, ICLR 2024.
Neurons (or channels) are nodes, biases are node features, weights (or kernels) are edge features. The graph is a
sequence of complete bipartite blocks, so a block's edges are one dense tensor (B, n_t, n_s, d).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..core.architecture import Architecture
from ..core.networks import Networks
from ..errors import ScaleGMNError
from .kernels import kernel_shape, kind, largest_kernels, pad_kernel
from .normalise import PerLayer


@dataclass(frozen=True)
class Block:
    """The edges of one connection in one direction: messages run from layer `source` to layer `target`.

    Arguments:
        connection: Position in `Architecture.connections`.
        source, target: Layers; swapped where the block is reversed.
        dense: Whether every source neuron meets every target neuron, or only the one of the same number.
        reverse: Whether it runs against the connection.
    """

    connection: int
    source: int
    target: int
    dense: bool
    reverse: bool


def blocks(architecture: Architecture, *, reverse: bool = True) -> tuple[Block, ...]:
    """All blocks of a graph: one per connection, then one per connection reversed."""
    found = [Block(i, c.source, c.target, c.dense, False) for i, c in enumerate(architecture.connections)]
    back = [Block(i, c.target, c.source, c.dense, True) for i, c in enumerate(architecture.connections)]
    return (*found, *back) if reverse else tuple(found)


class GaussianFeatures(nn.Module):
    r"""Random Fourier features of vectors.

    \[\gamma(x) = [\cos 2 \pi B x, \sin 2 \pi B x], \qquad B_{ij} \sim N(0, \sigma^2 / d)\]

    Tancik et al., Fourier features let networks learn high frequency functions, NeurIPS 2020. Each frequency mixes
    all entries of a kernel; the division by their number d gives a kernel's phases the spread of a scalar's.

    Arguments:
        inputs: Size d of the last dimension.
        frequencies: Number m of rows of B.
        sigma: Their spread.

    >>> GaussianFeatures(9, 16, sigma=3.0)(torch.rand(5, 9)).shape
    torch.Size([5, 32])
    """

    def __init__(self, inputs: int, frequencies: int, *, sigma: float) -> None:
        super().__init__()
        self.outputs = 2 * frequencies
        self.register_buffer("frequencies", sigma / math.sqrt(inputs) * torch.randn(inputs, frequencies))

    def forward(self, x: Tensor) -> Tensor:
        """Features (..., 2m) of inputs (..., d)."""
        phase = x @ (2 * math.pi * self.get_buffer("frequencies"))
        return torch.cat([phase.cos(), phase.sin()], dim=-1)


class Encoder(nn.Module):
    """Scalars (or kernels) to states: random Fourier features and a linear map, or the linear map alone.

    Arguments:
        inputs, outputs: Sizes of the last dimension.
        frequencies: Of the Fourier features; 0 leaves them out.
        sigma: Their spread.
    """

    def __init__(self, inputs: int, outputs: int, *, frequencies: int, sigma: float) -> None:
        super().__init__()
        self.fourier = GaussianFeatures(inputs, frequencies, sigma=sigma) if frequencies else None
        self.linear = nn.Linear(self.fourier.outputs if self.fourier else inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """States (..., outputs) of inputs (..., inputs)."""
        states: Tensor = self.linear(self.fourier(x) if self.fourier else x)
        return states


class Probes(nn.Module):
    """Probe features: what every neuron answers to learned inputs, mapped to node states.

    Arguments:
        architectures: Of the networks.
        count: Number of probes.
        width: Size of the node states.
    """

    def __init__(self, architectures: Sequence[Architecture], count: int, width: int) -> None:
        super().__init__()
        for a in architectures:
            if a.spatial:
                raise ScaleGMNError(f"probes: expected 0 for networks that read images, got {count} for {a}")
        inputs = max(a.layers[0].size for a in architectures)
        depth = max(len(a.layers) for a in architectures)
        self.inputs = nn.Parameter(2 * torch.rand(count, inputs) - 1)
        self.maps = nn.ModuleList(nn.Sequential(nn.Linear(count, width), nn.LayerNorm(width)) for _ in range(depth))

    def forward(self, networks: Networks) -> Tensor:
        """Node states (B, N, d) for all neurons of all layers."""
        responses = networks.responses(self.inputs[:, : networks.architecture.layers[0].size]).post
        # The output layer has the last map, whatever the depth.
        maps = [*self.maps[: len(responses) - 1], self.maps[-1]]
        states = [f(r.transpose(1, 2)) for f, r in zip(maps, responses, strict=True)]
        return torch.cat([s.expand(len(networks), -1, -1) for s in states], dim=1)


class NeuralGraph(nn.Module):
    r"""The initial states of nodes and edges.

    \[x_i = U (\gamma(\hat b_i) + p_i) + \pi_{l(i)}, \qquad e_{ij} = V \gamma(\hat w_{ij})\]

    with normalised biases and weights, Fourier features \(\gamma\), probe features p and positional encodings
    \(\pi\): one for each input neuron, each output neuron and each hidden layer. A hidden layer's activation has an
    encoding too. Kernels lie flat on an edge, padded with zeros to the largest.

    Arguments:
        architectures: Every architecture it will meet.
        nodes, edges: Sizes of the states.
        reverse: Whether edges also run backwards, with states of their own.
        probes: Number of probes.
        frequencies, sigma: Of the Fourier features.

    >>> a = Architecture.mlp([2, 8, 1])
    >>> graph = NeuralGraph([a], nodes=64, edges=32)
    >>> networks = Networks(a, torch.randn(5, a.parameters))
    >>> [tuple(x.shape) for x in graph.node_states(networks)]
    [(5, 2, 64), (5, 8, 64), (5, 1, 64)]
    >>> [tuple(e.shape) for e in graph.edge_states(networks).values()]
    [(5, 8, 2, 32), (5, 1, 8, 32), (5, 2, 8, 32), (5, 8, 1, 32)]
    """

    def __init__(
        self,
        architectures: Sequence[Architecture],
        *,
        nodes: int,
        edges: int,
        reverse: bool = True,
        probes: int = 0,
        frequencies: int = 128,
        sigma: float = 3.0,
    ) -> None:
        super().__init__()
        self.reverse = reverse
        self.normalise = PerLayer(architectures)
        self.kernels = largest_kernels(architectures)
        directions = 2 if reverse else 1
        self.edge_encoders = nn.ModuleDict({
            name: Encoder(math.prod(shape), directions * edges, frequencies=frequencies, sigma=sigma)
            for name, shape in self.kernels.items()
        })
        self.slopes = any(layer.activation.learned_slope for a in architectures for layer in a.layers)
        self.node_encoder = Encoder(2 if self.slopes else 1, nodes, frequencies=frequencies, sigma=sigma)
        self.node_map = nn.Linear(nodes, nodes)
        self.probes = Probes(architectures, probes, nodes) if probes else None
        self.input_positions = nn.Parameter(torch.randn(max(a.layers[0].size for a in architectures), nodes))
        self.output_positions = nn.Parameter(torch.randn(max(a.layers[-1].size for a in architectures), nodes))
        self.hidden_positions = nn.Parameter(torch.randn(max(len(a.layers) for a in architectures) - 2, nodes))
        names = dict.fromkeys(str(layer.activation) for a in architectures for layer in a.layers[1:-1])
        self.activation_index = {name: i for i, name in enumerate(names)}
        self.activation_positions = nn.Parameter(torch.randn(len(names), nodes))

    def node_states(self, networks: Networks) -> tuple[Tensor, ...]:
        """Per layer (B, n, d)."""
        layers = networks.architecture.layers
        x: Tensor = self.node_encoder(self._node_features(networks))
        if self.probes is not None:
            x = x + self.probes(networks)
        x = self.node_map(x) + self._positions(networks.architecture)
        states: tuple[Tensor, ...] = x.split([layer.size for layer in layers], dim=1)
        return states

    def edge_states(self, networks: Networks) -> dict[Block, Tensor]:
        """Per block (B, n_t, n_s, d), or (B, n, d) for an elementwise connection."""
        a = networks.architecture
        features = self.edge_features(self.normalise(networks))
        states = [self.edge_encoders[kind(c)](f) for c, f in zip(a.connections, features, strict=True)]
        if not self.reverse:
            return dict(zip(blocks(a, reverse=False), states, strict=True))
        pairs = [s.chunk(2, dim=-1) for s in states]
        forward = [p[0] for p in pairs]
        back = [p[1].transpose(1, 2) if c.dense else p[1] for p, c in zip(pairs, a.connections, strict=True)]
        return dict(zip(blocks(a), [*forward, *back], strict=True))

    def dense_edge_states(self, networks: Networks) -> Tensor:
        """All pairs (B, N, N, d): row i holds the weights into neuron i; where nothing connects, a weight of zero."""
        layers = networks.architecture.layers
        name, encoder = next(iter(self.edge_encoders.items()))
        zero = networks.parameters.new_zeros(math.prod(self.kernels[name]))
        absent: Tensor = encoder(zero)
        found: dict[tuple[int, int], Tensor] = {}
        for b, e in self.edge_states(networks).items():
            state = e if b.dense else absent + torch.diag_embed((e - absent).mT).movedim(1, 3)
            other = found.get((b.target, b.source))
            found[b.target, b.source] = state if other is None else other + state - absent
        rows = []
        for t, target in enumerate(layers):
            empty = [absent.expand(len(networks), target.size, source.size, -1) for source in layers]
            rows.append(torch.cat([found.get((t, s), empty[s]) for s in range(len(layers))], dim=2))
        return torch.cat(rows, dim=1)

    def edge_features(self, normalised: Networks) -> list[Tensor]:
        """Per connection the padded kernels (B, n_t, n_s, K), or (B, n, 1); ones on a residual connection."""
        found = []
        for c, w in zip(normalised.architecture.connections, normalised.weights, strict=True):
            if w is None:
                size = normalised.architecture.layers[c.target].size
                found.append(normalised.parameters.new_ones(len(normalised), size, 1))
            elif c.dense:
                found.append(pad_kernel(w, kernel_shape(c), self.kernels[kind(c)]))
            else:
                found.append(w.unsqueeze(-1))
        return found

    def _node_features(self, networks: Networks) -> Tensor:
        """Bias, and slope where slopes are learned, of every neuron (B, N, 1 or 2); zero where there is none."""
        normalised = self.normalise(networks)
        columns = [normalised.biases, normalised.views.slopes] if self.slopes else [normalised.biases]
        zero = networks.parameters.new_zeros(len(networks), 1)
        parts = []
        for i, layer in enumerate(networks.architecture.layers):
            values = [column[i] for column in columns]
            parts.append(torch.stack([(zero if v is None else v).expand(-1, layer.size) for v in values], dim=-1))
        return torch.cat(parts, dim=1)

    def _positions(self, architecture: Architecture) -> Tensor:
        """The encodings (N, d)."""
        first, *hidden, last = architecture.layers
        parts = [self.input_positions[: first.size]]
        for i, layer in enumerate(hidden):
            activation = self.activation_positions[self.activation_index[str(layer.activation)]]
            parts.append((self.hidden_positions[i] + activation).expand(layer.size, -1))
        return torch.cat([*parts, self.output_positions[: last.size]])
