"""NFN: what the encoding of input and output neurons does; DWS: batches of one."""

from __future__ import annotations

import pytest
import torch

from scalegmn.core.architecture import Architecture
from scalegmn.core.networks import Networks
from scalegmn.models.method import Method
from scalegmn.models.parts.weight_space import full_folding, hidden_folding, summarise
from scalegmn.models.peers.dws import DWS
from scalegmn.models.peers.nfn import NFNHNP, NFNNP, Encoding, NFNPool, nfn_block, positions

ARCHITECTURE = Architecture.mlp([3, 5, 4, 2], "tanh")


def networks(count: int = 6) -> Networks:
    generator = torch.Generator().manual_seed(0)
    return Networks(ARCHITECTURE, torch.randn(count, ARCHITECTURE.parameters, generator=generator).double())


def with_ends_permuted(batch: Networks, layer: int) -> Networks:
    """Swap the first two input (layer 0) or output neurons."""
    weights = [w.clone() for w in batch.weights if w is not None]
    biases = [None if b is None else b.clone() for b in batch.biases]
    last = biases[-1]
    assert last is not None
    if layer == 0:
        weights[0][:, :, [0, 1]] = weights[0][:, :, [1, 0]]
    else:
        weights[-1][:, [0, 1]] = weights[-1][:, [1, 0]]
        last[:, [0, 1]] = last[:, [1, 0]]
    return Networks.from_tensors(ARCHITECTURE, weights, biases)


@pytest.mark.parametrize("model", [NFNNP, NFNHNP], ids=["np", "hnp"])
@pytest.mark.parametrize("end", [0, -1])
def test_input_and_output_neurons_are_told_apart(model: Method, end: int) -> None:
    torch.manual_seed(0)
    built = model([ARCHITECTURE], 4, width=8, head_width=8).double().eval()
    a, b = built(networks()), built(with_ends_permuted(networks(), end))
    assert ((a - b).abs().max() / a.abs().max()).item() > 1e-6


@pytest.mark.parametrize("end", [0, -1])
def test_without_the_encoding_they_are_not(end: int) -> None:
    torch.manual_seed(0)
    folding = full_folding(ARCHITECTURE)
    block = nfn_block(folding.channels(1), folding.channels(8), dropout=0).double()
    pair = [networks(), with_ends_permuted(networks(), end)]
    a, b = (summarise(block(folding.fold(n.parameters[..., None]))) for n in pair)
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("sizes", [[3, 5, 4, 2], [3, 5, 2], [3, 2]], ids=str)
def test_pooling_keeps_ends_apart_in_both_layouts(sizes: list[int]) -> None:
    architecture = Architecture.mlp(sizes, "prelu")
    full, hidden = full_folding(architecture), hidden_folding(architecture)
    x = torch.randn(2, architecture.parameters, 4, dtype=torch.float64)
    a, b = NFNPool(full)(full.fold(x)), NFNPool(hidden)(hidden.fold(x))
    assert a.shape == b.shape == (2, hidden.channels(4).total)
    torch.testing.assert_close(a.sort(1).values, b.sort(1).values)


def test_positions_differ() -> None:
    found = positions(7)
    assert found.shape == (7, Encoding.size)
    assert torch.pdist(found).min() > 0.1
    assert positions(1).shape == (1, Encoding.size)


def test_a_batch_of_one_trains() -> None:
    model = DWS([ARCHITECTURE], 2, width=4, layers=1).double()
    model(networks(1)).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("reduction", ["mean", "max"])
def test_dws_learns_what_it_is_shown(reduction: str) -> None:
    torch.manual_seed(0)
    batch = networks(64)
    first = batch.weights[0]
    assert first is not None
    # Which input has the larger outgoing weights: does not depend on the order of hidden neurons.
    labels = (first[:, :, 0].square().sum((1, 2)) > first[:, :, 1].square().sum((1, 2))).long()
    model = DWS([ARCHITECTURE], 2, width=8, layers=2, reduction=reduction).double()
    model.prepare([batch])
    optimiser = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(80):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(batch), labels).backward()
        optimiser.step()
    model.eval()
    assert (model(batch).argmax(1) == labels).double().mean().item() > 0.9
