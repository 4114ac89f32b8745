"""The program that follows the links of the built site finds those that lead nowhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "docs" / "tools" / "follow.py"
GOOD = '<h1 id="top">A</h1><a href="b.html#there">b</a><a href="https://example.org">c</a><img src="d.png">'


def follow(folder: Path, first: str) -> subprocess.CompletedProcess[str]:
    (folder / "a.html").write_text(first)
    (folder / "b.html").write_text('<h2 id="there">B</h2><a href="a.html#top">a</a>')
    (folder / "d.png").write_bytes(b"")
    return subprocess.run([sys.executable, str(TOOL), str(folder)], capture_output=True, text=True, check=False)


def test_a_whole_site_passes(tmp_path: Path) -> None:
    done = follow(tmp_path, GOOD)
    assert (done.returncode, done.stdout) == (0, "2 pages, 3 links followed, 1 lead elsewhere\n")


def test_what_leads_nowhere_is_named(tmp_path: Path) -> None:
    bad = '<a href="gone.html">x</a><a href="b.html#gone">y</a><script src="https://example.org/x.js"></script>'
    done = follow(tmp_path, GOOD + bad)
    assert done.returncode == 1
    assert done.stdout.splitlines()[:3] == [
        "a.html: gone.html: no such file",
        "a.html: b.html#gone: no such place",
        "a.html: needs https://example.org/x.js, which is not part of the site",
    ]
