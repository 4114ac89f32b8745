"""`scalegmn report`: runs on one page."""

from pathlib import Path
from typing import Annotated

import typer

from ..application import app, examples
from ..console import check_out, note, stdout


@app.command(epilog=examples("scalegmn report runs/digits-*", "scalegmn report runs/sweep-scalegmn -o sweep.html"))
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or directories that hold some.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write (.html).")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Title of the page.")] = "Report",
    zoo: Annotated[Path | None, typer.Option(help="Where the zoo is now, if it was moved.")] = None,
    networks: Annotated[int, typer.Option(min=1, help="Evaluate the models on at most this many networks.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random copies.")] = 0,
) -> None:
    """Write one self-contained HTML page about runs.

    It has the results with mean and standard deviation over seeds, learning curves, confusion matrices or scatter
    plots, INRs before and after editing, and how answers change on copies of networks that compute the same functions.
    """
    from ...report.build import write_report

    check_out(out, ".html", ".htm")
    write_report(runs, out, title=title, zoo=zoo, networks=networks, seed=seed, progress=note)
    stdout().print(str(out), markup=False)
