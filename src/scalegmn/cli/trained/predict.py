"""`scalegmn predict`: the answers of a trained model about a user's networks."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ...errors import ScaleGMNError
from ..application import app, examples
from ..console import print_json, stdout, table
from ..sources import ActivationName, Archs, Points, Prefix, RunPath, Split, print_csv, read_sources


@app.command(
    epilog=examples(
        "scalegmn predict mnist mine.pt",
        "scalegmn predict runs/digits mine.pt other.safetensors",
        "scalegmn predict RUN folder/ --csv",
        "scalegmn predict RUN 'runs/*.th' --arch models.py:make --top 3 --json",
    )
)
def predict(
    run: RunPath,
    sources: Annotated[list[Path], typer.Argument(help="Checkpoints, folders of them, patterns, zoos.")],
    activation: ActivationName = None,
    arch: Archs = None,
    prefix: Prefix = "",
    points: Points = None,
    split: Split = None,
    top: Annotated[int, typer.Option(min=1, help="Show this many of the most probable labels.")] = 1,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Label networks, or estimate a number such as their test accuracy, from their weights.

    Files are read like those that the model was trained on. Assumptions, and networks unlike those in training, are
    noted on stderr; in JSON they are `assumed` and `unseen`. A model with statistics of its training networks
    (`scalegmn export`) also says how far each network is from them (`distance`, more than 1 is far) and which
    convention it follows (`read_as`).
    """
    from ...inference.trained import load

    if as_csv and as_json:
        raise ScaleGMNError("--csv: expected this or --json, got both")
    trained = load(run)
    found = read_sources(trained, sources, activation, arch, prefix, points, split)
    answers = trained.predict(found, top=top)
    about = [row for piece in found.pieces for row in piece.told()]
    rows = [{"file": name, **answer} for name, answer in zip(found.names, answers, strict=True)]
    if as_json:
        print_json([{**row, **more} for row, more in zip(rows, about, strict=True)])
    elif as_csv:
        print_csv(rows)
    else:
        _show(rows)


def _show(rows: list[dict[str, Any]]) -> None:
    from rich.text import Text

    shown = table(*rows[0])
    for row in rows:
        ranked = {"top": ", ".join(f"{t.get('title', t['label'])} {t['probability']:.2f}" for t in row.get("top", ()))}
        shown.add_row(*(Text(str(v)) for v in {**row, **(ranked if "top" in row else {})}.values()))
    stdout().print(shown)
