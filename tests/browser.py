"""A real browser for tests, where the machine has one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

BROWSER = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no browser: install chromium to try pages in one")


def run_in_browser(page: str, script: str, folder: Path, *, width: int = 1200) -> Any:
    """What a script returns at the end of a page.

    Arguments:
        page: The body of the page.
        script: The body of a function; an error in it, or anywhere on the page, is raised here.
        folder: For temporary files.
        width: Of the window.
    """
    assert BROWSER is not None
    file = folder / "page.html"
    # Errors of the page's own scripts are collected before any of them runs.
    file.write_text(
        f"<!DOCTYPE html><meta charset='utf-8'><script>window.failed = [];"
        f"window.onerror = (text) => {{ failed.push(text); }};</script><body>{page}<pre id='answer'></pre><script>"
        f"const found = (() => {{ {script} }})();"
        "document.getElementById('answer').textContent = JSON.stringify({found, failed});</script></body>",
        encoding="utf-8",
    )
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom"]
    command += [f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    (text,) = re.findall(r'<pre id="answer">(.*?)</pre>', done.stdout, re.DOTALL)
    assert text, "a script on the page failed"
    answer = json.loads(unescape(text))
    assert answer["failed"] == []
    return answer["found"]
