"""Neural graphs: a network as a graph of neurons whose edges carry the weights.

Kofinas et al., Graph neural networks for learning equivariant representations of neural networks, ICLR 2024.
Neurons (or channels) are nodes, biases are node features, weights (or kernels) are edge features. The graph is a
sequence of complete bipartite blocks, so a block's edges are one dense tensor (B, n_t, n_s, d).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from ...core.architecture import Architecture
from ...core.networks import Networks
from ...core.spec import Depth, Number, Range
from ...nn.kernels import kernel_shape, kind, largest_kernels, pad_kernel
from ...nn.probes import Probes
from ..normalise import NormalisedSpec
from .fourier import FourierFeatures


@dataclass(frozen=True)
class EdgeBlock:
    """The edges of one connection in one direction: messages run from layer `source` to layer `target`.

    Arguments:
        connection: Position in `Architecture.connections`.
        source, target: Layers; swapped if the block is reversed.
        dense: Whether every source neuron connects to every target neuron, or only to the one of the same number.
        reverse: Whether it runs against the connection.

    >>> edge_blocks(Architecture.mlp([2, 8, 1]))[2]
    EdgeBlock(connection=0, source=1, target=0, dense=True, reverse=True)
    """

    connection: int
    source: int
    target: int
    dense: bool
    reverse: bool


@dataclass(frozen=True, repr=False)
class GraphSpec(NormalisedSpec):
    """The options of models on neural graphs.

    Arguments:
        layers: Rounds of message passing, or of attention.
        probes: Number of probe inputs; 0 for none.
        probe_image: Spatial shape of the probes, for convolutional networks.
        frequencies: Of the Fourier features of weights and biases; 0 for none, as in the original's editing
            experiments.
        sigma: Spread of the frequencies.

    >>> GraphSpec(probes=64)
    GraphSpec(probes=64)
    """

    layers: Depth = 4
    probes: Number = 0
    probe_image: tuple[int, ...] = ()
    frequencies: Number = 128
    sigma: Annotated[float, Range(0)] = 3.0


def edge_blocks(architecture: Architecture, *, reverse: bool = True) -> tuple[EdgeBlock, ...]:
    """All blocks of a graph: one per connection, then one per connection reversed."""
    found = [EdgeBlock(i, c.source, c.target, c.dense, False) for i, c in enumerate(architecture.connections)]
    back = [EdgeBlock(i, c.target, c.source, c.dense, True) for i, c in enumerate(architecture.connections)]
    return (*found, *back) if reverse else tuple(found)


class Encoder(nn.Module):
    """Scalars (or kernels) to states: random Fourier features and a linear map, or the linear map alone.

    Arguments:
        inputs, outputs: Sizes of the last dimension.
        frequencies: Of the Fourier features; 0 for none.
        sigma: Their spread.

    >>> Encoder(1, 16, frequencies=8, sigma=3.0)(torch.randn(5, 8, 1)).shape
    torch.Size([5, 8, 16])
    """

    def __init__(self, inputs: int, outputs: int, *, frequencies: int, sigma: float) -> None:
        super().__init__()
        self.fourier = FourierFeatures(inputs, frequencies, sigma=sigma) if frequencies else None
        self.linear = nn.Linear(self.fourier.outputs if self.fourier else inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """States (..., outputs) of inputs (..., inputs)."""
        states: Tensor = self.linear(self.fourier(x) if self.fourier else x)
        return states


class ProbedNodes(nn.Module):
    """The responses of every neuron to learned inputs, mapped to node states.

    Arguments:
        architectures: Of the networks.
        count: Number of probes.
        width: Size of the node states.
        image: Spatial shape of the probes, for convolutional networks.

    >>> a = Architecture.mlp([2, 8, 1])
    >>> ProbedNodes([a], 4, 16)(Networks(a, torch.randn(5, a.parameters))).shape
    torch.Size([5, 11, 16])
    """

    def __init__(
        self, architectures: Sequence[Architecture], count: int, width: int, *, image: tuple[int, ...] = ()
    ) -> None:
        super().__init__()
        self.probes = Probes(architectures, count, image=image)
        depth = max(len(a.layers) for a in architectures)
        self.maps = nn.ModuleList(nn.Sequential(nn.Linear(count, width), nn.LayerNorm(width)) for _ in range(depth))

    def forward(self, networks: Networks) -> Tensor:
        """Node states (B, N, d) for all neurons of all layers."""
        outputs = self.probes.outputs(networks)
        # The output layer has the last map, whatever the depth.
        maps = [*self.maps[: len(outputs) - 1], self.maps[-1]]
        return torch.cat([f(y) for f, y in zip(maps, outputs, strict=True)], dim=1)


class NeuralGraph(nn.Module):
    r"""The initial states of nodes and edges.

    \[x_i = U (\gamma(\hat b_i) + p_i) + \pi_{l(i)}, \qquad e_{ij} = V \gamma(\hat w_{ij})\]

    with normalised biases and weights, Fourier features \(\gamma\), probe features p and positional encodings
    \(\pi\): one for each input neuron, each output neuron and each hidden layer. A hidden layer's activation has an
    encoding too. Kernels are flattened on an edge, padded with zeros to the largest.

    Arguments:
        architectures: Every architecture it will meet.
        spec: The options; nodes have their width.
        edges: Size of the edge states.
        reverse: Whether edges also run backwards, with states of their own.

    >>> a = Architecture.mlp([2, 8, 1])
    >>> graph = NeuralGraph([a], GraphSpec(), edges=32)
    >>> networks = Networks(a, torch.randn(5, a.parameters))
    >>> [tuple(x.shape) for x in graph.node_states(networks, networks)]
    [(5, 2, 64), (5, 8, 64), (5, 1, 64)]
    >>> [tuple(e.shape) for e in graph.edge_states(networks).values()]
    [(5, 8, 2, 32), (5, 1, 8, 32), (5, 2, 8, 32), (5, 8, 1, 32)]
    """

    def __init__(
        self, architectures: Sequence[Architecture], spec: GraphSpec, *, edges: int, reverse: bool = True
    ) -> None:
        super().__init__()
        self.reverse = reverse
        nodes, frequencies, sigma = spec.width, spec.frequencies, spec.sigma
        self.kernels = largest_kernels(architectures)
        directions = 2 if reverse else 1
        self.edge_encoders = nn.ModuleDict(
            {
                name: Encoder(math.prod(shape), directions * edges, frequencies=frequencies, sigma=sigma)
                for name, shape in self.kernels.items()
            }
        )
        self.slopes = any(layer.activation.learned_slope for a in architectures for layer in a.layers)
        self.node_encoder = Encoder(2 if self.slopes else 1, nodes, frequencies=frequencies, sigma=sigma)
        self.node_map = nn.Linear(nodes, nodes)
        self.probed = ProbedNodes(architectures, spec.probes, nodes, image=spec.probe_image) if spec.probes else None
        self.input_positions = nn.Parameter(torch.randn(max(a.layers[0].size for a in architectures), nodes))
        self.output_positions = nn.Parameter(torch.randn(max(a.layers[-1].size for a in architectures), nodes))
        self.hidden_positions = nn.Parameter(torch.randn(max(len(a.layers) for a in architectures) - 2, nodes))
        names = dict.fromkeys(str(layer.activation) for a in architectures for layer in a.layers[1:-1])
        self.activation_index = {name: i for i, name in enumerate(names)}
        self.activation_positions = nn.Parameter(torch.randn(len(names), nodes))

    def node_states(self, networks: Networks, normalised: Networks) -> tuple[Tensor, ...]:
        """The first node states, per layer (B, n, d).

        Arguments:
            networks: The original networks, for the probes.
            normalised: The same with normalised parameters.
        """
        layers = networks.architecture.layers
        x: Tensor = self.node_encoder(self._node_features(normalised))
        if self.probed is not None:
            x = x + self.probed(networks)
        x = self.node_map(x) + self._positions(networks.architecture)
        states: tuple[Tensor, ...] = x.split([layer.size for layer in layers], dim=1)
        return states

    def edge_states(self, normalised: Networks) -> dict[EdgeBlock, Tensor]:
        """The first edge states, per block (B, n_t, n_s, d), or (B, n, d) for an elementwise connection."""
        a = normalised.architecture
        features = self.edge_features(normalised)
        states = [self.edge_encoders[kind(c)](f) for c, f in zip(a.connections, features, strict=True)]
        if not self.reverse:
            return dict(zip(edge_blocks(a, reverse=False), states, strict=True))
        pairs = [s.chunk(2, dim=-1) for s in states]
        forward = [p[0] for p in pairs]
        back = [p[1].transpose(1, 2) if c.dense else p[1] for p, c in zip(pairs, a.connections, strict=True)]
        return dict(zip(edge_blocks(a), [*forward, *back], strict=True))

    def dense_edge_states(self, normalised: Networks) -> Tensor:
        """All pairs (B, N, N, d): row i holds the weights into neuron i; unconnected pairs have a weight of zero."""
        layers = normalised.architecture.layers
        name, encoder = next(iter(self.edge_encoders.items()))
        zero = normalised.parameters.new_zeros(math.prod(self.kernels[name]))
        absent: Tensor = encoder(zero)
        found: dict[tuple[int, int], Tensor] = {}
        for b, e in self.edge_states(normalised).items():
            state = e if b.dense else absent + torch.diag_embed((e - absent).mT).movedim(1, 3)
            other = found.get((b.target, b.source))
            found[b.target, b.source] = state if other is None else other + state - absent
        rows = []
        for t, target in enumerate(layers):
            empty = [absent.expand(len(normalised), target.size, source.size, -1) for source in layers]
            rows.append(torch.cat([found.get((t, s), empty[s]) for s in range(len(layers))], dim=2))
        return torch.cat(rows, dim=1)

    def measure(self, training: Sequence[Networks]) -> None:
        """Bring answers to probes to a common size."""
        if self.probed is not None:
            self.probed.probes.measure(training)

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

    def _node_features(self, normalised: Networks) -> Tensor:
        """Bias, and slope if slopes are learned, of every neuron (B, N, 1 or 2); zero if there is none."""
        columns = [normalised.biases, normalised.views.slopes] if self.slopes else [normalised.biases]
        zero = normalised.parameters.new_zeros(len(normalised), 1)
        parts = []
        for i, layer in enumerate(normalised.architecture.layers):
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
