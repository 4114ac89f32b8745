"""Each public class of core, nn and models has an example, which pytest runs with the docstrings."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import scalegmn

ROOT = Path(scalegmn.__file__).parent


def without_example(source: str) -> list[str]:
    """The public classes of a module whose docstring has no example."""
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    return [c.name for c in classes if not c.name.startswith("_") and ">>>" not in (ast.get_docstring(c) or "")]


@pytest.mark.parametrize("room", ["core", "nn", "models"])
def test_public_classes_have_examples(room: str) -> None:
    found = {path.name: without_example(path.read_text()) for path in sorted((ROOT / room).rglob("*.py"))}
    assert {name: classes for name, classes in found.items() if classes} == {}


def test_a_class_without_one_is_noticed() -> None:
    assert without_example('class A:\n    "Words."\n\nclass _B: ...\n\nclass C:\n    """>>> 1\n    1\n    """') == ["A"]
