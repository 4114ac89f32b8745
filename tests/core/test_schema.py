"""Architectures as JSON: exact round trips, and refusals that name the place."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalegmn.core.activations import activation, names
from scalegmn.core.architecture import Architecture, Connection, Conv, Layer, Linear, Normalise, Pool, Skip
from scalegmn.core.schema import architecture_from_json, architecture_to_json
from scalegmn.errors import ScaleGMNError

SMALL = Architecture.mlp([2, 5, 1], "relu")


@st.composite
def architectures(draw: st.DrawFn) -> Architecture:
    """Graphs with every kind of map, of any activation, with awkward numbers."""
    number = st.floats(allow_nan=False, width=64)
    layers = [Layer(3, bias=False)]
    connections = []
    for target in range(1, draw(st.integers(2, 5))):
        name = draw(st.sampled_from(names()))
        free = name in ("sine", "leaky_relu", "softshrink")
        parameters = [draw(st.floats(1e-300, 1e300)) for _ in activation(name).parameters if free]
        layers.append(
            Layer(3, activation(name, *parameters), bias=draw(st.booleans()), offset=draw(number))
        )
        shape = tuple(draw(st.lists(st.integers(1, 9), max_size=2)))
        pools = tuple(
            draw(
                st.lists(
                    st.builds(Pool, st.sampled_from(["avg", "max", "global_avg"]), st.just(shape), st.just(shape)),
                    max_size=2,
                )
            )
        )
        kind = draw(
            st.sampled_from(
                [Linear(shape), Conv((3,), (1,), (0,), (1,)), Skip(), Normalise(draw(number)), Normalise()]
            )
        )
        connections.append(Connection(draw(st.integers(0, target - 1)), target, kind, pools, draw(number)))
    return Architecture(tuple(layers), tuple(connections))


@given(architectures())
def test_architectures_survive_json_exactly(architecture: Architecture) -> None:
    text = json.dumps(architecture_to_json(architecture), allow_nan=False)
    again = architecture_from_json(json.loads(text))
    assert again == architecture
    assert repr(again) == repr(architecture)  # 1 == 1.0 == True would pass the line above


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a["layers"][1].update(size="4"), r"layers\[1\].size: expected int, got '4'"),
        (lambda a: a["layers"][1].update(size=True), r"layers\[1\].size: expected int, got True"),
        (lambda a: a["layers"][1].update(depth=4), "unknown entry 'depth'"),
        (lambda a: a["layers"][1].pop("size"), "expected also size"),
        (lambda a: a["connections"][0]["map"].update(type="Magic"), "expected one of Linear, Conv, Skip"),
        (lambda a: a["connections"][0].update(target=7), "must run forward"),
        (lambda a: a.update(layers=3), "layers: expected"),
        (lambda a: a["layers"][1]["activation"].update(name="magic"), "activation: expected one of"),
    ],
)
def test_wrong_json_is_refused_by_name(change: object, message: str) -> None:
    value = architecture_to_json(SMALL)
    change(value)  # type: ignore[operator]
    with pytest.raises(ScaleGMNError, match=message):
        architecture_from_json(value)
