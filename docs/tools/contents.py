"""Checks that a wheel holds every file of the package, and counts modules, recipes, C++ sources and trained models.

python docs/tools/contents.py WHEEL
"""

from __future__ import annotations

import sys
import zipfile
from fnmatch import fnmatch
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
KINDS = {
    "modules": ["*.py"],
    "recipes and grids": ["*/recipes/*.toml"],
    "C++ sources": ["*.cpp", "*.h"],
    "trained models": ["*/pretrained/*/model.safetensors"],
}


def missing(wheel: Path) -> list[str]:
    """Files of the package that a wheel lacks."""
    files = (p for p in SOURCE.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    wanted = (p.relative_to(SOURCE).as_posix() for p in files if "egg-info" not in str(p))
    with zipfile.ZipFile(wheel) as archive:
        there = set(archive.namelist())
    return sorted(set(wanted) - there)


def count(wheel: Path, *patterns: str) -> int:
    """How many files of a wheel match one of the patterns."""
    with zipfile.ZipFile(wheel) as archive:
        return sum(any(fnmatch(name, pattern) for pattern in patterns) for name in archive.namelist())


def main() -> None:
    (wheel,) = map(Path, sys.argv[1:])
    lost = missing(wheel)
    if lost:
        sys.exit(f"{wheel.name} lacks {', '.join(lost)}")
    counts = ", ".join(f"{count(wheel, *patterns)} {what}" for what, patterns in KINDS.items())
    print(f"{wheel.name} holds {counts}")  # noqa: T201


if __name__ == "__main__":
    main()
