"""Says whether a wheel holds all that is not Python: recipes, C++ sources, what reports are made of, trained models.

python docs/tools/contents.py WHEEL
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


def missing(wheel: Path) -> list[str]:
    """Files of the package that a wheel lacks."""
    files = (p for p in SOURCE.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    wanted = (p.relative_to(SOURCE).as_posix() for p in files if "egg-info" not in str(p))
    with zipfile.ZipFile(wheel) as archive:
        there = set(archive.namelist())
    return sorted(set(wanted) - there)


def main() -> None:
    (wheel,) = map(Path, sys.argv[1:])
    lost = missing(wheel)
    if lost:
        sys.exit(f"{wheel.name} lacks {', '.join(lost)}")


if __name__ == "__main__":
    main()
