"""Scripts with cells: run them, keep what each cell prints and draws, and make a page of it.

A cell begins with a line `# %%`; one that begins with `# %% [markdown]` is text. Any editor that knows such scripts
runs them cell by cell, and `python SCRIPT` runs them from start to end.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import tempfile
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "tutorials"
QUICK = "SCALEGMN_QUICK"
_FILE = re.compile(r"""Path\("([^"]+\.(\w+))"\)\.write_text\([^']*'''\\?\n(.*)'''\)""", re.DOTALL)


@dataclass
class Cell:
    """A piece of a script.

    Arguments:
        text: Its lines, those of markdown without their comment signs.
        markdown: Whether it is text.
        line: Where it begins, from 0.
        printed: What it wrote to the standard output.
        pictures: The figures that it left open, as PNG.
    """

    text: str
    markdown: bool
    line: int
    printed: str = ""
    pictures: list[bytes] = field(default_factory=list)


def split(script: str) -> list[Cell]:
    """The cells of a script.

    >>> [(cell.markdown, cell.text) for cell in split("# %% [markdown]\\n# # Title\\n# %%\\nx = 1\\n")]
    [(True, '# Title'), (False, 'x = 1')]
    """
    lines = script.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("# %%")]
    found = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        markdown = "[markdown]" in lines[start]
        body = lines[start + 1 : end]
        if markdown:
            body = [line.removeprefix("#").removeprefix(" ") for line in body]
        found.append(Cell("\n".join(body).strip("\n"), markdown, start + 1))
    return found


def run(path: Path) -> list[Cell]:
    """Run a script in an empty folder, cell by cell."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    cells = split(path.read_text(encoding="utf-8"))
    names: dict[str, object] = {"__name__": "__main__", "__file__": str(path)}
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for cell in cells:
                if cell.markdown:
                    continue
                # Empty lines in front, so that a traceback names the line of the file.
                code = compile("\n" * cell.line + cell.text, str(path), "exec", dont_inherit=True)
                with contextlib.redirect_stdout(io.StringIO()) as printed:
                    exec(code, names)
                cell.printed = printed.getvalue()
                for number in plt.get_fignums():
                    buffer = io.BytesIO()
                    plt.figure(number).savefig(buffer, dpi=110, bbox_inches="tight", metadata={"Software": None})
                    cell.pictures.append(buffer.getvalue())
                plt.close("all")
        finally:
            os.chdir(before)
    return cells


def page(cells: list[Cell], name: str) -> tuple[str, dict[str, bytes]]:
    """Markdown, and the pictures that it shows by their file names.

    Arguments:
        cells: After `run`.
        name: Of the script, without its suffix.
    """
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in cells:
        if cell.markdown:
            parts.append(cell.text)
        else:
            parts.append(_code(cell.text.strip()))
        if cell.printed:
            parts.append(f'<div class="output"><pre>{escape(cell.printed.rstrip())}</pre></div>')
        for content in cell.pictures:
            file = f"{name}-{len(pictures) + 1}.png"
            pictures[file] = content
            parts.append(f"![a figure that the code above draws]({file})")
    parts.append(f"---\n\nThis page is the script `docs/tutorials/{name}.py`, with what it printed and drew.")
    return "\n\n".join(parts) + "\n", pictures


def _code(text: str) -> str:
    """A block of code; a cell that does nothing but write a file is shown as that file."""
    found = _FILE.fullmatch(text)
    if found is None:
        return f"```python\n{text}\n```"
    language = {"py": "python"}.get(found[2], found[2])
    return f'```{language} title="{found[1]}"\n{found[3].strip()}\n```'


def rendered(path: Path) -> tuple[str, dict[str, bytes]]:
    """The page of a script; one that was made with the same script and library is used again."""
    cache = CACHE / f"{path.stem}-{_key(path)}.json"
    if cache.is_file():
        text, pictures = json.loads(cache.read_text(encoding="utf-8"))
        return text, {name: b64decode(content) for name, content in pictures.items()}
    text, found = page(run(path), path.stem)
    cache.parent.mkdir(parents=True, exist_ok=True)
    stored = {name: b64encode(content).decode() for name, content in found.items()}
    cache.write_text(json.dumps([text, stored]), encoding="utf-8")
    return text, found


def _key(path: Path) -> str:
    digest = hashlib.sha256(path.read_bytes() + os.environ.get(QUICK, "").encode())
    for source in sorted((ROOT / "src").rglob("*")):
        if re.fullmatch(r"\.(py|cpp|h|toml)", source.suffix):
            digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
