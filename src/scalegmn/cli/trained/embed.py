"""`scalegmn embed`: the invariant embedding of networks as a NumPy file or CSV."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..application import app, examples
from ..console import check_out, note
from ..sources import ActivationName, Archs, Points, Prefix, RunPath, Split, print_csv, read_sources


@app.command(
    epilog=examples("scalegmn embed RUN zoos/digits -o embeddings.npz", "scalegmn embed RUN folder/ --csv > mine.csv")
)
def embed(
    run: RunPath,
    sources: Annotated[list[Path], typer.Argument(help="Checkpoints, folders of them, patterns, zoos.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write (.npz).")] = Path("embeddings.npz"),
    split: Split = None,
    activation: ActivationName = None,
    arch: Archs = None,
    prefix: Prefix = "",
    points: Points = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead of writing a file.")] = False,
) -> None:
    """Write the embedding of each network: a vector that its symmetries do not change.

    The file holds `embeddings` (N, d) and `names`; for a zoo also `index` and the columns of its table.
    """
    import numpy as np

    from ...files.arrays import write_npz
    from ...inference.embedding import table_of
    from ...inference.trained import load

    if not as_csv:
        check_out(out, ".npz")
    trained = load(run)
    found = read_sources(trained, sources, activation, arch, prefix, points, split)
    vectors = trained.embed(found)
    if as_csv:
        pairs = zip(found.names, vectors.tolist(), strict=True)
        print_csv([{"file": name, "embedding": vector} for name, vector in pairs])
        return
    arrays: dict[str, Any] = {**table_of(found), "embeddings": vectors.numpy(), "names": np.array(found.names)}
    write_npz(out, arrays)
    note(f"wrote {len(vectors)} embeddings of width {vectors.shape[1]} to {out}")
