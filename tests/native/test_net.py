"""The fast path is the same function as plain torch operations, and without a compiler everything still runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from strategies import generator
from subjects import ARCHITECTURES, SIGNS, fresh, hostile
from torch import Tensor, nn

from scalegmn.core.architecture import Architecture
from scalegmn.core.groups import GROUPS, Group, PositiveScale, Sign, Trivial
from scalegmn.errors import ScaleGMNError
from scalegmn.models.heads import Editor
from scalegmn.models.scalegmn import ScaleGMN
from scalegmn.native import library
from scalegmn.nn.invariant import ScaleInvariant
from scalegmn.nn.mlp import MLP
from scalegmn.nn.scale import ScaleEquivariant
from scalegmn.nn.spec import SignRule

compiled = pytest.mark.skipif(library.load() is None, reason="no compiler")

FLOWS = ("none", "shared", "reciprocal", "dual")
OPTIONS: dict[str, dict[str, object]] = {
    "plain": {},
    "absolute": {"sign": "absolute"},
    "mean": {"aggregate": "mean", "readout": "output", "skip": False},
    "fixed edges": {"edge_updates": False},
    "narrow gates": {"gate": 3},
    "positions": {"positions_everywhere": True, "edge_positions": True},
}
SUBJECTS = [("mlp", "relu"), ("mlp", "tanh"), ("mlp", "mixed"), ("cnn", "relu"), ("flatten", "sine")]
SUBJECTS += [("residual", "relu")]


def build(a: Architecture, flow: str, options: dict[str, object]) -> ScaleGMN:
    torch.manual_seed(0)
    return ScaleGMN([a], 4, width=8, layers=3, backward=flow, **options).double().eval()  # type: ignore[arg-type]


def values_and_gradients(run: Callable[[], Tensor], module: nn.Module) -> list[Tensor]:
    """The result, and the gradient of a random projection of it at every parameter."""
    module.zero_grad()
    y = run()
    weights = torch.randn(y.shape, generator=generator(1), dtype=torch.float64).to(y.dtype)
    (y * weights).sum().backward()
    return [y.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)]


def largest_error(found: list[Tensor], expected: list[Tensor]) -> float:
    assert len(found) == len(expected)
    scale = max(float(t.abs().max()) for t in expected[1:])
    errors = [float((found[0] - expected[0]).abs().max() / expected[0].abs().max())]
    # A gradient that cancels to rounding is compared with the largest gradient.
    errors += [
        float((a - b).abs().max() / max(float(b.abs().max()), 1e-6 * scale))
        for a, b in zip(found[1:], expected[1:], strict=True)
    ]
    return max(errors)


def legal(flow: str, kind: str, name: str) -> bool:
    if flow == "shared":
        return name in SIGNS
    return flow != "reciprocal" or name != "mixed"


CASES = [
    (flow, kind, name, option)
    for flow in FLOWS
    for kind, name in SUBJECTS
    for option in OPTIONS
    if legal(flow, kind, name)
    and (option == "plain" or (kind, name) == ("mlp", "tanh" if flow == "shared" else "relu"))
]


@compiled
@pytest.mark.parametrize(("flow", "kind", "name", "option"), CASES)
def test_models_give_the_same_values_and_gradients(flow: str, kind: str, name: str, option: str) -> None:
    a = ARCHITECTURES[kind, name]
    model = build(a, flow, OPTIONS[option])
    # The reciprocal of 1e-15 leaves few digits, and which ones depends on the order of summation.
    for networks in [fresh(a)] if flow == "reciprocal" else [fresh(a), hostile(a)]:
        found = values_and_gradients(lambda n=networks: model(n), model)
        with library.disabled():
            expected = values_and_gradients(lambda n=networks: model(n), model)
        assert largest_error(found, expected) < 1e-9


@compiled
@pytest.mark.parametrize(("flow", "name"), [("none", "sine"), ("shared", "sine"), ("dual", "relu"), ("dual", "cube")])
def test_editors_give_the_same_values_and_gradients(flow: str, name: str) -> None:
    a = ARCHITECTURES["mlp", name]
    torch.manual_seed(0)
    model = Editor(ScaleGMN([a], width=8, layers=2, backward=flow), copies=2).double()
    networks = fresh(a)
    found = values_and_gradients(lambda: model.direction(networks), model)
    with library.disabled():
        expected = values_and_gradients(lambda: model.direction(networks), model)
    assert largest_error(found, expected) < 1e-9


@compiled
@pytest.mark.parametrize("name", ["relu", "sine"])
def test_single_precision_differs_by_rounding_only(name: str) -> None:
    a = ARCHITECTURES["mlp", name]
    model = build(a, "dual", {})
    networks = fresh(a)
    expected = values_and_gradients(lambda: model(networks), model)
    model.float()
    found = values_and_gradients(lambda: model(networks.to(dtype=torch.float32)), model)
    assert largest_error([t.double() for t in found], expected) < 1e-4


@compiled
@pytest.mark.parametrize("contexts", [(), (3,)])
@pytest.mark.parametrize("group", GROUPS, ids=str)
@pytest.mark.parametrize("rule", ["symmetrise", "absolute"])
def test_invariant_nets_give_the_same_values_and_gradients(
    group: Group, rule: SignRule, contexts: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    net = ScaleInvariant(group, [5], 4, contexts=contexts, hidden=6, sign=rule).double()
    x = torch.randn(3, 7, 5, dtype=torch.float64)
    x[0, 0] = 0
    ps = [torch.randn(3, 7, n, dtype=torch.float64) for n in contexts]
    found = values_and_gradients(lambda: net([x], ps), net)
    with library.disabled():
        expected = values_and_gradients(lambda: net([x], ps), net)
    assert largest_error(found, expected) < 1e-12


@compiled
def test_the_fast_path_is_taken_and_left() -> None:
    x = torch.ones(2)
    assert library.usable(x)
    with library.disabled():
        assert not library.usable(x)
        with library.disabled():
            assert not library.usable(x)
        assert not library.usable(x)
    assert library.usable(x)
    assert not library.usable(x.half())
    with pytest.raises(KeyError), library.disabled():
        raise KeyError
    assert library.usable(x)


@compiled
def test_other_types_are_one_line_and_never_reach_a_kernel() -> None:
    a = ARCHITECTURES["mlp", "relu"]
    model = ScaleGMN([a], 2, width=8, layers=1)
    with pytest.raises(ScaleGMNError, match=r"expected torch\.float32 on cpu .* got torch\.float64 on cpu"):
        model(fresh(a))
    x = torch.ones(3, 8, dtype=torch.float64)
    for part in (MLP(8, 8), ScaleInvariant(Sign, [8], 8)):
        with pytest.raises(ScaleGMNError, match="expected inputs and weights alike"):
            part([x] if isinstance(part, ScaleInvariant) else x)


@pytest.mark.parametrize("width", [3, 40])
def test_vectors_of_another_width_are_refused(width: int) -> None:
    x = torch.randn(5, width)
    equivariant = ScaleEquivariant([Sign], 8, 8)
    for apply in (MLP(8, 8), lambda x: ScaleInvariant(Sign, [8], 8)([x]), lambda x: equivariant(Sign, x)):
        with pytest.raises((ScaleGMNError, RuntimeError), match=rf"got {width}|cannot be multiplied"):
            apply(x)


@compiled
def test_opposite_terms_do_not_spoil_the_variance() -> None:
    """Where a context is nearly minus what the vector gives, squares and products apart would cancel."""
    net = ScaleInvariant(Trivial, [16], 16, contexts=[16])
    context = net.contexts[0]
    assert isinstance(context, nn.Linear)
    context.weight.data = -net.first[0].weight.data  # type: ignore[operator]
    x = 1e4 * torch.randn(20, 16, generator=generator(0))
    p = x * (1 + 1e-4 * torch.randn(20, 16, generator=generator(1)))
    exact = net.double()([x.double()], [p.double()])
    assert (net.float()([x], [p]) - exact).abs().max() < 0.05


@compiled
def test_subnormal_vectors_count_as_zero_on_both_paths() -> None:
    net = ScaleInvariant(PositiveScale, [2], 4)
    x = torch.tensor([[5e-39, -3e-39]])
    with library.disabled():
        expected = net([x])
    torch.testing.assert_close(net([x]), expected)


@pytest.mark.parametrize("fast", [True, False])
def test_no_networks_give_no_rows(fast: bool) -> None:
    a = ARCHITECTURES["mlp", "mixed"]
    with nullcontext() if fast else library.disabled():
        assert ScaleGMN([a], 3, width=8, layers=2, backward="dual").double()(fresh(a)[:0]).shape == (0, 3)


def test_functional_transforms_take_the_plain_path() -> None:
    net = MLP(3, 2).double()
    x = torch.randn(5, 3, generator=generator(0)).double()
    parameters = dict(net.named_parameters())
    found = torch.func.grad(lambda p: torch.func.functional_call(net, p, (x,)).square().sum())(parameters)
    net(x).square().sum().backward()
    for name, p in net.named_parameters():
        torch.testing.assert_close(found[name], p.grad)


# -- dropout -------------------------------------------------------------------------------------------------------


def dropped_and_kept(seed: int, drop: float = 0.25) -> tuple[Tensor, Tensor]:
    """The hidden layer of an invariant net with and without dropout: its last map is the identity."""
    torch.manual_seed(0)
    net = ScaleInvariant(Sign, [16], 16, dropout=drop).double()
    nn.init.eye_(net.last.weight)
    nn.init.zeros_(net.last.bias)
    x = torch.randn(40, 50, 16, dtype=torch.float64)
    kept = net.eval()([x])
    torch.manual_seed(seed)
    return net.train()([x]), kept


@pytest.mark.parametrize("fast", [pytest.param(True, marks=compiled), False])
def test_dropout_drops_the_right_share_and_keeps_the_mean(fast: bool) -> None:
    if fast:
        dropped, kept = dropped_and_kept(1)
    else:
        with library.disabled():
            dropped, kept = dropped_and_kept(1)
    zero = dropped == 0
    count = zero.numel()
    deviation = (0.25 * 0.75 / count) ** 0.5
    assert abs(zero.double().mean().item() - 0.25) < 5 * deviation
    torch.testing.assert_close(dropped[~zero], kept[~zero] / 0.75)
    # Each channel and each row has its share, and neighbours do not know of each other.
    assert (zero.double().mean((0, 1)) - 0.25).abs().max() < 0.05
    assert (zero.double().mean(2) - 0.25).abs().mean() < 0.12
    for dim in range(3):
        both = zero & zero.roll(1, dim)
        assert abs(both.double().mean().item() - 0.25**2) < 6 * deviation


@compiled
def test_dropout_follows_the_seed() -> None:
    first, again, other = (dropped_and_kept(seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    share = ((first == 0) != (other == 0)).double().mean().item()
    assert abs(share - 2 * 0.25 * 0.75) < 0.02


@compiled
@pytest.mark.parametrize("group", [Sign, PositiveScale], ids=str)
def test_gradients_see_the_same_mask(group: Group) -> None:
    torch.manual_seed(0)
    net = ScaleInvariant(group, [4], 3, contexts=[2], dropout=0.5).double().train()
    p = torch.randn(2, 3, 2, dtype=torch.float64)

    def run(x: Tensor) -> Tensor:
        torch.manual_seed(1)
        return net([x], [p])

    assert torch.autograd.gradcheck(run, torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True))


@compiled
@pytest.mark.parametrize("flow", ["none", "dual"])
def test_models_with_dropout_have_the_same_mean_on_both_paths(flow: str) -> None:
    """The masks differ, the distribution does not: compare means over many draws, in units of their deviation."""
    a = Architecture.mlp([2, 4, 3], "relu")
    torch.manual_seed(0)
    model = ScaleGMN([a], 3, width=8, layers=2, backward=flow, dropout=0.2).double().train()  # type: ignore[arg-type]
    networks = fresh(a, 1)
    many = networks[[0] * 2000]
    with torch.no_grad():
        fast = model(many)
        with library.disabled():
            plain = model(many)
    assert fast.std(0).min() > 1e-3
    deviation = ((fast.var(0) + plain.var(0)) / 2000).sqrt()
    assert ((fast.mean(0) - plain.mean(0)).abs() < 5 * deviation).all()
    torch.testing.assert_close(fast.std(0), plain.std(0), rtol=0.15, atol=0)


# -- without a compiler --------------------------------------------------------------------------------------------

SCRIPT = """
import torch
from scalegmn.core.architecture import Architecture
from scalegmn.models.scalegmn import ScaleGMN
from scalegmn.native import library
from scalegmn.testing import random_networks
torch.set_num_threads(1)
a = Architecture.mlp([2, 5, 4, 2], "relu")
torch.manual_seed(0)
model = ScaleGMN([a], 2, width=8, layers=2, backward="dual").double()
y = model(random_networks(a, 2, generator=torch.Generator().manual_seed(0)))
y.sum().backward()
print(library.load() is None, *y.flatten().tolist())
"""


@pytest.mark.parametrize("compiler", ["/nonexistent", "false"])
def test_without_a_compiler_the_answer_is_the_same(compiler: str, tmp_path: Path) -> None:
    """`false` is a compiler that always fails."""
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT],
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path), "CXX": compiler},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stderr.count("\n") == (2 if compiler == "false" else 1)
    missing, *values = found.stdout.split()
    assert missing == "True"
    a = Architecture.mlp([2, 5, 4, 2], "relu")
    torch.manual_seed(0)
    model = ScaleGMN([a], 2, width=8, layers=2, backward="dual").double()
    expected = model(fresh(a, 2)).flatten()
    torch.testing.assert_close(torch.tensor([float(v) for v in values]), expected.detach(), check_dtype=False)
    assert not list(tmp_path.rglob("*.so"))
