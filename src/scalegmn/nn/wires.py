r"""Products and attention: the edge states of wires come from the other factors.

The edges of a wire into a product are the states of the other factors: with \(q_t = \phi(q_a) \phi(q_b)\) the edge
from a moves as \(q_t / \phi(q_a) = \phi(q_b)\), as the post-activations of b do. In attention the edge of a value is
the mean product of queries and keys over its head, which does not move, since \(\phi(q_q) \phi(q_k) = 1\); backward
messages to queries combine those of outputs and values, along the keys. None of this needs parameters.
"""

from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor

from ..core.architecture import Attention, Product
from ..native.formula import Edge
from .states import States
from .symmetry import Way


def wire(states: States, connection: int) -> Edge | None:
    """The edge states of a wire into a product or an attention; None for all other connections.

    Arguments:
        states: The states of the vertices at its ends.
        connection: The connection.
    """
    a = states.symmetry.architecture
    target = a.connections[connection].target
    combine = a.layers[target].combine
    if isinstance(combine, Product):
        others = [_said(states, c) for c in a.incoming[target] if c != connection]
        size = a.layers[target].size
        return Edge(reduce(torch.mul, others).expand(-1, size, -1).unsqueeze(2))
    if isinstance(combine, Attention):
        query, key, value = a.incoming[target]
        if connection == value:
            scores = _per_head(_said(states, query) * _said(states, key), combine.heads)
            return Edge(_spread(scores, a.layers[target].size).unsqueeze(2))
        return Edge(_said(states, key if connection == query else query).unsqueeze(2))
    return None


def sent(states: States, way: Way, vertex: Callable[[int], Tensor]) -> Tensor | None:
    """The states (B, n, h) that senders send; None if nothing goes this way.

    Arguments:
        states: All states.
        way: Along which messages go.
        vertex: The states that are sent, by layer.
    """
    a = states.symmetry.architecture
    target = a.connections[way.connection].target
    combine = a.layers[target].combine
    if not isinstance(combine, Attention) or way.connection == a.incoming[target][2]:
        return way.leaving(vertex(way.sender))
    if not way.back:
        return None  # queries and keys act through the edges of the values
    together = _per_head(vertex(target) * _said(states, a.incoming[target][2]), combine.heads)
    return _spread(together, states.symmetry.ranges(way.connection)[0].size)


def _said(states: States, connection: int) -> Tensor:
    """States of a wire's sources (B, n, h) that move as their post-activations."""
    way = Way(states.symmetry, connection)
    return way.leaving(way.lift(states.x(way.sender)))


def _per_head(x: Tensor, heads: int) -> Tensor:
    """The mean over the neurons of each head (B, heads, h)."""
    found: Tensor = x.unflatten(1, (heads, -1)).mean(2)
    return found


def _spread(x: Tensor, size: int) -> Tensor:
    """One vector for all neurons of a head (B, size, h)."""
    return x.repeat_interleave(size // x.shape[1], 1)
