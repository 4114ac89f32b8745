"""What message passing carries from iteration to iteration, computed when it is asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar

from torch import Tensor

from .edges import Edge
from .symmetry import Symmetry

S = TypeVar("S", bound="States")
T = TypeVar("T")


class States(ABC):
    """The states after some iterations. Who reads asks for what it reads; answers are kept for the forward pass.

    Arguments:
        symmetry: Of the networks' architecture.
        positions: Per layer, positional encodings (n, p).
        answers: What the networks themselves say to the probes (B, n_L, P), not moving at all, if there are probes.
    """

    def __init__(self, symmetry: Symmetry, positions: Sequence[Tensor], answers: Tensor | None = None) -> None:
        self.symmetry = symmetry
        self.positions = positions
        self.answers = answers
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


def kept(compute: Callable[[S, int], T]) -> Callable[[S, int], T]:
    """A method of states that computes each of its answers once."""
    name = compute.__name__

    @wraps(compute)
    def ask(states: S, index: int) -> T:
        if (name, index) not in states.found:
            states.found[name, index] = compute(states, index)
        answer: T = states.found[name, index]
        return answer

    return ask


class Given(States):
    """States that are there already.

    Arguments:
        symmetry, positions, answers: As in `States`.
        x, d: Per layer.
        e, r: Per connection.
    """

    def __init__(
        self,
        symmetry: Symmetry,
        positions: Sequence[Tensor],
        x: Mapping[int, Tensor],
        d: Mapping[int, Tensor],
        e: Mapping[int, Edge],
        r: Mapping[int, Edge],
        answers: Tensor | None = None,
    ) -> None:
        super().__init__(symmetry, positions, answers)
        self.all = x, d, e, r

    def x(self, layer: int) -> Tensor:
        return self.all[0][layer]

    def d(self, layer: int) -> Tensor:
        return self.all[1][layer]

    def e(self, connection: int) -> Edge:
        return self.all[2][connection]

    def r(self, connection: int) -> Edge:
        return self.all[3][connection]
