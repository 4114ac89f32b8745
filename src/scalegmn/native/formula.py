r"""What the operator of `net.py` computes, in plain torch operations.

On the edges of a block, or on vertices (edges with one source each), with \(m = v \odot E x\),

\[ y = (\Gamma m + a_t b_s) \odot \rho(m), \quad
   \rho(m) = W \, \mathrm{drop}(\mathrm{silu}(\mathrm{LN}(p + z)) + \mathrm{silu}(\mathrm{LN}(p - z))) + c, \]

where \(z = A m\), or \(A m / \|m\|\) if canonical, and \(p\) is an offset with contexts of both ends. The second term
is present if signs are removed by symmetrising; if by absolute values, \(z = A |m|\). Every part except \(\rho\) may
be missing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

NONE, TARGET, SOURCE = range(3)


class Net(NamedTuple):
    """The arguments of the operator, in its order, for a block of B networks with T targets and S sources.

    Arguments:
        x: Vectors (B, T, S, k); with `scalar` they are scalar[b, t, s] x[b, s], and x is (B, S, k). For k = 0 rho sees
            contexts only.
        scalar: (B, T, S), without gradient.
        edge, vertex: The matrix E (m, k), and v: states (B, S, m), or (B, T, m) if `by_target`.
        gamma: The matrix Gamma (outputs, m); without it the result is rho alone.
        first, offset: A (hidden, m) and the offset (hidden); A without columns is not there, and z = 0.
        target, source: Contexts (B, T, hidden) and (B, S, hidden).
        weight, bias: Of LayerNorm.
        more: Added to z (B, T, S, hidden).
        last, last_bias: W (outputs, hidden) and c (outputs).
        outer_target, outer_source: a (B, T, outputs) and b (B, S, outputs).
        seed: The seed of dropout, a whole number less than 2^31.
        eps: Of LayerNorm.
        drop: Probability of dropping a hidden unit.
        symmetric: Whether rho removes signs as rho(z) + rho(-z).
        absolute: Whether it removes them as A |m|.
        canonical: Whether rho sees m / |m|.
        by_target: See `vertex`.
        reduce: NONE, or the end to which y is summed: TARGET (B, T, outputs) or SOURCE (B, S, outputs).
        residual: Add x to y.
    """

    x: Tensor
    scalar: Tensor | None
    edge: Tensor | None
    vertex: Tensor | None
    gamma: Tensor | None
    first: Tensor
    offset: Tensor
    target: Tensor | None
    source: Tensor | None
    weight: Tensor
    bias: Tensor
    more: Tensor | None
    last: Tensor
    last_bias: Tensor
    outer_target: Tensor | None
    outer_source: Tensor | None
    seed: Tensor | None
    eps: float
    drop: float
    symmetric: bool
    absolute: bool
    canonical: bool
    by_target: bool
    reduce: int
    residual: bool


class Edge(NamedTuple):
    """Vectors (B, T, S, k) on the edges of a connection, stored as one tensor or in factors.

    The first edge state of a network without convolutions is a weight times a vector and stays factored: linear maps of
    it are maps of the vector alone. A product of vertex and edge states is computed by the nets, a few edges at a time.

    Arguments:
        x, scalar, edge, vertex: As in `Net`; with `scalar`, x may be one vector (1, k) for all, or those of all
            networks (1, S, k).
        by_target: Whether `vertex`, or x with `scalar`, belongs to the targets.

    >>> Edge(torch.ones(1, 5), torch.ones(2, 3, 4)).dense().shape
    torch.Size([2, 3, 4, 5])
    """

    x: Tensor
    scalar: Tensor | None = None
    edge: Tensor | None = None
    vertex: Tensor | None = None
    by_target: bool = False

    @property
    def edges(self) -> torch.Size:
        """(B, T, S)."""
        return self.x.shape[:3] if self.scalar is None else self.scalar.shape

    def dense(self) -> Tensor:
        """The vectors as one tensor."""
        end = -2 if self.by_target else -3
        x = self.x if self.scalar is None else self.scalar.unsqueeze(-1) * self.x.unsqueeze(end)
        x = x if self.edge is None else F.linear(x, self.edge)
        return x if self.vertex is None else x * self.vertex.unsqueeze(end)

    def rescaled(self, matrix: Tensor, vertex: Tensor, *, by_target: bool) -> Edge:
        """States of the sources (B, S, m), or of the targets, times a linear map (m, k) of the vectors."""
        if self.scalar is not None and (self.x.dim() == 2 or by_target == self.by_target):
            return Edge(vertex * F.linear(self.x, matrix), self.scalar, by_target=by_target)
        return Edge(self.dense(), None, matrix, vertex, by_target)

    def mapped(self, matrix: Tensor) -> Edge:
        """A linear map (m, k) of the vectors."""
        if self.scalar is not None and self.edge is None and self.vertex is None:
            return self._replace(x=F.linear(self.x, matrix))
        return Edge(F.linear(self.dense(), matrix))

    def passed(self, y: Tensor, *, by_target: bool = False) -> Tensor:
        """The sums at the targets (B, T, k) of the vectors times those of the sources (B, S, k), or of the targets."""
        if self.scalar is not None and self.x.dim() == 2 and not by_target:
            return (self.scalar @ y) * self.x
        return (self.dense() * y.unsqueeze(-2 if by_target else -3)).sum(-2)

    def doubled(self) -> Edge:
        """The vectors added to themselves."""
        return self._replace(x=2 * self.x)


def formula(n: Net) -> Tensor:
    """The operator in plain torch operations."""
    x = Edge(n.x, n.scalar)
    m = Edge(x.dense(), None, n.edge, n.vertex, n.by_target).dense()
    outer = None if n.outer_target is None or n.outer_source is None else (n.outer_target, n.outer_source)
    linear = None if n.gamma is None else F.linear(m, n.gamma)
    return gated(linear, _rho(n, m), outer, n.reduce, x.dense() if n.residual else None)


def gated(
    linear: Tensor | None,
    rho: Tensor,
    outer: tuple[Tensor, Tensor] | None = None,
    reduce: int = NONE,
    residual: Tensor | None = None,
) -> Tensor:
    """(Gamma m + a_t b_s) rho from Gamma m, or rho alone; then the residual is added, and sums are taken."""
    y = rho
    if linear is not None:
        if outer is not None:
            linear = linear + outer[0].unsqueeze(-2) * outer[1].unsqueeze(-3)
        y = linear * rho
    if residual is not None:
        y = y + residual
    return y if reduce == NONE else y.sum(-2 if reduce == TARGET else -3)


def _rho(n: Net, m: Tensor) -> Tensor:
    # Canonicalisation commutes with linear maps: A (m / |m|) = (A m) / |m|.
    z = F.linear(m.abs() if n.absolute else m, n.first) if n.first.shape[1] else m.new_zeros(*m.shape[:-1], 1)
    if n.canonical:
        z = z * inverse_norm(m)
    if n.more is not None:
        z = z + n.more
    p = n.offset
    if n.target is not None:
        p = p + n.target.unsqueeze(-2)
    if n.source is not None:
        p = p + n.source.unsqueeze(-3)

    def silu(x: Tensor) -> Tensor:
        return F.silu(F.layer_norm(x, n.offset.shape, n.weight, n.bias, n.eps))

    h = silu(p + z) + silu(p - z) if n.symmetric else silu(p + z)
    if n.seed is not None:
        h = h * dropout_mask(h, n.drop, n.seed)
    return F.linear(h, n.last, n.last_bias)


def inverse_norm(x: Tensor) -> Tensor:
    r"""\(1 / \|x\|\) over the last dimension, which is kept, and 0 for x = 0.

    There is no epsilon: the vector is divided by its largest entry first, so that no square over- or underflows.
    """
    largest = x.detach().abs().amax(-1, keepdim=True)
    # Subnormal numbers have lost their digits and their inverse may be infinite: they count as 0.
    zero = largest < torch.finfo(x.dtype).tiny
    unit = 1 / largest.masked_fill(zero, 1)
    square = (x * unit).square().sum(-1, keepdim=True)
    return torch.where(zero, 0, unit * square.masked_fill(zero, 1).rsqrt())


def dropout_mask(h: Tensor, drop: float, seed: Tensor) -> Tensor:
    """The mask of dropout, 1 / (1 - drop) or 0, for rows (..., hidden): the numbers of `gate.h`, bit for bit."""
    rows = torch.arange(h.shape[:-1].numel(), dtype=torch.int32, device=h.device).unsqueeze(1)
    columns = torch.arange(h.shape[-1], dtype=torch.int32, device=h.device)
    v = _mix(_mix(rows ^ seed.to(torch.int32)) + columns * _signed(0x9E3779B9))
    # Signed numbers in the place of unsigned ones: their order is the same with the first bit flipped.
    keep = (v ^ _signed(2**31)) >= int(drop * (2**32 - 1)) - 2**31
    return keep.view(h.shape).to(h.dtype) / (1 - drop)


def _mix(v: Tensor) -> Tensor:
    v = (v ^ ((v >> 16) & 0xFFFF)) * _signed(0x85EBCA6B)
    v = (v ^ ((v >> 13) & 0x7FFFF)) * _signed(0xC2B2AE35)
    return v ^ ((v >> 16) & 0xFFFF)


def _signed(v: int) -> int:
    """An unsigned number of 32 bits as the signed one that torch uses."""
    return v - 2**32 if v >= 2**31 else v
