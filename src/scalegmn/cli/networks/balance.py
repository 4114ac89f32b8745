"""`scalegmn balance`: the same function with weights that are suited to few bits."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ..application import app, examples
from ..console import note, number, print_json, stdout
from ..sources import Prefix
from .checkpoints import check_like, read_inputs, read_networks, working, write_like
from .options import Activation, Arch, Frequency, Json, Out


@app.command(epilog=examples("scalegmn balance net.pt -o balanced.pt --activation relu --int8"))
def balance(
    file: Annotated[Path, typer.Argument(help="A checkpoint.")],
    out: Out,
    int8: Annotated[
        bool, typer.Option("--int8", help="Also measure rounding to 8-bit weights, one step per tensor.")
    ] = False,
    data: Annotated[
        Path | None, typer.Option(help="Inputs like those that the network will see (.npy, .npz, .pt).")
    ] = None,
    as_json: Json = False,
    arch: Arch = None,
    activation: Activation = None,
    w0: Frequency = None,
    prefix: Prefix = "",
) -> None:
    """Rescale neurons so that the weights of a tensor have similar ranges; the function stays the same."""
    from ...alignment.balance import balance as balanced

    began = time.perf_counter()
    check_like(out, file)
    (networks,), inputs = read_networks([file], arch, activation, w0, prefix), read_inputs(data)
    with working("balancing"):
        found = balanced(networks, int8=int8, inputs=inputs)
    write_like(file, found.networks, out)
    answer: dict[str, Any] = {
        "architecture": str(networks.architecture),
        "imbalance_before": float(found.imbalance[0]),
        "imbalance": float(found.imbalance[1]),
        "int8_error_before": None if found.int8 is None else float(found.int8[0]),
        "int8_error": None if found.int8 is None else float(found.int8[1]),
        "out": str(out),
        "seconds": round(time.perf_counter() - began, 3),
    }
    if as_json:
        print_json(answer)
        return
    console = stdout()
    console.print(f"bits wasted per weight: {number(answer['imbalance'])}, before {number(answer['imbalance_before'])}")
    if found.int8 is not None:
        console.print(f"int8 error: {number(answer['int8_error'])}, before {number(answer['int8_error_before'])}")
    note(f"wrote {out}")
