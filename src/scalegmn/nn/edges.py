"""How vertices and contexts lie along the edges of a connection, where nets take them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..native.net import Ends


def beside(x: Tensor) -> Tensor:
    """Vectors of vertices (..., n, k) as those of edges with one source each (B, n, 1, k)."""
    return x.reshape(-1, x.shape[-2], 1, x.shape[-1])


def ends(contexts: Sequence[Tensor], edges: Sequence[int], outer: tuple[Tensor, Tensor] | None) -> Ends:
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
    return Ends(target, source, *(outer or ()))
