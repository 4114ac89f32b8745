"""`scalegmn edit`: change what an INR shows by changing its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .application import app, examples
from .console import check_out, note


@app.command(epilog=examples("scalegmn edit runs/dilation digit.pt -o thick.pt --render thick.png"))
def edit(
    run: Annotated[Path, typer.Argument(help="A run directory of task editing.", show_default=False)],
    file: Annotated[Path, typer.Argument(help="A checkpoint (.pt, .pth, .safetensors).", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the edited checkpoint.")],
    render: Annotated[Path | None, typer.Option(help="Write a picture: before and after.")] = None,
    activation: Annotated[
        str | None, typer.Option(help="Of the checkpoint, where the model knows several of these shapes.")
    ] = None,
) -> None:
    """Edit a checkpoint; the result has the same format and names."""
    from ..convert.files import write
    from ..errors import ScaleGMNError
    from ..inference.trained import load

    if out.suffix != file.suffix:
        raise ScaleGMNError(f"out: expected the format of {file.name}, {file.suffix or 'no suffix'}, got {out.name}")
    if render is not None:
        check_out(render, ".png", option="render")
    trained = load(run)
    state = trained.edit(file, activation=activation)
    write(state, out)
    note(f"wrote {out}")
    if render is not None:
        from ..inference.picture import before_and_after

        before_and_after(trained, file, state, render, activation=activation)
        note(f"wrote {render}")
