"""The registered operator: C++ and the plain formula agree on every form, and torch's transforms work on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from strategies import generator
from subjects import ARCHITECTURES, fresh
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.fx.experimental.proxy_tensor import make_fx

from scalegmn.core.networks import Networks
from scalegmn.models.scalegmn import ScaleGMN
from scalegmn.native import library
from scalegmn.native.formula import NONE, SOURCE, TARGET, Edge, Net, dropout_mask, formula
from scalegmn.native.net import RECOMPUTE, Ends, Gate, net

compiled = pytest.mark.skipif(library.load() is None, reason="no compiler")
B, T, S, K, H, OUT = 2, 3, 4, 5, 6, 5


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64).requires_grad_()


def gate(
    *, hidden: int = H, symmetric: bool = True, absolute: bool = False, canonical: bool = True, drop: float = 0.0
) -> Gate:
    shapes = ((hidden, K), (hidden,), (hidden,), (hidden,), (OUT, hidden), (OUT,))
    drawn = (draw(*s, seed=i) for i, s in enumerate(shapes))
    return Gate(*drawn, 1e-5, symmetric and not absolute, absolute, canonical, drop)  # type: ignore[call-arg, arg-type]


def blind(*, hidden: int = H, drop: float = 0.0) -> Gate:
    """A net that sees contexts only."""
    g = gate(hidden=hidden, symmetric=False, canonical=False, drop=drop)
    return g._replace(first=g.first[:, :0])


GATE, DROPPING = gate(), gate(drop=0.5)
GAMMA, MORE = draw(OUT, K, seed=10), draw(B, T, S, H, seed=11)
FACTORS = draw(B, T, S, seed=12).detach()
ROWS = {
    "dense": Edge(draw(B, T, S, K, seed=13)),
    "factored": Edge(draw(B, S, K, seed=14), FACTORS),
    "factored by target": Edge(draw(B, T, K, seed=15), FACTORS, by_target=True),
    "rescaled": Edge(draw(B, T, S, K, seed=13), edge=draw(K, K, seed=16), vertex=draw(B, S, K, seed=17)),
    "rescaled by target": Edge(
        draw(B, T, S, K, seed=13), edge=draw(K, K, seed=16), vertex=draw(B, T, K, seed=18), by_target=True
    ),
}
CONTEXTS = Ends(draw(B, T, H, seed=20), draw(B, S, H, seed=21))
OUTER = Ends(None, None, draw(B, T, OUT, seed=22), draw(B, S, OUT, seed=23))
FORMS: dict[str, Callable[[], Tensor]] = {
    "rho alone": lambda: net(None, gate(), ROWS["dense"]),
    "no group": lambda: net(GAMMA, gate(symmetric=False, canonical=False), ROWS["dense"]),
    "contexts": lambda: net(GAMMA, gate(symmetric=False), ROWS["dense"], CONTEXTS),
    "companions": lambda: net(GAMMA, gate(canonical=False), ROWS["dense"], more=MORE),
    "edge update": lambda: net(GAMMA, gate(), ROWS["dense"], Ends(*CONTEXTS[:2], *OUTER[2:]), residual=True),
    "first edge update": lambda: net(GAMMA, gate(), ROWS["factored"], OUTER, residual=True),
    "dropout": lambda: net(GAMMA, gate(drop=0.4), ROWS["rescaled"], CONTEXTS, reduce=TARGET),
    "stored": lambda: net(GAMMA, gate(hidden=RECOMPUTE + 8), ROWS["rescaled"], reduce=TARGET),
    "absolute, rho alone": lambda: net(None, gate(absolute=True), ROWS["dense"]),
    "absolute, no scales": lambda: net(GAMMA, gate(absolute=True, canonical=False), ROWS["rescaled"], reduce=TARGET),
    "absolute, edge update": lambda: net(GAMMA, gate(absolute=True), ROWS["dense"], OUTER, MORE, residual=True),
    "absolute, stored": lambda: net(GAMMA, gate(hidden=RECOMPUTE + 8, absolute=True), ROWS["rescaled"], reduce=TARGET),
}
FORMS |= {
    "no vectors": lambda: net(None, blind(), Edge(GAMMA.new_empty(B, T, S, 0)), CONTEXTS, MORE),
    "no vectors, to source": lambda: net(
        None, blind(drop=0.4), Edge(GAMMA.new_empty(B, T, S, 0)), more=MORE, reduce=SOURCE
    ),
    "blind, edge update": lambda: net(GAMMA, blind(), ROWS["dense"], OUTER, MORE, residual=True),
    "blind, first edge update": lambda: net(GAMMA, blind(), ROWS["factored"], OUTER, MORE, residual=True),
    "blind, stored": lambda: net(GAMMA, blind(hidden=RECOMPUTE + 8), ROWS["rescaled"], reduce=TARGET),
}
for kind in ROWS:
    for to in (TARGET, SOURCE):
        FORMS[f"blind, {kind}, to {'target' if to == TARGET else 'source'}"] = lambda kind=kind, to=to: net(  # type: ignore[misc]
            GAMMA, blind(), ROWS[kind], CONTEXTS, MORE, reduce=to
        )
        for absolute in (False, True):
            name = f"{'absolute, ' if absolute else ''}{kind}, to {'target' if to == TARGET else 'source'}"
            FORMS[name] = lambda kind=kind, to=to, absolute=absolute: net(  # type: ignore[misc]
                GAMMA, gate(absolute=absolute), ROWS[kind], CONTEXTS, reduce=to
            )
LEAVES = [t for group in (*ROWS.values(), CONTEXTS, OUTER, (GAMMA, MORE)) for t in group if isinstance(t, Tensor)]
LEAVES = [t for t in LEAVES if t.requires_grad]


def run(form: str) -> Tensor:
    torch.manual_seed(0)
    return FORMS[form]()


def gradients(y: Tensor, *, create_graph: bool = False) -> list[Tensor]:
    found = torch.autograd.grad(y.sin().sum(), LEAVES, create_graph=create_graph, allow_unused=True)
    return [g for g in found if g is not None]


def penalty(form: str) -> list[Tensor]:
    """Gradients of the squared gradients."""
    first = gradients(run(form), create_graph=True)
    return gradients(torch.stack([g.square().sum() for g in first]).sum().asinh())


@compiled
@pytest.mark.parametrize("form", FORMS)
def test_both_implementations_agree_on_every_form(form: str) -> None:
    """Values, gradients and gradients of gradients; dropout takes the same units away."""
    found = [run(form), *gradients(run(form)), *penalty(form)]
    with library.disabled():
        expected = [run(form), *gradients(run(form)), *penalty(form)]
    assert len(expected) > 2
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def vectors_to_number(x: Tensor) -> Tensor:
    return net(GAMMA, GATE, ROWS["rescaled"]._replace(x=x), CONTEXTS, reduce=TARGET).sin().sum()


def test_functional_transforms_work() -> None:
    x = ROWS["rescaled"].x
    (expected,) = torch.autograd.grad(vectors_to_number(x), x)
    torch.testing.assert_close(torch.func.grad(vectors_to_number)(x), expected)
    several = torch.stack([x.detach(), 2 * x.detach(), -x.detach()])
    torch.testing.assert_close(torch.vmap(vectors_to_number)(several), torch.stack([*map(vectors_to_number, several)]))
    torch.testing.assert_close(torch.vmap(torch.func.grad(vectors_to_number))(several)[0], expected)
    _, along = torch.func.jvp(vectors_to_number, (x,), (torch.ones_like(x),))
    torch.testing.assert_close(along, expected.sum())
    assert torch.func.hessian(vectors_to_number)(x).shape == (*x.shape, *x.shape)


def test_models_work_under_functional_transforms() -> None:
    """Per-network gradients, and each alone gives the same."""
    a = ARCHITECTURES["mlp", "mixed"]
    model = ScaleGMN([a], 2, width=8, layers=2, backward="dual").double()
    networks = fresh(a)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(p: dict[str, Tensor], row: Tensor) -> Tensor:
        y: Tensor = torch.func.functional_call(model, p, (Networks(a, row.unsqueeze(0)),))
        return y.square().sum()

    found = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, networks.parameters)
    for i in range(len(networks)):
        model.zero_grad()
        model(networks[[i]]).square().sum().backward()
        for name, p in model.named_parameters():
            if p.grad is not None:
                torch.testing.assert_close(found[name][i], p.grad, rtol=1e-8, atol=1e-8)


def test_dropout_under_vmap_wants_to_know_which_kind() -> None:
    def f(x: Tensor) -> Tensor:
        return net(GAMMA, DROPPING, ROWS["dense"]._replace(x=x)).sum()

    several = torch.stack([ROWS["dense"].x.detach()] * 2)
    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(f)(several)
    same = torch.vmap(f, randomness="same")(several)
    assert same[0] == same[1]


@compiled
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_compilers_see_one_operator() -> None:
    torch._dynamo.reset()
    x = ROWS["rescaled"].x.detach().clone().requires_grad_()
    counter = CompileCounterWithBackend("aot_eager")
    y = torch.compile(vectors_to_number, backend=counter, fullgraph=True)(x)
    y.backward()
    torch.testing.assert_close(y, vectors_to_number(x))
    torch.testing.assert_close(x.grad, torch.autograd.grad(vectors_to_number(x), x)[0])
    (graph,) = counter.graphs
    assert [n.target for n in graph.graph.nodes].count(torch.ops.scalegmn.net.default) == 1


@compiled
def test_traced_graphs_can_be_differentiated() -> None:
    x = ROWS["rescaled"].x
    graph = make_fx(vectors_to_number)(x)
    (found,) = torch.autograd.grad(graph(x), x)
    torch.testing.assert_close(found, torch.autograd.grad(vectors_to_number(x), x)[0])


@compiled
def test_the_registration_is_what_torch_expects() -> None:
    g = gate(drop=0.3)
    x, scalar, edge, vertex, by_target = ROWS["rescaled"]
    arguments = (x, scalar, edge, vertex, GAMMA, *g[:2], *CONTEXTS[:2], *g[2:4], None, *g[4:6], None, None)
    numbers = 1e-5, 0.3, True, False, True, by_target, NONE, False
    torch.library.opcheck(torch.ops.scalegmn.net.default, (*arguments, torch.tensor(7), *numbers))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_types_run_the_formula(dtype: torch.dtype) -> None:
    def low(values: Any) -> Any:
        return type(values)(*(v.to(dtype) if isinstance(v, Tensor) else v for v in values))

    y = net(GAMMA.to(dtype), low(gate()), low(ROWS["dense"]), low(CONTEXTS))
    exact = net(GAMMA, gate(), ROWS["dense"], CONTEXTS)
    assert y.dtype == dtype
    assert (y - exact).abs().max() < 0.1 * exact.abs().max()


def test_autocast_is_that_of_the_formula() -> None:
    a = ARCHITECTURES["mlp", "relu"]
    model, networks = ScaleGMN([a], 2, width=16, layers=2, backward="dual"), fresh(a).to(dtype=torch.float32)
    exact = model(networks)
    with torch.autocast("cpu", torch.bfloat16):
        found = model(networks)
        with library.disabled():
            expected = model(networks)
    assert torch.equal(found, expected)
    assert not torch.equal(found.float(), exact)
    found.float().sum().backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())


def test_inference_mode_gives_the_same() -> None:
    expected = run("contexts").detach()
    with torch.inference_mode():
        torch.testing.assert_close(run("contexts"), expected)


def test_masks_do_not_repeat_along_rows_or_columns() -> None:
    h = torch.ones(50, 64, 32)
    mask = dropout_mask(h, 0.25, torch.tensor(3))
    torch.testing.assert_close(mask.unique(), torch.tensor([0, 4 / 3]))
    zero = mask == 0
    assert abs(zero.double().mean() - 0.25) < 0.01
    assert not torch.equal(mask, dropout_mask(h, 0.25, torch.tensor(4)))
    assert len(zero.flatten(0, 1).unique(dim=0)) > 3100


def test_the_formula_takes_what_the_operator_takes() -> None:
    g = gate()
    tensors = (ROWS["dense"].x, None, None, None, GAMMA, *g[:2], None, None, *g[2:4], None, *g[4:6], None, None, None)
    n = Net(*tensors, 1e-5, 0.0, True, False, True, False, NONE, False)
    torch.testing.assert_close(formula(n), net(GAMMA, g, ROWS["dense"]))
