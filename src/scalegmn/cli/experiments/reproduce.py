"""`scalegmn reproduce`: the paper's tables."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..application import app, examples
from ..console import interruptible, note, number, print_json, stdout, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...reproduce.experiments import Experiment
    from ...reproduce.tables import ResultTable
    from ...reproduce.trials import Trial
    from ...reproduce.zoos import Folders
    from ...training.lanes import Watch
    from ...training.run import Run


class ScaleOption(StrEnum):
    """How large the experiments are."""

    small = "small"
    paper = "paper"


@app.command(
    epilog=examples(
        "scalegmn reproduce inr-classification --images data",
        "scalegmn reproduce generalisation --methods statnn,scalegmn --seeds 3 --images data",
        "scalegmn reproduce editing --table-only --json",
        "scalegmn reproduce editing --tune --recipes recipes --images data --jobs 1",
        "scalegmn reproduce inr-classification --scale paper --published collections --page docs/results-paper.md",
    )
)
def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help="inr-classification, generalisation, editing, augmentation, probes, dual, phase, symmetries, "
            "distributions or learning-curve.",
        ),
    ],
    scale: Annotated[
        ScaleOption, typer.Option(help="Small experiments for two cores, or the size of the paper.")
    ] = ScaleOption.small,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Seeds of every run (default: 1; 2 with --tune; 3 at the paper's scale)."),
    ] = None,
    methods: Annotated[str | None, typer.Option(help="Only these rows: a,b,...")] = None,
    datasets: Annotated[str | None, typer.Option(help="Only these columns: a,b,...")] = None,
    images: Annotated[Path | None, typer.Option(help="The folder of the image files, to build zoos from.")] = None,
    published: Annotated[
        Path | None,
        typer.Option(
            help="The folder of published collections (mnist-inrs, fmnist_inrs, siren_cifar_wts, cifar10, "
            "svhn_cropped; folders or archives); zoos are built for those that are not there."
        ),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Budget of every run, instead of that of its recipe.")
    ] = None,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            help="First tune the methods with the same trials, on validation networks; the best settings become "
            "recipes, with which the rows of these methods are trained.",
        ),
    ] = False,
    recipes: Annotated[
        Path | None,
        typer.Option(
            help="A folder of recipes SCALE/FOLDER/METHOD.toml that take precedence over those of the package; --tune "
            "writes there."
        ),
    ] = None,
    table_only: Annotated[
        bool, typer.Option("--table-only", help="Train nothing: only show existing results.")
    ] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at the same time (default: one per core).")] = None,
    zoos: Annotated[Path, typer.Option(help="The folder of the zoos.")] = Path("zoos"),
    runs: Annotated[Path, typer.Option(help="The folder of the runs.")] = Path("runs"),
    results: Annotated[Path, typer.Option(help="The folder of the records.")] = Path("results"),
    page: Annotated[Path | None, typer.Option(help="Write a page with all tables, such as docs/results.md.")] = None,
    pictures: Annotated[Path, typer.Option(help="The folder of the pictures of distributions.")] = Path(
        "docs", "distributions"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """Make a table of the paper: build its zoos, train what is missing, and show it with the published numbers.

    If it is interrupted and started again, it continues; runs with a record are not repeated.
    """
    from ...errors import ScaleGMNError
    from ...files import make_directory, real_path, write_atomically
    from ...reproduce import render
    from ...reproduce.curves import draw_curves
    from ...reproduce.identity import caps
    from ...reproduce.records import read_records
    from ...reproduce.run import missing
    from ...reproduce.tables import chosen
    from ...reproduce.tables import table as table_of
    from ...reproduce.trials import read_outcomes, tried
    from ...reproduce.zoos import Folders
    from ...training.recipe import add_recipes
    from ..progress import BuildProgress

    wanted = table_of(name)
    if tune and recipes is None:
        raise ScaleGMNError("--tune: expected --recipes FOLDER as well, where recipes that win are written")
    if tune and not tried(wanted, scale.value):
        raise ScaleGMNError(f"--tune: no method of {name} has trials at the {scale.value} scale; leave it out")
    rows = chosen(methods, tried(wanted, scale.value) if tune else wanted.methods, "methods")
    columns = chosen(datasets, wanted.datasets, "datasets")
    folder = results / scale
    place = Folders(scale.value, real_path(zoos / scale), images, None, published, runs / scale, folder)
    if recipes is not None:
        make_directory(recipes)
        add_recipes(recipes)
    if not table_only:
        with BuildProgress("") as progress:
            place = replace(place, report=progress)
            if wanted.figures:
                _draw(wanted, place, pictures)
            else:
                count = seeds or (3 if scale is ScaleOption.paper else 2 if tune else 1)
                if recipes is not None and tune:
                    best = _tune(wanted, rows, place, minutes, jobs)
                    _keep(wanted, best, recipes, place)
                _train(missing(columns, rows, count, place, minutes), place, jobs)
    if page is not None:
        page.parent.mkdir(parents=True, exist_ok=True)
        draw_curves(read_records(folder), pictures / f"curves-{scale.value}.png")
        write_atomically(page, render.results_page(folder, scale.value, pictures).encode())
        note(f"wrote {page}")
    shown = replace(wanted, methods=rows, datasets=columns)
    data = render.table_data(
        shown, read_records(folder), scale.value, pictures, caps(columns, place), read_outcomes(folder)
    )
    if as_json:
        print_json(data)
    elif as_markdown:
        typer.echo(render.markdown(data))
    elif wanted.figures:
        typer.echo("\n".join(str(pictures / name) for name in data["figures"]))
    else:
        _show(data)


def _draw(wanted: ResultTable, place: Folders, pictures: Path) -> None:
    from ...reproduce.zoos import open_zoo
    from ...zoo.plots import plot_distributions

    pictures.mkdir(parents=True, exist_ok=True)
    for name in wanted.figures:
        plot_distributions(open_zoo(name, place), pictures / f"{name}.png")
        note(f"wrote {pictures / name}.png")


def _tune(
    wanted: ResultTable, methods: Sequence[str], place: Folders, minutes: float | None, jobs: int | None
) -> list[Trial]:
    from ...reproduce.experiments import DATASETS
    from ...reproduce.trials import conduct, unanswered, winner
    from ...reproduce.zoos import open_zoo

    # Before the trials are counted: records of another zoo do not answer them.
    open_zoo(DATASETS[wanted.tuned].zoo, place)
    todo = unanswered(wanted, methods, place, minutes)
    note(f"{len(todo)} trials to do")
    with interruptible(lambda: "finished trials have their records; the same command continues with the others"):
        conduct(todo, place, lanes=jobs, watch=_teller("val", "validation "))
    return [winner(wanted, method, place, minutes) for method in methods]


def _keep(wanted: ResultTable, best: Sequence[Trial], recipes: Path, place: Folders) -> None:
    from ...reproduce.trials import write_winner

    for trial in best:
        for path in write_winner(wanted, trial, recipes, place.scale):
            note(f"trial {trial.number} of {trial.method.name} won: {path}")


def _train(todo: Sequence[Experiment], place: Folders, jobs: int | None) -> None:
    from ...reproduce.run import perform

    note(f"{len(todo)} runs to do")
    with interruptible(lambda: "finished runs have their records; the same command continues with the others"):
        perform(todo, place, lanes=jobs, watch=_teller("test"), tell=note)


def _teller(split: str, words: str = "") -> Watch:
    """Writes one line about every finished run: its result on a split."""
    told: set[str] = set()

    def watch(name: str, run: Run) -> None:
        if run.finished and name not in told:
            told.add(name)
            found = run.results()
            value = number(found[split][found["metric"]], ".4f")
            note(f"{name}: {words}{found['metric']} {value} after {found['seconds']:.0f} s")

    return watch


def _show(data: dict[str, Any]) -> None:
    from ...reproduce.render import footers, grid

    heads, rows = grid(data)
    shown = table(heads[0], numbers=heads[1:], header_style="bold", title=data["title"], title_justify="left")
    for row in rows:
        shown.add_row(*(cell.replace("**", "[bold]", 1).replace("**", "[/bold]") for cell in row))
    stdout().print(shown)
    for line in footers(data):
        stdout().print(line, markup=False)
