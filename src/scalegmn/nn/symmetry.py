"""What message passing needs to know about an architecture: groups of vertices and edges, and how blocks broadcast."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.activations import Phi
from ..core.architecture import Architecture
from ..core.groups import Group, Trivial, group
from ..native.formula import SOURCE, TARGET


@dataclass(frozen=True)
class Symmetry:
    """The symmetries that a model respects in networks of one architecture.

    Arguments:
        architecture: The architecture.
        groups: The scaling group of every layer.
        phis: For every layer, the map from the multiplier of its pre-activation to that of its post-activation.
    """

    architecture: Architecture
    groups: tuple[Group, ...]
    phis: tuple[Phi, ...]

    @staticmethod
    def full(architecture: Architecture) -> Symmetry:
        """Permutations and scalings."""
        return Symmetry(architecture, architecture.groups, architecture.phis)

    @staticmethod
    def permutations(architecture: Architecture) -> Symmetry:
        """Permutations only."""
        count = len(architecture.layers)
        return Symmetry(architecture, (Trivial,) * count, (Phi(),) * count)

    def is_hidden(self, layer: int) -> bool:
        """Whether the layer is neither the input nor the output."""
        return self.architecture.roles[layer] == "hidden"

    def edge_group(self, connection: int) -> Group:
        """The smallest of the four groups that contains every q_t / phi(q_s)."""
        c = self.architecture.connections[connection]
        source, target = self.groups[c.source], self.groups[c.target]
        return group(signs=source.signs or target.signs, scales=source.scales or target.scales)

    def source(self, connection: int, x: Tensor) -> Tensor:
        """Lay a tensor (..., n_s, h) of the source layer along the edges (..., n_t, n_s, h)."""
        return x.unsqueeze(-3) if self.architecture.connections[connection].dense else x.unsqueeze(-2)

    def target(self, connection: int, x: Tensor) -> Tensor:
        """Lay a tensor (..., n_t, h) of the target layer along the edges (..., n_t, n_s, h)."""
        return x.unsqueeze(-2)

    def outer(self, connection: int, x: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        """Factors at the targets (B, n_t, h) and at the sources (B, n_s, h) of edges whose product is x_t d_s."""
        return (x, d) if self.architecture.connections[connection].dense else (x * d, torch.ones_like(d[:, :1]))


@dataclass(frozen=True)
class Way:
    """A connection as messages go along it: from its source to its target, or back.

    Arguments:
        symmetry: Of the architecture.
        connection: The connection.
        back: Whether messages go back.
    """

    symmetry: Symmetry
    connection: int
    back: bool = False

    @property
    def sender(self) -> int:
        """The layer that messages come from."""
        c = self.symmetry.architecture.connections[self.connection]
        return c.target if self.back else c.source

    @property
    def receiver(self) -> int:
        """The layer that they go to."""
        c = self.symmetry.architecture.connections[self.connection]
        return c.source if self.back else c.target

    @property
    def lift(self) -> Phi:
        """What makes states of the sender move as its post-activations; gradients on their way back need none."""
        return Phi() if self.back else self.symmetry.phis[self.sender]

    @property
    def by_target(self) -> bool:
        """Whether senders lie along the targets of the edges: those of elementwise connections do both ways."""
        return self.back or not self.symmetry.architecture.connections[self.connection].dense

    @property
    def to(self) -> int:
        """The end of the edges where the receivers lie."""
        return SOURCE if self.back and self.symmetry.architecture.connections[self.connection].dense else TARGET


def vertex_groups(symmetries: Iterable[Symmetry]) -> tuple[Group, ...]:
    """All groups that hidden layers have."""
    found = {s.groups[i] for s in symmetries for i in range(len(s.groups)) if s.is_hidden(i)}
    return tuple(sorted(found or {Trivial}, key=lambda g: g.name))


def edge_groups(symmetries: Iterable[Symmetry]) -> tuple[Group, ...]:
    """All groups that edges have."""
    found = {s.edge_group(c) for s in symmetries for c in range(len(s.architecture.connections))}
    return tuple(sorted(found, key=lambda g: g.name))
