"""What message passing needs to know about an architecture: groups of vertices and edges, and how blocks broadcast."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.activations import Phi
from ..core.architecture import Architecture, Conv, Product, Skip
from ..core.groups import Group, Trivial, group
from ..core.wiring import Neurons, spans
from ..native.formula import SOURCE, TARGET


@dataclass(frozen=True)
class Symmetry:
    """The symmetries that a model respects in networks of one architecture.

    Arguments:
        architecture: The architecture.
        groups: The scaling group of every layer.
        phis: For every layer, the map from the multiplier of its pre-activation to that of its post-activation.

    >>> Symmetry.full(Architecture.mlp([2, 8, 1], "tanh")).edge_group(0)
    Sign
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

    def everywhere(self, connection: int) -> bool:
        """Whether edges connect every source with every target, not only neurons of the same number.

        Grouped convolutions have edges of weight zero between their groups; a factor with one neuron goes to all.
        """
        c = self.architecture.connections[connection]
        size = self.architecture.layers[c.target].size
        if isinstance(c.map, Skip):
            one = self.ranges(connection)[0].size == 1
            return one and size > 1 and isinstance(self.architecture.layers[c.target].combine, Product)
        depthwise = c.groups == size == self.ranges(connection)[0].size
        return c.dense or (isinstance(c.map, Conv) and not depthwise)

    def ranges(self, connection: int) -> tuple[Neurons, Neurons]:
        """The ranges of source and target that a connection joins."""
        return spans(self.architecture, self.architecture.connections[connection])

    def source(self, connection: int, x: Tensor) -> Tensor:
        """Lay a tensor (..., n_s, h) of the source layer along the edges (..., n_t, n_s, h)."""
        x = _part(x, self.ranges(connection)[0])
        return x.unsqueeze(-3) if self.everywhere(connection) else x.unsqueeze(-2)

    def target(self, connection: int, x: Tensor) -> Tensor:
        """Lay a tensor (..., n_t, h) of the target layer along the edges (..., n_t, n_s, h)."""
        return (x if self.everywhere(connection) else _part(x, self.ranges(connection)[1])).unsqueeze(-2)

    def outer(self, connection: int, x: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        """Factors at the targets (B, n_t, h) and at the sources (B, n_s, h) of edges whose product is x_t d_s."""
        if self.everywhere(connection):
            return x, d
        source, target = self.ranges(connection)
        return _part(x, target) * _part(d, source), torch.ones_like(d[:, :1])


def _part(x: Tensor, span: Neurons) -> Tensor:
    """Some neurons of (..., n, h)."""
    return x if x.shape[-2] == span.size else x.narrow(-2, span.start, span.size)


@dataclass(frozen=True)
class Way:
    """A connection with a direction of messages: from its source to its target, or back.

    Arguments:
        symmetry: Of the architecture.
        connection: The connection.
        back: Whether messages go back.

    >>> way = Way(Symmetry.full(Architecture.mlp([2, 8, 1])), 0, back=True)
    >>> way.sender, way.receiver
    (1, 0)
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
        """The map that makes states of the sender move as its post-activations; backward messages need none."""
        return Phi() if self.back else self.symmetry.phis[self.sender]

    @property
    def activation(self) -> Callable[[Tensor], Tensor]:
        """The sender's own activation, which does the same; `lift` for one that is more than a function of numbers."""
        sigma = self.symmetry.architecture.layers[self.sender].activation
        return self.lift if self.back or sigma.learned_slope or sigma.across_neurons else sigma

    @property
    def by_target(self) -> bool:
        """Whether senders are laid along the targets of the edges; for elementwise connections, in both directions."""
        return self.back or not self.symmetry.everywhere(self.connection)

    @property
    def to(self) -> int:
        """The end of the edges where the receivers are."""
        return SOURCE if self.back and self.symmetry.everywhere(self.connection) else TARGET

    def receivers(self, x: Tensor) -> Tensor:
        """Lay a tensor (..., n, h) of the receiving layer along the edges (..., n_t, n_s, h)."""
        return self.symmetry.source(self.connection, x) if self.back else self.symmetry.target(self.connection, x)

    def senders(self, y: Tensor) -> Tensor:
        """Lay a tensor (..., n, h) of the sending layer along the edges (..., n_t, n_s, h)."""
        return self.symmetry.target(self.connection, y) if self.back else self.symmetry.source(self.connection, y)

    def leaving(self, y: Tensor) -> Tensor:
        """The senders among the neurons (B, n, h) of their layer."""
        source, target = self.symmetry.ranges(self.connection)
        everywhere = self.symmetry.everywhere(self.connection)
        return y if self.back and everywhere else _part(y, target if self.back else source)

    def arriving(self, m: Tensor) -> Tensor:
        """The messages to the receivers (B, n, h); zero for the other neurons of their layer."""
        size = self.symmetry.architecture.layers[self.receiver].size
        if m.shape[1] == size:
            return m
        span = self.symmetry.ranges(self.connection)[0 if self.back else 1]
        return F.pad(m, (0, 0, span.start, size - span.start - span.size))


def vertex_groups(symmetries: Iterable[Symmetry]) -> tuple[Group, ...]:
    """All groups that hidden layers have."""
    found = {s.groups[i] for s in symmetries for i in range(len(s.groups)) if s.is_hidden(i)}
    return tuple(sorted(found or {Trivial}, key=lambda g: g.name))


def edge_groups(symmetries: Iterable[Symmetry]) -> tuple[Group, ...]:
    """All groups that edges have."""
    found = {s.edge_group(c) for s in symmetries for c in range(len(s.architecture.connections))}
    return tuple(sorted(found, key=lambda g: g.name))
