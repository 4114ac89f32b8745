"""`scalegmn zoo build`: train the networks of a zoo."""

from pathlib import Path
from typing import Annotated

import typer

from ...errors import ScaleGMNError
from ..application import examples
from ..console import interruptible, stdout
from .commands import zoo_app

build_app = typer.Typer(help="Train the networks of a zoo.", no_args_is_help=True)
zoo_app.add_typer(build_app, name="build")

Out = Annotated[Path, typer.Option(help="The directory to write.")]
ImagesName = Annotated[str, typer.Option("--images", help="digits, mnist, fashion-mnist, cifar10, svhn or npz:FILE.")]
Root = Annotated[Path | None, typer.Option(help="The folder of the image files.")]
Grey = Annotated[bool, typer.Option("--grey", help="Replace colours by their mean.")]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Decides everything random.")]


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
    count: Annotated[int | None, typer.Option(help="Number of images (default: all).")] = None,
    hidden: Annotated[str, typer.Option(help="Neurons of the hidden layers.")] = "32,32",
    activation: Annotated[str, typer.Option(help="sine, relu or tanh.")] = "sine",
    w0: Annotated[float | None, typer.Option(help="Frequency of sine layers (default: 30).")] = None,
    convention: Annotated[str, typer.Option(help="dws or nfn: initialisation, grid and value range.")] = "dws",
    sizes: Annotated[
        str | None, typer.Option(help="Numbers of training, validation and test images, instead of --count.")
    ] = None,
    views: Annotated[int, typer.Option(help="Independent fits of every image.")] = 1,
    held_out_views: Annotated[
        int | None, typer.Option(help="Independent fits of validation and test images, if it differs.")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Only images of this split, as in the zoo of all images with seed 0; such zoos can be combined."
        ),
    ] = None,
    seed: Seed = 0,
    steps: Annotated[int | None, typer.Option(help="Steps of Adam (default: 1000, fewer for small images).")] = None,
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 1e-3,
    psnr: Annotated[float | None, typer.Option(help="Stop fitting a network at this many decibels.")] = None,
    grey: Grey = False,
    ray: Annotated[str | None, typer.Option(help="Address of a Ray cluster, or local to start one.")] = None,
) -> None:
    """Fit an implicit representation to every image.

    If it is interrupted and started again with the same arguments, it continues after the last complete shard and ends
    with the same bytes.
    """
    from ...zoo.images.collections import load_images
    from ...zoo.inr.build import build_inr_zoo
    from ...zoo.inr.conventions import Fit
    from ..progress import BuildProgress

    fit = Fit(_sizes(hidden, "hidden"), activation, w0, convention, steps, lr, psnr)
    source = load_images(images, root, grey=grey)
    with interruptible(lambda: _kept(out)), BuildProgress("PSNR", " dB") as progress:
        zoo = build_inr_zoo(
            source,
            out,
            fit=fit,
            count=count,
            sizes=None if sizes is None else _sizes(sizes, "sizes"),
            views=views,
            held_out_views=held_out_views,
            split=split,
            seed=seed,
            ray=ray,
            report=progress,
        )
    mean = float(zoo.column("psnr").mean())
    stdout().print(f"{out}: {len(zoo):,} networks, mean PSNR {mean:.1f} dB{_speed(progress.line())}", markup=False)


@build_app.command(
    "cnn",
    epilog=examples(
        "scalegmn zoo build cnn --images mnist --root data --count 200 --out zoos/cnn",
        "scalegmn zoo build cnn --images cifar10 --root data --grey --activation both --count 2000 --out zoos/cnn",
    ),
)
def build_cnn(
    images: ImagesName,
    out: Out,
    count: Annotated[int, typer.Option(help="Number of networks.")],
    root: Root = None,
    activation: Annotated[str, typer.Option(help="relu, tanh or both.")] = "relu",
    vary: Annotated[bool, typer.Option("--vary", help="Vary depth, widths and kernel size as well.")] = False,
    batch: Annotated[int, typer.Option(help="Images per step.")] = 32,
    steps: Annotated[str, typer.Option(help="Fewest and most steps of a network.")] = "50,2000",
    epochs: Annotated[float | None, typer.Option(help="Passes through the training images, instead of steps.")] = None,
    test_images: Annotated[
        int | None, typer.Option(help="Number of test images for the accuracy (default: all).")
    ] = None,
    seed: Seed = 0,
    grey: Grey = False,
) -> None:
    """Train small image classifiers, each with its own random hyperparameters.

    If it is interrupted and started again with the same arguments, it continues after the last complete shard and ends
    with the same bytes.
    """
    from ...zoo.cnn.build import build_cnn_zoo
    from ...zoo.cnn.recipe import Budget
    from ...zoo.images.collections import load_images
    from ..progress import BuildProgress

    bounds = _sizes(steps, "steps")
    if len(bounds) not in (1, 2):
        raise ScaleGMNError(f"steps: expected fewest and most (50,2000) or one number, got {steps!r}")
    budget = Budget(batch, (bounds[0], bounds[-1]), epochs)
    source = load_images(images, root, grey=grey)
    with interruptible(lambda: _kept(out)), BuildProgress("accuracy") as progress:
        zoo = build_cnn_zoo(
            source,
            out,
            count=count,
            activation=activation,
            vary=vary,
            budget=budget,
            test_images=test_images,
            seed=seed,
            report=progress,
        )
    accuracy = zoo.column("test_accuracy")
    spread = f"test accuracy {float(accuracy.min()):.3f} to {float(accuracy.max()):.3f}"
    stdout().print(f"{out}: {len(zoo):,} networks, {spread}{_speed(progress.line())}", markup=False)


def _sizes(text: str, option: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ScaleGMNError(f"{option}: expected whole numbers with commas between them, got {text[:40]!r}") from error


def _kept(out: Path) -> str:
    """What is kept of an interrupted build."""
    from ...zoo.store.writer import complete_parts

    count = sum(part["networks"] for part in complete_parts(out))
    return f"{count:,} networks are kept in {out}; the same command continues"


def _speed(line: str) -> str:
    return f" ({line.split(',')[0]})" if line else " (nothing left to do)"
