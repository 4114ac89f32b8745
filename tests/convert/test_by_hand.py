"""What people write out instead of calling a module: normalisations, gates, pools over sets."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalegmn.core.networks import Networks
from scalegmn.core.transform import Transform

Inner = Callable[[Tensor], Tensor]


class Written(nn.Module):
    """A linear map, what is written by hand, and another."""

    def __init__(self, inner: Inner, kept: int = 6) -> None:
        super().__init__()
        self.a, self.gain, self.out = nn.Linear(4, 6), nn.Parameter(torch.randn(kept)), nn.Linear(kept, 3)
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(self.inner(self.a(x)) * self.gain)
        return found


def centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


BY_HAND: dict[str, tuple[Inner, int]] = {
    "RMSNorm": (lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5), 6),
    "RMSNorm of floats": (lambda x: (lambda y: y * (y * y).mean(dim=-1, keepdim=True).add(0.5).rsqrt())(x.clone()), 6),
    "RMSNorm as a quotient": (lambda x: x / torch.sqrt(torch.mean(x**2, -1, keepdim=True) + 1e-3), 6),
    "LayerNorm": (lambda x: centred(x) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5), 6),
    "LayerNorm of squares": (
        lambda x: (lambda d: d / torch.sqrt((d**2).mean(-1, keepdim=True) + 1e-2))(x - x.mean(-1, keepdim=True)),
        6,
    ),
    "gate": (lambda x: F.glu(x, dim=-1), 3),
}


@pytest.mark.parametrize(("inner", "kept"), BY_HAND.values(), ids=BY_HAND)
def test_written_by_hand(inner: Inner, kept: int) -> None:
    check(Written(inner, kept), ())


@pytest.mark.parametrize(
    "pool",
    [lambda x: x.amax(1), lambda x: x.max(dim=1)[0], lambda x: torch.max(x, 1).values, lambda x: x.mean(1)],
    ids=["amax", "max with places", "values", "mean"],
)
def test_pools_over_sets_tell_that_there_are_positions(pool: Inner) -> None:
    check(Written(lambda x: pool(torch.relu(x))), (5,))


def test_texts_as_means_of_embeddings() -> None:
    module = nn.Sequential(nn.Embedding(9, 6), Mean(), nn.Linear(6, 2)).double()
    x = torch.randint(9, (4, 7))
    torch.testing.assert_close(Networks.from_modules([module]).evaluate(x)[0], module(x).detach())


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def test_a_variance_that_is_not_of_all_is_not_layer_norm() -> None:
    module = Written(lambda x: centred(x) / torch.sqrt(x.var(-1, keepdim=True) + 1e-5))
    with pytest.raises(Exception, match=r"mean over dimensions \(-1,\) is not supported"):
        Networks.from_modules([module])


def check(module: nn.Module, positions: tuple[int, ...]) -> None:
    """The same function before and after a random symmetry."""
    module = module.double()
    networks = Networks.from_modules([module])
    x = torch.randn(3, *positions, 4, dtype=torch.float64)
    expected = module(x).detach()
    inputs = x.movedim(-1, 1)
    for one in (networks, Transform.sample(networks.architecture, 1).apply(networks)):
        found = one.evaluate(inputs)[0].movedim(1, -1)
        torch.testing.assert_close(found, expected, atol=1e-11, rtol=1e-11)
