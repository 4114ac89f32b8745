"""`scalegmn bench`: how fast things are on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from scalegmn.cli.application import app, examples
from scalegmn.cli.console import print_json, stdout

bench_app = typer.Typer(help="Measure speed on this machine.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")


@bench_app.command("zoo", epilog=examples("scalegmn bench zoo", "scalegmn bench zoo --seconds 60 --json"))
def bench_zoo(
    seconds: Annotated[float, typer.Option(help="How long to measure.")] = 20.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure how fast implicit representations are fitted and read from disk.

    Milliseconds are per network and step, for 28x28 images and 2-32-32-1 sine networks.
    """
    from scalegmn.zoo.bench import bench_zoo as measure
    from scalegmn.zoo.speed import batches_per_second

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
