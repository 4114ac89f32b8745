"""Laws of one iteration of message passing: states that move as they should go on moving so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from strategies import generator
from subjects import ARCHITECTURES, transforms
from torch import Tensor

from scalegmn.audit import residual
from scalegmn.core.architecture import Architecture
from scalegmn.core.transform import Transform
from scalegmn.native.formula import Edge
from scalegmn.nn.layers import DualLayer, ForwardLayer, GraphLayer, Iteration, ReciprocalLayer, SharedLayer
from scalegmn.nn.states import Given, States
from scalegmn.nn.style import Nets, Style
from scalegmn.nn.symmetry import Symmetry, edge_groups, vertex_groups
from scalegmn.testing import relative_error

Key = tuple[str, int]
H = 6
SUBJECTS = {
    "relu": ARCHITECTURES["mlp", "relu"],
    "tanh": ARCHITECTURES["mlp", "tanh"],
    "cube": ARCHITECTURES["mlp", "cube"],
    "mixed": ARCHITECTURES["mlp", "mixed"],
    "abs": Architecture.mlp([2, 5, 4, 3], "abs"),
    "cos": Architecture.mlp([2, 5, 4, 3], "cos"),
    "residual relu": ARCHITECTURES["residual", "relu"],
    "residual tanh": ARCHITECTURES["residual", "tanh"],
    "residual mixed": residual(("relu", "cos", "leaky_relu")),
}
SIGNS = ("tanh", "cos", "residual tanh")
PLAIN = ("relu", "tanh", "residual relu", "residual tanh")
FLOWS: dict[type[GraphLayer], tuple[str, ...]] = {
    ForwardLayer: tuple(SUBJECTS),
    SharedLayer: SIGNS,
    ReciprocalLayer: PLAIN,
    DualLayer: tuple(SUBJECTS),
}
CASES = [(flow, name) for flow, names in FLOWS.items() for name in names]
cases = pytest.mark.parametrize(
    ("flow", "name"), CASES, ids=[f"{flow.__name__}-{name.replace(' ', '-')}" for flow, name in CASES]
)


def make(flow: type[GraphLayer], a: Architecture, *, edges: bool = True, **style: object) -> GraphLayer:
    symmetry = Symmetry.full(a)
    torch.manual_seed(0)
    shared = Style(vertex_groups([symmetry]), edge_groups([symmetry]), H, **style)  # type: ignore[arg-type]
    layer = flow(shared, edges=edges).double()
    for i, p in enumerate(layer.parameters()):
        p.data = 0.4 * torch.randn(p.shape, generator=generator(i), dtype=p.dtype)
    return layer


def random_states(a: Architecture, seed: int = 0) -> Given:
    g = generator(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(3, *shape, H, generator=g, dtype=torch.float64)

    def edges() -> dict[int, Edge]:
        sizes = [(a.layers[c.target].size, a.layers[c.source].size if c.dense else 1) for c in a.connections]
        return {i: Edge(draw(*size)) for i, size in enumerate(sizes)}

    x = {i: draw(layer.size) for i, layer in enumerate(a.layers)}
    d = {i: draw(layer.size) for i, layer in enumerate(a.layers)}
    return Given(Symmetry.full(a), positions_of(a), (x, d, edges(), edges()))


def move(g: Transform, states: Given) -> Given:
    reciprocal = Transform(g.architecture, g.permutations, tuple(1 / s for s in g.scales))
    x, d, e, r = states.parts
    moved = (
        {i: g.vertex(i, v) for i, v in x.items()},
        {i: g.dual(i, v) for i, v in d.items()},
        {c: Edge(g.edge(c, v.dense())) for c, v in e.items()},
        {c: Edge(reciprocal.edge(c, v.dense())) for c, v in r.items()},
    )
    return Given(states.symmetry, states.positions, moved)


def keys(flow: type[GraphLayer], a: Architecture) -> list[Key]:
    """All states of a flow."""
    kinds = ["x", "e", *{ReciprocalLayer: ["r"], DualLayer: ["d"]}.get(flow, [])]  # type: ignore[call-overload]
    counts = {"x": len(a.layers), "d": len(a.layers), "e": len(a.connections), "r": len(a.connections)}
    return [(kind, i) for kind in kinds for i in range(counts[kind])]


def ask(states: States, key: Key) -> torch.Tensor:
    value = getattr(states, key[0])(key[1])
    return value.dense() if isinstance(value, Edge) else value


def everything(flow: type[GraphLayer], states: States) -> Given:
    parts: dict[str, dict[int, Any]] = {kind: {} for kind in "xder"}
    for kind, i in keys(flow, states.symmetry.architecture):
        value = ask(states, (kind, i))
        parts[kind][i] = Edge(value) if kind in "er" else value
    return Given(states.symmetry, states.positions, tuple(parts.values()))  # type: ignore[arg-type]


def largest_error(flow: type[GraphLayer], a: States, b: States) -> float:
    return max(relative_error(ask(a, k), ask(b, k)).max().item() for k in keys(flow, a.symmetry.architecture))


def positions_of(a: Architecture, width: int = 4) -> list[torch.Tensor]:
    """Equal within hidden layers, as `Positions` makes them."""
    found = []
    for i, layer in enumerate(a.layers):
        rows = layer.size if a.slots[i] is None else 1
        p = torch.randn(rows, width, generator=generator(i), dtype=torch.float64)
        found.append(p.expand(layer.size, -1))
    return found


@cases
@pytest.mark.parametrize(
    "style",
    [{}, {"nets": Nets("absolute")}, {"aggregate": "mean"}, {"positions": 4}],
    ids=["plain", "abs", "mean", "pe"],
)
def test_states_go_on_moving_as_they_should(flow: type[GraphLayer], name: str, style: dict[str, object]) -> None:
    a = SUBJECTS[name]
    layer, states, g = make(flow, a, **style), random_states(a), transforms(a)
    moved = everything(flow, Iteration(layer, move(g, states)))
    # Compare in the coordinates of the original, where no entry is hidden behind a large multiplier.
    assert largest_error(flow, move(g.inverse(), moved), Iteration(layer, states)) < 1e-9


def test_forward_edges_used_backwards_are_caught() -> None:
    """Negative control: the shared form is not equivariant to scales, and the law above would say so."""
    a = SUBJECTS["relu"]
    layer, states, g = make(SharedLayer, a), random_states(a), transforms(a)
    moved = everything(SharedLayer, Iteration(layer, move(g, states)))
    assert largest_error(SharedLayer, move(g.inverse(), moved), Iteration(layer, states)) > 0.1


class Watched(States):
    """States that remember what was asked."""

    def __init__(self, states: Given) -> None:
        super().__init__(states.symmetry, states.positions)
        self.states = states
        self.asked: list[Key] = []

    def x(self, layer: int) -> Tensor:
        self.asked.append(("x", layer))
        return self.states.x(layer)

    def d(self, layer: int) -> Tensor:
        self.asked.append(("d", layer))
        return self.states.d(layer)

    def e(self, connection: int) -> Edge:
        self.asked.append(("e", connection))
        return self.states.e(connection)

    def r(self, connection: int) -> Edge:
        self.asked.append(("r", connection))
        return self.states.r(connection)

    def settle(self, name: str, index: int) -> None:
        self.states.settle(name, index)


def test_only_what_is_asked_for_is_computed() -> None:
    """A vertex state asks for those at the ends of its connections and for their edges, an edge for its two ends."""
    a = SUBJECTS["relu"]
    for flow, key, expected in (
        (ForwardLayer, ("x", 2), {("x", 1), ("x", 2), ("e", 1)}),
        (ForwardLayer, ("e", 1), {("x", 1), ("x", 2), ("e", 1)}),
        (ReciprocalLayer, ("x", 2), {("x", 1), ("x", 2), ("x", 3), ("e", 1), ("r", 2)}),
        (DualLayer, ("x", 2), {("x", 1), ("x", 2), ("d", 2), ("e", 1)}),
        (DualLayer, ("d", 2), {("x", 2), ("d", 2), ("d", 3), ("e", 2)}),
    ):
        old = Watched(random_states(a))
        ask(Iteration(make(flow, a), old), key)
        assert set(old.asked) == expected


@cases
def test_answers_are_kept_and_do_not_depend_on_the_order_of_questions(flow: type[GraphLayer], name: str) -> None:
    a = SUBJECTS[name]
    layer, old = make(flow, a), Watched(random_states(a))
    step, other = Iteration(layer, old), Iteration(layer, old)
    first = {key: ask(step, key) for key in keys(flow, a)}
    asked = len(old.asked)
    assert all(torch.equal(ask(step, key), value) for key, value in first.items())
    assert len(old.asked) == asked
    for key in reversed(keys(flow, a)):
        assert torch.equal(ask(other, key), first[key])


@cases
def test_without_edge_updates_edges_stay(flow: type[GraphLayer], name: str) -> None:
    a = SUBJECTS[name]
    old = random_states(a)
    new = Iteration(make(flow, a, edges=False), old)
    for kind, c in keys(flow, a):
        if kind in ("e", "r"):
            assert getattr(new, kind)(c) is getattr(old, kind)(c)


@cases
def test_information_flows_the_way_it_should(flow: type[GraphLayer], name: str) -> None:
    """What a layer's new vertex state depends on: sources in every flow, targets in those with backward messages."""
    a = SUBJECTS[name]
    states, middle = random_states(a), 2
    x, d, _, _ = states.parts
    for i in x:
        x[i].requires_grad_()
        d[i].requires_grad_()
    # A linear readout: the norm of a state would hide directions.
    Iteration(make(flow, a), states).x(middle).sum().backward()
    heard = {i for i, v in x.items() if v.grad is not None and v.grad.abs().sum() > 0}
    sources = {a.connections[c].source for c in a.incoming[middle]}
    targets = {a.connections[c].target for c in a.outgoing[middle]}
    backward = targets if flow in (SharedLayer, ReciprocalLayer) else set()
    assert heard == {middle} | sources | backward


def test_dual_states_flow_backwards() -> None:
    a = SUBJECTS["relu"]
    states = random_states(a)
    duals = states.parts[1]
    for d in duals.values():
        d.requires_grad_()
    Iteration(make(DualLayer, a), states).d(2).sum().backward()
    assert [i for i, d in duals.items() if d.grad is not None and d.grad.abs().sum() > 0] == [2, 3]


@cases
def test_factored_edges_are_the_same_as_dense_ones(flow: type[GraphLayer], name: str) -> None:
    a = SUBJECTS[name]
    layer, states = make(flow, a), random_states(a)
    v = torch.randn(1, H, dtype=torch.float64, generator=generator(9))
    x, d, *both = states.parts
    factored = [
        {c: Edge(v, e.dense()[..., 0]) if a.connections[c].dense else e for c, e in edges.items()} for edges in both
    ]
    dense = [{c: Edge(e.dense()) for c, e in edges.items()} for edges in factored]
    found, expected = (
        Iteration(layer, Given(states.symmetry, states.positions, (x, d, *edges)))
        for edges in (factored, dense)  # type: ignore[arg-type]
    )
    assert largest_error(flow, found, expected) < 1e-10


@cases
def test_skip_connections_add_the_old_state(flow: type[GraphLayer], name: str) -> None:
    a = SUBJECTS[name]
    old = random_states(a)
    plain, skipping = (Iteration(make(flow, a, skip=skip), old) for skip in (False, True))
    for key in keys(flow, a):
        torch.testing.assert_close(ask(skipping, key), ask(old, key) + ask(plain, key), rtol=1e-12, atol=1e-12)


def test_without_edge_updates_skip_connections_double_edges() -> None:
    a = SUBJECTS["tanh"]
    old = random_states(a)
    new = Iteration(make(ForwardLayer, a, edges=False, skip=True), old)
    torch.testing.assert_close(new.e(0).dense(), 2 * old.e(0).dense())


def test_bidirectional_layers_begin_as_forward_ones() -> None:
    """Whatever comes back changes nothing at first, and something after a step of training."""
    a = SUBJECTS["tanh"]
    old, symmetry = random_states(a), Symmetry.full(a)
    style = Style(vertex_groups([symmetry]), edge_groups([symmetry]), H)
    layer = SharedLayer(style, edges=False).double()

    def answers() -> Tensor:
        new = Iteration(layer, old)
        return torch.cat([new.x(i).flatten() for i in range(len(a.layers))])

    first = answers()
    for p in layer.backward_message.parameters():
        p.data *= 3
    assert torch.equal(answers(), first)
    first.square().sum().backward()
    for p in layer.update.parameters():
        if p.grad is not None:
            p.data -= 1e-2 * p.grad
    before = answers()
    for p in layer.backward_message.parameters():
        p.data *= 3
    assert not torch.allclose(answers(), before)


@cases
def test_recomputation_changes_no_gradient(flow: type[GraphLayer], name: str) -> None:
    a = SUBJECTS[name]
    found = []
    for checkpointing in (False, True):
        layer = make(flow, a, nets=Nets(dropout=0.2), checkpointing=checkpointing)
        torch.manual_seed(1)
        new = Iteration(layer, Iteration(layer, random_states(a)))
        sum(ask(new, key).square().mean() for key in keys(flow, a)).backward()  # type: ignore[union-attr]
        found.append([p.grad for p in layer.parameters() if p.grad is not None])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
