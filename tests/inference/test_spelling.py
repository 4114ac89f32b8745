"""One picture, several spellings: each is an exact change of weights, and the right one is recognised."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_zoos import siren

from scalegmn.core.activations import activation
from scalegmn.core.architecture import Architecture
from scalegmn.core.networks import Networks
from scalegmn.inference.spelling import Spelling, of_canvas, restated, settle, spellings
from scalegmn.zoo.inr.canvas import Canvas

DWS, NFN = Canvas("dws", 6, 6, 1), Canvas("nfn", 6, 6, 1, -1.0, 1.0)


def networks(architecture: Architecture, count: int = 3) -> Networks:
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(count, architecture.parameters, generator=draw, dtype=torch.float64) / 10
    return Networks(architecture, rows)


def other(frequency: float, offset: float) -> Architecture:
    plain = Architecture.mlp([2, 8, 8, 1], activation("sine", frequency))
    return Architecture((*plain.layers[:-1], replace(plain.layers[-1], offset=offset)), plain.connections)


@pytest.mark.parametrize(("frequency", "offset"), [(1.0, 0.5), (30.0, 0.0), (7.0, -1.0)])
def test_restated_networks_compute_the_same(frequency: float, offset: float) -> None:
    written, known = networks(other(frequency, offset)), siren()
    way = restated(written.architecture, known)
    assert way is not None
    seen = way.read(written, known)
    x = torch.rand(9, 2, dtype=torch.float64)
    assert torch.allclose(seen.evaluate(x), written.evaluate(x))
    assert torch.allclose(way.write(seen, written).parameters, written.parameters)


def test_what_is_no_spelling_is_not_restated() -> None:
    for strange in (Architecture.mlp([2, 8, 8, 1], "tanh"), Architecture.mlp([2, 8, 9, 1], activation("sine", 30.0))):
        assert restated(strange, siren()) is None
    sigmoid = Architecture.mlp([2, 8, 8, 1], activation("sine", 1.0), "sigmoid")
    assert restated(sigmoid, siren()) is None


def test_another_canvas_shows_the_same_picture() -> None:
    written = networks(other(30.0, 0.0))
    way = restated(written.architecture, siren())
    assert way is not None
    way = way.then(of_canvas(NFN, DWS, siren()))
    assert torch.allclose(DWS.render(way.read(written, siren())), NFN.render(written))
    assert torch.allclose(way.write(way.read(written, siren()), written).parameters, written.parameters)
    assert not torch.allclose(DWS.render(written), NFN.render(written))


def test_spellings_begin_with_the_known_one_and_are_distinct() -> None:
    pairs = spellings(siren(), DWS, told=False)
    assert not pairs[0][0].words
    found = [way for pair in pairs for way in pair]
    assert all(way.words for way in found[1:])
    changed = [s.read(networks(siren()), siren()).parameters for s in found]
    assert all(not torch.allclose(a, b) for i, a in enumerate(changed) for b in changed[:i])
    told = spellings(siren(), DWS, told=True)
    assert {way.factors for pair in told for way in pair} == {(1.0, 1.0)}
    assert len(told) < len(pairs)
    assert spellings(Architecture.mlp([3, 4, 1]), DWS, told=False) == [(Spelling((1.0,)), Spelling((1.0,)))]


def test_the_published_conventions_are_expected_with_their_own_coordinates() -> None:
    usual = [way.words for way, _ in spellings(siren(), DWS, told=False)]
    assert "values from -1 to 1, nothing added to the output, points (row, column)" in usual
    assert "values from 0 to 1, nothing added to the output, points (x, y)" in usual
    from_nfn = [way.words for way, _ in spellings(other(30.0, 0.0), NFN, told=False)]
    assert "values from 0 to 1, 0.5 added to the output, points (x, y)" in from_nfn


def test_changes_compose() -> None:
    one, two = Spelling((2.0, 3.0), 2.0, 0.5, True), Spelling((0.5, 1.0), 4.0, -1.0, True)
    given = networks(siren())
    after = two.read(one.read(given, siren()), siren()).parameters
    assert torch.allclose(one.then(two).read(given, siren()).parameters, after)


def test_one_odd_network_does_not_change_the_spelling_of_many() -> None:
    near, far = [0.5] * 9, [5.0] * 9
    assert settle(torch.tensor([[*near, 4.0], [*far, 0.5]])) == 0
    assert settle(torch.tensor([[*far, 4.0], [*near, 0.5]])) == 1
