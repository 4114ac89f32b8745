"""The benchmark has one line per published recipe, and counts its arithmetic."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from scalegmn.bench.recipes import case, published
from scalegmn.bench.scalegmn import cases, measure
from scalegmn.training.recipe import read_recipe


def test_every_published_recipe_is_a_line_as_it_stands() -> None:
    found = published()
    assert len({c.recipe for c in found}) == 22
    assert len(found) == 44
    for c in found:
        assert c.recipe is not None
        recipe = read_recipe(c.recipe)
        assert (c.batch, c.method.name) == (recipe.training.batch, recipe.model.name)
        assert {name: getattr(c.spec, name) for name in recipe.model.options} == recipe.model.options
        assert c.editing == (recipe.task.name == "editing")
        assert len(c.architectures) == (2 if "both" in recipe.zoo else 1)


def test_arithmetic_is_that_of_the_documentation() -> None:
    first, inference = cases()[0], cases()[5]
    assert first.arithmetic() == pytest.approx(43.4, abs=0.1)
    assert inference.arithmetic() == pytest.approx(14.5, abs=0.1)
    # Edge encodings add nothing on edges, dropout adds no products, and absolute values cost what symmetrising does.
    mnist = case("paper/mnist/scalegmn")
    mnist = replace(mnist, spec=replace(mnist.spec, form="ours", neighbours_only=False))
    assert mnist.arithmetic() == pytest.approx(43.4, abs=0.2)
    absolute = replace(mnist, spec=replace(mnist.spec, sign="absolute"))
    assert absolute.arithmetic() == pytest.approx(mnist.arithmetic(), rel=1e-6)


def test_a_row_has_what_was_measured() -> None:
    small = replace(case("paper/cifar10-gs-both/scalegmn"), batch=2)
    small = replace(small, spec=replace(small.spec, width=16, layers=2))
    row = asdict(measure(small, small.build(), 0.01))
    assert row["recipe"] == "paper/cifar10-gs-both/scalegmn"
    assert row["gemm_equivalents"] > 0
    assert row["seconds_per_step"] > 0
    assert 10 < row["arithmetic"] < 100
