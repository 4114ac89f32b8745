"""Specifications check themselves once: types, ranges, choices and names, each complaint in one line."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, dataclass
from typing import Annotated, Any, Literal

import pytest

from scalegmn.core.schema import from_json, to_json
from scalegmn.core.spec import Count, Range, Share, Spec, changed, described
from scalegmn.errors import ScaleGMNError


@dataclass(frozen=True, repr=False)
class Base(Spec):
    """Some options.

    Arguments:
        width: How wide,
            in two lines.
        share: How much.
    """

    width: Count = 8
    share: Share = 0.0


@dataclass(frozen=True, repr=False)
class Example(Base):
    """More of them.

    Arguments:
        share: How much of the example.
        kind, image: Two at once.
        gate: Or nothing.
        steps: At least two.
        skip: Whether.
    """

    kind: Literal["a", "b"] = "a"
    image: tuple[int, ...] = ()
    gate: Count | None = None
    steps: Annotated[int, Range(2)] = 2
    skip: bool = True


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"width": 0}, "width: expected at least 1, got 0"),
        ({"width": "8"}, "width: expected int, got '8'"),
        ({"width": True}, "width: expected int, got True"),
        ({"width": 2.5}, "width: expected int, got 2.5"),
        ({"share": 1}, "share: expected at least 0 and less than 1, got 1.0"),
        ({"share": float("nan")}, "share: expected at least 0 and less than 1, got nan"),
        ({"kind": "c"}, "kind: expected one of a, b; got 'c'"),
        ({"image": [8, "x"]}, "image[1]: expected int, got 'x'"),
        ({"gate": -1}, "gate: expected at least 1, got -1"),
        ({"steps": 1}, "steps: expected at least 2, got 1"),
        ({"skip": 1}, "skip: expected bool, got 1"),
        ({"kinds": "a"}, "unknown option 'kinds'; did you mean 'kind'?"),
    ],
)
def test_what_is_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ScaleGMNError, match=f"^{re.escape(complaint)}$"):
        changed(Example(), options)


def test_values_get_the_types_that_are_declared() -> None:
    spec = Example(width=16.0, share=0, image=[8, 8])  # type: ignore[arg-type]
    assert spec == Example(16, 0.0, image=(8, 8))
    assert [type(v) for v in (spec.width, spec.share, spec.image)] == [int, float, tuple]
    with pytest.raises(FrozenInstanceError):
        spec.width = 3  # type: ignore[misc]


def test_it_prints_what_differs_and_survives_json() -> None:
    spec = changed(Example(), {"gate": 3, "kind": "b"})
    assert repr(spec) == "Example(kind='b', gate=3)"
    assert from_json(Example, to_json(spec), "spec") == spec
    assert hash(spec) == hash(Example(kind="b", gate=3))


def test_it_says_what_it_means() -> None:
    assert Example.meanings() == {
        "width": "How wide, in two lines.",
        "share": "How much of the example.",
        "kind": "Two at once.",
        "image": "Two at once.",
        "gate": "Or nothing.",
        "steps": "At least two.",
        "skip": "Whether.",
    }
    words = described(Example)
    assert (words["kind"], words["image"], words["skip"]) == ("a or b", "list of int", "bool")
