"""`scalegmn edit`: change what an INR shows by changing its weights."""

from pathlib import Path
from typing import Annotated

import typer

from ..application import app, examples
from ..console import check_out, note
from ..sources import ActivationName, Archs, Points, Prefix, RunPath, read_sources


@app.command(epilog=examples("scalegmn edit runs/dilation digit.pt -o thick.pt --render thick.png"))
def edit(
    run: RunPath,
    file: Annotated[Path, typer.Argument(help="A checkpoint.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the edited checkpoint.")],
    render: Annotated[Path | None, typer.Option(help="Write a picture: before and after.")] = None,
    activation: ActivationName = None,
    arch: Archs = None,
    prefix: Prefix = "",
    points: Points = None,
) -> None:
    """Edit a checkpoint; the result has the same format and names, and whatever else the file held."""
    from ...convert.formats.files import format_of, write
    from ...core.networks import Networks
    from ...errors import ScaleGMNError
    from ...inference.trained import load

    if out.suffix != file.suffix:
        raise ScaleGMNError(f"out: expected the format of {file.name}, {file.suffix or 'no suffix'}, got {out.name}")
    check_out(out, out.suffix.lower())
    if render is not None:
        check_out(render, ".png", option="render")
    trained = load(run)
    found = read_sources(trained, [file], activation, arch, prefix, points)
    edited = trained.edited(found)
    write(found.hand_back(edited)[0], out, form=format_of(file))
    note(f"wrote {out}")
    if render is not None:
        from ...inference.picture import before_and_after

        before = found.pieces[0].networks
        assert isinstance(before, Networks)
        before_and_after(trained, before, edited[0], render)
        note(f"wrote {render}")
