"""`scalegmn merge`: one checkpoint from several."""

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ..application import app, examples
from ..console import note, number, print_json, stdout
from ..sources import Prefix
from .checkpoints import check_like, read_inputs, read_networks, working, write_like
from .options import Activation, Arch, Frequency, Json, Out


class How(StrEnum):
    """How several networks become one, as in `scalegmn.merge`."""

    average = "average"
    mean = "mean"
    interpolate = "interpolate"


@app.command(
    epilog=examples(
        "scalegmn merge a.pt b.pt c.pt -o merged.pt --activation relu",
        "scalegmn merge a.pt b.pt -o merged.pt --arch mine:net --data images.npy",
    )
)
def merge(
    files: Annotated[list[Path], typer.Argument(help="Two checkpoints or more.")],
    out: Out,
    prefix: Prefix = "",
    how: Annotated[
        How, typer.Option(help="Align to the first, align to the running mean, or go part of the way.")
    ] = How.average,
    at: Annotated[float, typer.Option(help="With --how interpolate: 0 is the first, 1 the second.")] = 0.5,
    data: Annotated[Path | None, typer.Option(help="Inputs (.npy, .npz, .pt): restore statistics.")] = None,
    arch: Arch = None,
    activation: Activation = None,
    w0: Frequency = None,
    as_json: Json = False,
) -> None:
    """Align checkpoints and average them; with --data the neurons keep their mean and deviation.

    The result has the format and the names of the first file.
    """
    from ...alignment.compare import distance
    from ...alignment.merge import merge as merged

    began = time.perf_counter()
    check_like(out, files[0])
    networks, inputs = read_networks(files, arch, activation, w0, prefix), read_inputs(data)
    with working("merging"):
        result = merged(networks, how.value, at=at, inputs=inputs)
        distances = [float(distance(n, result)) for n in networks]
    write_like(files[0], result, out)
    answer: dict[str, Any] = {
        "architecture": str(result.architecture),
        "files": [{"file": str(f), "distance": d} for f, d in zip(files, distances, strict=True)],
        "how": how.value,
        "restored": inputs is not None,
        "out": str(out),
        "seconds": round(time.perf_counter() - began, 3),
    }
    if as_json:
        print_json(answer)
        return
    for file, d in zip(files, distances, strict=True):
        stdout().print(f"{file}  distance to the result {number(d)}", markup=False)
    note(f"wrote {out}")
