r"""Message passing that starts as the forward pass of the networks that it reads.

That ScaleGMN can simulate a forward pass is a theorem of the paper (A.6.2). Here training starts from such a
simulation: the encodings of the input neurons are the coordinates of h learned points, messages are weights times the
senders' own activation of their states, and updates are the identity. An activation commutes with the multipliers of
its group, \(\sigma(q z) = \phi(q) \sigma(z)\), so the states of every such model move as the neurons do.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..core.architecture import Architecture
from ..core.groups import Trivial
from ..core.networks import Networks
from ..native.formula import Edge
from .encoding import FirstStates, biases
from .invariant import ScaleInvariant
from .layers import EdgeLayer
from .scale import ScaleInvariants
from .states import States
from .style import Style
from .symmetry import Symmetry, Way


class ActivationInit(FirstStates):
    r"""Input neurons start as points, others as their biases, edges as \(\Gamma_E w\); all factors start at 1.

    Arguments:
        architectures: Sizes come from these.
        style: What all functions have in common.
        features: Vertex features beside the bias; their factors start at 0.

    >>> from scalegmn.core.groups import Sign
    >>> a = Architecture.mlp([2, 8, 1], "tanh")
    >>> init = ActivationInit([a], Style((Sign,), (Sign,), 8), features=0)
    >>> points, networks = torch.randn(2, 8), Networks(a, torch.randn(5, 33))
    >>> init.encode_vertex(networks, Symmetry.full(a), 0, points, []).shape
    torch.Size([5, 2, 8])
    """

    edge_positions = None

    def __init__(self, architectures: Sequence[Architecture], style: Style, *, features: int) -> None:
        super().__init__(architectures)
        self.bias = nn.Parameter(torch.ones(style.width))
        self.features = nn.Linear(features, style.width, bias=False) if features else None
        self.edge = nn.Linear(self.kernels.size, style.width, bias=False)
        nn.init.ones_(self.edge.weight)
        if self.features is not None:
            nn.init.zeros_(self.features.weight)

    def encode_vertex(
        self, networks: Networks, symmetry: Symmetry, layer: int, position: Tensor, features: Sequence[Tensor]
    ) -> Tensor:
        x = position.expand(len(networks), -1, -1) if layer == 0 else biases(networks, layer).unsqueeze(-1) * self.bias
        return x if self.features is None else x + self.features(torch.cat(list(features), -1))

    def encode_edge(self, symmetry: Symmetry, connection: int, w: Tensor) -> Edge:
        return self.project(symmetry, connection, w)

    def measure(self, training: Sequence[Networks]) -> None:
        """Does nothing: states are pre-activations in the networks' own units."""


class ActivationMessage(nn.Module):
    r"""\(\sum_s e_{ts} \odot \sigma(x_s)\), with the activation \(\sigma\) of the sender.

    >>> from scalegmn.core.groups import Sign
    >>> symmetry = Symmetry.full(Architecture.mlp([2, 8, 1], "tanh"))
    >>> ActivationMessage()(Way(symmetry, 0), torch.randn(5, 2, 4), Edge(torch.randn(5, 8, 2, 4)), []).shape
    torch.Size([5, 8, 4])
    """

    def forward(self, way: Way, y: Tensor, e: Edge, contexts: Sequence[Tensor]) -> Tensor:
        """The sum of all messages along one connection (B, n, h); arguments as in `Message`."""
        return way.arriving(e.passed(way.activation(y), by_target=way.by_target))


class ActivationUpdate(nn.Module):
    r"""\((z + \tfrac1h \Gamma z) \odot (1 + \tfrac1h \mathsf{ScaleInv}(z, p))\), with \(z = x + m\); starts as z.

    Each entry of \(\Gamma z\) is a sum of h terms: divided by h, it changes as fast in training as one of them would.

    Arguments:
        style: What all functions have in common.

    >>> from scalegmn.core.groups import Sign
    >>> update, z = ActivationUpdate(Style((Sign,), (Sign,), 4)), torch.randn(5, 8, 4)
    >>> torch.equal(update(Symmetry.full(Architecture.mlp([2, 8, 1], "tanh")), 1, z, torch.randn(8, 4)), z)
    True
    """

    def __init__(self, style: Style) -> None:
        super().__init__()
        w, groups = style.width, (*style.vertex_groups, Trivial)
        self.gamma = nn.Linear(w, w, bias=False)
        self.invariant = ScaleInvariants(groups, [w], w, style.nets, contexts=[w], hidden=style.hidden)
        nn.init.zeros_(self.gamma.weight)
        for invariant in self.invariant.of.values():
            assert isinstance(invariant, ScaleInvariant)
            nn.init.zeros_(invariant.last.weight)
            nn.init.zeros_(invariant.last.bias)

    def forward(self, symmetry: Symmetry, layer: int, z: Tensor, position: Tensor) -> Tensor:
        """The new state (B, n, h) of one layer from what it has added up."""
        group = symmetry.groups[layer] if symmetry.is_hidden(layer) else Trivial
        step, gate = self.gamma(z) / z.shape[-1], self.invariant(group, [z], [position]) / z.shape[-1]
        x: Tensor = (z + step) * (1 + gate)
        return x


class ActivationLayer(EdgeLayer):
    """One iteration of messages that are activations.

    Arguments:
        style, edges: As in `PassingLayer`.

    >>> from scalegmn.nn.forms import Ours
    >>> from scalegmn.nn.spec import PassingSpec
    >>> symmetry = Symmetry.full(Architecture.mlp([2, 8, 1], "relu"))
    >>> spec = PassingSpec(width=8, layers=2, order="in_turn", edge_updates=False, messages="activations")
    >>> type(Ours(spec, [symmetry]).layer(edges=False)).__name__
    'ActivationLayer'
    """

    def make_functions(self, style: Style) -> None:
        self.message = ActivationMessage()
        self.update = ActivationUpdate(style)

    def x(self, old: States, layer: int) -> Tensor:
        z = old.x(layer) + self.gather(old, layer, self.message, old.x, old.e)
        x: Tensor = self._run(self.update, old.symmetry, layer, z, old.positions[layer])
        return x
