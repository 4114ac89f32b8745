"""Options that the commands on checkpoints share."""

from pathlib import Path
from typing import Annotated

import typer

Arch = Annotated[
    str | None,
    typer.Option("--arch", help="module:function that returns the nn.Module (the current directory comes first)."),
]
Activation = Annotated[
    str | None, typer.Option("--activation", help="Hidden activation of a multilayer perceptron, instead of --arch.")
]
Frequency = Annotated[float | None, typer.Option("--w0", help="Frequency, with --activation sine.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Where to write, in the format of the input.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
