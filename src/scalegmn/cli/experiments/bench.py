"""`scalegmn bench`: speed and memory on this machine."""

from typing import Annotated

import typer

from ..application import app, examples
from ..console import print_json, stdout, track

bench_app = typer.Typer(invoke_without_command=True)
_EXAMPLES = examples("scalegmn bench", "scalegmn bench --json", "scalegmn bench --only paper/mnist")
app.add_typer(bench_app, name="bench", epilog=_EXAMPLES)


@bench_app.callback()
def bench(
    context: typer.Context,
    only: Annotated[
        list[str] | None, typer.Option(help="Only lines whose name contains this text. May be repeated.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long to measure each line, but at least two steps.")] = 3.0,
    megabytes: Annotated[
        float, typer.Option(help="Halve batches until their edge states take at most this; 0 keeps all batches.")
    ] = 24.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure speed and memory of ScaleGMN on this machine, also with the settings of every published recipe.

    The unit is the time of one product (edges x h)(h x h), measured in turns with the model; the model's arithmetic
    is shown in the same unit.
    """
    if context.invoked_subcommand is not None:
        return
    from dataclasses import asdict

    from rich.table import Table

    from ...bench.recipes import published
    from ...bench.scalegmn import Turns, cases, in_turns
    from ...errors import ScaleGMNError
    from ...native.build import backend

    named = [case for case in (*cases(), *published()) if not only or any(text in case.name for text in only)]
    if not named:
        raise ScaleGMNError(f"--only: no line has {' or '.join(map(repr, only or ()))} in its name; see scalegmn bench")
    turns = [Turns(case.limited(megabytes) if megabytes else case) for case in track(named, "building")]
    for _ in track(in_turns(turns, seconds), "measuring"):
        pass
    rows = [one.row() for one in turns]
    if as_json:
        print_json({"backend": backend(), "rows": [{**asdict(row), "ratio": row.ratio} for row in rows]})
        return
    table = Table("work", "h", "batch", "s / step", "products", "arithmetic", "ratio", "peak MB")
    for r in rows:
        numbers = f"{r.seconds_per_step:.3f}", f"{r.gemm_equivalents:.1f}", f"{r.arithmetic:.1f}", f"{r.ratio:.2f}"
        table.add_row(r.name, str(r.h), str(r.batch), *numbers, "-" if r.peak_mb is None else f"{r.peak_mb:.3g}")
    stdout().print(table)
    stdout().print(f"backend: {backend()}", markup=False)


@bench_app.command("zoo", epilog=examples("scalegmn bench zoo", "scalegmn bench zoo --seconds 60 --json"))
def bench_zoo(
    seconds: Annotated[float, typer.Option(help="How long to measure.")] = 20.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure how fast implicit representations are fitted and read from disk.

    Milliseconds are per network and step, for 28x28 images and 2-32-32-1 sine networks.
    """
    from ...bench.inr import bench_zoo as measure
    from ...bench.loading import batches_per_second
    from ...native.build import backend

    found = measure(seconds, batches_per_second=batches_per_second())
    if as_json:
        print_json({"backend": backend(), **found})
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
    console.print(f"     backend  {backend()}", markup=False)
