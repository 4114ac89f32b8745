"""What all nets of a model have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..core.groups import Group
from .invariant import Kind, ScaleInvariant
from .mlp import MLP
from .scale import ScaleEquivariant, ScaleInvariants
from .spec import SignRule


@dataclass(frozen=True)
class Nets:
    """Makes the nets of a model.

    Arguments:
        sign: How invariant nets remove signs.
        dropout: In all MLPs.
        depth: K, the number of layers of scale equivariant nets.
        kind: The class of invariant nets.

    >>> Nets(depth=2).equivariant([], 3, 4).gamma
    ModuleList(
      (0): Linear(in_features=3, out_features=4, bias=False)
      (1): Linear(in_features=4, out_features=4, bias=False)
    )
    """

    sign: SignRule = "symmetrise"
    dropout: float = 0.0
    depth: int = 1
    kind: Kind = ScaleInvariant

    def mlp(self, inputs: int, outputs: int, *, hidden: int | None = None) -> MLP:
        """A net of what does not move."""
        return MLP(inputs, outputs, hidden=hidden, dropout=self.dropout)

    def invariants(
        self,
        groups: Iterable[Group],
        inputs: Sequence[int],
        outputs: int,
        *,
        contexts: Sequence[int] = (),
        hidden: int | None = None,
    ) -> ScaleInvariants:
        """Scale invariant nets, one per group; arguments as theirs."""
        return ScaleInvariants(
            groups,
            inputs,
            outputs,
            contexts=contexts,
            hidden=hidden,
            sign=self.sign,
            dropout=self.dropout,
            kind=self.kind,
        )

    def equivariant(
        self,
        groups: Iterable[Group],
        inputs: int,
        outputs: int,
        *,
        contexts: Sequence[int] = (),
        companions: Sequence[int] = (),
        hidden: int | None = None,
    ) -> ScaleEquivariant:
        """A scale equivariant net; arguments as its own."""
        return ScaleEquivariant(
            groups,
            inputs,
            outputs,
            contexts=contexts,
            companions=companions,
            hidden=hidden,
            depth=self.depth,
            sign=self.sign,
            dropout=self.dropout,
            kind=self.kind,
        )
