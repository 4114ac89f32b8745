"""What all nets and all functions of message passing have in common, in both forms."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.groups import Group
from .invariant import LearnedInvariant, ScaleInvariant
from .mlp import MLP
from .spec import Aggregate, SignRule


@dataclass(frozen=True)
class Nets:
    """Makes the nets of a model.

    Arguments:
        sign: How invariant nets remove signs.
        dropout: In all MLPs.
        depth: K, the number of layers of scale equivariant nets.
        kind: The class of invariant nets.

    >>> Nets().mlp(3, 4).last
    Linear(in_features=4, out_features=4, bias=True)
    """

    sign: SignRule = "symmetrise"
    dropout: float = 0.0
    depth: int = 1
    kind: type[LearnedInvariant] = ScaleInvariant

    def mlp(self, inputs: int, outputs: int, *, hidden: int | None = None) -> MLP:
        """A net of vectors that do not move."""
        return MLP(inputs, outputs, hidden=hidden, dropout=self.dropout)

    def invariant(
        self, group: Group, inputs: Sequence[int], outputs: int, *, contexts: Sequence[int], hidden: int | None
    ) -> LearnedInvariant:
        """A scale invariant net, with the arguments of its class."""
        return self.kind(group, inputs, outputs, contexts=contexts, hidden=hidden, sign=self.sign, dropout=self.dropout)


@dataclass(frozen=True)
class Style:
    """What all functions of all layers have in common.

    Arguments:
        vertex_groups: Groups of hidden neurons.
        edge_groups: Groups of edges.
        width: Of all states.
        nets: What all nets have in common.
        positions: Width of the positional encodings that enter messages and updates, 0 for none.
        gate: Width of the hidden layer in invariant nets on edges; that of all states if omitted.
        aggregate: How messages are gathered.
        skip: Whether new states are added to old ones.
        checkpointing: Whether the backward pass recomputes messages and updates.
        state_dropout: On vertex states after every iteration.
        hidden: Width of the hidden layer in the nets that update vertices; that of all states if omitted.
        activations: Whether messages are activations.

    >>> from scalegmn.core.groups import PositiveScale
    >>> Style((PositiveScale,), (PositiveScale,), 8).aggregate
    'sum'
    """

    vertex_groups: tuple[Group, ...]
    edge_groups: tuple[Group, ...]
    width: int
    nets: Nets = Nets()
    positions: int = 0
    gate: int | None = None
    aggregate: Aggregate = "sum"
    skip: bool = False
    checkpointing: bool = False
    state_dropout: float = 0.0
    hidden: int | None = None
    activations: bool = False

    @property
    def along_vertex(self) -> list[int]:
        """Widths of the positional encodings of a vertex."""
        return [self.positions] if self.positions else []

    @property
    def along_edge(self) -> list[int]:
        """Widths of the positional encodings of an edge: of its target and of its source."""
        return [self.positions, self.positions] if self.positions else []
