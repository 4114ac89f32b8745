"""inr2vec: the encoder's symmetry, its pretraining, and what follows."""

from __future__ import annotations

import pytest
import torch

from scalegmn.core.architecture import Architecture
from scalegmn.core.networks import Networks
from scalegmn.errors import ScaleGMNError
from scalegmn.models.peers.inr2vec import Inr2Vec, RowEncoder, stacked_rows

ARCHITECTURE = Architecture.mlp([2, 6, 6, 1], "sine")


def family(count: int, seed: int = 0) -> tuple[Networks, torch.Tensor]:
    """Two classes of networks around a common start, as networks fitted from one initialisation are."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(ARCHITECTURE.parameters, generator=torch.Generator().manual_seed(9))
    direction = torch.randn(ARCHITECTURE.parameters, generator=torch.Generator().manual_seed(8))
    labels = torch.randint(2, (count,), generator=generator)
    noise = 0.1 * torch.randn(count, ARCHITECTURE.parameters, generator=generator)
    return Networks(ARCHITECTURE, start + 0.5 * (2 * labels[:, None] - 1) * direction + noise), labels


def test_rows_are_those_between_hidden_layers() -> None:
    networks, _ = family(3)
    rows = stacked_rows(networks)
    assert rows.shape == (3, 7, 6)
    middle = networks.weights[1]
    assert middle is not None
    assert torch.equal(rows[:, :6], middle[..., 0])
    assert networks.biases[2] is not None
    assert torch.equal(rows[:, 6], networks.biases[2])
    deeper = Architecture.mlp([2, 6, 6, 6, 1], "sine", bias=False)
    assert stacked_rows(Networks(deeper, torch.randn(3, deeper.parameters))).shape == (3, 12, 6)


def test_the_order_of_rows_does_not_matter_but_that_of_columns_does() -> None:
    torch.manual_seed(0)
    encoder = RowEncoder(6, 16, 3, 8).double().eval()
    rows = torch.randn(4, 7, 6, dtype=torch.float64)
    torch.testing.assert_close(encoder(rows[:, torch.randperm(7)]), encoder(rows), rtol=0, atol=1e-12)
    assert not torch.allclose(encoder(rows.flip(2)), encoder(rows))


def test_pretraining_reproduces_functions_and_freezes_the_encoder() -> None:
    torch.manual_seed(0)
    networks, labels = family(200)
    model = Inr2Vec([ARCHITECTURE], 2, width=32, layers=3, embedding=32, pretraining=150)
    model.eval()
    with torch.no_grad():
        before = torch.stack([model.trunk.reconstruction_loss(networks) for _ in range(5)]).mean()
    model.prepare([networks])
    model.eval()
    with torch.no_grad():
        after = torch.stack([model.trunk.reconstruction_loss(networks) for _ in range(5)]).mean()
    assert after < 0.5 * before

    code = model.trunk(networks)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(40):
        model.train()
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(networks), labels).backward()
        optimiser.step()
    model.eval()
    torch.testing.assert_close(model.trunk(networks), code, rtol=0, atol=0)
    unseen, expected = family(200, seed=1)
    assert (model(unseen).argmax(1) == expected).double().mean().item() > 0.8


def test_frozen_survives_saving() -> None:
    networks, _ = family(20)
    model = Inr2Vec([ARCHITECTURE], 2, width=8, layers=2, embedding=8, pretraining=2)
    model.prepare([networks])
    other = Inr2Vec([ARCHITECTURE], 2, width=8, layers=2, embedding=8, pretraining=2)
    other.load_state_dict(model.state_dict())
    other(networks).sum().backward()
    assert all(p.grad is None for p in other.trunk.encoder.parameters())
    joint = Inr2Vec([ARCHITECTURE], 2, width=8, layers=2, embedding=8, pretraining=0)
    joint.prepare([networks])
    joint(networks).sum().backward()
    assert all(p.grad is not None for p in joint.trunk.encoder.parameters())


@pytest.mark.parametrize("widths", [[2, 6, 1], [2, 6, 5, 1], [2, 1]], ids=str)
def test_hidden_layers_must_be_alike(widths: list[int]) -> None:
    with pytest.raises(ScaleGMNError, match="inr2vec: expected two or more hidden layers of equal size"):
        Inr2Vec([Architecture.mlp(widths)], 2)
