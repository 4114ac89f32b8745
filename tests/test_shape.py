"""The shape of the package: one word per idea, one place for every thing, constructors that a person can read."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from test_imports import PACKAGE


def classes(package: Path) -> dict[str, list[ast.ClassDef]]:
    """All classes by name, those inside functions and classes too."""
    found = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(node)
    return found


def ambiguous(package: Path) -> list[str]:
    """Public class names that stand for several classes."""
    return [name for name, found in classes(package).items() if len(found) > 1 and not name.startswith("_")]


def long(package: Path, most: int = 8) -> list[str]:
    """Classes whose `__init__` takes more arguments. Dataclasses, which are records and options, have none."""
    found = []
    for name, nodes in classes(package).items():
        for method in (m for node in nodes for m in node.body if isinstance(m, ast.FunctionDef)):
            a = method.args
            if method.name == "__init__" and len(a.posonlyargs) + len(a.args) - 1 + len(a.kwonlyargs) > most:
                found.append(name)
    return found


# Doors: what is behind them belongs to what stands in front.
DOORS = {"scalegmn", "scalegmn.cli", "scalegmn.core.architecture", "scalegmn.tasks"}


def borrowed(package: Path) -> list[str]:
    """Names that are imported from a module that has imported them itself."""
    trees = {}
    for path in sorted(package.rglob("*.py")):
        parts = [package.name, *path.relative_to(package).with_suffix("").parts]
        trees[".".join(parts).removesuffix(".__init__")] = (ast.parse(path.read_text(encoding="utf-8")), parts[:-1])
    # Imports inside functions are nobody else's.
    offered = {m: {a.asname or a.name: s for a, s in imports(tree.body, w)} for m, (tree, w) in trees.items()}
    return [
        f"{module}: {alias.name} from {source}, which has it from {offered[source][alias.name]}"
        for module, (tree, where) in trees.items()
        for alias, source in imports(ast.walk(tree), where)
        if source not in DOORS and f"{source}.{alias.name}" not in trees and alias.name in offered.get(source, ())
    ]


def imports(nodes: Iterable[ast.AST], where: list[str]) -> Iterator[tuple[ast.alias, str]]:
    """What is imported, each with the module that it comes from."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            base = where[: len(where) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((alias, module) for alias in node.names)


def test_a_name_is_imported_from_where_it_is_defined() -> None:
    assert borrowed(PACKAGE) == []


def test_a_borrowed_name_is_found(tmp_path: Path) -> None:
    package = tmp_path / "scalegmn"
    package.mkdir()
    (package / "one.py").write_text("def f(): ...\n")
    (package / "two.py").write_text("from .one import f\n")
    (package / "three.py").write_text("from scalegmn.two import f\n")
    assert borrowed(package) == ["scalegmn.three: f from scalegmn.two, which has it from scalegmn.one"]


def test_a_class_name_stands_for_one_thing() -> None:
    assert ambiguous(PACKAGE) == []


def test_constructors_are_short() -> None:
    assert long(PACKAGE) == []


@pytest.mark.parametrize("names", ["abcdefghi", "abcdefgh*i"])
def test_what_is_wrong_is_found(tmp_path: Path, names: str) -> None:
    arguments = ", ".join(names.replace("*", "")[:-1]) + (", *, i" if "*" in names else ", i")
    (tmp_path / "one.py").write_text(f"class A:\n    def __init__(self, {arguments}): ...\n")
    (tmp_path / "two.py").write_text("class A:\n    def __init__(self, a): ...\n")
    assert ambiguous(tmp_path) == ["A"]
    assert long(tmp_path) == ["A"]
