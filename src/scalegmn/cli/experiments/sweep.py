"""`scalegmn sweep`: a recipe over a grid of settings and several seeds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..application import app, examples
from ..console import interruptible, note, number, print_json, stdout, table

if TYPE_CHECKING:
    from ...training.sweep import Outcome, Point


@app.command(
    epilog=examples(
        "scalegmn sweep digits/scalegmn --grid training.lr=1e-3,1e-4 --grid model.width=32,64 --seeds 3",
        "scalegmn sweep paper/mnist/scalegmn --grid grids/inr-classification --sample 20 --ray local",
    )
)
def sweep(
    recipe: Annotated[Path, typer.Argument(help="A recipe (TOML), or the name of a shipped one.")],
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", help="key=a,b,c, or a TOML file of lists, or a shipped one. May be repeated."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per combination.")] = 1,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Change an entry of the recipe for all runs.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where the runs go (default: runs/sweep-RECIPE).")] = None,
    sample: Annotated[int | None, typer.Option(min=1, help="Only this many random combinations.")] = None,
    ray: Annotated[str | None, typer.Option(help="Run on Ray: local, or the address of a cluster.")] = None,
    cpus: Annotated[float, typer.Option(help="Processors per run, on Ray.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train a recipe with every combination of some settings, and tabulate the results.

    Started again, the same command continues interrupted runs and skips finished ones.
    """
    from ...training import sweep as sweeping
    from ...training.recipe import override, read_values

    values = override(read_values(recipe), changes or ())
    lists = sweeping.parse_grid(grid or ())
    directory = out or Path("runs") / f"sweep-{recipe.stem}"
    todo = sweeping.points(values, lists, seeds, directory, sample=sample)
    outcomes: dict[Point, Outcome] = {}

    def done(point: Point, outcome: Outcome) -> None:
        outcomes[point] = outcome
        result = outcome.get("error") or f"val {outcome['metric']} {number(outcome['val'][outcome['metric']])}"
        note(f"{len(outcomes)}/{len(todo)}  {' '.join(point.changes)}  seed {point.seed}  {result}")

    with interruptible(
        lambda: f"{len(outcomes)} of {len(todo)} runs are done in {directory}; the same command continues"
    ):
        if ray is None:
            sweeping.run_here(todo, done)
        else:
            sweeping.run_on_ray(todo, done, ray, cpus=cpus)
    rows = sweeping.ranked(outcomes)
    sweeping.write_summary(directory, lists, rows)
    if as_json:
        print_json({"out": str(directory), "rows": rows})
    else:
        _show(rows, list(lists))


def _show(rows: list[dict[str, Any]], keys: list[str]) -> None:
    metric = next((row["metric"] for row in rows if row["metric"]), "metric")
    shown = table(*keys, "runs", numbers=(f"val {metric}", f"test {metric}", "seconds"))
    for row in rows:
        settings = [change.partition("=")[2] for change in row["changes"]]
        runs = f"{row['runs']}" + (f" ({row['failed']} failed)" if row["failed"] else "")
        seconds = "" if row["seconds"] is None else f"{row['seconds']:.0f}"
        shown.add_row(*settings, runs, _spread(row["val"]), _spread(row["test"]), seconds)
    stdout().print(shown)


def _spread(value: dict[str, float | None]) -> str:
    mean = number(value["mean"], ".4f")
    return mean if mean == "-" else f"{mean} ± {number(value['std'], '.4f')}"
