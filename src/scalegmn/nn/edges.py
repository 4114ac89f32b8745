r"""Vectors on the edges of a connection, in the form in which they came about.

The first edge state of a network without convolutions is a scalar weight times a vector. `Factored` keeps it so: every
linear map of it is a map of the vector alone. `Rescaled` is a product of vertex states and edge states that the nets
compute a few edges at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from ..native.net import Ends, Rows


class Edge(ABC):
    """Vectors (B, n_t, n_s, k) on the edges of a connection."""

    @property
    @abstractmethod
    def edges(self) -> tuple[int, int, int]:
        """(B, n_t, n_s)."""

    @abstractmethod
    def dense(self) -> Tensor:
        """The vectors as one tensor (B, n_t, n_s, k)."""

    @abstractmethod
    def rescaled(self, matrix: Tensor, vertex: Tensor, *, by_target: bool) -> Edge:
        """Vertex states times a linear map of the vectors.

        Arguments:
            matrix: The map (m, k).
            vertex: States of the sources (B, n_s, m), or of the targets (B, n_t, m) if `by_target`.
            by_target: See above.
        """

    @abstractmethod
    def doubled(self) -> Edge:
        """The vectors added to themselves."""

    @abstractmethod
    def rows(self) -> Rows:
        """The vectors as nets take them."""


@dataclass(frozen=True)
class Dense(Edge):
    """Any vectors.

    Arguments:
        x: (B, n_t, n_s, k).
    """

    x: Tensor

    @property
    def edges(self) -> tuple[int, int, int]:
        return self.x.shape[0], self.x.shape[1], self.x.shape[2]

    def dense(self) -> Tensor:
        return self.x

    def rescaled(self, matrix: Tensor, vertex: Tensor, *, by_target: bool) -> Edge:
        return Rescaled(self.x, matrix, vertex, by_target)

    def doubled(self) -> Edge:
        return Dense(2 * self.x)

    def rows(self) -> Rows:
        return Rows(self.x)


@dataclass(frozen=True)
class Factored(Edge):
    """The vectors w[b, t, s] v[b, s], or w[b, t, s] v[b, t] if `by_target`.

    Arguments:
        w: Weights (B, n_t, n_s), without gradient.
        v: Vectors (B, n, k), or one vector (1, k) for all.
        by_target: See above.

    >>> import torch
    >>> Factored(torch.ones(2, 3, 4), torch.ones(1, 5)).dense().shape
    torch.Size([2, 3, 4, 5])
    """

    w: Tensor
    v: Tensor
    by_target: bool = False

    @property
    def edges(self) -> tuple[int, int, int]:
        return self.w.shape[0], self.w.shape[1], self.w.shape[2]

    def dense(self) -> Tensor:
        return self.w.unsqueeze(-1) * self.v.unsqueeze(-2 if self.by_target else -3)

    def rescaled(self, matrix: Tensor, vertex: Tensor, *, by_target: bool) -> Edge:
        if self.v.dim() > 2 and by_target != self.by_target:
            return Rescaled(self.dense(), matrix, vertex, by_target)
        return Factored(self.w, vertex * F.linear(self.v, matrix), by_target)

    def doubled(self) -> Edge:
        return Factored(self.w, 2 * self.v, self.by_target)

    def rows(self) -> Rows:
        batch, targets, sources = self.edges
        v = self.v.expand(batch, targets if self.by_target else sources, -1)
        return Rows(v, self.w, by_target=self.by_target)


@dataclass(frozen=True)
class Rescaled(Edge):
    """What `Edge.rescaled` gives.

    Arguments:
        x: Vectors (B, n_t, n_s, k).
        matrix, vertex, by_target: As there.
    """

    x: Tensor
    matrix: Tensor
    vertex: Tensor
    by_target: bool

    @property
    def edges(self) -> tuple[int, int, int]:
        return self.x.shape[0], self.x.shape[1], self.x.shape[2]

    def dense(self) -> Tensor:
        return F.linear(self.x, self.matrix) * self.vertex.unsqueeze(-2 if self.by_target else -3)

    def rescaled(self, matrix: Tensor, vertex: Tensor, *, by_target: bool) -> Edge:
        return Rescaled(self.dense(), matrix, vertex, by_target)

    def doubled(self) -> Edge:
        return Rescaled(self.x, self.matrix, 2 * self.vertex, self.by_target)

    def rows(self) -> Rows:
        return Rows(self.x, edge=self.matrix, vertex=self.vertex, by_target=self.by_target)


def beside(x: Tensor) -> Tensor:
    """Vectors of vertices (..., n, k) as those of edges with one source each (B, n, 1, k)."""
    return x.reshape(-1, x.shape[-2], 1, x.shape[-1])


def ends(contexts: Sequence[Tensor], edges: tuple[int, int, int], outer: tuple[Tensor, Tensor] | None) -> Ends:
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
