"""The states of message passing, computed when they are needed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar

from torch import Tensor

from ..native.formula import Edge
from .symmetry import Symmetry

S = TypeVar("S", bound="States")
T = TypeVar("T")
Parts = tuple[Mapping[int, Tensor], Mapping[int, Tensor], Mapping[int, Edge], Mapping[int, Edge]]


class States(ABC):
    """The states after some iterations. They are computed on request and kept for the forward pass.

    Arguments:
        symmetry: Of the networks' architecture.
        positions: Per layer, positional encodings (n, p).
        answers: The outputs of the networks at the probes (B, n_L, P), if there are probes; these do not move.
        edge_positions: Per connection, positional encodings that broadcast against (n_t, n_s, p), if edges have any.

    >>> import torch
    >>> from scalegmn.core.architecture import Architecture
    >>> symmetry = Symmetry.full(Architecture.mlp([2, 8, 1]))
    >>> x = {i: torch.randn(5, n, 4) for i, n in enumerate((2, 8, 1))}
    >>> states = Given(symmetry, [torch.zeros(n, 0) for n in (2, 8, 1)], (x, {}, {}, {}))
    >>> states.x(1).shape, states.positions[1].shape
    (torch.Size([5, 8, 4]), torch.Size([8, 0]))
    """

    def __init__(
        self,
        symmetry: Symmetry,
        positions: Sequence[Tensor],
        answers: Tensor | None = None,
        edge_positions: Sequence[Tensor] = (),
    ) -> None:
        self.symmetry = symmetry
        self.positions = positions
        self.answers = answers
        self.edge_positions = edge_positions
        self.found: dict[tuple[str, int], Any] = {}

    @abstractmethod
    def x(self, layer: int) -> Tensor:
        """Vertex states (B, n, h), moving as q."""

    @abstractmethod
    def d(self, layer: int) -> Tensor:
        """Dual states (B, n, h), moving as 1/q."""

    @abstractmethod
    def e(self, connection: int) -> Edge:
        """Edge states (B, n_t, n_s, h), or (B, n, 1, h) if elementwise, moving as q_t / phi(q_s)."""

    @abstractmethod
    def r(self, connection: int) -> Edge:
        """Reciprocal edge states, moving as phi(q_s) / q_t."""

    @abstractmethod
    def settle(self, name: str, index: int) -> None:
        """Called once a state of a layer or connection has been computed."""


def kept(compute: Callable[[S, int], T]) -> Callable[[S, int], T]:
    """A method of states that computes each of its results once."""
    name = compute.__name__

    @wraps(compute)
    def ask(states: S, index: int) -> T:
        if (name, index) not in states.found:
            states.found[name, index] = compute(states, index)
            states.settle(name, index)
        answer: T = states.found[name, index]
        return answer

    return ask


class Given(States):
    """States that are already computed.

    Arguments:
        symmetry, positions, answers, edge_positions: As in `States`.
        parts: Vertex states, dual states, edge states and reciprocal edge states by index.

    >>> import torch
    >>> from scalegmn.core.architecture import Architecture
    >>> symmetry = Symmetry.full(Architecture.mlp([2, 8, 1]))
    >>> x = {i: torch.randn(5, n, 4) for i, n in enumerate((2, 8, 1))}
    >>> states = Given(symmetry, [torch.zeros(n, 0) for n in (2, 8, 1)], (x, {}, {}, {}))
    >>> states.x(1) is x[1]
    True
    """

    def __init__(
        self,
        symmetry: Symmetry,
        positions: Sequence[Tensor],
        parts: Parts,
        answers: Tensor | None = None,
        edge_positions: Sequence[Tensor] = (),
    ) -> None:
        super().__init__(symmetry, positions, answers, edge_positions)
        self.parts = parts

    def x(self, layer: int) -> Tensor:
        return self.parts[0][layer]

    def d(self, layer: int) -> Tensor:
        return self.parts[1][layer]

    def e(self, connection: int) -> Edge:
        return self.parts[2][connection]

    def r(self, connection: int) -> Edge:
        return self.parts[3][connection]

    def settle(self, name: str, index: int) -> None:
        """Does nothing: no earlier states are kept."""
