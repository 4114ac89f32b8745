"""Whatever `make test` installs has a version in constraints.txt."""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def names_below(requirement: Requirement, seen: set[str]) -> set[str]:
    """What a requirement leads to, through what is installed here, with itself."""
    if str(requirement) in seen:
        return set()
    seen.add(str(requirement))
    try:
        below = [Requirement(text) for text in requires(requirement.name) or []]
    except PackageNotFoundError:
        below = []
    found = {canonicalize_name(requirement.name)}
    for other in below:
        marker, other.marker = other.marker, None
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras)):
            found |= names_below(other, seen)
    return found


def test_everything_that_is_installed_has_a_version() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if "==" in line}
    building = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    seen: set[str] = set()
    names = set().union(*(names_below(Requirement(text), seen) for text in ["scalegmn[dev]", *building]))
    assert {"torch", "pytest", "hatchling", "jinja2"} <= names
    assert names - {"scalegmn"} <= pinned
