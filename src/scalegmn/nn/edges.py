"""Laying vectors of vertices and contexts along the edges of a connection."""

from collections.abc import Iterable, Sequence

from torch import Tensor

from ..native.net import Ends


def as_edges(x: Tensor) -> Tensor:
    """Vectors of vertices (..., n, k) as those of edges with one source each (B, n, 1, k)."""
    return x.reshape(-1, x.shape[-2], 1, x.shape[-1])


def as_vertices(y: Tensor, x: Tensor) -> Tensor:
    """Undo `as_edges` for results: (B, n, 1, k) to the leading dimensions of x."""
    return y.view(*x.shape[:-1], y.shape[-1])


def laid(terms: Iterable[Tensor], edges: Sequence[int]) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Sum vectors that broadcast along edges (B, n_t, n_s): those per target, those per source and those per edge."""
    batch, targets, sources = edges
    found: list[Tensor | None] = [None, None, None]
    for t in terms:
        if t.shape[-2] == 1:
            place, t = 0, t.squeeze(-2).expand(batch, targets, -1)
        elif t.shape[-3] == 1:
            place, t = 1, t.squeeze(-3).expand(batch, sources, -1)
        else:
            place, t = 2, t.expand(batch, targets, sources, -1)
        so_far = found[place]
        found[place] = t if so_far is None else so_far + t
    target, source, edge = found
    return target, source, edge


def ends(contexts: Sequence[Tensor], edges: Sequence[int], outer: tuple[Tensor, Tensor] | None) -> Ends:
    """Sum contexts that broadcast along edges into one tensor per target (B, n_t, h) and one per source (B, n_s, h)."""
    target, source, edge = laid(contexts, edges)
    assert edge is None
    return Ends(target, source, *(outer or ()))
