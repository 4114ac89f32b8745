"""`scalegmn models`: every model, whose it is and what it can do."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .application import app, examples
from .console import print_json, stdout


@app.command(epilog=examples("scalegmn models", "scalegmn models --json"))
def models(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List every model: paper, symmetries, tasks, inputs, and parameters at default size.

    The parameters are those of a classifier with 10 classes (or else the editor) of SIRENs 2-32-32-1.
    """
    from rich.table import Table

    rows = describe_models()
    if as_json:
        print_json(rows)
        return
    table = Table(box=None)
    table.add_column("name", no_wrap=True)
    for heading in ("model", "paper", "symmetries", "tasks", "inputs"):
        table.add_column(heading)
    table.add_column("parameters", justify="right")
    for row in rows:
        inputs = "MLPs, CNNs" if row["convolutions"] else "MLPs"
        table.add_row(
            row["name"],
            row["title"],
            row["paper"] if str(row["year"]) in row["paper"] else f"{row['paper']} {row['year']}",
            ", ".join(row["symmetries"]) or "none",
            ", ".join(row["tasks"]),
            f"{inputs}{', mixed' if row['several'] else ''}",
            f"{row['parameters']:,}",
        )
    stdout().print(table)


def describe_models() -> list[dict[str, Any]]:
    """What is known about every registered model, as plain values."""
    import scalegmn.models  # noqa: F401

    from ..core.activations import activation
    from ..core.architecture import Architecture
    from ..models.registry import cards, options_of
    from ..tasks import TASKS

    siren = Architecture.mlp([2, 32, 32, 1], activation("sine", 30.0))
    rows = []
    for card in cards():
        heads = {"invariant": card.invariant, "equivariant": card.equivariant}
        if card.invariant is not None:
            model: Any = card.invariant([siren], 10)
        else:
            assert card.equivariant is not None
            model = card.equivariant([siren])
        rows.append(
            {
                "name": card.name,
                "title": card.title,
                "paper": card.paper,
                "year": card.year,
                "symmetries": list(card.symmetries),
                "tasks": [name for name, task in TASKS.items() if heads[task.head] is not None],
                "convolutions": card.convolutions,
                "several": card.several,
                "options": {h: list(options_of(b)) for h, b in heads.items() if b is not None},
                "parameters": sum(p.numel() for p in model.parameters()),
            }
        )
    return rows
