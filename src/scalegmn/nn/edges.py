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

from ..native import net as fused
from .scale import ScaleInvariant


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


def twice(e: Edge) -> Edge:
    """An edge state added to itself."""
    return Factored(e.w, 2 * e.v) if isinstance(e, Factored) else 2 * e


def shape(e: Edge) -> tuple[int, int, int]:
    """(B, n_t, n_s)."""
    s = e.w.shape if isinstance(e, Factored) else e.shape
    return s[0], s[1], s[2]


def scale_equivariant(
    gamma: Tensor,
    invariant: ScaleInvariant,
    x: Edge,
    contexts: Sequence[Tensor],
    *,
    edge: Tensor | None = None,
    vertex: Tensor | None = None,
    by_target: bool = False,
    outer: tuple[Tensor, Tensor] | None = None,
    reduce: fused.Reduce = None,
    residual: bool = False,
) -> Tensor:
    r"""\((\Gamma m + x_t d_s) \odot \rho(\tilde m, p)\) on every edge, or its sum over sources or targets.

    Arguments:
        gamma: The matrix Gamma.
        invariant: The net rho of the edges' group.
        x: Vectors on the edges; m is x itself, or vertex * (edge x).
        contexts: Contexts p along the edges.
        edge, vertex: A matrix (h, k) and states (B, n, h) of the sources, or of the targets if `by_target`.
        by_target: See above.
        outer: Linear maps of x_t (B, n_t, h) and d_s (B, n_s, h).
        reduce: Sum the result to targets or to sources.
        residual: Add x to the result.
    """
    target, source = along_ends(invariant.along(contexts), shape(x))
    vectors, scalar = (x.v, x.w) if isinstance(x, Factored) else (x, None)
    if scalar is not None:
        # Maps and states of the sources act on the vectors alone.
        if edge is not None:
            vectors, edge = F.linear(vectors, edge), None
        if vertex is not None and by_target and reduce is not None and vectors.shape[-2] == 1:
            # With one vector for all, edges look the same from their targets.
            scalar, target, source, by_target = scalar.transpose(1, 2), source, target, False
            reduce = "target" if reduce == "source" else "source"
        if vertex is not None and not by_target:
            vectors, vertex = vertex * vectors, None
        if vertex is None:
            vectors = vectors.expand(scalar.shape[0], scalar.shape[2], -1)
        else:
            vectors, scalar = Factored(scalar, vectors).dense(), None
    rows = fused.Rows(
        vectors,
        scalar,
        edge=edge,
        vertex=vertex,
        by_target=by_target,
        target=target,
        source=source,
        canonical=invariant.group.scales,
        outer=outer,
    )
    return fused.net(gamma, invariant.gate(), rows, reduce=reduce, residual=residual)


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
