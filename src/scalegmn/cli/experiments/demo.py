"""`scalegmn demo`: from nothing to a report in a few minutes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..application import app, examples
from ..console import note, print_json, stdout, table
from ..progress import Bar

if TYPE_CHECKING:
    from rich.progress import TaskID

    from ...training.run import Run

TITLES = {
    "scalegmn": "ScaleGMN with probes",
    "scalegmn-no-probes": "ScaleGMN without probes",
    "gmn": "GMN (permutations only)",
    "mlp": "MLP (no symmetry)",
}


@app.command(epilog=examples("scalegmn demo", "scalegmn demo --quick", "scalegmn demo --out /tmp/demo --json"))
def demo(
    out: Annotated[
        Path | None, typer.Option(help="The directory for zoo, runs and report.html (default: demo, or demo/quick).")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer networks and epochs: faster, less accurate models.")
    ] = False,
    networks: Annotated[
        int | None, typer.Option(min=50, help="Networks of the zoo (default: all 1,797 digits).")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs of every model (default: 20).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Try a trained model; then build a zoo of digits, train four models, compare them and write a report.

    It takes a few minutes on two cores and needs no internet connection. A second call reuses what is already there.
    """
    from ...files import real_path
    from ...report import demo as steps
    from ...training.lanes import train_all
    from ..progress import BuildProgress

    began = time.perf_counter()
    if quick:
        networks, epochs = networks or steps.QUICK_NETWORKS, epochs or steps.QUICK_EPOCHS
    # Runs remember where their zoo is, and may be used from elsewhere.
    directory = real_path(out or Path("demo", "quick" if quick else ""))
    note("1/4  fitting 20 small networks to digits; the trained model `mnist` reads their weights")
    fresh = steps.ask_shipped(20)
    told = f"{fresh.right} of {len(fresh.labels)} digits recognised (written by other people than those of MNIST)"
    note(f"     {told}; {fresh.far} of the networks called unfamiliar")
    note("2/4  building a zoo: one small network for each 8x8 digit of scikit-learn")
    with BuildProgress("PSNR", " dB") as building:
        zoo = steps.demo_zoo(directory / "digits", networks=networks, report=building)
    recipes = steps.demo_recipes(zoo.path, epochs or steps.EPOCHS)
    note(f"3/4  training {len(recipes)} models to tell the digit from the weights of these {len(zoo):,} networks")
    with TrainingProgress(epochs or steps.EPOCHS) as training:
        train_all(recipes, directory / "runs", watch=training)
    note("4/4  asking them about test networks, and about copies with other weights that draw the same digits")
    page = directory / "report.html"
    found = steps.demo_report(recipes, directory / "runs", page)
    if as_json:
        print_json(found)
    else:
        _show(found)
    note(f"wrote {page} after {time.perf_counter() - began:.0f} s; open it in a browser")


class TrainingProgress(Bar):
    """A bar for each model on a terminal; elsewhere one line for each finished model.

    Arguments:
        epochs: Of every model.
    """

    def __init__(self, epochs: int) -> None:
        from rich.progress import TextColumn, TimeElapsedColumn

        super().__init__(TextColumn("{task.fields[state]}"), TimeElapsedColumn())
        self._epochs = epochs
        self._tasks: dict[str, TaskID] = {}
        self._told: set[str] = set()

    def __call__(self, name: str, run: Run) -> None:
        """Show a run that is in progress, or has just ended."""
        if name not in self._tasks:
            self._tasks[name] = self.bar.add_task(TITLES[name], total=self._epochs, state="")
        lines = run.metrics()
        if lines:
            last = lines[-1]
            state = f"epoch {last['epoch']:.0f}/{self._epochs}  validation accuracy {100 * last['accuracy']:.1f} %"
            self.bar.update(self._tasks[name], completed=last["epoch"], state=state)
        if run.finished and name not in self._told:
            self._told.add(name)
            results = run.results()
            accuracy = f"test accuracy {100 * results['test']['accuracy']:.1f} %"
            self.bar.console.print(f"     {TITLES[name]}: {accuracy} after {results['seconds']:.0f} s", markup=False)


def _show(found: Mapping[str, Mapping[str, float]]) -> None:
    numbers = ("parameters", "test accuracy", "accuracy on copies", "answers changed", "seconds")
    shown = table("model", numbers=numbers, header_style="bold")
    for name, row in found.items():
        shares = [f"{100 * row[key]:.1f} %" for key in ("accuracy", "accuracy_transformed", "answers_changed")]
        shown.add_row(TITLES[name], f"{row['parameters']:,}", *shares, f"{row['seconds']:.0f}")
    stdout().print(shown)
