"""Follow every link of the built site: pages, headings in them, pictures, style sheets and scripts.

    python docs/tools/follow.py [site]

Addresses elsewhere are counted and not fetched; pictures, styles and scripts from elsewhere are refused, because the
site must open without a network. Exit code 1 and one line for each link that leads nowhere.
"""

from __future__ import annotations

import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links of a page, and the places in it that links can lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.needed: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what one element says."""
        found = dict(attrs)
        self.places |= {value for name in ("id", "name") if (value := found.get(name))}
        link = found.get("href") if tag in ("a", "link") else found.get("src")
        if link:
            # A link to this site's own address in the head is none that a reader follows.
            own = tag == "link" and found.get("rel") in ("canonical", "next", "prev", "alternate")
            (self.links if tag == "a" or own else self.needed).append(link)


@cache
def read(path: Path) -> Page:
    """A page, parsed once."""
    return Page(path.read_text(encoding="utf-8"))


def broken(root: Path) -> tuple[list[str], int, int]:
    """The links that lead nowhere, one line each; how many were followed; how many lead elsewhere."""
    lost: list[str] = []
    followed = elsewhere = 0
    for path in sorted(root.rglob("*.html")):
        page = read(path)
        for link in (*page.links, *page.needed):
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto"):
                elsewhere += 1
                if link in page.needed:
                    lost.append(f"{path.relative_to(root)}: needs {link}, which is not part of the site")
                continue
            if parts.scheme == "data" or parts.scheme == "javascript":
                continue
            followed += 1
            # Only the page for what is not found, which servers show anywhere, has addresses from the top.
            base, name = (root, parts.path.lstrip("/")) if path.name == "404.html" else (path.parent, parts.path)
            target = (base / unquote(name)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            place = unquote(parts.fragment)
            if not target.is_file():
                lost.append(f"{path.relative_to(root)}: {link}: no such file")
            elif place and target.suffix == ".html" and place not in read(target).places:
                lost.append(f"{path.relative_to(root)}: {link}: no such place")
    return lost, followed, elsewhere


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "site").resolve()
    lost, followed, elsewhere = broken(root)
    pages = len(list(root.rglob("*.html")))
    print(*lost, f"{pages} pages, {followed:,} links followed, {elsewhere} lead elsewhere", sep="\n")  # noqa: T201
    sys.exit(1 if lost or not followed else 0)


if __name__ == "__main__":
    main()
