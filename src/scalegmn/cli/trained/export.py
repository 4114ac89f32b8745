"""`scalegmn export`: a finished run as a directory to share."""

from pathlib import Path
from typing import Annotated

import typer

from ..application import app, examples
from ..console import note


@app.command(
    epilog=examples(
        "scalegmn export runs/mine shared/mine --about 'Which digit does a SIREN 2-32-32-1 show?'",
        "scalegmn predict shared/mine file.pt",
    )
)
def export(
    run: Annotated[Path, typer.Argument(help="A finished run.")],
    out: Annotated[Path, typer.Argument(help="The directory to write.")],
    about: Annotated[str, typer.Option(help="One sentence for the model card.")] = "",
    data: Annotated[str, typer.Option(help="One sentence about the training networks.")] = "",
    limits: Annotated[list[str] | None, typer.Option("--limit", help="What it cannot do; may be repeated.")] = None,
    titles: Annotated[str, typer.Option(help="What people call the classes, in order: a,b,...")] = "",
) -> None:
    """Pack a finished run: weights, configuration, model card, and statistics of the training networks.

    With these statistics, the model warns about networks unlike those in training and recognises INRs in other
    conventions. The zoo of the run must still be there. Existing files in the directory are replaced.
    """
    from ...inference.pretrained import export as pack

    folder = pack(run, out, about=about, data=data, limits=limits or (), titles=titles.split(",") if titles else ())
    size = sum(path.stat().st_size for path in folder.iterdir())
    note(f"wrote {folder}, {size:,} bytes")
