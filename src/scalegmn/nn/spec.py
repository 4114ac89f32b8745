"""What a person chooses about message passing, in one frozen object."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

from ..errors import ScaleGMNError

Flow = Literal["none", "shared", "reciprocal", "dual"]
Backward = Flow | Literal["auto"]
Aggregate = Literal["sum", "mean"]
SignRule = Literal["symmetrise", "absolute"]


@dataclass(frozen=True)
class PassingSpec:
    """The options of message passing.

    Arguments:
        width: Of all states.
        layers: Number of iterations.
        backward: `none` is the forward variant. ScaleGMN-B has `shared` for signs, `dual` (our dual stream) or
            `reciprocal` (as in the paper) for scales; `auto` chooses between `shared` and `dual`.
        edge_positions: Encode edges at the start.
        positions_everywhere: Let positional encodings enter messages and updates too.
        skip: Add the old state to the new in each iteration.
        gate: Width of the hidden layer in the invariant nets on edges, where most of the time goes; `width` where
            omitted.
        sign: How invariant nets remove signs.
        aggregate: How messages are gathered.
        dropout: In all MLPs.
        edge_updates: Whether edges are updated (in an editor: before the last iteration).
        checkpointing: Recompute activations in the backward pass to save memory.

    >>> PassingSpec(width=32)
    PassingSpec(width=32)
    """

    width: int = 64
    layers: int = 4
    backward: Backward = "none"
    edge_positions: bool = False
    positions_everywhere: bool = False
    skip: bool = True
    gate: int | None = None
    sign: SignRule = "symmetrise"
    aggregate: Aggregate = "sum"
    dropout: float = 0.0
    edge_updates: bool = True
    checkpointing: bool = False

    def __post_init__(self) -> None:
        for name in ("width", "layers", "gate"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ScaleGMNError(f"{name}: expected at least 1, got {value}")
        if not 0 <= self.dropout < 1:
            raise ScaleGMNError(f"dropout: expected at least 0 and less than 1, got {self.dropout}")
        for name, known in (("backward", (*get_args(Flow), "auto")), ("sign", get_args(SignRule)),
                            ("aggregate", get_args(Aggregate))):
            value = getattr(self, name)
            if value not in known:
                raise ScaleGMNError(f"{name}: expected one of {', '.join(known)}; got {value!r}")

    def __repr__(self) -> str:
        """Only what differs from the defaults."""
        changed = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default)
        return f"{type(self).__name__}({', '.join(changed)})"
