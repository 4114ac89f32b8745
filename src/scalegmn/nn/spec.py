"""The options of message passing, in one frozen object."""

from dataclasses import dataclass
from typing import Literal

from ..core.spec import Count, Depth, Share, Spec

Flow = Literal["none", "shared", "reciprocal", "dual"]
Backward = Flow | Literal["auto"]
Aggregate = Literal["sum", "mean"]
Order = Literal["together", "in_turn"]
Messages = Literal["nets", "activations"]
SignRule = Literal["symmetrise", "absolute"]
FormName = Literal["ours", "paper"]
Rescaling = Literal["hadamard", "outer"]
EdgeRule = Literal["invariant", "reciprocal"]
DropoutPlace = Literal["mlps", "states", "everywhere"]


@dataclass(frozen=True, repr=False)
class PassingSpec(Spec):
    """The options of message passing.

    Arguments:
        width: Of all states.
        layers: Number of iterations.
        backward: `none` is the forward variant. ScaleGMN-B has `shared` for signs, `dual` (our dual stream) or
            `reciprocal` (as in the paper) for scales; `auto` chooses between `shared` and `dual`, in the paper's form
            between `shared` and `reciprocal`.
        edge_positions: Encode edges at the start.
        positions_everywhere: Let positional encodings also enter messages and updates.
        skip: Add the old state to the new in each iteration.
        gate: Width of the hidden layer in the invariant nets on edges, where most of the time goes; `width` where
            omitted.
        sign: How invariant nets remove signs.
        aggregate: How messages are gathered.
        dropout: Probability of dropping an entry.
        edge_updates: Whether edges are updated (in an editor: before the last iteration).
        checkpointing: Recompute activations in the backward pass to save memory.
        form: `paper`, every equation as printed, or `ours` (docs/model.md says where they differ).
        depth: Number of layers K in scale equivariant nets.
        dropout_in: Where dropout acts: on hidden units of `mlps`, on vertex `states` after each iteration, or
            `everywhere`; if omitted, in `mlps` in our form and on `states` in the paper's.
        rescale: In the paper's form, how messages combine a neighbour and an edge: `hadamard` or `outer` product.
        edge_rule: In the paper's form, what edges see of their ends: an `invariant` net, or the element-wise
            `reciprocal` of the source.
        neighbours_only: In the paper's form, leave the central vertex out of messages, as its experiments do.
        order: Whether an iteration updates all layers of neurons `together`, or the layers follow each other `in_turn`,
            one in each iteration, from the inputs on: as in a forward pass, every weight is then read once. Messages go
            forwards only.
        hidden: Width of the hidden layer in the nets that update vertices, of which there are far fewer than edges;
            `width` where omitted.
        messages: What messages are made of: `nets`, or the senders' own `activations` of their states times edges. The
            latter, with layers in turn and edges that are not updated, start as the forward pass of the networks at
            learned points, one for each entry of the states (`nn/activations.py`).

    >>> PassingSpec(width=32)
    PassingSpec(width=32)
    """

    width: Count = 64
    layers: Depth = 4
    backward: Backward = "none"
    edge_positions: bool = False
    positions_everywhere: bool = False
    skip: bool = True
    gate: Count | None = None
    sign: SignRule = "symmetrise"
    aggregate: Aggregate = "sum"
    dropout: Share = 0.0
    edge_updates: bool = True
    checkpointing: bool = False
    form: FormName = "ours"
    depth: Depth = 1
    dropout_in: DropoutPlace | None = None
    rescale: Rescaling = "hadamard"
    edge_rule: EdgeRule = "invariant"
    neighbours_only: bool = False
    order: Order = "together"
    hidden: Count | None = None
    messages: Messages = "nets"
