r"""Edge states, and scale equivariant nets on all edges of a connection at once.

The first edge state of a network without convolutions is a scalar weight times a vector. `Factored` keeps it so: every
linear map of it is a map of the vector alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from . import fused
from .scale import ScaleInvariant, inverse_norm


@dataclass(frozen=True)
class Factored:
    """The edge state e[b, t, s] = w[b, t, s] v[b, s].

    Arguments:
        w: Weights (B, n_t, n_s), without gradient.
        v: Vectors (B, n_s, h), or anything that broadcasts to that.
    """

    w: Tensor
    v: Tensor

    def dense(self) -> Tensor:
        """The same as a tensor (B, n_t, n_s, h)."""
        return self.w.unsqueeze(-1) * self.v.unsqueeze(-3)

    def inverse_norm(self) -> Tensor:
        """1 / |e| (B, n_t, n_s), and 0 for e = 0."""
        zero = self.w.abs() < torch.finfo(self.w.dtype).tiny
        inverse = torch.where(zero, 0, 1 / self.w.abs().masked_fill(zero, 1))
        inverse = inverse * inverse_norm(self.v).squeeze(-1).unsqueeze(-2)
        # Where the product of two small factors has no finite inverse, e itself is 0 or subnormal.
        return inverse.masked_fill(inverse.isinf(), 0)


Edge = Tensor | Factored


def dense(e: Edge) -> Tensor:
    """An edge state as a tensor (B, n_t, n_s, h)."""
    return e.dense() if isinstance(e, Factored) else e


def project(e: Edge, weight: Tensor) -> Edge:
    """A linear map of an edge state."""
    if isinstance(e, Factored):
        return Factored(e.w, F.linear(e.v, weight))
    return F.linear(e, weight)


def add(e: Edge, new: Edge) -> Tensor:
    """The sum of two edge states, as a tensor."""
    new = dense(new)
    if isinstance(e, Factored) and e.v.numel() == new.shape[-1]:
        rows = new.reshape(-1, new.shape[-1])
        return torch.addmm(rows, e.w.reshape(-1, 1), e.v.reshape(1, -1)).view_as(new)
    return dense(e) + new


def shape(e: Edge) -> tuple[int, int, int]:
    """(B, n_t, n_s)."""
    s = e.w.shape if isinstance(e, Factored) else e.shape
    return s[0], s[1], s[2]


def scale_equivariant(
    gamma: Tensor,
    invariant: ScaleInvariant,
    x: Edge,
    inverse: Tensor | None,
    contexts: Sequence[Tensor],
    *,
    outer: tuple[Tensor, Tensor] | None = None,
    reduce: fused.Reduce = None,
) -> Tensor:
    r"""\((\Gamma x + x_t d_s) \odot \rho(\tilde x, p)\) on every edge, or its sum over sources or targets.

    Arguments:
        gamma: The matrix Gamma.
        invariant: The net rho of the edges' group.
        x: Vectors on the edges.
        inverse: 1 / |x| (B, n_t, n_s) if the group has scales.
        contexts: Contexts p along the edges.
        outer: Linear maps of x_t (B, n_t, h) and d_s (B, n_s, h).
        reduce: Sum the result to targets or to sources.
    """
    edges = shape(x)
    linear = [f(c) for f, c in zip(invariant.contexts, contexts, strict=True)]
    target, source = along_ends(linear, edges)
    options = invariant.gate_options()
    u, w = (x.v.expand(edges[0], edges[2], -1).contiguous(), x.w.contiguous()) if isinstance(x, Factored) else (x, None)
    result: Tensor = fused.scale_equivariant(
        u if w is not None else u.contiguous(),
        w,
        torch.cat([gamma, invariant.first_weight]),
        invariant.offset,
        target,
        source,
        None if inverse is None else inverse.contiguous(),
        invariant.norm.weight,
        invariant.norm.bias,
        invariant.last.weight,
        invariant.last.bias,
        None if outer is None else outer[0].contiguous(),
        None if outer is None else outer[1].contiguous(),
        options,
        reduce,
    )
    return result


def along_ends(contexts: Sequence[Tensor], edges: tuple[int, int, int]) -> tuple[Tensor | None, Tensor | None]:
    """Sum contexts that broadcast along edges into one tensor per target (B, n_t, h) and one per source (B, n_s, h)."""
    batch, targets, sources = edges
    target: Tensor | None = None
    source: Tensor | None = None
    for c in contexts:
        if c.shape[-2] == 1:
            c = c.squeeze(-2).expand(batch, targets, -1)
            target = c if target is None else target + c
        else:
            c = c.squeeze(-3).expand(batch, sources, -1)
            source = c if source is None else source + c
    return (
        None if target is None else target.contiguous(),
        None if source is None else source.contiguous(),
    )
