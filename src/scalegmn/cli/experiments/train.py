"""`scalegmn train`: from a recipe to a trained model."""

from pathlib import Path
from typing import Annotated

import typer

from ..application import app, examples
from ..console import interruptible, print_json, stdout


@app.command(
    epilog=examples(
        "scalegmn train digits/scalegmn --out runs/digits",
        "scalegmn train digits/scalegmn --set training.lr=1e-4 --set seed=1 --out runs/seed1",
        "scalegmn train digits/scalegmn --out runs/digits --resume",
        "torchrun --nproc-per-node 2 -m scalegmn train digits/scalegmn --out runs/digits",
    )
)
def train(
    recipe: Annotated[Path, typer.Argument(help="A recipe (TOML), or the name of a shipped one.")],
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Change an entry: dotted.key=value. May be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run directory (default: runs/NAME-OF-THE-RECIPE).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Train a model according to a recipe.

    The weights of the best validation are kept; the test split is read once, at the end.
    """
    import os

    from ...training.loop import train as run
    from ...training.recipe import read_recipe
    from ...training.run import Run

    directory = out or Path("runs") / recipe.stem

    def kept() -> str:
        step = Run(directory).saved_step()
        return f"{directory} is saved up to step {step}; --resume continues there" if step else "nothing was saved yet"

    with interruptible(kept):
        results = run(read_recipe(recipe, changes or ()), directory, resume=resume)
    if os.environ.get("RANK", "0") != "0":
        return
    if as_json:
        print_json({"run": str(directory), **results})
        return
    console = stdout()
    for split in ("val", "test"):
        if split in results:
            numbers = "  ".join(f"{name} {value:.4g}" for name, value in results[split].items() if value is not None)
            console.print(f"{split:5s} {numbers}")
    console.print(f"{results['steps']} steps in {results['seconds']:.0f} s; written to {directory}", markup=False)
