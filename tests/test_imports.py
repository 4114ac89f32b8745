"""Imports run one way. The order is stated here and in docs/architecture.md."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import scalegmn

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "scalegmn"

ORDER = (
    "errors < files < cluster < core < convert < testing < native < nn < theorem < alignment < models < audit < zoo "
    "< tasks < training < bench < inference < report < reproduce < cli"
)
LEVEL = {name.strip(): level for level, names in enumerate(ORDER.split("<")) for name in names.split(",")}
UNRESTRICTED = {"cli", "__main__", "__init__"}
# `Networks.from_modules` and its like are doors to the conversion behind them.
DOORS = {("core/networks.py", "convert")}


def imported_modules(path: Path, package: Path) -> Iterator[tuple[str, int]]:
    """Yield (top-level module of ours, line) for each import in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parents = ["scalegmn", *path.relative_to(package).parts[:-1]]
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) - node.level + 1] if node.level else []
            prefix = [*base, *(node.module.split(".") if node.module else [])]
            names = [".".join([*prefix, alias.name]) for alias in node.names]
        for name in names:
            top, *rest = name.split(".")
            if top == "scalegmn":
                yield (rest[0] if rest else "__init__"), node.lineno


def complaints(package: Path) -> list[str]:
    """Return one line for each module without a place and each import against the order."""
    found = []
    for path in sorted(package.rglob("*.py")):
        importer = path.relative_to(package).parts[0].removesuffix(".py")
        if importer in UNRESTRICTED:
            continue
        if importer not in LEVEL:
            found.append(f"{importer}: unknown module; give it a place in ORDER and in docs/architecture.md")
            continue
        for imported, line in imported_modules(path, package):
            where = f"{path.relative_to(package)}:{line}"
            if imported == importer or imported == "__version__":
                continue
            if imported not in LEVEL:
                found.append(f"{where}: import `{imported}` from the module that defines it")
            elif LEVEL[imported] > LEVEL[importer] and (str(path.relative_to(package)), imported) not in DOORS:
                found.append(f"{where}: {importer} imports {imported}, which comes later in the order")
    return found


def test_imports_run_one_way() -> None:
    assert complaints(PACKAGE) == []


def test_documentation_states_the_same_order() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = re.search(r"## Import order.*?```\n(.*?)```", text, flags=re.DOTALL)
    assert block is not None
    assert block[1].split() == ORDER.split()


def test_documentation_names_every_module() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = {
        name for row in re.findall(r"^\| (`.*?) \|", text, flags=re.M) for name in re.findall(r"`(\w+)`", row)
    }
    assert rows == set(LEVEL)


@pytest.mark.parametrize(
    ("file", "source", "complaint"),
    [
        ("core/groups.py", "from scalegmn.nn.blocks import Message", "core imports nn"),
        ("core/groups.py", "import scalegmn.zoo", "core imports zoo"),
        ("core/groups.py", "from .. import models", "core imports models"),
        ("core/transform.py", "from ..convert import fx", "core imports convert"),
        ("nn/blocks.py", "from ..training import loop", "nn imports training"),
        ("nn/blocks.py", "from scalegmn import Networks", "from the module that defines it"),
        ("nn/blocks.py", "def f():\n    import scalegmn.zoo", "nn imports zoo"),
        ("convert/chain.py", "from scalegmn.nn.scale import ScaleInvariant", "convert imports nn"),
        ("helpers.py", "", "unknown module"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, file: str, source: str, complaint: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(source)
    (found,) = complaints(tmp_path)
    assert complaint in found


@pytest.mark.parametrize(
    ("file", "source"),
    [
        (
            "nn/blocks.py",
            "from scalegmn.core.groups import Sign\nfrom . import init\nfrom .init import x",
        ),
        ("core/networks.py", "import scalegmn.core.evaluate\nfrom scalegmn.convert import fx"),
        ("cli/train.py", "from scalegmn import __version__, Networks\nimport scalegmn.training"),
    ],
)
def test_a_right_import_is_left_alone(tmp_path: Path, file: str, source: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(source)
    assert complaints(tmp_path) == []


def test_type_checkers_and_the_interpreter_see_the_same_exports() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    (block,) = [n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    declared = {
        alias.asname: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert declared == scalegmn._EXPORTS


@pytest.mark.parametrize("name", scalegmn.__all__)
def test_every_export_exists(name: str) -> None:
    assert getattr(scalegmn, name) is not None
    assert name in dir(scalegmn)


def test_an_unknown_export_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        importlib.import_module("scalegmn").Nothing  # noqa: B018
