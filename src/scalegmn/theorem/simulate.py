r"""A bidirectional ScaleGMN that runs the network it reads: the theorem of the paper (A.6.2) as a program.

The message passing is that of `MessagePassing`: the same layers, messages, updates and edges. Linear maps get the
weights of the proof, and invariant nets and MLPs are replaced by the functions of the proof (`proof.py`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..core.activations import Activation
from ..core.architecture import Architecture, Linear, Skip
from ..core.groups import Group
from ..core.networks import Networks
from ..errors import ScaleGMNError
from ..nn.body import MessagePassing
from ..nn.encoding import reciprocal
from ..nn.layers import GraphLayer
from ..nn.spec import Flow, PassingSpec
from .proof import StateChannels, set_layer, set_start


@dataclass(frozen=True)
class Passes:
    """What the vertex states hold, per layer (B, P, n).

    Arguments:
        pre, post: Pre- and post-activations.
        pre_gradients, post_gradients: Gradients of <cotangent, output> there.
    """

    pre: tuple[Tensor, ...]
    post: tuple[Tensor, ...]
    pre_gradients: tuple[Tensor, ...]
    post_gradients: tuple[Tensor, ...]


class Simulation(nn.Module):
    """A ScaleGMN whose vertex states become the forward and the backward pass of the network that it reads.

    Arguments:
        architecture: Of the networks: linear layers and residual additions, a linear output, and activations with
            sigma(a x) = a sigma(x), one for each group.
        inputs: P inputs (P, n_0).
        cotangent: The gradients of the loss at the outputs (P, n_L).
        layers: Iterations T: neuron layer l is right from T = l on, its gradients from T = 2 L - l on.
        backward: `dual` carries gradients as they are, `shared` too (for signs, where 1/q = q), `reciprocal` their
            inverses as in the paper's proof.

    >>> architecture = Architecture.mlp([2, 3, 1], "relu")
    >>> networks = Networks(architecture, torch.randn(4, architecture.parameters, dtype=torch.float64))
    >>> x = torch.randn(5, 2, dtype=torch.float64)
    >>> simulation = Simulation(architecture, x, torch.ones(5, 1, dtype=torch.float64), layers=4)
    >>> torch.allclose(simulation(networks).post[-1], networks.evaluate(x))
    True
    """

    def __init__(
        self, architecture: Architecture, inputs: Tensor, cotangent: Tensor, *, layers: int, backward: Flow = "dual"
    ) -> None:
        super().__init__()
        if backward == "none":
            raise ScaleGMNError("backward: expected dual, shared or reciprocal, got none; gradients flow backwards")
        _check(architecture)
        self.architecture = architecture
        self.channels = StateChannels(len(inputs))
        self.body = MessagePassing(
            [architecture], PassingSpec(self.channels.width, layers, backward, skip=False), last_edges=True
        ).to(inputs.dtype)
        with torch.no_grad():
            set_start(self.body, self.channels, inputs, cotangent)
            sigma = {architecture.groups[i]: a.activation for i, a in enumerate(architecture.layers[1:-1], 1)}
            for layer in self.body.layers:
                assert isinstance(layer, GraphLayer)
                set_layer(layer, self.channels, sigma)

    @torch.no_grad()
    def forward(self, networks: Networks) -> Passes:
        """Run the message passing on networks and read the vertex states."""
        states = self.body(networks)
        c, x = self.channels, [states.x(i) for i in range(len(self.architecture.layers))]
        d = [states.d(i) for i in range(len(x))] if self.body.backward == "dual" else x
        decode = reciprocal if self.body.backward == "reciprocal" else torch.clone
        return Passes(
            tuple(v[..., c.pre].transpose(1, 2) for v in x),
            tuple(v[..., c.post].transpose(1, 2) for v in x),
            tuple(decode(v[..., c.pre_gradient]).transpose(1, 2) for v in d),
            tuple(decode(v[..., c.post_gradient]).transpose(1, 2) for v in d),
        )


def _check(architecture: Architecture) -> None:
    """Refuse what the construction does not cover."""
    found: dict[Group, Activation] = {}
    for i, layer in enumerate(architecture.layers[1:-1], 1):
        act, group = layer.activation, architecture.groups[i]
        if not act.phi.is_identity or act.learned_slope or layer.offset:
            raise ScaleGMNError(f"architecture: expected activations with sigma(a x) = a sigma(x), got {architecture}")
        if found.setdefault(group, act) != act:
            raise ScaleGMNError(f"architecture: expected one activation for {group}, got {found[group]} and {act}")
    if architecture.layers[-1].activation.name != "identity":
        raise ScaleGMNError(f"architecture: expected a linear output, got {architecture.layers[-1].activation}")
    for c in architecture.connections:
        if c.map not in (Linear(), Skip()) or c.pools or c.gain != 1:
            raise ScaleGMNError(f"architecture: expected linear layers and residual additions, got {c}")
