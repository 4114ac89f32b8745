"""`scalegmn compare` and `scalegmn align`: are two checkpoints the same network, and how to align one to the other."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..application import app, examples
from ..console import note, number, print_json, stdout, table
from ..sources import Prefix
from .checkpoints import check_like, read_inputs, read_networks, working, write_like
from .options import Activation, Arch, Frequency, Json, Out

if TYPE_CHECKING:
    from ...alignment.align import Alignment

_A = Annotated[Path, typer.Argument(help="A checkpoint (torch, safetensors, Keras, ONNX).")]
_B = Annotated[Path, typer.Argument(help="Another checkpoint of the same architecture.")]


@app.command(
    epilog=examples("scalegmn compare a.pt b.pt --activation relu", "scalegmn compare a.pt b.pt --arch mine:net --json")
)
def compare(
    a: _A,
    b: _B,
    arch: Arch = None,
    activation: Activation = None,
    w0: Frequency = None,
    prefix: Prefix = "",
    as_json: Json = False,
) -> None:
    """Say whether two checkpoints are the same network in disguise, and how far apart they are.

    The distance is 0 for the same network, however its neurons are ordered and scaled, and about 1 for unrelated ones;
    below 0.35 one was probably derived from the other.
    """
    from ...alignment.compare import same

    began = time.perf_counter()
    networks = read_networks([a, b], arch, activation, w0, prefix)
    with working("aligning"):
        found = same(networks[0], networks[1])
    answer = _answer(found.alignment, began) | {"gap": float(found.gap)}
    if as_json:
        print_json(answer)
        return
    verdict = "the same network up to symmetry" if found else "different networks"
    stdout().print(f"{verdict}, {answer['architecture']}", markup=False)
    _show(answer)


@app.command(
    epilog=examples(
        "scalegmn align a.pt b.pt -o moved.pt --activation tanh",
        "scalegmn align a.pt b.pt -o moved.pt --arch mine:net --data images.npy",
    )
)
def align(
    a: _A,
    b: _B,
    out: Out,
    arch: Arch = None,
    activation: Activation = None,
    w0: Frequency = None,
    prefix: Prefix = "",
    data: Annotated[
        Path | None, typer.Option(help="Inputs (.npy, .npz, .pt): also match the responses of neurons.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Align B to A: reorder and rescale its neurons so that the weights are as close as possible.

    The result computes the same function as B and has the names of B.
    """
    from ...alignment.align import align as bring

    began = time.perf_counter()
    check_like(out, b)
    networks, inputs = read_networks([a, b], arch, activation, w0, prefix), read_inputs(data)
    with working("aligning"):
        found = bring(networks[0], networks[1], inputs=inputs)
    write_like(b, found.aligned, out)
    answer = _answer(found, began) | {"out": str(out)}
    if as_json:
        print_json(answer)
        return
    _show(answer)
    note(f"wrote {out}")


def _answer(found: Alignment, began: float) -> dict[str, Any]:
    return {
        "architecture": str(found.aligned.architecture),
        "same": bool(found.exact),
        "distance": float(found.distance),
        "distance_before": float(found.before),
        "exact": bool(found.exact),
        "residuals": dict(zip(found.names, found.residuals[0].tolist(), strict=True)),
        "seconds": round(time.perf_counter() - began, 3),
    }


def _show(answer: dict[str, Any]) -> None:
    console = stdout()
    console.print(f"distance {number(answer['distance'])}, before alignment {number(answer['distance_before'])}")
    shown = table("tensor", "relative error")
    for name, value in answer["residuals"].items():
        shown.add_row(name, number(value))
    console.print(shown)
