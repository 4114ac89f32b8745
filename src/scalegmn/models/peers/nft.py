r"""Neural functional transformers: attention between the rows and columns that meet in a layer (Zhou et al. 2023).

Neurons of layer l index the columns of the weights that leave it and the rows of the weights that enter it. Each of
those matrices is a set of vectors over the neurons of layer l, and so is the bias. They attend to each other:

    tokens of layer l:   the n_(l-1) columns of W_l, the bias b_l, the n_(l+1) rows of W_(l+1), each in R^(n_l x c)

A permutation of layer l permutes the entries of all its tokens alike, which does not change inner products; a
permutation of its neighbours permutes the tokens, with which attention commutes. A second attention acts between the
means of tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...core.architecture import Architecture
from ...core.networks import Networks
from ...core.spec import Count
from ...errors import ScaleGMNError
from ...nn.kernels import kernel_shape, largest, pad_kernel
from ..method import Method
from ..normalise import NormalisedSpec
from ..parts.dense import standardised
from ..trunk import Pooling, Trunk, chain


@dataclass(frozen=True)
class Arrangement:
    """The places of the states of weights and biases in a flat tensor (B, S, c): all weights, then all biases.

    Arguments:
        weights: Per connection (n_t, n_s).
        biases: Per layer after the first its number of neurons; 0 if it has no bias.

    >>> Arrangement(((8, 2), (1, 8)), (8, 1)).weights
    ((8, 2), (1, 8))
    """

    weights: tuple[tuple[int, int], ...]
    biases: tuple[int, ...]

    @staticmethod
    def of(architecture: Architecture) -> Arrangement:
        """The shapes of a chain."""
        sizes = [layer.size for layer in architecture.layers]
        biases = [layer.size if layer.bias else 0 for layer in architecture.layers[1:]]
        return Arrangement(tuple(zip(sizes[1:], sizes, strict=False)), tuple(biases))

    def split(self, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Views (B, n_t, n_s, ...) and (B, n, ...) of a flat tensor (B, S, ...)."""
        parts = x.split([t * s for t, s in self.weights] + list(self.biases), dim=1)
        count = len(self.weights)
        return [p.unflatten(1, shape) for p, shape in zip(parts, self.weights, strict=False)], list(parts[count:])


class WeightSpaceAttention(nn.Module):
    """Attention among the tokens of every layer, and among the means of all tensors.

    Arguments:
        width: Channels c.
        heads: Attention heads, which divide c.

    >>> WeightSpaceAttention(16, 4)(torch.randn(5, 33, 16), Arrangement(((8, 2), (1, 8)), (8, 1))).shape
    torch.Size([5, 33, 16])
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries_keys_values = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor, shapes: Arrangement) -> Tensor:
        """States (B, S, c) to states of the same shape."""
        weights, biases = shapes.split(self.queries_keys_values(x).unflatten(-1, (3, self.heads, -1)))
        means = self._between_means(weights, biases)
        from_rows: list[Tensor] = []
        new_weights: list[Tensor] = []
        new_biases: list[Tensor] = []
        for layer in range(len(weights) + 1):
            columns = weights[layer - 1].permute(3, 0, 4, 2, 1, 5) if layer else None
            bias = biases[layer - 1].permute(2, 0, 3, 1, 4)[:, :, :, None] if layer else None
            rows = weights[layer].permute(3, 0, 4, 1, 2, 5) if layer < len(weights) else None
            found = _attend([columns, None if bias is None or not bias.shape[4] else bias, rows])
            if columns is not None and bias is not None:
                whole = found[0].permute(0, 3, 2, 1, 4) + from_rows.pop() + means[layer - 1][:, None, None]
                new_weights.append(whole.flatten(3).flatten(1, 2))
                if bias.shape[4]:
                    shift = found[1][:, :, 0].transpose(1, 2) + means[len(weights) + len(new_biases)][:, None]
                    new_biases.append(shift.flatten(2))
            if rows is not None:
                from_rows.append(found[-1].permute(0, 2, 3, 1, 4))
        return torch.cat([*new_weights, *new_biases], dim=1)

    def _between_means(self, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Attention among the means of all tensors: for each of them (B, heads, c / heads)."""
        means = [*(w.mean((1, 2)) for w in weights), *(b.mean(1) for b in biases if b.shape[1])]
        (found,) = _attend([torch.stack(means, dim=1).permute(2, 0, 3, 1, 4)[:, :, :, :, None]])
        result: tuple[Tensor, ...] = found[:, :, :, 0].unbind(2)
        return result


def _attend(tokens: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """Attention among sets of tokens (queries, keys, values; B, heads, tokens, n, c): inner products over n and c."""
    present = [t for t in tokens if t is not None]
    q, k, v = torch.cat(present, dim=3).flatten(4).unbind(0)
    # Few tokens of many entries: plain products beat the tiled kernels that are made for the opposite.
    scores = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(q.shape[-1]), dim=-1)
    found: Tensor = (scores @ v).unflatten(-1, present[0].shape[-2:])
    parts: tuple[Tensor, ...] = found.split([t.shape[3] for t in present], dim=2)
    return parts


class NFTBlock(nn.Module):
    """Attention and an MLP of every state, each after LayerNorm and with a residual connection.

    Arguments:
        width: Channels.
        heads: Attention heads.
        dropout: Of what the MLP adds.

    >>> NFTBlock(16, 4, 0.0)(torch.randn(5, 33, 16), Arrangement(((8, 2), (1, 8)), (8, 1))).shape
    torch.Size([5, 33, 16])
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = WeightSpaceAttention(width, heads)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.ReLU(),
            nn.Linear(2 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor, shapes: Arrangement) -> Tensor:
        """States (B, S, c) to states of the same shape."""
        x = x + self.attention(self.norm(x), shapes)
        result: Tensor = x + self.feed_forward(x)
        return result


class TokenEmbedding(nn.Module):
    """First states: a linear map of each weight (or kernel) and bias, plus learned codes.

    Codes distinguish layers, weights and biases, input neurons and output neurons, but not hidden neurons.

    Arguments:
        architectures: Every architecture it will meet.
        width: Channels.

    >>> a = Architecture.mlp([2, 8, 1], "tanh")
    >>> TokenEmbedding([a], 16)(Networks(a, torch.randn(5, a.parameters))).shape
    torch.Size([5, 33, 16])
    """

    def __init__(self, architectures: Sequence[Architecture], width: int) -> None:
        super().__init__()
        self.kernel = largest([kernel_shape(c) for a in architectures for c in a.connections])
        depth = max(len(a.connections) for a in architectures)
        self.weight = nn.Linear(math.prod(self.kernel), width)
        self.bias = nn.Linear(1, width)
        self.layers = nn.Parameter(torch.randn(depth, 2, width))
        self.inputs = nn.Parameter(torch.randn(max(a.layers[0].size for a in architectures), width))
        self.outputs = nn.Parameter(torch.randn(max(a.layers[-1].size for a in architectures), width))

    def forward(self, networks: Networks) -> Tensor:
        """The first states (B, S, c) of a batch."""
        last = len(networks.weights) - 1
        weights, biases = [], []
        for i, (c, w) in enumerate(zip(networks.architecture.connections, networks.weights, strict=True)):
            assert w is not None
            codes = self.layers[i, 0] + (self.inputs[: w.shape[2]] if i == 0 else 0)
            if i == last:
                codes = codes + self.outputs[: w.shape[1], None]
            w = pad_kernel(w, kernel_shape(c), self.kernel)
            weights.append((self.weight(w) + codes).flatten(1, 2))
            b = networks.biases[i + 1]
            if b is not None:
                codes = self.layers[i, 1] + (self.outputs[: b.shape[1]] if i == last else 0)
                biases.append(self.bias(b[..., None]) + codes)
        return torch.cat([*weights, *biases], dim=1)


class AttentionPool(nn.Module):
    """Learned queries that attend to every state: (B, queries x c), invariant.

    Arguments:
        width: Channels c.
        queries: Their number.
        heads: Attention heads.

    >>> AttentionPool(16, 2, 4)(torch.randn(5, 33, 16)).shape
    torch.Size([5, 32])
    """

    def __init__(self, width: int, queries: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries = nn.Parameter(torch.randn(heads, queries, width // heads))
        self.keys_values = nn.Linear(width, 2 * width)

    def forward(self, states: Tensor) -> Tensor:
        """The pooled states (B, S, c)."""
        keys, values = self.keys_values(states).unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = torch.softmax(self.queries @ keys.transpose(2, 3) / math.sqrt(keys.shape[-1]), dim=-1)
        found: Tensor = scores @ values
        return found.flatten(1)


@dataclass(frozen=True, repr=False)
class NFTSpec(NormalisedSpec):
    """The options of neural functional transformers.

    Arguments:
        width: Channels of each parameter, a multiple of `heads`.
        heads: Attention heads.
        queries: Of the pooling.

    >>> NFTSpec(width=16)
    NFTSpec(width=16)
    """

    width: Count = 32
    heads: Count = 4
    queries: Count = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise ScaleGMNError(f"width: expected a number that {self.heads} heads divide, got {self.width}")


class NFTTrunk(Trunk):
    """Blocks of weight-space attention; one model reads chains of any depth and width.

    Zhou et al., Neural Functional Transformers, NeurIPS 2023.

    Reads chains.

    >>> architecture = Architecture.mlp([2, 8, 8, 1], "tanh")
    >>> NFT([architecture], 10)(Networks(architecture, torch.randn(5, architecture.parameters))).shape
    torch.Size([5, 10])
    """

    spec: NFTSpec

    def build(self) -> None:
        spec = self.spec
        chain(self.architectures, self.method.name)
        for a in self.architectures:
            if any(s.kind == "slope" for s in a.segments):
                raise ScaleGMNError(f"nft: reads weights and biases, not learned slopes, got {a}; use nfn-hnp")
        self.tokens = TokenEmbedding(self.architectures, spec.width)
        self.blocks = nn.ModuleList(NFTBlock(spec.width, spec.heads, spec.dropout) for _ in range(spec.layers))

    def forward(self, networks: Networks) -> Tensor:
        """States (B, S, c) of all weights and biases."""
        shapes = Arrangement.of(networks.architecture)
        x: Tensor = self.tokens(self.normalise(networks))
        for block in self.blocks:
            x = block(x, shapes)
        return x

    def pooling(self) -> Pooling:
        spec = self.spec
        sizes = [spec.queries * spec.width, 4 * spec.width, 4 * spec.width]
        one = AttentionPool(spec.width, spec.queries, spec.heads)
        return Pooling(one, standardised(sizes, dropout=spec.dropout), sizes[-1])


_PAPER = "Zhou et al., Neural Functional Transformers, NeurIPS 2023"
NFT = Method("nft", "NFT", _PAPER, ("permutation",), NFTTrunk, NFTSpec())
"""Neural functional transformers (`nft`); options as in `NFTSpec`."""
