"""`scalegmn zoo`: build, look at, check and import collections of networks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalegmn.cli.application import BAD_INPUT, app, examples
from scalegmn.cli.console import print_json, stdout
from scalegmn.errors import ScaleGMNError

zoo_app = typer.Typer(help="Build, look at, check and import collections of networks.", no_args_is_help=True)
build_app = typer.Typer(help="Train the networks of a zoo.", no_args_is_help=True)
app.add_typer(zoo_app, name="zoo")
zoo_app.add_typer(build_app, name="build")

ZooPath = Annotated[Path, typer.Argument(help="The directory of the zoo.", show_default=False)]
Out = Annotated[Path, typer.Option(help="The directory to write.", show_default=False)]
ImagesName = Annotated[
    str,
    typer.Option("--images", help="digits, mnist, fashion-mnist, cifar10, svhn or npz:FILE.", show_default=False),
]
Root = Annotated[Path | None, typer.Option(help="The folder of the image files.", show_default=False)]
Grey = Annotated[bool, typer.Option("--grey", help="Take the mean of the colours.")]
Seed = Annotated[int, typer.Option(help="Decides everything random.")]


@build_app.command(
    "inr",
    epilog=examples(
        "scalegmn zoo build inr --images digits --out zoos/digits",
        "scalegmn zoo build inr --images mnist --root data --out zoos/mnist",
        "scalegmn zoo build inr --images cifar10 --root data --convention nfn --views 20 --out zoos/cifar --ray auto",
    ),
)
def build_inr(
    images: ImagesName,
    out: Out,
    root: Root = None,
    count: Annotated[int | None, typer.Option(help="Number of images (default: all).", show_default=False)] = None,
    hidden: Annotated[str, typer.Option(help="Neurons of the hidden layers.")] = "32,32",
    activation: Annotated[str, typer.Option(help="sine, relu or tanh.")] = "sine",
    w0: Annotated[
        float | None, typer.Option(help="Frequency of sine layers (default: 30).", show_default=False)
    ] = None,
    convention: Annotated[str, typer.Option(help="dws or nfn: initialisation, grid and value range.")] = "dws",
    views: Annotated[int, typer.Option(help="Independent fits of every image.")] = 1,
    seed: Seed = 0,
    steps: Annotated[
        int | None, typer.Option(help="Steps of Adam (default: 1000, fewer for small images).", show_default=False)
    ] = None,
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 1e-3,
    psnr: Annotated[
        float | None, typer.Option(help="Stop a network that reaches so many decibels.", show_default=False)
    ] = None,
    grey: Grey = False,
    ray: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster, or local to start one.", show_default=False)
    ] = None,
) -> None:
    """Fit an implicit representation to every image.

    Interrupted and started again with the same arguments, it continues after the last complete shard and ends in the
    same bytes.
    """
    from scalegmn.cli.progress import BuildProgress
    from scalegmn.zoo.build import Fit, build_inr_zoo
    from scalegmn.zoo.images import load_images

    fit = Fit(_sizes(hidden), activation, w0, convention, steps, lr, psnr)
    source = load_images(images, root, grey=grey)
    with BuildProgress("PSNR", " dB") as progress:
        zoo = build_inr_zoo(
            source, out, fit=fit, count=count, views=views, seed=seed, ray=ray, report=progress
        )
    mean = float(zoo.column("psnr").mean())
    stdout().print(f"{out}: {len(zoo):,} networks, mean PSNR {mean:.1f} dB{_speed(progress.line())}", markup=False)


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ScaleGMNError(f"hidden: expected numbers with commas between them (32,32), got {text!r}") from error


def _speed(line: str) -> str:
    return f" ({line.split(',')[0]})" if line else " (nothing left to do)"


@zoo_app.command(epilog=examples("scalegmn zoo info zoos/digits", "scalegmn zoo info zoos/digits --plot digits.png"))
def info(
    zoo: ZooPath,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw sign and norm distributions to this PNG.", show_default=False)
    ] = None,
) -> None:
    """Tell what a zoo holds: counts, splits, labels, metrics and the distribution of its weights."""
    from scalegmn.cli.zoo_tables import print_info
    from scalegmn.zoo import stats
    from scalegmn.zoo.store import Zoo

    opened = Zoo.open(zoo)
    found = stats.info(opened)
    if plot is not None:
        from scalegmn.zoo.plots import plot_distributions

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
    from scalegmn.zoo.verify import verify as problems_of

    problems = problems_of(zoo)
    for problem in problems:
        typer.echo(f"error: {problem}", err=True)
    if problems:
        raise typer.Exit(BAD_INPUT)
    stdout().print(f"{zoo}: no damage found", markup=False)


@zoo_app.command(epilog=examples("scalegmn zoo show zoos/digits --plot digits.png"))
def show(
    zoo: ZooPath,
    plot: Annotated[Path, typer.Option(help="The PNG to write.", show_default=False)],
    count: Annotated[int, typer.Option(help="How many networks.")] = 24,
    seed: Annotated[int, typer.Option(help="Which networks.")] = 0,
) -> None:
    """Draw a sheet of implicit representations next to the images that they were fitted to."""
    from scalegmn.zoo.plots import plot_sheet
    from scalegmn.zoo.store import Zoo

    plot_sheet(Zoo.open(zoo), plot, count=count, seed=seed)
    stdout().print(str(plot), markup=False)


@zoo_app.command(epilog=examples("scalegmn zoo images mnist --root data"))
def images(
    name: Annotated[str, typer.Argument(help="mnist, fashion-mnist, cifar10 or svhn.", show_default=False)],
    root: Annotated[Path, typer.Option(help="The folder to write to.", show_default=False)],
) -> None:
    """Download images from their official address and check them."""
    import sys

    from scalegmn.zoo.download import download

    for path in download(name, root, progress=sys.stderr.isatty()):
        stdout().print(str(path), markup=False)
