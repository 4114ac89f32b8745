"""The message passing network between the first states and the readout."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core.architecture import Architecture
from ..core.networks import Networks
from ..native.formula import Edge
from .encoding import Positions, reciprocal
from .forms import FORMS
from .layers import Iteration, PassingLayer
from .probes import Probes
from .spec import Flow, PassingSpec
from .states import Given, States, kept
from .symmetry import Symmetry
from .wires import wire


class MessagePassing(nn.Module):
    """Initialisation and T iterations, for every architecture of a list.

    Arguments:
        architectures: The architectures that it reads.
        spec: The options.
        symmetry: Which symmetries of an architecture are respected.
        last_edges: Whether the last iteration updates edges (an equivariant head needs it).
        probes: Number of probes.
        probe_image: Spatial shape of probes, for convolutional networks.

    >>> a = Architecture.mlp([2, 8, 1], "tanh")
    >>> networks = Networks(a, torch.randn(5, a.parameters))
    >>> body = MessagePassing([a], PassingSpec(width=8, layers=2))
    >>> body(networks).x(2).shape
    torch.Size([5, 1, 8])
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
        form = FORMS[spec.form](spec, symmetries)
        self.form, self.width, self.skip, self.backward = form, spec.width, spec.skip, form.flow
        self.in_turn = spec.order == "in_turn"
        self.style = form.style
        self.positions = Positions(architectures, spec.width, points=form.style.activations)
        self.probes = Probes(architectures, probes, image=tuple(probe_image)) if probes else None
        self.init = form.init(architectures, 2 * probes if form.flow == "shared" else probes)
        self.dual_init = form.dual_init(probes)
        self.layers = nn.ModuleList(
            form.layer(edges=edges) for edges in [spec.edge_updates] * (spec.layers - 1) + [last_edges]
        )
        self._compiled: Callable[[PassingLayer, Given, int | None], Given] | None = None

    def extra_repr(self) -> str:
        groups = ", ".join(map(str, self.style.vertex_groups))
        return f"depth: {len(self.layers)}, width: {self.width}, backward: {self.backward}, groups: {groups}"

    def forward(self, networks: Networks) -> States:
        """The states after T iterations, each computed when it is needed."""
        states: States = Start(self, networks)
        depth = len(networks.architecture.layers) - 1
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, PassingLayer)
            only = 1 + i % depth if self.in_turn else None
            if self._compiled is None:
                states = Iteration(layer, states, only)
            else:
                states = self._compiled(layer, _dense(states, self.backward), only)
        return states

    def compile_layers(self, *, backend: str | Callable[..., Any] = "inductor") -> None:
        """Compile the iterations with torch.compile: layers of one kind share one compilation, for batches of any size.

        To be of one kind, all of them compute all states, and edges are dense from the start.
        """
        self._compiled = torch.compile(_iterate, backend=backend)

    def measure(self, training: Sequence[Networks]) -> None:
        """Measure constants of size on training networks."""
        self.init.measure(training)
        if self.probes is not None:
            self.probes.measure(training)


class Start(States):
    """The states before the first iteration.

    Arguments:
        body: The message passing that they start.
        networks: Of one architecture.

    >>> a = Architecture.mlp([2, 8, 1], "tanh")
    >>> networks = Networks(a, torch.randn(5, a.parameters))
    >>> Start(MessagePassing([a], PassingSpec(width=8, layers=2)), networks).x(1).shape
    torch.Size([5, 8, 8])
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
        edges = body.init.edge_positions
        of_edges = [] if edges is None else [edges(symmetry, c) for c in range(len(symmetry.architecture.connections))]
        super().__init__(symmetry, body.positions(networks.architecture), answers, of_edges)
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
        w = init.kernels(self.networks, connection)
        inverted = self.body.form.inverts(self.symmetry, connection)
        return init.encode_edge(self.symmetry, connection, reciprocal(w) if inverted else w)

    def settle(self, name: str, index: int) -> None:
        """Does nothing: no earlier states are kept."""


def _iterate(layer: PassingLayer, old: Given, only: int | None) -> Given:
    """Every state after one iteration."""
    new = Iteration(layer, old, only)
    x, d, e, r = old.parts
    parts = {i: new.x(i) for i in x}, {i: new.d(i) for i in d}, {c: new.e(c) for c in e}, {c: new.r(c) for c in r}
    return Given(old.symmetry, old.positions, parts, old.answers, old.edge_positions)


def _dense(states: States, flow: Flow) -> Given:
    """Every state for the compiler: contiguous tensors, whose number of networks may differ from call to call."""
    layers, connections = range(len(states.positions)), range(len(states.symmetry.architecture.connections))
    parts = (
        {i: _marked(states.x(i)) for i in layers},
        {i: _marked(states.d(i)) for i in layers if flow == "dual"},
        {c: Edge(_marked(states.e(c).dense())) for c in connections},
        {c: Edge(_marked(states.r(c).dense())) for c in connections if flow == "reciprocal"},
    )
    return Given(states.symmetry, states.positions, parts, states.answers, states.edge_positions)


def _marked(x: Tensor) -> Tensor:
    x = x.contiguous()
    if x.shape[0] > 1:
        torch._dynamo.maybe_mark_dynamic(x, 0)
    return x
