"""`scalegmn bench`: how fast things are on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .application import app, examples
from .console import print_json, stdout, track

bench_app = typer.Typer(invoke_without_command=True)
app.add_typer(bench_app, name="bench", epilog=examples("scalegmn bench", "scalegmn bench --json"))

_ORACLE = Path(__file__).parents[3] / "tests" / "oracle.py"


@bench_app.callback()
def bench(
    context: typer.Context,
    seconds: Annotated[float, typer.Option(help="How long to measure each line.")] = 5.0,
    literal: Annotated[bool, typer.Option(help="Compare with the literal edge-list implementation.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure speed and memory of ScaleGMN on this machine.

    The unit is one product (edges x h)(h x h), timed in between. The literal implementation is part of the source
    tree, not of the installed package; without it those columns are empty.
    """
    if context.invoked_subcommand is not None:
        return
    from rich.table import Table

    from ..models.bench import run

    rows = []
    for row in track(run(_ORACLE if literal and _ORACLE.exists() else None, seconds), "measuring", total=8):
        rows.append(row)
    if as_json:
        print_json(rows)
        return
    table = Table("work", "h", "batch", "s / step", "products", "x literal", "peak MB", "literal MB")
    for r in rows:
        numbers = [r["literal_ratio"], r["peak_mb"], r["literal_peak_mb"]]
        table.add_row(
            r["name"],
            str(r["h"]),
            str(r["batch"]),
            f"{r['seconds_per_step']:.3f}",
            f"{r['gemm_equivalents']:.0f}",
            *("-" if n is None else f"{n:.3g}" for n in numbers),
        )
    stdout().print(table)


@bench_app.command("zoo", epilog=examples("scalegmn bench zoo", "scalegmn bench zoo --seconds 60 --json"))
def bench_zoo(
    seconds: Annotated[float, typer.Option(help="How long to measure.")] = 20.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure how fast implicit representations are fitted and read from disk.

    Milliseconds are per network and step, for 28x28 images and 2-32-32-1 sine networks.
    """
    from ..zoo.inr.bench import bench_zoo as measure
    from ..zoo.speed import batches_per_second

    found = measure(seconds, batches_per_second=batches_per_second())
    if as_json:
        print_json(found)
        return
    console = stdout()
    for name, what in [
        ("one_at_a_time_ms", "ms per network and step, one at a time"),
        ("batched_autograd_ms", "ms, batched with autograd"),
        ("ours_ms", "ms, ours"),
        ("ratio_one", "times faster than one at a time"),
        ("ratio_batched", "times faster than batched autograd"),
        ("batches_per_second", "batches of 128 networks a second from disk, in random order"),
    ]:
        console.print(f"{found[name]:12.4g}  {what}", markup=False)
