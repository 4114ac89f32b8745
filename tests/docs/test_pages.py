"""What pages show of Python runs and answers as they say."""

from __future__ import annotations

import doctest
import re
import tempfile
from importlib import import_module, util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SESSIONS = [page for page in PAGES if ">>> " in page.read_text()]
IMPORT = re.compile(r"^\s*(?:>>> )?from (scalegmn[\w.]*) import ([\w, ]+)$", re.MULTILINE)


@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: page.name)
def test_examples_answer_as_the_page_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert failed == 0
    assert tried > 10


def missing(text: str) -> list[str]:
    """The imports of a page that do not exist."""
    found = []
    for module, names in IMPORT.findall(text):
        for name in re.split(r",\s*", names.strip()):
            if util.find_spec(module) is None or name not in dir(import_module(module)):
                found.append(f"{module}.{name}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_imports_exist(page: Path) -> None:
    assert missing(page.read_text()) == []


def test_an_import_that_does_not_exist_is_found() -> None:
    page = "Text\n    >>> from scalegmn import Zoo, Gone\n    from scalegmn.gone import Zoo\n"
    assert missing(page) == ["scalegmn.Gone", "scalegmn.gone.Zoo"]
