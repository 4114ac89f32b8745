"""The message passing network between the first states and the readout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core.architecture import Architecture, Sum
from ..core.networks import Networks
from ..errors import ScaleGMNError
from ..native.formula import Edge
from .encoding import DualInit, Init, Positions, reciprocal
from .layers import DualLayer, ForwardLayer, GraphLayer, Iteration, ReciprocalLayer, SharedLayer, Style
from .probes import Probes
from .spec import Backward, Flow, PassingSpec
from .states import Given, States, kept
from .symmetry import Symmetry, edge_groups, vertex_groups
from .wires import wire

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
        self.width, self.skip, self.backward = width, spec.skip, flow
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
            checkpointing=spec.checkpointing,
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
        self._compiled: Callable[[GraphLayer, Given], Given] | None = None

    def extra_repr(self) -> str:
        groups = ", ".join(map(str, self.style.vertex_groups))
        return f"depth: {len(self.layers)}, width: {self.width}, backward: {self.backward}, groups: {groups}"

    def forward(self, networks: Networks) -> States:
        """The states after T iterations, each computed when it is asked for."""
        states: States = Start(self, networks)
        for layer in self.layers:
            assert isinstance(layer, GraphLayer)
            if self._compiled is None:
                states = Iteration(layer, states)
            else:
                states = self._compiled(layer, _dense(states, self.backward))
        return states

    def compile_layers(self, *, backend: str | Callable[..., Any] = "inductor") -> None:
        """Run iterations through torch.compile: layers of one kind share one compilation, for batches of any size.

        So that they are of one kind, all of them compute all states, and edges are dense from the start.
        """
        self._compiled = torch.compile(_iterate, backend=backend)

    def measure(self, training: Sequence[Networks]) -> None:
        """Take constants of size from training networks."""
        self.init.measure(training)
        if self.probes is not None:
            self.probes.measure(training)


class Start(States):
    """The states before the first iteration.

    Arguments:
        body: Whose first states.
        networks: Of one architecture.
    """

    def __init__(self, body: MessagePassing, networks: Networks) -> None:
        self.body, self.networks = body, networks
        self.features: Sequence[Tensor] = []
        self.gradients: Sequence[Tensor] = []
        if body.probes is not None and body.backward in ("dual", "shared"):
            self.features, self.gradients = body.probes.responses_and_gradients(networks)
        elif body.probes is not None:
            self.features = body.probes.responses(networks)
        answers = self.features[-1] if self.features else None
        symmetry = body.symmetries.get(networks.architecture) or body.symmetry(networks.architecture)
        super().__init__(symmetry, body.positions(networks.architecture), answers)
        if body.probes is not None and body.backward == "shared":
            # For signs 1/q = q: gradients are vertex features as well.
            self.features = [torch.cat([f, g], -1) for f, g in zip(self.features, self.gradients, strict=True)]

    @kept
    def x(self, layer: int) -> Tensor:
        features = self.features[layer : layer + 1]
        return self.body.init.encode_vertex(self.networks, self.symmetry, layer, self.positions[layer], features)

    @kept
    def d(self, layer: int) -> Tensor:
        assert self.body.dual_init is not None
        gradients = self.gradients[layer : layer + 1]
        d: Tensor = self.body.dual_init(self.symmetry, layer, self.x(layer), self.positions[layer], gradients)
        return d

    @kept
    def e(self, connection: int) -> Edge:
        found = wire(self, connection)
        if found is not None:
            return found
        init = self.body.init
        return init.encode_edge(self.symmetry, connection, init.kernels(self.networks, connection))

    @kept
    def r(self, connection: int) -> Edge:
        init = self.body.init
        return init.encode_edge(self.symmetry, connection, reciprocal(init.kernels(self.networks, connection)))


def _iterate(layer: GraphLayer, old: Given) -> Given:
    """Every state after one iteration."""
    new = Iteration(layer, old)
    x, d, e, r = old.parts
    parts = {i: new.x(i) for i in x}, {i: new.d(i) for i in d}, {c: new.e(c) for c in e}, {c: new.r(c) for c in r}
    return Given(old.symmetry, old.positions, parts, old.answers)


def _dense(states: States, flow: Flow) -> Given:
    """Every state for the compiler: contiguous tensors, whose number of networks may change from call to call."""
    layers, connections = range(len(states.positions)), range(len(states.symmetry.architecture.connections))
    parts = (
        {i: _marked(states.x(i)) for i in layers},
        {i: _marked(states.d(i)) for i in layers if flow == "dual"},
        {c: Edge(_marked(states.e(c).dense())) for c in connections},
        {c: Edge(_marked(states.r(c).dense())) for c in connections if flow == "reciprocal"},
    )
    return Given(states.symmetry, states.positions, parts, states.answers)


def _marked(x: Tensor) -> Tensor:
    x = x.contiguous()
    if x.shape[0] > 1:
        torch._dynamo.maybe_mark_dynamic(x, 0)
    return x


def _check(symmetries: Sequence[Symmetry], backward: Flow) -> None:
    for s in symmetries:
        if backward == "shared" and any(g.scales for g in s.groups):
            raise ScaleGMNError(
                f"backward: 'shared' is equivariant for signs only, but {s.architecture} has scales; use 'dual'"
            )
        if backward == "reciprocal" and not all(isinstance(layer.combine, Sum) for layer in s.architecture.layers):
            raise ScaleGMNError(
                f"backward: 'reciprocal' reads layers that add, but {s.architecture} multiplies; use 'dual'"
            )
        lifted = any(not s.phis[i].is_identity for i in range(len(s.phis)) if s.is_hidden(i))
        if backward == "reciprocal" and lifted:
            raise ScaleGMNError(
                f"backward: 'reciprocal' needs sigma(a x) = a sigma(x), but {s.architecture} has another phi; "
                "use 'dual'"
            )
