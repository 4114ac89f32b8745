"""`scalegmn predict`: what a trained model says about a person's own checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .application import app, examples
from .console import print_json, stdout


@app.command(epilog=examples("scalegmn predict runs/digits mine.pt other.safetensors", "scalegmn predict RUN F --json"))
def predict(
    run: Annotated[Path, typer.Argument(help="A run directory.", show_default=False)],
    files: Annotated[list[Path], typer.Argument(help="Checkpoints (.pt, .pth, .safetensors).", show_default=False)],
    activation: Annotated[
        str | None, typer.Option(help="Of the checkpoints, where the model knows several of these shapes.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Label networks, or estimate a number such as their test accuracy, from their weights."""
    from rich.table import Table

    from ..inference.trained import load

    answers = load(run).predict(files, activation=activation)
    rows = [{"file": str(file), **answer} for file, answer in zip(files, answers, strict=True)]
    if as_json:
        print_json(rows)
        return
    table = Table(*rows[0], box=None)
    for row in rows:
        table.add_row(*map(str, row.values()))
    stdout().print(table)
