"""Laws of one iteration of message passing: states that move as they should go on moving so."""

from __future__ import annotations

import pytest
import torch
from strategies import generator
from subjects import ARCHITECTURES, transforms
from torch import Tensor

from scalegmn.audit import residual
from scalegmn.core.architecture import Architecture
from scalegmn.core.transform import Transform
from scalegmn.nn.edges import Factored, dense
from scalegmn.nn.layers import (
    DualLayer,
    ForwardLayer,
    GraphLayer,
    Key,
    ReciprocalLayer,
    SharedLayer,
    States,
    Style,
)
from scalegmn.nn.symmetry import Symmetry, edge_groups, vertex_groups
from scalegmn.testing import relative_error

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


def random_states(a: Architecture, seed: int = 0) -> States:
    g = generator(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(3, *shape, H, generator=g, dtype=torch.float64)

    def edges() -> dict[int, torch.Tensor]:
        sizes = [(a.layers[c.target].size, a.layers[c.source].size if c.dense else 1) for c in a.connections]
        return {i: draw(*size) for i, size in enumerate(sizes)}

    x = {i: draw(layer.size) for i, layer in enumerate(a.layers)}
    d = {i: draw(layer.size) for i, layer in enumerate(a.layers)}
    return States(x, d, edges(), edges())  # type: ignore[arg-type]


def move(g: Transform, states: States) -> States:
    reciprocal = Transform(g.architecture, g.permutations, tuple(1 / s for s in g.scales))
    return States(
        {i: g.vertex(i, x) for i, x in states.x.items()},
        {i: g.dual(i, d) for i, d in states.d.items()},
        {c: g.edge(c, dense(e)) for c, e in states.e.items()},
        {c: reciprocal.edge(c, dense(r)) for c, r in states.r.items()},
    )


def kinds(flow: type[GraphLayer]) -> tuple[str, ...]:
    return ("x", "e", *{ReciprocalLayer: ("r",), DualLayer: ("d",)}.get(flow, ()))  # type: ignore[call-overload]


def everything(flow: type[GraphLayer], a: Architecture) -> set[Key]:
    counts = {"x": len(a.layers), "d": len(a.layers), "e": len(a.connections), "r": len(a.connections)}
    return {(kind, i) for kind in kinds(flow) for i in range(counts[kind])}  # type: ignore[misc]


def flat(states: States) -> dict[Key, torch.Tensor]:
    found: dict[Key, torch.Tensor] = {("x", i): x for i, x in states.x.items()}
    found |= {("d", i): d for i, d in states.d.items()}
    found |= {("e", c): dense(e) for c, e in states.e.items()}
    return found | {("r", c): dense(r) for c, r in states.r.items()}


def largest_error(a: States, b: States) -> float:
    left, right = flat(a), flat(b)
    assert left.keys() == right.keys()
    return max(relative_error(left[k], right[k]).max().item() for k in left)


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
    "style", [{}, {"sign": "absolute"}, {"aggregate": "mean"}, {"positions": 4}], ids=["plain", "abs", "mean", "pe"]
)
def test_states_go_on_moving_as_they_should(flow: type[GraphLayer], name: str, style: dict[str, object]) -> None:
    a = SUBJECTS[name]
    layer, symmetry, wanted = make(flow, a, **style), Symmetry.full(a), everything(flow, a)
    states, positions, g = random_states(a), positions_of(a), transforms(a)
    new = layer(symmetry, states, wanted, positions)
    assert flat(new).keys() == wanted
    moved = layer(symmetry, move(g, states), wanted, positions)
    # Compare in the coordinates of the original, where no entry is hidden behind a large multiplier.
    assert largest_error(move(g.inverse(), moved), new) < 1e-9


def test_forward_edges_used_backwards_are_caught() -> None:
    """Negative control: the shared form is not equivariant to scales, and the law above would say so."""
    a = SUBJECTS["relu"]
    layer, symmetry, wanted = make(SharedLayer, a), Symmetry.full(a), everything(SharedLayer, a)
    states, positions, g = random_states(a), positions_of(a), transforms(a)
    new, moved = layer(symmetry, states, wanted, positions), layer(symmetry, move(g, states), wanted, positions)
    assert largest_error(move(g.inverse(), moved), new) > 0.1


@cases
def test_what_is_not_needed_is_not_read(flow: type[GraphLayer], name: str) -> None:
    """Each wanted state alone gives the same answer from only the states that it needs."""
    a = SUBJECTS[name]
    layer, symmetry, positions = make(flow, a), Symmetry.full(a), positions_of(a)
    states = random_states(a)
    expected = flat(layer(symmetry, states, everything(flow, a), positions))
    for key in sorted(everything(flow, a)):
        needs = layer.needs(symmetry, {key})
        pruned = States(
            *({i: v for i, v in getattr(states, kind).items() if (kind, i) in needs} for kind in ("x", "d", "e", "r"))
        )
        found = flat(layer(symmetry, pruned, {key}, positions))
        assert list(found) == [key]
        torch.testing.assert_close(found[key], expected[key], rtol=1e-12, atol=1e-12)


@cases
def test_without_edge_updates_edges_stay(flow: type[GraphLayer], name: str) -> None:
    a = SUBJECTS[name]
    layer, states = make(flow, a, edges=False), random_states(a)
    new = layer(Symmetry.full(a), states, everything(flow, a), positions_of(a))
    assert all(new.e[c] is states.e[c] for c in states.e)
    assert all(new.r[c] is states.r[c] for c in new.r)


@cases
def test_information_flows_the_way_it_should(flow: type[GraphLayer], name: str) -> None:
    """What a layer's new vertex state depends on: sources in every flow, targets in those with backward messages."""
    a = SUBJECTS[name]
    layer, symmetry, positions = make(flow, a), Symmetry.full(a), positions_of(a)
    states = random_states(a)
    middle = 2
    for i in states.x:
        states.x[i].requires_grad_()
        states.d[i].requires_grad_()
    # A linear readout: the norm of a state would hide directions.
    layer(symmetry, states, {("x", middle)}, positions).x[middle].sum().backward()
    heard = {i for i, x in states.x.items() if x.grad is not None and x.grad.abs().sum() > 0}
    sources = {a.connections[c].source for c in a.incoming[middle]}
    targets = {a.connections[c].target for c in a.outgoing[middle]}
    backward = targets if flow in (SharedLayer, ReciprocalLayer) else set()
    assert heard == {middle} | sources | backward


def test_dual_states_flow_backwards() -> None:
    a = SUBJECTS["relu"]
    layer, symmetry, states = make(DualLayer, a), Symmetry.full(a), random_states(a)
    for d in states.d.values():
        d.requires_grad_()
    layer(symmetry, states, {("d", 2)}, positions_of(a)).d[2].sum().backward()
    assert [i for i, d in states.d.items() if d.grad is not None and d.grad.abs().sum() > 0] == [2, 3]


@cases
def test_factored_edges_are_the_same_as_dense_ones(flow: type[GraphLayer], name: str) -> None:
    a = SUBJECTS[name]
    layer, symmetry, positions, wanted = make(flow, a), Symmetry.full(a), positions_of(a), everything(flow, a)
    states = random_states(a)
    v = torch.randn(1, H, dtype=torch.float64, generator=generator(9))
    for edges in (states.e, states.r):
        for c, connection in enumerate(a.connections):
            if connection.dense:
                edges[c] = Factored(dense(edges[c])[..., 0].contiguous(), v)
    found = layer(symmetry, states, wanted, positions)
    states.e = {c: dense(e) for c, e in states.e.items()}
    states.r = {c: dense(r) for c, r in states.r.items()}
    assert largest_error(found, layer(symmetry, states, wanted, positions)) < 1e-10


def test_skip_connections_add_what_both_have() -> None:
    a = SUBJECTS["tanh"]
    old = random_states(a)
    new = States({1: old.x[1]}, {}, {0: old.e[0]}, {})
    total = old.plus(new)
    assert flat(total).keys() == {("x", 1), ("e", 0)}
    torch.testing.assert_close(total.x[1], 2 * old.x[1])
    torch.testing.assert_close(dense(total.e[0]), dense(old.e[0]))


def test_bidirectional_layers_begin_as_forward_ones() -> None:
    """Whatever comes back changes nothing at first, and something after a step of training."""
    a = SUBJECTS["tanh"]
    old, symmetry = random_states(a), Symmetry.full(a)
    style = Style(vertex_groups([symmetry]), edge_groups([symmetry]), H)
    layer = SharedLayer(style, edges=False).double()
    wanted: set[Key] = {("x", i) for i in range(len(a.layers))}

    def answers() -> Tensor:
        return torch.cat([x.flatten() for x in layer(symmetry, old, wanted, []).x.values()])

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


@pytest.mark.parametrize("edges", [True, False])
def test_edge_updates_add_the_old_state_where_there_are_skip_connections(edges: bool) -> None:
    a = SUBJECTS["tanh"]
    old, symmetry = random_states(a), Symmetry.full(a)
    found = []
    for skip in (False, True):
        torch.manual_seed(0)
        style = Style(vertex_groups([symmetry]), edge_groups([symmetry]), H, skip=skip)
        layer = ForwardLayer(style, edges=edges).double()
        found.append(layer(symmetry, old, {("e", 0), ("e", 1)}, []).e)
    for c in (0, 1):
        expected = dense(old.e[c]) + dense(found[0][c])
        torch.testing.assert_close(dense(found[1][c]), expected, rtol=1e-12, atol=1e-12)
