"""NFT: the attention of each layer against a slow reference, and its law."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from scalegmn.core.architecture import Architecture
from scalegmn.core.networks import Networks
from scalegmn.errors import ScaleGMNError
from scalegmn.models.peers.nft import NFT, Arrangement, TokenEmbedding, WeightSpaceAttention

ARCHITECTURE = Architecture.mlp([2, 4, 3, 2], "tanh")


def softmax_attention(tokens: Tensor) -> Tensor:
    """One head, queries, keys and values in the last dimension of (tokens, n, 3, c): loops over pairs of tokens."""
    q, k, v = tokens.flatten(3).unbind(2)
    found = torch.zeros_like(v)
    for i in range(len(tokens)):
        scores = torch.stack([(q[i] * k[j]).sum() for j in range(len(tokens))]) / q[i].numel() ** 0.5
        weights = torch.softmax(scores, 0)
        for j in range(len(tokens)):
            found[i] += weights[j] * v[j]
    return found


def reference(layer: WeightSpaceAttention, x: Tensor, shapes: Arrangement) -> Tensor:
    """Term by term for one network and one head."""
    qkv = layer.queries_keys_values(x).unflatten(-1, (3, -1))
    weights, biases = shapes.split(qkv)
    new_weights = [torch.zeros_like(w[0, :, :, 0]) for w in weights]
    new_biases = [torch.zeros_like(b[0, :, 0]) for b in biases]
    means = torch.stack([w[0].mean((0, 1)) for w in weights] + [b[0].mean(0) for b in biases])
    shared = softmax_attention(means[:, None])[:, 0]
    for i in range(len(weights)):
        new_weights[i] += shared[i]
        new_biases[i] += shared[len(weights) + i]
    for n in range(len(weights) + 1):
        tokens = []
        if n:
            tokens += [weights[n - 1][0][:, j] for j in range(weights[n - 1].shape[2])] + [biases[n - 1][0]]
        if n < len(weights):
            tokens += [weights[n][0][j] for j in range(weights[n].shape[1])]
        found = list(softmax_attention(torch.stack(tokens)))
        if n:
            for j in range(weights[n - 1].shape[2]):
                new_weights[n - 1][:, j] += found.pop(0)
            new_biases[n - 1] += found.pop(0)
        for j, token in enumerate(found):
            new_weights[n][j] += token
    return torch.cat([*(w.flatten(0, 1) for w in new_weights), *new_biases])


def test_attention_agrees_with_the_reference() -> None:
    torch.manual_seed(0)
    layer = WeightSpaceAttention(5, 1).double()
    shapes = Arrangement.of(ARCHITECTURE)
    x = torch.randn(3, ARCHITECTURE.parameters, 5, dtype=torch.float64)
    with torch.no_grad():
        found = layer(x, shapes)
        for i in range(3):
            torch.testing.assert_close(found[i], reference(layer, x[i : i + 1], shapes), rtol=1e-9, atol=1e-9)


def test_heads_are_independent() -> None:
    """With the values of one head set to zero only its channels become zero."""
    torch.manual_seed(0)
    layer = WeightSpaceAttention(6, 3).double()
    with torch.no_grad():
        layer.queries_keys_values.weight[12:14] = 0
        layer.queries_keys_values.bias[12:14] = 0
        found = layer(torch.randn(2, ARCHITECTURE.parameters, 6, dtype=torch.float64), Arrangement.of(ARCHITECTURE))
    assert torch.equal(found[..., :2], torch.zeros_like(found[..., :2]))
    assert (found[..., 2:].abs() > 0).all()


def test_shapes_lie_one_after_the_other() -> None:
    architecture = Architecture.mlp([2, 4, 3], "tanh", bias=False)
    shapes = Arrangement.of(architecture)
    weights, biases = shapes.split(torch.randn(5, 20, 7))
    assert [tuple(w.shape) for w in weights] == [(5, 4, 2, 7), (5, 3, 4, 7)]
    assert [b.shape[1] for b in biases] == [0, 0]
    model = NFT([architecture], 2, width=8)
    assert model(Networks(architecture, torch.randn(5, architecture.parameters))).shape == (5, 2)


def test_codes_tell_ends_apart_and_hidden_neurons_not() -> None:
    torch.manual_seed(0)
    embedding = TokenEmbedding([ARCHITECTURE], 8)
    zero = Networks(ARCHITECTURE, torch.zeros(1, ARCHITECTURE.parameters))
    weights, biases = Arrangement.of(ARCHITECTURE).split(embedding(zero))
    first, middle, last = (w[0] for w in weights)
    assert not torch.allclose(first[:, 0], first[:, 1])
    assert not torch.allclose(last[0], last[1])
    torch.testing.assert_close(first, first[:1].expand_as(first))
    torch.testing.assert_close(middle, middle[:1, :1].expand_as(middle))
    assert not torch.allclose(biases[-1][0, 0], biases[-1][0, 1])


def test_what_it_refuses() -> None:
    with pytest.raises(ScaleGMNError, match="width: expected a number that 4 heads divide, got 10"):
        NFT([ARCHITECTURE], 2, width=10)
    with pytest.raises(ScaleGMNError, match="nft: reads weights and biases, not learned slopes"):
        NFT([Architecture.mlp([2, 3, 1], "prelu")], 2)


def test_it_learns_what_it_is_shown_and_generalises() -> None:
    torch.manual_seed(0)
    networks = Networks(ARCHITECTURE, torch.randn(256, ARCHITECTURE.parameters))
    first = networks.weights[0]
    assert first is not None
    # Which input has the larger outgoing weights: does not depend on the order of hidden neurons.
    labels = (first[:, :, 0].square().sum((1, 2)) > first[:, :, 1].square().sum((1, 2))).long()
    model = NFT([ARCHITECTURE], 2, width=16, layers=1)
    model.prepare([networks])
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(120):
        batch = torch.arange(64) + 64 * (step % 3)
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(networks[batch]), labels[batch]).backward()
        optimiser.step()
    model.eval()
    right = model(networks).argmax(1) == labels
    assert right[:192].double().mean().item() > 0.95
    assert right[192:].double().mean().item() > 0.75
