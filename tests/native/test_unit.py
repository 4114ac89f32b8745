"""Unit vectors in compiled code and in plain torch are the same, and so are their gradients."""

import pytest
import torch

from scalegmn.native import library
from scalegmn.native.formula import inverse_norm
from scalegmn.native.unit import unit


def with_gradient(x: torch.Tensor, direction: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = x.clone().requires_grad_()
    y = unit(leaf)
    return y.detach(), torch.autograd.grad(y, leaf, direction)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(7,), (5, 3), (2, 600, 1, 33), (0, 4)])
def test_compiled_and_plain_agree(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Also for long and short vectors, and for those of zeros."""
    x, direction = torch.randn(2, *shape, dtype=dtype)
    if x.dim() > 1 and x.numel():
        x[0] = 0
        x[-1] *= 1e30
        x[..., -1, :] *= 1e-30
    with library.disabled():
        plain = with_gradient(x, direction)
    (y, gradient), close = with_gradient(x, direction), 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(y, plain[0], rtol=0, atol=close)
    # Gradients are as large as vectors are short.
    size = x.abs().amax(-1, keepdim=True) if x.numel() else x
    torch.testing.assert_close(gradient * size, plain[1] * size, rtol=0, atol=close)


def test_gradients_are_those_of_the_formula() -> None:
    """First and second ones, also of tensors that are not contiguous."""
    x = torch.randn(4, 3, dtype=torch.float64).T.requires_grad_()
    assert torch.autograd.gradcheck(unit, x)
    assert torch.autograd.gradgradcheck(unit, x)
    fixed, direction = x.detach(), torch.randn(3, 4, dtype=torch.float64)
    # A control: without the part along the vector it is another gradient.
    assert not torch.allclose(with_gradient(fixed, direction)[1], direction * inverse_norm(fixed))


def test_any_number_of_threads_gives_the_same_bytes() -> None:
    x, direction = torch.randn(2, 3000, 64)
    found, threads = [], torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(with_gradient(x, direction))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))
