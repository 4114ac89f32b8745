"""`scalegmn check`: tests of the symmetries of all models."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ..application import INTERNAL_ERROR, app, examples
from ..console import print_json, stdout, table, track

if TYPE_CHECKING:
    from rich.table import Table

    from ...audit import Verdict


@app.command(epilog=examples("scalegmn check", "scalegmn check --model scalegmn-b", "scalegmn check --json"))
def check(
    model: Annotated[list[str] | None, typer.Option(help="Only this model; may be given several times.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: one row for each law and case.")] = False,
) -> None:
    """Test the symmetries of every model, in both precisions, with negative controls.

    Small models of each kind read networks before and after random symmetries; scales are in [1e-3, 1e3], and half of
    the networks contain zeros, weights near 1e-15 and dead neurons. The table shows the worst error of each law over
    architectures and activations. The exit code is 1 if a law is broken.
    """
    import torch

    from ...audit import audit
    from ...models.registry import METHODS, method

    # Everything is small: threads would only wait for each other.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        chosen = [method(name) for name in model] if model else list(METHODS.values())
        rows = list(track(audit(chosen), "checking"))
    finally:
        torch.set_num_threads(threads)
    if as_json:
        print_json([dataclasses.asdict(row) for row in rows])
    else:
        stdout().print(_table(rows))
        failed = sum(not row.ok for row in rows)
        stdout().print(f"{len(rows):,} cases, {failed or 'none'} failed")
    if not all(row.ok for row in rows):
        raise typer.Exit(INTERNAL_ERROR)


def _table(rows: Sequence[Verdict]) -> Table:
    """The worst case of each model, head, law and precision."""
    groups: dict[tuple[str, ...], list[Verdict]] = {}
    for row in rows:
        groups.setdefault((row.model, row.form or "", row.head, row.law, row.dtype), []).append(row)
    numbers = ("cases", "worst error", "tolerance")
    shown = table("model", "form", "head", "law", "precision", numbers=numbers, pad_edge=False)
    shown.add_column("worst case")
    shown.add_column("ok")
    for names, group in groups.items():
        # A negative control fails when its error is too small.
        control = names[3].startswith("not ")
        worst = min(group, key=lambda r: r.error) if control else max(group, key=lambda r: r.error)
        bound = f"{'>' if control else '<='} {worst.tolerance:g}"
        where = f"{worst.architecture}, {worst.activation}" if worst.error else ""
        ok = "yes" if all(r.ok for r in group) else "[red]NO[/red]"
        shown.add_row(*names, str(len(group)), f"{worst.error:.2g}", bound, where, ok)
    return shown
