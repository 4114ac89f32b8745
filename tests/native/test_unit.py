"""Unit vectors in compiled code and in plain torch are the same, and so are their gradients and torch's transforms."""

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.fx.experimental.proxy_tensor import make_fx

from scalegmn.native import library
from scalegmn.native.formula import inverse_norm
from scalegmn.native.unit import unit

compiled = pytest.mark.skipif(library.load() is None, reason="no compiler")


def with_gradient(x: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
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


def vectors_to_number(x: Tensor) -> Tensor:
    return (unit(x) * torch.arange(x.shape[-1], dtype=x.dtype)).sin().sum()


def formula_to_number(x: Tensor) -> Tensor:
    return (x * inverse_norm(x) * torch.arange(x.shape[-1], dtype=x.dtype)).sin().sum()


def test_functional_transforms_work() -> None:
    x = torch.randn(3, 4, dtype=torch.float64)
    expected = torch.func.grad(formula_to_number)(x)
    torch.testing.assert_close(torch.func.grad(vectors_to_number)(x), expected)
    torch.testing.assert_close(torch.vmap(unit)(x), unit(x))
    rows = torch.vmap(torch.func.grad(vectors_to_number))(x)
    torch.testing.assert_close(rows, expected)
    _, along = torch.func.jvp(vectors_to_number, (x,), (torch.ones_like(x),))
    torch.testing.assert_close(along, expected.sum())
    torch.testing.assert_close(torch.func.hessian(vectors_to_number)(x), torch.func.hessian(formula_to_number)(x))


@compiled
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_compilers_see_one_operator() -> None:
    """In the forward and in the backward pass, also of tensors that are not contiguous."""
    torch._dynamo.reset()
    x = torch.randn(4, 3, dtype=torch.float64).T.requires_grad_()
    counter = CompileCounterWithBackend("aot_eager")
    y = torch.compile(vectors_to_number, backend=counter, fullgraph=True)(x)
    torch.testing.assert_close(y, formula_to_number(x))
    torch.testing.assert_close(*(torch.autograd.grad(z, x)[0] for z in (y, formula_to_number(x))))
    (graph,) = counter.graphs
    assert [n.target for n in graph.graph.nodes].count(torch.ops.scalegmn.unit.default) == 1


@compiled
def test_traced_graphs_can_be_differentiated() -> None:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    graph = make_fx(vectors_to_number)(x)
    assert torch.ops.scalegmn.unit.default in [n.target for n in graph.graph.nodes]
    (found,) = torch.autograd.grad(graph(x), x)
    torch.testing.assert_close(found, torch.autograd.grad(formula_to_number(x), x)[0])


@compiled
@pytest.mark.parametrize("transposed", [False, True])
def test_the_registration_is_what_torch_expects(transposed: bool) -> None:
    x = torch.randn(4, 3)
    x = (x.T if transposed else x).requires_grad_()
    torch.library.opcheck(torch.ops.scalegmn.unit.default, (x,))
    torch.library.opcheck(torch.ops.scalegmn.unit_backward.default, (torch.ones_like(x.detach()), x.detach()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_types_run_the_formula(dtype: torch.dtype) -> None:
    x = torch.randn(5, 8, dtype=dtype)
    found = with_gradient(x, torch.ones_like(x))
    assert torch.equal(found[0], x * inverse_norm(x))
    assert found[1].dtype == dtype


def test_autocast_and_inference_mode_change_nothing() -> None:
    x = torch.randn(5, 8, requires_grad=True)
    expected = unit(x)
    with torch.autocast("cpu", torch.bfloat16):
        found = unit(x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(y.sin().sum(), x)[0] for y in (found, expected)))
    with torch.inference_mode():
        torch.testing.assert_close(unit(x), expected)


def test_parameters_and_other_devices() -> None:
    """Parameters are not plain tensors, and tensors on the device `meta` have no memory."""
    p = torch.nn.Parameter(torch.randn(5, 8))
    torch.testing.assert_close(
        torch.autograd.grad(unit(p).sin().sum(), p), torch.autograd.grad(unit(p * 1).sin().sum(), p)
    )
    assert unit(torch.empty(3, 4, device="meta", requires_grad=True)).shape == (3, 4)
