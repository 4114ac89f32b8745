"""The four scaling groups."""

from __future__ import annotations

import pytest
import torch

from scalegmn.core.groups import GROUPS, Group, NonZeroScale, PositiveScale, Sign, Trivial, group


def members(g: Group) -> torch.Tensor:
    return g.sample(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("g", GROUPS)
def test_samples_are_members_and_so_are_products_and_inverses(g: Group) -> None:
    a = members(g)
    assert g.contains(a).all()
    assert g.contains(a * a.flip(0)).all()
    assert g.contains(1 / a).all()
    assert g.contains(torch.ones(1)).all()


@pytest.mark.parametrize("g", GROUPS)
@pytest.mark.parametrize("h", GROUPS)
def test_intersection_is_the_largest_common_subgroup(g: Group, h: Group) -> None:
    both = g & h
    assert both == h & g
    assert both <= g
    assert both <= h
    assert all(k <= both for k in GROUPS if k <= g and k <= h)
    a = torch.cat([members(g), members(h), torch.tensor([0.0, 1.0, -1.0, 2.0, -2.0])])
    assert torch.equal(both.contains(a), g.contains(a) & h.contains(a))


def test_subgroups() -> None:
    assert Trivial <= Sign <= NonZeroScale
    assert Trivial <= PositiveScale <= NonZeroScale
    assert not Sign <= PositiveScale
    assert not PositiveScale <= Sign
    assert Sign & PositiveScale == Trivial


@pytest.mark.parametrize(
    ("g", "expected"),
    [
        (Trivial, [False, False, False, True, False, False, False]),
        (Sign, [False, True, False, True, False, False, False]),
        (PositiveScale, [False, False, False, True, True, False, False]),
        (NonZeroScale, [True, True, False, True, True, False, False]),
    ],
)
def test_membership(g: Group, expected: list[bool]) -> None:
    a = torch.tensor([-2.0, -1.0, 0.0, 1.0, 0.5, torch.inf, torch.nan])
    assert g.contains(a).tolist() == expected


def test_samples_fill_the_group() -> None:
    assert (members(Trivial) == 1).all()
    assert set(members(Sign).tolist()) == {-1.0, 1.0}
    for g in (PositiveScale, NonZeroScale):
        a = members(g)
        assert a.abs().min() < 0.2
        assert a.abs().max() > 5
        assert 0.1 <= a.abs().min() <= a.abs().max() <= 10
        assert bool((a < 0).any()) is g.signs
    a = PositiveScale.sample(10_000, spread=100.0, dtype=torch.float64)
    assert abs(float(a.log().mean())) < 0.1


def test_a_generator_makes_samples_reproducible() -> None:
    assert torch.equal(members(NonZeroScale), members(NonZeroScale))


def test_shape_and_type() -> None:
    assert NonZeroScale.sample(2, 3).shape == (2, 3)
    assert NonZeroScale.sample(2, dtype=torch.float64).dtype == torch.float64
    assert Sign.sample(2).dtype == torch.get_default_dtype()


@pytest.mark.parametrize("g", GROUPS)
def test_groups_by_their_two_facts(g: Group) -> None:
    assert group(signs=g.signs, scales=g.scales) is g
    assert repr(g) == g.name
