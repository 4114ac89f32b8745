r"""From the last states to a vector per network, or to new parameters (paper, A.1.5 and A.4.3)."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from ..core.architecture import Architecture
from .kernels import crop_kernel, kernel_shape, together
from .layers import pairing
from .message import VertexInvariant
from .mlp import LayerNorm
from .scale import ScaleEquivariant
from .states import States
from .style import Style
from .symmetry import Symmetry

ReadoutKind = Literal["all", "output", "input+output"]
# Answers to probes need more room than states: this many times the width.
_ANSWERS = 4


class Readout(nn.Module):
    r"""\(\mathrm{READ}_V(X) = \mathrm{MLP}([\mathsf{DeepSets}(\tilde x_1, \dots, \tilde x_n), X_0, X_L])\).

    `output` and `input+output` leave out the hidden neurons (and the input).

    Arguments:
        architectures: Sizes come from these.
        style: Of the message passing.
        kind: What is read.
        duals: Whether there is a dual stream.
        probes: Number of probes; the networks' outputs at them are read directly, besides the states.

    >>> from scalegmn.core.networks import Networks
    >>> from scalegmn.nn.body import MessagePassing
    >>> from scalegmn.nn.spec import PassingSpec
    >>> a = Architecture.mlp([2, 8, 1], "tanh")
    >>> body = MessagePassing([a], PassingSpec(width=4, layers=1), last_edges=True)
    >>> states = body(Networks(a, torch.randn(5, a.parameters)))
    >>> Readout([a], body.style, kind="all", duals=False)(states).shape
    torch.Size([5, 4])
    """

    def __init__(
        self, architectures: Sequence[Architecture], style: Style, *, kind: ReadoutKind, duals: bool, probes: int = 0
    ) -> None:
        super().__init__()
        self.kind = kind
        self.duals = duals
        self.aggregate = style.aggregate
        self.sizes = (
            0 if kind == "output" else max(a.layers[0].size for a in architectures),
            max(a.layers[-1].size for a in architectures),
        )
        w = style.width
        ends = sum(self.sizes) * w * (2 if duals else 1)
        if kind == "all":
            self.invariant = VertexInvariant(style, duals=duals)
            self.sets = style.nets.mlp(w, w)
            ends += w
        self.outputs = _ANSWERS * w if probes or style.activations else w
        self.answers = _hidden(probes * self.sizes[1], self.outputs, style.nets.dropout) if probes else None
        if probes:
            ends += self.outputs
        # Where states are answers themselves, they meet two hidden layers as answers to probes do.
        self.first = _hidden(ends, self.outputs, style.nets.dropout) if style.activations else None
        self.embedding = _hidden(ends if self.first is None else self.outputs, self.outputs, style.nets.dropout)

    def extra_repr(self) -> str:
        return f"neurons: {self.kind}"

    def forward(self, states: States) -> Tensor:
        """The invariant embedding (B, outputs), before the last map of the MLP."""
        symmetry = states.symmetry
        last = len(symmetry.architecture.layers) - 1
        parts = [self._end(states, last, self.sizes[1])]
        if self.kind != "output":
            parts.append(self._end(states, 0, self.sizes[0]))
        if self.kind == "all":
            parts.append(self._deep_sets(symmetry, states))
        if self.answers is not None:
            assert states.answers is not None
            parts.append(self.answers(self._padded(states.answers, self.sizes[1])))
        found = torch.cat(parts, -1)
        embedding: Tensor = self.embedding(found if self.first is None else self.first(found))
        return embedding

    def _end(self, states: States, layer: int, size: int) -> Tensor:
        """The concatenated states of all input or output neurons, padded with zeros to the largest."""
        x = torch.cat([states.x(layer), states.d(layer)], -1) if self.duals else states.x(layer)
        return self._padded(x, size)

    @staticmethod
    def _padded(x: Tensor, size: int) -> Tensor:
        return nn.functional.pad(x, (0, 0, 0, size - x.shape[1])).flatten(1)

    def _deep_sets(self, symmetry: Symmetry, states: States) -> Tensor:
        found = []
        for i in range(1, len(symmetry.architecture.layers) - 1):
            x = states.x(i)
            if self.duals:
                d = states.d(i)
                y = self.invariant(symmetry, i, [x, d], [pairing(x, d)])
            else:
                y = self.invariant(symmetry, i, [x])
            found.append(y.mean(1) if self.aggregate == "mean" else y.sum(1))
        if not found:
            last = states.x(len(symmetry.architecture.layers) - 1)
            return last.new_zeros(last.shape[0], self.sets.first.in_features)
        pooled: Tensor = self.sets(torch.stack(found).sum(0))
        return pooled


def _hidden(inputs: int, outputs: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, outputs), LayerNorm(outputs), nn.SiLU(), nn.Dropout(dropout))


class ParameterReadout(nn.Module):
    r"""The direction \(f(\theta)\): a scale equivariant map of edge states to weights and of vertex states to biases.

    Arguments:
        style: Of the message passing.
        kernel: The shape of the weights on an edge, the largest there is.
        copies: Number of parameter sets.

    >>> from scalegmn.core.architecture import Architecture
    >>> from scalegmn.nn.body import MessagePassing
    >>> from scalegmn.nn.spec import PassingSpec
    >>> from scalegmn.testing import random_networks
    >>> a = Architecture.mlp([2, 8, 1], "tanh")
    >>> body = MessagePassing([a], PassingSpec(width=4, layers=1), last_edges=True).double()
    >>> readout = ParameterReadout(body.style, (), copies=2).double()
    >>> a.parameters, readout(body(random_networks(a, 5))).shape
    (33, torch.Size([5, 2, 33]))
    """

    def __init__(self, style: Style, kernel: tuple[int, ...], *, copies: int) -> None:
        super().__init__()
        w, nets = style.width, style.nets
        self.kernel, self.copies = kernel, copies
        size = copies * math.prod(kernel)
        self.weight = ScaleEquivariant(style.edge_groups, w, size, nets, hidden=w)
        self.bias = ScaleEquivariant(style.vertex_groups, w, copies, nets, hidden=w)
        self.output_bias = nets.mlp(w, copies, hidden=w)

    def extra_repr(self) -> str:
        return f"copies: {self.copies}"

    def forward(self, states: States) -> Tensor:
        """The direction (B, copies, P)."""
        symmetry = states.symmetry
        a = symmetry.architecture
        last = states.x(len(a.layers) - 1)
        parts = []
        for s in a.segments:
            if s.kind == "weight":
                e = self.weight(symmetry.edge_group(s.index), states.e(s.index).dense())
                e = e.unflatten(-1, (self.copies, math.prod(self.kernel)))
                value = crop_kernel(e, kernel_shape(a.connections[s.index]), self.kernel).movedim(-2, 1)
                value = together(value, a.connections[s.index].groups).flatten(2)
            elif s.kind == "bias":
                x = states.x(s.index)
                y = self.bias(symmetry.groups[s.index], x) if symmetry.is_hidden(s.index) else self.output_bias(x)
                value = y.movedim(-1, 1)
            else:
                value = last.new_zeros(len(last), self.copies, s.size)
            parts.append(value)
        return torch.cat(parts, -1)
