"""Layer statistics and the trees that use them."""

from __future__ import annotations

import pytest
import torch

from scalegmn.core.architecture import Architecture
from scalegmn.core.networks import Networks
from scalegmn.errors import ScaleGMNError
from scalegmn.models.peers.statnn import Memory, StatNN, StatNNTrees, statistics

ARCHITECTURE = Architecture.mlp([2, 5, 1], "tanh")


def networks(count: int, seed: int = 0) -> Networks:
    generator = torch.Generator().manual_seed(seed)
    scale = torch.linspace(0.5, 2.0, count)[torch.randperm(count, generator=generator)]
    return Networks(ARCHITECTURE, scale[:, None] * torch.randn(count, ARCHITECTURE.parameters, generator=generator))


def test_statistics_agree_with_torch() -> None:
    batch = networks(7)
    found = statistics(batch).unflatten(1, (-1, 7))
    assert found.shape == (7, len(ARCHITECTURE.segments), 7)
    for i, s in enumerate(ARCHITECTURE.segments):
        part = batch.parameters[:, s.start : s.start + s.size]
        torch.testing.assert_close(found[:, i, 0], part.mean(1))
        torch.testing.assert_close(found[:, i, 1], part.var(1, correction=0))
        quantiles = torch.quantile(part, torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]), dim=1).T
        torch.testing.assert_close(found[:, i, 2:], quantiles)


def test_statistics_are_standardised_by_prepare() -> None:
    model = StatNN([ARCHITECTURE], 1)
    batch = networks(100)
    seen: list[torch.Tensor] = []
    model.trunk.maps.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    model(batch)
    model.prepare([batch])
    model(batch)
    assert seen[0].std(0).max() > 2 * seen[0].std(0).min()
    torch.testing.assert_close(seen[1].mean(0), torch.zeros(28), atol=1e-5, rtol=0)
    # One bias has no spread: a single output neuron has variance 0 in every network.
    spread = seen[1].std(0, correction=0)
    assert ((spread - 1).abs() < 1e-4).sum() == 27


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_trees_learn(task: str) -> None:
    train, test = networks(400), networks(200, seed=1)

    def targets(batch: Networks) -> torch.Tensor:
        spread = batch.parameters.std(1)
        return spread if task == "regression" else (spread > 1.2).long()

    trees = StatNNTrees(task, iterations=60, learning_rate=0.1).fit([train], targets(train))  # type: ignore[arg-type]
    found, true = trees.predict(test), targets(test)
    if task == "regression":
        assert ((found - true).square().mean() / true.var()).item() < 0.1
    else:
        assert (found == true).double().mean().item() > 0.9
    assert "HistGradientBoosting" in repr(trees)


def test_trees_complain() -> None:
    with pytest.raises(ScaleGMNError, match="call fit first"):
        StatNNTrees("regression").predict(networks(3))
    with pytest.raises(ScaleGMNError, match="expected 'classification' or 'regression'"):
        StatNNTrees("ranking")  # type: ignore[arg-type]
    deeper = Architecture.mlp([2, 5, 4, 1], "tanh")
    trees = StatNNTrees("regression", iterations=2).fit(networks(40), torch.randn(40))
    with pytest.raises(ScaleGMNError, match="made for at most 28 statistics"):
        trees.predict(Networks(deeper, torch.randn(3, deeper.parameters)))


def test_weights_are_sorted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sorted_rows: list[int] = []
    whole = torch.Tensor.sort

    def counted(x: torch.Tensor, dim: int) -> object:
        sorted_rows.append(len(x))
        return whole(x, dim=dim)

    monkeypatch.setattr(torch.Tensor, "sort", counted)
    memory, batch = Memory(most=12), networks(10)
    expected = statistics(batch)
    tensors = len(ARCHITECTURE.segments)
    del sorted_rows[:]
    for rows in ([0, 1, 2], [2, 1, 3], [0, 3]):
        assert torch.equal(memory(batch[rows]), expected[rows])
    assert sorted_rows == [3] * tensors + [1] * tensors
    # Full: it begins anew, and is still right.
    assert torch.equal(memory(batch), expected)
    assert torch.equal(memory(networks(5, seed=1)), statistics(networks(5, seed=1)))
    assert len(memory) == 5


def test_what_is_remembered_is_never_another_network() -> None:
    memory, batch = Memory(), networks(3)
    other = Architecture.mlp([3, 4, 1], "tanh")
    assert other.parameters == ARCHITECTURE.parameters
    memory(batch)
    same_weights = Networks(other, batch.parameters)
    assert torch.equal(memory(same_weights), statistics(same_weights))
    assert not torch.equal(memory(same_weights), statistics(batch))
    batch.parameters.add_(1)
    assert torch.equal(memory(batch), statistics(batch))
    batch.parameters.requires_grad_()
    (gradient,) = torch.autograd.grad(memory(batch).sum(), batch.parameters)
    assert gradient.abs().sum() > 0
