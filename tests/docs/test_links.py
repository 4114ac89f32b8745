"""Every link on every page leads somewhere: to a file, and to a heading in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs" / "tutorials").glob("*.py")])
LINK = re.compile(r"!?\[[^]]*\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")


def text_of(page: Path) -> str:
    """The prose of a page: markdown without blocks of code, or the text cells of a script."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".py":
        return "\n".join(line.removeprefix("# ") for line in text.splitlines() if line.startswith("#"))
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(page: Path) -> set[str]:
    """The headings of a page as addresses."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in found}


def broken(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    lost = []
    for match in LINK.finditer(text_of(page)):
        link = match[1] or match[2]
        if link.startswith(("https://", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        there = target.is_file()
        if not there or (anchor and anchor not in anchors(target)):
            lost.append(link)
    return lost


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page: Path) -> None:
    assert broken(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Here\n[a](gone.md) [b](#here) [c](#there) `[d](code.md)` [e](https://example.org)\n")
    assert broken(page) == ["gone.md", "#there"]


def test_every_page_is_in_the_nav() -> None:
    """`make docs` refuses a page without a place; this says so without building."""
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r": ([\w/-]+\.md)$", config.partition("\nnav:\n")[2], flags=re.MULTILINE))
    pages = {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    tutorials = {f"tutorials/{p.stem}.md" for p in (ROOT / "docs" / "tutorials").glob("*.py")}
    made = {"index.md", "contributing.md", "security.md", "changes.md"}
    assert listed == pages | tutorials | made
