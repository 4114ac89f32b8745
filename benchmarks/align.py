"""What alignment finds: planted symmetries, copies, merged networks, int8, and how long it takes.

    python benchmarks/align.py [--quick] [--json] [--images mnist --root DIR] [--only planted,copies,...] [--cache DIR]

Trains its own networks; with --cache DIR only those that are not there yet. The tables in docs/align.md are what this
prints; --figures DIR also draws its pictures.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from align_find import copies_part, planted_part
from align_networks import Row, load
from align_speed import speed_part
from align_use import balance_part, merge_part


def table(rows: list[Row]) -> str:
    """Rows as a table in Markdown, and what they hold in turn as another."""
    columns = [c for c in rows[0] if not isinstance(rows[0][c], dict)]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        cells = [f"{row[c]:.3g}" if isinstance(row[c], float) else str(row[c]) for c in columns]
        lines.append("| " + " | ".join(cells) + " |")
    inner = [
        {columns[0]: row[columns[0]]} | {k: x for v in row.values() if isinstance(v, dict) for k, x in v.items()}
        for row in rows
        if any(isinstance(v, dict) for v in row.values())
    ]
    return "\n".join(lines) + ("\n\n" + table(inner) if inner else "")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few networks")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--images", default="digits", help="digits, mnist, cifar10")
    parser.add_argument("--root", type=Path, help="where the files of mnist and cifar10 are")
    parser.add_argument("--only", default="planted,copies,merge,balance,speed")
    parser.add_argument("--family", default="", help="only families whose name contains this, such as 'relu MLP'")
    parser.add_argument("--cache", type=Path, help="a folder for trained networks, so that a second run trains none")
    parser.add_argument("--networks", type=int, default=10, help="how many of each family are balanced")
    parser.add_argument("--figures", type=Path, help="a folder for the pictures of docs/align.md")
    options = parser.parse_args()
    data = load(options.images, options.root, options.cache, options.family)
    parts: dict[str, list[Row]] = {}
    for part in options.only.split(","):
        if part == "planted":
            parts[part] = planted_part(data, options.quick)
        elif part == "copies":
            parts[part] = copies_part(data, options.quick)
        elif part == "merge":
            parts[part] = merge_part(data, options.quick)
        elif part == "balance":
            parts[part] = balance_part(data, 2 if options.quick else options.networks)
        elif part == "speed":
            parts[part] = speed_part(options.quick)
        else:
            parser.error(f"--only: expected planted, copies, merge, balance or speed, got {part}")
        if not options.json:
            sys.stdout.write(f"\n### {part}\n\n{table(parts[part])}\n")
            sys.stdout.flush()
    if options.figures is not None:
        from align_figures import draw_all

        draw_all(options.figures, data, parts.get("copies", []))
    if options.json:
        sys.stdout.write(json.dumps(parts, indent=2) + "\n")


if __name__ == "__main__":
    main()
