r"""The fast path: the same functions as in `scale.py` and `message.py` with fused elementwise work and fewer products.

Three things are exploited. Two linear maps of one vector are one product. Symmetrisation shares the first map and
applies the last one to the sum. Canonicalisation commutes with linear maps, \(A (x / \|x\|) = (A x) / \|x\|\), so it
needs no copy of x. What is elementwise between the products happens in `fused.cpp` in one pass; products are stored,
the rest is recomputed in the backward pass.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import kernels
from .kernels import block, call, gate_arguments

Reduce = Literal["target", "source"] | None


@dataclass(frozen=True)
class GateOptions:
    """What the gate does beside its tensors: LayerNorm's eps, whether it symmetrises, dropout and its seed."""

    eps: float
    symmetric: bool
    drop: float
    seed: int


def dropout_seed(drop: float, training: bool) -> tuple[float, int]:
    """The dropout to apply and a seed from torch's generator, so that runs repeat."""
    if not training or drop == 0:
        return 0.0, 0
    return drop, int(torch.randint(2**31 - 1, ()).item())


class _Gate(torch.autograd.Function):
    """silu(LN(p + r z)), plus silu(LN(p - r z)) if symmetric, with p = offset + target + source."""

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        offset: Tensor,
        target: Tensor | None,
        source: Tensor | None,
        inverse: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        options: GateOptions,
    ) -> Tensor:
        z = z.contiguous()
        out = torch.empty_like(z)
        ctx.save_for_backward(z, offset, target, source, inverse, weight, bias)
        ctx.options = options
        _run_gate(z, z.shape[-1], z.shape, (offset, target, source, inverse, weight, bias), options, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        z, *tensors = ctx.saved_tensors
        dz = torch.empty_like(z)
        found = _gate_gradients(z, z.shape[-1], z.shape, tuple(tensors), ctx.options, grad, dz, z.shape[-1])
        return (dz, *found, None)


class _ScaleEq(torch.autograd.Function):
    """(Gamma x + outer) * (C gate(A x) + c), summed over sources or targets if `reduce` says so.

    With `scalar`, x is (B, S, k) and the vectors on the edges are scalar[b, t, s] x[b, s].
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        scalar: Tensor | None,
        stack: Tensor,
        offset: Tensor,
        target: Tensor | None,
        source: Tensor | None,
        inverse: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        last: Tensor,
        last_bias: Tensor,
        x_t: Tensor | None,
        d_s: Tensor | None,
        options: GateOptions,
        reduce: Reduce,
    ) -> Tensor:
        outputs, hidden = last.shape
        if scalar is None:
            shape = x.shape[:3]
            z = (x.reshape(-1, x.shape[-1]) @ stack.T).view(*shape, -1)
        else:
            shape = scalar.shape
            z = x.new_empty(*shape, outputs + hidden)
            call("outer_forward", x.dtype, scalar, (x @ stack.T).contiguous(), block(*shape[:3], outputs + hidden), z)
        if x_t is not None and d_s is not None:
            z[..., :outputs].addcmul_(x_t.unsqueeze(2), d_s.unsqueeze(1))
        s = x.new_empty(*shape, hidden)
        tensors = (offset, target, source, inverse, weight, bias)
        _run_gate(z[..., outputs:], z.shape[-1], (*shape, hidden), tensors, options, s)
        rho = (s.view(-1, hidden) @ last.T).view(*shape, outputs)
        ctx.save_for_backward(x, scalar, stack, *tensors, last, last_bias, x_t, d_s, z, s, rho)
        ctx.options, ctx.reduce = options, reduce
        return _contract(z, rho, last_bias, reduce)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, scalar, stack, *tensors, last, last_bias, x_t, d_s, z, s, rho = ctx.saved_tensors
        outputs, hidden = last.shape
        dz, drho = torch.empty_like(z), torch.empty_like(rho)
        dlast_bias = _contract_gradients(grad.contiguous(), z, rho, last_bias, ctx.reduce, dz, drho)
        drho = drho.view(-1, outputs)
        ds = drho @ last
        dlast = drho.T @ s.view(-1, hidden)
        del drho
        shape = (*s.shape[:3], hidden)
        found = _gate_gradients(
            z[..., outputs:], z.shape[-1], shape, tuple(tensors), ctx.options, ds, dz[..., outputs:], z.shape[-1]
        )
        dx_t = d_d_s = None
        if x_t is not None:
            dg = dz[..., :outputs]
            dx_t = torch.einsum("btsh,bsh->bth", dg, d_s)
            d_d_s = torch.einsum("btsh,bth->bsh", dg, x_t)
        if scalar is not None:
            da = x.new_zeros(*x.shape[:-1], outputs + hidden)
            call("outer_backward", x.dtype, scalar, dz, block(*scalar.shape[:3], outputs + hidden), da)
            dz = da
        flat = dz.view(-1, dz.shape[-1])
        dx = (flat @ stack).view_as(x) if ctx.needs_input_grad[0] else None
        dstack = flat.T @ x.reshape(-1, x.shape[-1])
        return (dx, None, dstack, *found, dlast, dlast_bias, dx_t, d_d_s, None, None)


class _Hadamard(torch.autograd.Function):
    """m = y * e along the edges, and 1 / ||m||."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, e: Tensor, by_target: bool, canonical: bool) -> tuple[Tensor, Tensor | None]:
        y, e = y.contiguous(), e.contiguous()
        m = torch.empty_like(e)
        inverse = e.new_empty(e.shape[:3]) if canonical else None
        call("hadamard_forward", e.dtype, y, e, int(by_target), block(*e.shape), m, inverse)
        ctx.save_for_backward(y, e, m if canonical else None, inverse)
        ctx.by_target = by_target
        return m, inverse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, dinverse: Tensor | None) -> tuple[Tensor | None, ...]:
        y, e, m, inverse = ctx.saved_tensors
        de, dy = torch.empty_like(e), torch.zeros_like(y)
        if inverse is not None:
            assert dinverse is not None
            dinverse = dinverse.contiguous()
        call(
            "hadamard_backward", e.dtype, y, e, m, inverse, dinverse if inverse is not None else None,
            int(ctx.by_target), block(*e.shape), grad.contiguous(), de, dy,
        )  # fmt: skip
        return dy, de, None, None


# torch does not annotate `apply`.
gate: Callable[..., Tensor] = _Gate.apply
scale_equivariant: Callable[..., Tensor] = _ScaleEq.apply
hadamard: Callable[..., tuple[Tensor, Tensor | None]] = _Hadamard.apply


def _run_gate(
    z: Tensor, ldz: int, shape: tuple[int, ...], tensors: tuple[Any, ...], options: GateOptions, out: Tensor
) -> None:
    o = options
    arguments = gate_arguments(z, ldz, tensors, o.eps, o.symmetric, o.drop, o.seed)
    call("gate_forward", out.dtype, arguments, block(*shape), out)


def _gate_gradients(
    z: Tensor,
    ldz: int,
    shape: tuple[int, ...],
    tensors: tuple[Any, ...],
    options: GateOptions,
    grad: Tensor,
    dz: Tensor,
    ldd: int,
) -> tuple[Tensor | None, ...]:
    """Write dz and return the gradients of offset, target, source, inverse, weight, bias."""
    found = [None if t is None else torch.zeros_like(t) for t in tensors]
    offset, target, source, inverse, weight, bias = found
    o = options
    arguments = gate_arguments(z, ldz, tensors, o.eps, o.symmetric, o.drop, o.seed)
    call(
        "gate_backward", grad.dtype, arguments, block(*shape), grad.contiguous(), dz, _long(ldd), target, source,
        inverse, offset, weight, bias,
    )  # fmt: skip
    return tuple(found)


def _contract(z: Tensor, rho: Tensor, bias: Tensor, reduce: Reduce) -> Tensor:
    """z's first part times (rho + bias), summed if `reduce` says so."""
    batch, targets, sources, outputs = rho.shape
    if reduce is None:
        shape, out = (batch, targets * sources, 1), torch.empty_like(rho)
    else:
        receivers = targets if reduce == "target" else sources
        shape, out = (batch, targets, sources), rho.new_zeros(batch, receivers, outputs)
    to_target = int(reduce != "source")
    if sources == 1 and reduce == "source":
        # One source gathers from all targets: the kernel would set instead of add, so let targets play sources.
        shape, to_target = (batch, 1, targets), 1
    call("contract_forward", z.dtype, z, _long(z.shape[-1]), rho, bias, to_target, block(*shape, outputs), out)
    return out


def _contract_gradients(
    grad: Tensor, z: Tensor, rho: Tensor, bias: Tensor, reduce: Reduce, dz: Tensor, drho: Tensor
) -> Tensor:
    """Write the gradients of z's first part and of rho, and return the sum of the latter over all edges."""
    batch, targets, sources, outputs = rho.shape
    total = rho.new_zeros(outputs)
    shape = (batch, targets * sources, 1) if reduce is None else (batch, targets, sources)
    call(
        "contract_backward", z.dtype, grad, z, _long(z.shape[-1]), rho, bias, int(reduce != "source"),
        block(*shape, outputs), dz, _long(dz.shape[-1]), drho, total,
    )  # fmt: skip
    return total


def _long(value: int) -> ctypes.c_int64:
    return ctypes.c_int64(value)


def usable(*tensors: Tensor | None) -> bool:
    """Whether the fast path can take these tensors."""
    return kernels.usable(*tensors)
