"""Examples in docstrings as code: each paragraph that begins with `>>>` is fenced before the reference is rendered."""

from __future__ import annotations

from typing import Any

import griffe


class Doctests(griffe.Extension):
    """Fences the examples of every docstring."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """A docstring whose examples are blocks of code."""
    found: list[str] = []
    inside = False
    for line in text.splitlines():
        if not inside and line.lstrip().startswith(">>>"):
            inside = True
            indent = line[: len(line) - len(line.lstrip())]
            found.append(f"{indent}```pycon")
        elif inside and not line.strip():
            inside = False
            found.append(f"{indent}```")
        found.append(line)
    if inside:
        found.append(f"{indent}```")
    return "\n".join(found)
