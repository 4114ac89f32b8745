"""The drawing of the package shows every room, and what it says about them is so."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from test_imports import LEVEL, PACKAGE, imported_modules

TOOL = Path(__file__).parents[2] / "docs" / "tools" / "architecture.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    place = importlib.util.spec_from_file_location("architecture_drawing", TOOL)
    assert place is not None
    assert place.loader is not None
    found = importlib.util.module_from_spec(place)
    sys.modules[place.name] = found
    place.loader.exec_module(found)
    return found


def test_the_drawing_is_the_one_that_the_script_makes(tool: ModuleType) -> None:
    assert tool.FILE.read_text(encoding="utf-8") == tool.drawing()


def test_every_room_is_drawn(tool: ModuleType) -> None:
    assert set(tool.ROOMS) == set(LEVEL)


def test_rooms_do_not_overlap(tool: ModuleType) -> None:
    boxes = list(tool.PLACES.values())
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            beside = a.x + a.w <= b.x or b.x + b.w <= a.x
            assert beside or a.y + a.h <= b.y or b.y + b.h <= a.y, (a, b)


def test_a_room_imports_what_it_is_drawn_to_use(tool: ModuleType) -> None:
    imports: dict[str, set[str]] = {name: set() for name in LEVEL}
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room in imports:
            imports[room] |= {name for name, _ in imported_modules(path, PACKAGE)}
    for source, _, _, target, _, _, kind in tool.ARROWS:
        if kind == "use":
            assert source in imports[target], f"{target} does not use {source}"
