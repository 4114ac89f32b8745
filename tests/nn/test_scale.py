"""Laws of the scale invariant, scale equivariant and rescale equivariant nets, on all four groups."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import generator, laws, seeds
from torch import Tensor

from scalegmn.core.activations import Phi
from scalegmn.core.groups import GROUPS, Group, NonZeroScale, PositiveScale, Sign, Trivial
from scalegmn.errors import ScaleGMNError
from scalegmn.native.formula import Edge, inverse_norm
from scalegmn.native.unit import unit
from scalegmn.nn.invariant import ScaleInvariant
from scalegmn.nn.scale import RescaleEquivariant, ScaleEquivariant, ScaleInvariants
from scalegmn.nn.spec import SignRule
from scalegmn.nn.style import Nets

RULES: tuple[SignRule, ...] = ("symmetrise", "absolute")
few = settings(laws, max_examples=6)
PRECISIONS = [(torch.float64, 1e30, 1e-11), (torch.float32, 1e15, 1e-4)]
precisions = pytest.mark.parametrize(("dtype", "spread", "tolerance"), PRECISIONS, ids=["float64", "float32"])
every_group = pytest.mark.parametrize("group", GROUPS, ids=str)
every_rule = pytest.mark.parametrize("rule", RULES)


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64).to(dtype)


def multipliers(group: Group, count: int, seed: int, spread: float, dtype: torch.dtype = torch.float64) -> Tensor:
    return group.sample(count, 1, generator=generator(seed), spread=spread, dtype=torch.float64).to(dtype)


def error(a: Tensor, b: Tensor) -> float:
    """The largest error of a vector relative to its size."""
    return ((a - b).abs().amax(-1) / b.abs().amax(-1)).max().item()


def scramble(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Random values for all parameters: laws may not depend on the initial ones."""
    for i, p in enumerate(module.parameters()):
        p.data = normal(*p.shape, seed=seed + i, dtype=p.dtype)
    return module


# -- canonicalisation ----------------------------------------------------------------------------------------------


@precisions
@few
@given(seed=seeds)
def test_unit_does_not_see_scales(dtype: torch.dtype, spread: float, tolerance: float, seed: int) -> None:
    x = normal(20, 5, seed=seed, dtype=dtype)
    q = multipliers(PositiveScale, 20, seed + 1, spread, dtype)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(unit(q * x), unit(x), rtol=8 * eps, atol=8 * eps)
    torch.testing.assert_close(unit(x).norm(dim=-1), torch.ones(20, dtype=dtype), rtol=8 * eps, atol=0)


@pytest.mark.parametrize(("dtype", "exponents"), [(torch.float64, 99), (torch.float32, 49)], ids=["double", "single"])
def test_unit_is_the_same_to_the_last_bit_for_powers_of_two(dtype: torch.dtype, exponents: int) -> None:
    x = normal(7, 5, seed=0, dtype=dtype)
    for k in range(-exponents, exponents + 1):
        assert torch.equal(unit(x * 2.0**k), unit(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_unit_is_defined_everywhere(dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).smallest_normal
    sizes = torch.tensor([0, tiny / 1e3, tiny, 1e-15, 1, 1e15, torch.finfo(dtype).max / 4], dtype=dtype)
    x = (sizes[:, None] * torch.tensor([1.0, -0.5, 0.0], dtype=dtype)).requires_grad_()
    y = unit(x)
    assert torch.isfinite(y).all()
    assert (y[:2] == 0).all()
    torch.testing.assert_close(y[2:], y[4].expand(5, -1))
    (gradient,) = torch.autograd.grad(y[:, 1].sum(), x)
    assert torch.isfinite(gradient[[0, 1, 3, 4, 5, 6]]).all()
    # The gradient moves as 1/q.
    torch.testing.assert_close(gradient[3] * 1e-15, gradient[4])
    torch.testing.assert_close(gradient[5] * 1e15, gradient[4])


def test_inverse_norm_is_what_it_says() -> None:
    x = normal(6, 4, seed=3)
    torch.testing.assert_close(inverse_norm(x), 1 / x.norm(dim=-1, keepdim=True))
    assert torch.autograd.gradcheck(inverse_norm, x.requires_grad_())


def test_an_epsilon_would_be_seen() -> None:
    """Negative control: the usual x / (|x| + 1e-8) fails the law above."""
    x = normal(6, 4, seed=3)
    small = 1e-9 * x
    assert error(small / (small.norm(dim=-1, keepdim=True) + 1e-8), unit(x)) > 0.1


# -- invariant nets ------------------------------------------------------------------------------------------------


@precisions
@every_group
@every_rule
@few
@given(seed=seeds, contexts=st.sampled_from([(), (2,), (3, 1)]))
def test_invariant_nets_do_not_see_multipliers(
    group: Group,
    rule: SignRule,
    dtype: torch.dtype,
    spread: float,
    tolerance: float,
    seed: int,
    contexts: tuple[int, ...],
) -> None:
    """Each vector has its own magnitude; signs are common; contexts have no symmetry."""
    net = scramble(ScaleInvariant(group, [5, 3], 4, contexts=contexts, hidden=6, sign=rule)).to(dtype)
    xs = [normal(9, n, seed=seed + n, dtype=dtype) for n in (5, 3)]
    ps = [normal(9, n, seed=seed + 9 + n, dtype=dtype) for n in contexts]
    q = multipliers(group, 9, seed + 1, spread, dtype)
    r = q.sign() * multipliers(group, 9, seed + 2, spread, dtype).abs()
    assert error(net([q * xs[0], r * xs[1]], ps), net(xs, ps)) < tolerance


@every_rule
def test_multipliers_from_outside_the_group_are_seen(rule: SignRule) -> None:
    x = normal(9, 5, seed=0)
    for group, q in itertools.product(GROUPS, (-1.0, 2.0)):
        net = scramble(ScaleInvariant(group, [5], 4, sign=rule).double())
        inside = bool(group.contains(torch.tensor(q)))
        assert (error(net([q * x]), net([x])) < 1e-12) == inside


@every_group
@every_rule
def test_invariant_nets_see_everything_else(group: Group, rule: SignRule) -> None:
    """Negative controls: another vector, another context, and signs that are not common."""
    net = scramble(ScaleInvariant(group, [5, 5], 4, contexts=[2], sign=rule).double())
    x, y, p = normal(9, 5, seed=0), normal(9, 5, seed=1), normal(9, 2, seed=2)
    before = net([x, y], [p])
    assert error(net([y, x], [p]), before) > 1e-2
    assert error(net([x, y], [-p]), before) > 1e-2
    assert error(net([x, y], [2 * p]), before) > 1e-2
    if not group.signs or rule == "symmetrise":
        assert error(net([x, -y], [p]), before) > 1e-2


def test_absolute_values_lose_more_than_the_sign() -> None:
    """|x| removes the sign of every entry; symmetrisation only the common one."""
    x = normal(9, 5, seed=0)
    flipped = x * torch.tensor([1, -1, 1, 1, -1])
    for rule, blind in (("absolute", True), ("symmetrise", False)):
        net = scramble(ScaleInvariant(Sign, [5], 4, sign=rule).double())  # type: ignore[arg-type]
        assert (error(net([flipped]), net([x])) < 1e-12) == blind


@every_group
@every_rule
def test_zero_vectors_have_a_finite_answer_and_finite_gradients(group: Group, rule: SignRule) -> None:
    net = scramble(ScaleInvariant(group, [5], 4, contexts=[2], sign=rule).double())
    x = torch.zeros(2, 5, dtype=torch.float64, requires_grad=True)
    p = normal(2, 2, seed=1).requires_grad_()
    y = net([x], [p])
    assert torch.isfinite(y).all()
    y.square().sum().backward()
    assert all(t.grad is not None and torch.isfinite(t.grad).all() for t in (x, p, *net.parameters()))


@every_group
def test_symmetrisation_is_literally_a_sum_over_signs(group: Group) -> None:
    """rho(x) + rho(-x) with two biases of the last map counted once."""
    net = scramble(ScaleInvariant(group, [5], 4, contexts=[2]).double())
    x, p = normal(9, 5, seed=0), normal(9, 2, seed=1)

    def rho(x: Tensor) -> Tensor:
        z = net.first[0](x) + net.contexts[0](p) + net.offset
        return torch.nn.functional.silu(net.norm(z)) @ net.last.weight.T

    canonical = unit(x) if group.scales else x
    signs = [canonical, -canonical] if group.signs else [canonical]
    torch.testing.assert_close(net([x], [p]), sum(map(rho, signs)) + net.last.bias)


def test_every_group_has_its_own_net() -> None:
    nets = ScaleInvariants([Sign, PositiveScale, Sign], [5], 4).double()
    x = normal(9, 5, seed=0)
    assert sorted(nets.of) == ["PositiveScale", "Sign"]
    assert nets[Sign] is not nets[PositiveScale]
    assert torch.equal(nets(Sign, [x]), nets[Sign]([x]))
    assert not torch.equal(nets(Sign, [x]), nets(PositiveScale, [x]))


def test_unknown_sign_rules_are_refused() -> None:
    with pytest.raises(ScaleGMNError, match="sign: expected 'symmetrise' or 'absolute', got 'square'"):
        ScaleInvariant(Sign, [5], 4, sign="square")  # type: ignore[arg-type]


# -- equivariant nets ----------------------------------------------------------------------------------------------


@precisions
@every_group
@every_rule
@few
@given(seed=seeds, depth=st.integers(1, 3), augmented=st.booleans())
def test_equivariant_nets_keep_multipliers(
    group: Group,
    rule: SignRule,
    dtype: torch.dtype,
    spread: float,
    tolerance: float,
    seed: int,
    depth: int,
    augmented: bool,
) -> None:
    contexts, companions = ([2], [3]) if augmented else ([], [])
    nets = Nets(rule, depth=depth)
    net = ScaleEquivariant(GROUPS, 5, 4, nets, contexts=contexts, companions=companions, hidden=6).to(dtype)
    scramble(net, seed % 1000)
    x = normal(9, 5, seed=seed, dtype=dtype)
    ps = [normal(9, n, seed=seed + n, dtype=dtype) for n in contexts]
    ds = [normal(9, n, seed=seed + 5 + n, dtype=dtype) for n in companions]
    q = multipliers(group, 9, seed + 1, spread, dtype)
    moved = net(group, q * x, ps, [d / q for d in ds])
    assert error(moved, q * net(group, x, ps, ds)) < tolerance * 10 ** (depth - 1)


def test_equivariant_nets_are_more_than_linear_maps() -> None:
    net = scramble(ScaleEquivariant([PositiveScale], 5, 4).double())
    x, y = normal(9, 5, seed=0), normal(9, 5, seed=1)
    assert error(net(PositiveScale, x + y), net(PositiveScale, x) + net(PositiveScale, y)) > 1e-2
    assert error(net(PositiveScale, -x), -net(PositiveScale, x)) > 1e-2


@pytest.mark.parametrize("group", [Sign, Trivial], ids=str)
def test_multipliers_from_outside_the_group_are_not_kept(group: Group) -> None:
    net = scramble(ScaleEquivariant([group], 5, 4).double())
    x = normal(9, 5, seed=0)
    assert error(net(group, 2 * x), 2 * net(group, x)) > 1e-2


def test_new_equivariant_nets_begin_near_the_linear_map() -> None:
    torch.manual_seed(0)
    net = ScaleEquivariant([NonZeroScale], 64, 64).double()
    x = normal(200, 64, seed=0)
    y = net(NonZeroScale, x)
    assert 0.5 < y.std().item() < 2
    assert error(y, net.gamma[0](x)) < 2


def test_depth_is_a_composition() -> None:
    net = scramble(ScaleEquivariant([Sign], 5, 4, Nets(depth=2), contexts=[2]).double())
    x, p = normal(9, 5, seed=0), normal(9, 2, seed=1)
    first = net.gamma[0](x) * net.invariant[0](Sign, [x], [p])
    second = net.gamma[1](first) * net.invariant[1](Sign, [first], [p])
    torch.testing.assert_close(net(Sign, x, [p]), second, rtol=1e-12, atol=1e-12)


# -- rescale equivariant nets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("phi", [Phi(), Phi(3), Phi(1, even=True)], ids=["identity", "cube", "abs"])
@pytest.mark.parametrize("by_target", [False, True])
@few
@given(seed=seeds, widths=st.tuples(*(st.integers(1, 4),) * 2), factored=st.booleans())
def test_rescale_equivariant_nets_multiply_all_multipliers(
    phi: Phi, by_target: bool, seed: int, widths: tuple[int, int], factored: bool
) -> None:
    net = RescaleEquivariant(*widths, 6).double()
    scramble(net, seed % 1000)
    y, w, v = normal(2, 4, widths[0], seed=seed), normal(2, 4, 4, seed=seed + 1), normal(1, widths[1], seed=seed + 2)
    a, b = (multipliers(NonZeroScale, n, seed + 10, 1e9).view(2, -1) for n in (8, 32))
    b = b.view(2, 4, 4)

    def rescale(y: Tensor, w: Tensor) -> Tensor:
        e = Edge(v, w) if factored else Edge(Edge(v, w).dense())
        return net(y, e, lift=phi, by_target=by_target).dense()

    vertex = phi(a)[:, :, None] if by_target else phi(a)[:, None]
    assert error(rescale(a[..., None] * y, b * w), (vertex * b)[..., None] * rescale(y, w)) < 1e-11


def test_rescale_equivariant_nets_are_the_product_of_two_linear_maps() -> None:
    net = RescaleEquivariant(2, 3, 6).double()
    y, e = normal(4, 5, 2, seed=0), normal(4, 7, 5, 3, seed=1)
    expected = torch.einsum("oi,oj,bsi,btsj->btso", net.vertex.weight, net.edge.weight, y, e)
    torch.testing.assert_close(net(y, Edge(e)).dense(), expected)


def test_a_lift_is_seen() -> None:
    """Negative control: without the lift, states of a cube's neurons do not move as its outputs."""
    net = RescaleEquivariant(3, 3, 5).double()
    y, e = normal(2, 4, 3, seed=0), Edge(normal(2, 6, 4, 3, seed=1))
    assert error(net(2 * y, e).dense(), 8 * net(y, e).dense()) > 0.1
    assert error(net(2 * y, e, lift=Phi(3)).dense(), 8 * net(y, e, lift=Phi(3)).dense()) < 1e-12


@pytest.mark.parametrize("by_target", [False, True])
def test_edges_in_every_form_can_be_rescaled_and_doubled(by_target: bool) -> None:
    w, v, y = normal(2, 4, 4, seed=0), normal(1, 3, seed=1), normal(2, 4, 3, seed=2)
    net = RescaleEquivariant(3, 3, 3).double()
    once = net(y, Edge(v, w), by_target=by_target)
    for e in (Edge(v, w), once, net(y, Edge(once.dense()))):
        assert e.edges == (2, 4, 4)
        plain = Edge(e.dense())
        for back in (False, True):
            found, expected = (net(y, m, by_target=back).dense() for m in (e, plain))
            torch.testing.assert_close(found, expected)
        torch.testing.assert_close(e.doubled().dense(), 2 * e.dense())
