"""`scalegmn embed`: the invariant embedding of networks as a NumPy file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .application import app, examples
from .console import check_out, note


@app.command(epilog=examples("scalegmn embed RUN zoos/digits -o embeddings.npz", "scalegmn embed RUN *.pt -o mine.npz"))
def embed(
    run: Annotated[Path, typer.Argument(help="A run directory.", show_default=False)],
    sources: Annotated[list[Path], typer.Argument(help="A zoo, or checkpoints.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write (.npz).")] = Path("embeddings.npz"),
    split: Annotated[str | None, typer.Option(help="Of a zoo: only this split.")] = None,
    activation: Annotated[
        str | None, typer.Option(help="Of checkpoints, where the model knows several of these shapes.")
    ] = None,
) -> None:
    """Write the embedding of each network: a vector that its symmetries leave as it is.

    The file holds `embeddings` (N, d); for checkpoints their `names`, for a zoo their `index` and its table's columns.
    """
    import numpy as np

    from ..errors import ScaleGMNError
    from ..files import write_npz
    from ..inference.embedding import embed_zoo
    from ..inference.trained import load

    check_out(out, ".npz")
    trained = load(run)
    arrays: dict[str, Any]
    if any(source.is_dir() for source in sources):
        if len(sources) > 1:
            raise ScaleGMNError(f"embed: expected one zoo or several files, got {len(sources)} paths with a directory")
        arrays = embed_zoo(trained, sources[0], split)
    else:
        found = trained.embed(sources, activation=activation).numpy()
        arrays = {"embeddings": found, "names": np.array([str(source) for source in sources])}
    write_npz(out, arrays)
    note(f"wrote {len(arrays['embeddings'])} embeddings of width {arrays['embeddings'].shape[1]} to {out}")
