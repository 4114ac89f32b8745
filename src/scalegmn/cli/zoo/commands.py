"""`scalegmn zoo`: build, look at, check and import collections of networks."""

from pathlib import Path
from typing import Annotated

import typer

from ...errors import ScaleGMNError
from ..application import BAD_INPUT, app, examples
from ..console import interruptible, print_json, stdout

zoo_app = typer.Typer(help="Build, look at, check and import collections of networks.", no_args_is_help=True)
app.add_typer(zoo_app, name="zoo")

ZooPath = Annotated[Path, typer.Argument(help="The directory of the zoo.")]


@zoo_app.command(epilog=examples("scalegmn zoo info zoos/digits", "scalegmn zoo info zoos/digits --plot digits.png"))
def info(
    zoo: ZooPath,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw sign and norm distributions to this PNG.")] = None,
) -> None:
    """Show what a zoo holds: counts, splits, labels, metrics and the distribution of its weights."""
    from ...zoo.store import stats
    from ...zoo.store.zoo import Zoo
    from .tables import print_info

    opened = Zoo.open(zoo)
    found = stats.info(opened)
    if plot is not None:
        from ...zoo.plots import plot_distributions

        plot_distributions(opened, plot)
    if as_json:
        print_json(found)
    else:
        print_info(found)


@zoo_app.command(epilog=examples("scalegmn zoo verify zoos/digits"))
def verify(zoo: ZooPath) -> None:
    """Check every file of a zoo against its recorded size and checksum.

    One line for each problem, and exit code 2 if there is any.
    """
    from ...zoo.store.verify import verify as problems_of

    problems = problems_of(zoo)
    for problem in problems:
        typer.echo(f"error: {problem}", err=True)
    if problems:
        raise typer.Exit(BAD_INPUT)
    stdout().print(f"{zoo}: no damage found", markup=False)


@zoo_app.command(epilog=examples("scalegmn zoo show zoos/digits --plot digits.png"))
def show(
    zoo: ZooPath,
    plot: Annotated[Path, typer.Option(help="The PNG to write.")],
    count: Annotated[int, typer.Option(min=1, help="How many networks.")] = 24,
    seed: Annotated[int, typer.Option(min=0, help="Which split of the zoo.")] = 0,
) -> None:
    """Draw a sheet of implicit representations next to the images that they were fitted to."""
    from ...zoo.plots import plot_sheet
    from ...zoo.store.zoo import Zoo

    plot_sheet(Zoo.open(zoo), plot, count=count, seed=seed)
    stdout().print(str(plot), markup=False)


@zoo_app.command(
    epilog=examples(
        "scalegmn zoo combine zoos/views --where view=0 --out zoos/single",
        "scalegmn zoo combine zoos/relu zoos/tanh --out zoos/both",
    )
)
def combine(
    zoos: Annotated[list[Path], typer.Argument(help="Directories of zoos.")],
    out: Annotated[Path, typer.Option(help="The directory to write.")],
    where: Annotated[
        list[str] | None, typer.Option(help="Keep networks with this value: column=value. May be repeated.")
    ] = None,
) -> None:
    """Write some networks of a zoo, or those of several, to a new one; each keeps its split."""
    from ...zoo.store.combine import combine as write
    from ...zoo.store.zoo import Zoo

    pairs = [text.partition("=") for text in where or ()]
    for name, equals, value in pairs:
        if not (name and equals):
            raise ScaleGMNError(f"where: expected column=value such as view=0, got {name + equals + value!r}")
    with interruptible(lambda: f"{out}: nothing was written"):
        zoo = write([Zoo.open(path) for path in zoos], out, where={name: value for name, _, value in pairs})
    stdout().print(f"{out}: {len(zoo):,} networks", markup=False)


@zoo_app.command(epilog=examples("scalegmn zoo images mnist --root data"))
def images(
    name: Annotated[str, typer.Argument(help="mnist, fashion-mnist, cifar10 or svhn.")],
    root: Annotated[Path, typer.Option(help="The folder to write to.")],
) -> None:
    """Download images from their official address and check them."""
    import sys

    from ...zoo.images.download import download

    for path in download(name, root, progress=sys.stderr.isatty()):
        stdout().print(str(path), markup=False)
