"""The message passing network between the first states and the readout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..core.architecture import Architecture
from ..core.networks import Networks
from ..errors import ScaleGMNError
from .edges import dense
from .encoding import DualInit, Init, Positions, reciprocal
from .layers import (
    DualLayer,
    ForwardLayer,
    GraphLayer,
    Key,
    ReciprocalLayer,
    SharedLayer,
    States,
    Style,
)
from .probes import Probes
from .spec import Backward, Flow, PassingSpec
from .symmetry import Symmetry, edge_groups, vertex_groups

_LAYERS: dict[Flow, type[GraphLayer]] = {
    "none": ForwardLayer,
    "shared": SharedLayer,
    "reciprocal": ReciprocalLayer,
    "dual": DualLayer,
}


def resolve(backward: Backward, symmetries: Sequence[Symmetry]) -> Flow:
    """`auto` is the paper's form where all groups are signs, the dual stream wherever a group has scales."""
    if backward != "auto":
        return backward
    return "dual" if any(g.scales for g in vertex_groups(symmetries)) else "shared"


class MessagePassing(nn.Module):
    """Initialisation and T iterations, for every architecture of a list.

    Arguments:
        architectures: What it may read.
        spec: What a person chose.
        symmetry: Which symmetries of an architecture are respected.
        last_edges: Whether the last iteration updates edges (an equivariant head needs it).
        probes: Number of probes.
        probe_image: Spatial shape of probes, for convolutional networks.
    """

    def __init__(
        self,
        architectures: Sequence[Architecture],
        spec: PassingSpec,
        *,
        symmetry: Callable[[Architecture], Symmetry] = Symmetry.full,
        last_edges: bool = False,
        probes: int = 0,
        probe_image: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.symmetries = {a: symmetry(a) for a in architectures}
        self.symmetry = symmetry
        symmetries = list(self.symmetries.values())
        flow = resolve(spec.backward, symmetries)
        _check(symmetries, flow)
        width, sign, dropout = spec.width, spec.sign, spec.dropout
        self.width, self.skip, self.backward, self.checkpointing = width, spec.skip, flow, spec.checkpointing
        self.style = Style(
            vertex_groups(symmetries),
            edge_groups(symmetries),
            width,
            positions=width if spec.positions_everywhere else 0,
            gate=spec.gate,
            sign=sign,
            aggregate=spec.aggregate,
            dropout=dropout,
            skip=spec.skip,
        )
        self.positions = Positions(architectures, width)
        self.probes = Probes(architectures, probes, image=tuple(probe_image)) if probes else None
        groups = self.style.vertex_groups
        self.init = Init(
            architectures,
            groups,
            width,
            features=2 * probes if flow == "shared" else probes,
            positions=width,
            edge_positions=spec.edge_positions,
            sign=sign,
            dropout=dropout,
        )
        self.dual_init = (
            DualInit(groups, width, features=probes, positions=width, sign=sign, dropout=dropout)
            if flow == "dual"
            else None
        )
        layer = _LAYERS[flow]
        self.layers = nn.ModuleList(
            layer(self.style, edges=edges) for edges in [spec.edge_updates] * (spec.layers - 1) + [last_edges]
        )

        self._compiled: Callable[..., States] | None = None

    def extra_repr(self) -> str:
        groups = ", ".join(map(str, self.style.vertex_groups))
        return f"depth: {len(self.layers)}, width: {self.width}, backward: {self.backward}, groups: {groups}"

    def forward(self, networks: Networks, wanted: Callable[[Symmetry], set[Key]]) -> tuple[Symmetry, States]:
        """The states after T iterations, of which only those in `wanted` are computed."""
        symmetry = self.symmetries.get(networks.architecture) or self.symmetry(networks.architecture)
        positions = self.positions(networks.architecture)
        states = self._start(networks, symmetry, positions)
        answers = states.answers
        for layer, keys in zip(self.layers, self._plan(symmetry, wanted(symmetry)), strict=True):
            if self._compiled is not None:
                states = _dense(states)
            run = self._compiled or _iterate
            if self.checkpointing and self.training:
                new = checkpoint(run, layer, symmetry, states, keys, positions, use_reentrant=False)
            else:
                new = run(layer, symmetry, states, keys, positions)
            states = states.plus(new) if self.skip else new
        states.answers = answers
        return symmetry, states

    def compile_layers(self, *, backend: str | Callable[..., Any] = "inductor") -> None:
        """Run iterations through torch.compile: layers of one kind share one compilation, for batches of any size.

        So that they are of one kind, all of them compute all states, and edges are dense from the start.
        """
        self._compiled = torch.compile(_iterate, backend=backend)

    def _plan(self, symmetry: Symmetry, wanted: set[Key]) -> list[set[Key]]:
        """Which states each iteration computes."""
        if self._compiled is not None:
            return [_everything(symmetry, self.backward)] * len(self.layers)
        plan = [wanted]
        for layer in reversed(self.layers):
            assert isinstance(layer, GraphLayer)
            plan.append(layer.needs(symmetry, plan[-1]))
        return plan[-2::-1]

    def _start(self, networks: Networks, symmetry: Symmetry, positions: Sequence[Tensor]) -> States:
        features: Sequence[Tensor] = []
        gradients: Sequence[Tensor] = []
        if self.probes is not None and self.backward in ("dual", "shared"):
            features, gradients = self.probes.responses_and_gradients(networks)
        elif self.probes is not None:
            features = self.probes.responses(networks)
        answers = features[-1] if features else None
        if self.probes is not None and self.backward == "shared":
            # For signs 1/q = q: gradients are vertex features as well.
            features = [torch.cat([f, g], -1) for f, g in zip(features, gradients, strict=True)]
        states: States = self.init(networks, symmetry, positions, features)
        states.answers = answers
        if self.dual_init is not None:
            states.d = self.dual_init(symmetry, states.x, positions, gradients)
        if self.backward == "reciprocal":
            kernels = self.init.kernels
            for c in range(len(networks.architecture.connections)):
                states.r[c] = self.init.encode_edge(symmetry, c, reciprocal(kernels(networks, c)))
        return states

    def measure(self, training: Sequence[Networks]) -> None:
        """Take constants of size from training networks."""
        self.init.measure(training)
        if self.probes is not None:
            self.probes.measure(training)


def _iterate(
    layer: nn.Module, symmetry: Symmetry, states: States, wanted: set[Key], positions: Sequence[Tensor]
) -> States:
    new: States = layer(symmetry, states, wanted, positions)
    return new


def _everything(symmetry: Symmetry, flow: Flow) -> set[Key]:
    layers, connections = range(len(symmetry.groups)), range(len(symmetry.architecture.connections))
    found: set[Key] = {("x", i) for i in layers} | {("e", c) for c in connections}
    if flow == "dual":
        found |= {("d", i) for i in layers}
    return found | {("r", c) for c in connections} if flow == "reciprocal" else found


def _dense(states: States) -> States:
    """The same for the compiler: contiguous tensors, whose number of networks may change from call to call."""
    found = States(
        {k: v.contiguous() for k, v in states.x.items()},
        {k: v.contiguous() for k, v in states.d.items()},
        {k: dense(v).contiguous() for k, v in states.e.items()},
        {k: dense(v).contiguous() for k, v in states.r.items()},
    )
    for part in (found.x, found.d, found.e, found.r):
        for x in part.values():
            assert isinstance(x, Tensor)
            if x.shape[0] > 1:
                torch._dynamo.maybe_mark_dynamic(x, 0)
    return found


def _check(symmetries: Sequence[Symmetry], backward: Flow) -> None:
    for s in symmetries:
        if backward == "shared" and any(g.scales for g in s.groups):
            raise ScaleGMNError(
                f"backward: 'shared' is equivariant for signs only, but {s.architecture} has scales; use 'dual'"
            )
        lifted = any(not s.phis[i].is_identity for i in range(len(s.phis)) if s.is_hidden(i))
        if backward == "reciprocal" and lifted:
            raise ScaleGMNError(
                f"backward: 'reciprocal' needs sigma(a x) = a sigma(x), but {s.architecture} has another phi; "
                "use 'dual'"
            )
