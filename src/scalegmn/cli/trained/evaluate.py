"""`scalegmn evaluate`: the metrics of a trained model, also on networks transformed by symmetries."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..application import app, examples
from ..console import print_json, stdout, table
from ..sources import RunPath


@app.command(
    epilog=examples(
        "scalegmn evaluate runs/digits",
        "scalegmn evaluate runs/digits --transform --json",
        "scalegmn evaluate runs/digits --against runs/gmn",
    )
)
def evaluate(
    run: RunPath,
    split: Annotated[str, typer.Option(help="Which split of the zoo.")] = "test",
    transform: Annotated[
        bool, typer.Option("--transform", help="Also evaluate on randomly permuted and rescaled copies.")
    ] = False,
    against: Annotated[Path | None, typer.Option(help="Compare with another run, with intervals.")] = None,
    zoo: Annotated[Path | None, typer.Option(help="Another zoo than the one the model was trained on.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random copies.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare a model's answers with the truth.

    With --transform also on copies of the same networks whose hidden neurons are permuted and rescaled: they compute
    the same functions, so a model that respects the symmetries gives the same answers. With --against also another
    model's, on the same networks, and 95 % intervals of the differences.
    """
    from dataclasses import asdict

    from ...errors import ScaleGMNError
    from ...inference.trained import load
    from ...training.data import unchanged_zoo
    from ...training.evaluation import compare
    from ...zoo.store.zoo import Zoo

    trained = load(run)
    config = trained.config
    if zoo is None and "card" in config:
        raise ScaleGMNError(f"zoo: {run} came without the networks that it was trained on; give --zoo")
    asked = Zoo.open(zoo) if zoo is not None else unchanged_zoo(config["recipe"]["zoo"], config["zoo"]["sha256"])
    plain = trained.evaluate(asked, split)
    answer: dict[str, Any] = {
        "run": str(run),
        "model": config["model"]["name"],
        "task": trained.task.name,
        "split": split,
        "networks": len(plain.targets),
        "metrics": plain.metrics,
    }
    if transform:
        copies = trained.evaluate(asked, split, transform_seed=seed)
        change = float((copies.outputs - plain.outputs).abs().max())
        answer |= {"transformed": copies.metrics, "largest_change": change}
    if against is not None:
        rival = load(against)
        if rival.task.to_json() != trained.task.to_json():
            raise ScaleGMNError(f"against: expected a run of the same task on the same zoo as {run}; got {against}")
        theirs = rival.evaluate(asked, split)
        differences = {name: asdict(d) for name, d in compare(trained.task, plain, theirs).items()}
        answer["against"] = {"run": str(against), "metrics": theirs.metrics, "differences": differences}
    if as_json:
        print_json(answer)
    else:
        _show(answer)


def _show(answer: dict[str, Any]) -> None:
    from rich.box import HEAVY_HEAD

    copies, other = answer.get("transformed"), answer.get("against")
    numbers = ["value", *(["on transformed copies"] if copies else [])]
    numbers += [other["run"], "difference (95 %)"] if other else []
    title = f"{answer['model']}, {answer['networks']} networks ({answer['split']})"
    shown = table("metric", numbers=numbers, title=title, box=HEAVY_HEAD)
    for name, value in answer["metrics"].items():
        row = [f"{value:.4g}", *([f"{copies[name]:.4g}"] if copies else [])]
        if other:
            d = other["differences"][name]
            row += [f"{other['metrics'][name]:.4g}", f"{d['value']:+.3g} ({d['low']:+.3g} to {d['high']:+.3g})"]
        shown.add_row(name, *row)
    console = stdout()
    console.print(shown)
    if copies:
        console.print(f"largest change of an output: {answer['largest_change']:.2g}")
