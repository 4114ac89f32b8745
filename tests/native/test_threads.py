"""Threads share out parts of a net that follow from its sizes: any number of them gives the same bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from strategies import generator
from torch import Tensor

from scalegmn.native import library
from scalegmn.native.formula import NONE, SOURCE, TARGET, Edge
from scalegmn.native.net import Ends, Gate, net

pytestmark = pytest.mark.skipif(library.load() is None, reason="no compiler")
WIDTH = 16
# Networks, targets and sources: many small networks, one that is cut into pieces, a few, one without two targets.
SIZES = {"many": (40, 8, 5), "one": (1, 70, 40), "few": (3, 33, 31), "one target": (1, 1, 900)}


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=generator(seed)).requires_grad_()


def everything(size: tuple[int, int, int], form: str, to: int, dtype: torch.dtype) -> list[Tensor]:
    """Values and all gradients of a net."""
    networks, targets, sources = size
    w = WIDTH
    gate = [draw(*s, seed=i) for i, s in enumerate(((w, w), (w,), (w,), (w,), (w, w), (w,)))]
    gamma, matrix = draw(w, w, seed=6), draw(w, w, seed=7)
    vertex, scalar = draw(networks, sources, w, seed=8), draw(*size, seed=9).detach()
    x = draw(networks, sources, w, seed=10) if form == "factored" else draw(*size, w, seed=10)
    ends = [draw(networks, n, w, seed=11 + i) for i, n in enumerate((targets, sources, targets, sources))]
    leaves = [*gate, gamma, x, *ends, *([] if form == "factored" else [matrix, vertex])]
    leaves = [t.detach().to(dtype).requires_grad_() for t in leaves]
    *gate, gamma, x, a, b, c, d = leaves[:12]
    edge = Edge(x, scalar.to(dtype)) if form == "factored" else Edge(x, None, leaves[12], leaves[13])
    absolute = form == "absolute"
    y = net(gamma, Gate(*gate, 1e-5, not absolute, absolute, True), edge, Ends(a, b, c, d), reduce=to)  # type: ignore[call-arg, arg-type]
    return [y.detach(), *torch.autograd.grad(y.sin().sum(), leaves)]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("to", [NONE, TARGET, SOURCE])
@pytest.mark.parametrize("form", ["rescaled", "absolute", "factored"])
@pytest.mark.parametrize("size", SIZES)
def test_the_number_of_threads_does_not_change_a_bit(size: str, form: str, to: int) -> None:
    torch.set_num_threads(1)
    expected = everything(SIZES[size], form, to, torch.float32)
    for count in (2, 3, 7):
        torch.set_num_threads(count)
        assert all(map(torch.equal, everything(SIZES[size], form, to, torch.float32), expected))


@pytest.mark.parametrize("to", [NONE, TARGET, SOURCE])
@pytest.mark.parametrize("form", ["rescaled", "absolute", "factored"])
@pytest.mark.parametrize("size", SIZES)
def test_pieces_give_what_the_formula_gives(size: str, form: str, to: int) -> None:
    found = everything(SIZES[size], form, to, torch.float64)
    with library.disabled():
        expected = everything(SIZES[size], form, to, torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)
