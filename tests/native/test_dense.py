"""Vectors on edges in compiled code and in plain torch are the same, and so are their gradients."""

from __future__ import annotations

import pytest
import torch
from strategies import generator
from torch import Tensor

from scalegmn.errors import ScaleGMNError
from scalegmn.native import library
from scalegmn.native.dense import dense
from scalegmn.native.formula import Edge

# Networks, targets and sources: many small networks, one that is cut into pieces, a few, one target.
SIZES = {"many": (40, 8, 5), "one": (1, 70, 40), "few": (3, 33, 31), "one target": (1, 1, 900)}
compiled = pytest.mark.skipif(library.load() is None, reason="no compiler")


def leaves(size: tuple[int, int, int], by_target: bool, dtype: torch.dtype, widths: tuple[int, int]) -> list[Tensor]:
    networks, targets, sources = size
    shapes = (*size, widths[0]), widths[::-1], (networks, targets if by_target else sources, widths[1])
    random = generator(0)
    return [torch.randn(s, generator=random, dtype=dtype).requires_grad_() for s in shapes]


def everything(x: Tensor, edge: Tensor, vertex: Tensor, by_target: bool) -> list[Tensor]:
    """Values and all gradients."""
    y = dense(Edge(x, None, edge, vertex, by_target))
    return [y.detach(), *torch.autograd.grad(y.sin().sum(), [x, edge, vertex])]


@pytest.mark.parametrize("widths", [(32, 16), (16, 48), (5, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("by_target", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_compiled_and_plain_agree(size: str, by_target: bool, dtype: torch.dtype, widths: tuple[int, int]) -> None:
    given = leaves(SIZES[size], by_target, dtype, widths)
    with library.disabled():
        plain = everything(*given, by_target)
    close = 1e-5 if dtype == torch.float32 else 1e-13
    for found, expected in zip(everything(*given, by_target), plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=close * float(expected.abs().max()))


@compiled
@pytest.mark.parametrize("by_target", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_any_number_of_threads_gives_the_same_bytes(size: str, by_target: bool) -> None:
    given, threads, found = leaves(SIZES[size], by_target, torch.float32, (16, 16)), torch.get_num_threads(), []
    try:
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            found.append(everything(*given, by_target))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("by_target", [False, True])
def test_gradients_are_those_of_the_formula(by_target: bool) -> None:
    """First and second ones, also of tensors that are not contiguous, and where only some are needed."""
    x, edge, vertex = leaves((1, 2, 3), by_target, torch.float64, (8, 8))
    turned = edge.detach().T.requires_grad_()

    def of(x: Tensor, edge: Tensor, vertex: Tensor) -> Tensor:
        return dense(Edge(x, None, edge, vertex, by_target))

    assert torch.autograd.gradcheck(of, (x, turned, vertex))
    assert torch.autograd.gradgradcheck(of, (x, turned, vertex))
    for needed in range(3):
        some = [t.detach().requires_grad_(i == needed) for i, t in enumerate((x, edge, vertex))]
        assert torch.autograd.gradcheck(of, some)


@compiled
def test_compiled_code_checks_its_arguments() -> None:
    with pytest.raises(ScaleGMNError, match="dense_forward refused"):
        library.call_net("dense_forward", torch.float32, bytes(1024), 0)
