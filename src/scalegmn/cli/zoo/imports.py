"""`scalegmn zoo import`: published collections and a user's checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import ScaleGMNError
from ..application import examples
from ..console import interruptible, stdout
from ..sources import Archs, Prefix, hidden_activation, load_module
from .commands import zoo_app

if TYPE_CHECKING:
    from ...zoo.inr.canvas import Canvas
    from ...zoo.store.zoo import Zoo

import_app = typer.Typer(help="Convert published collections, or your own checkpoints.", no_args_is_help=True)
zoo_app.add_typer(import_app, name="import")

Collection = Annotated[Path, typer.Argument(help="The folder or archive (.zip, .tar, .tar.gz).")]
Out = Annotated[Path, typer.Argument(help="The directory of the zoo to write.")]


@import_app.command(
    "mnist-inr",
    epilog=examples(
        "scalegmn zoo import mnist-inr mnist-inrs.zip zoos/mnist",
        "scalegmn zoo import mnist-inr mnist-inrs zoos/mnist --images data",
    ),
)
def mnist_inr(
    source: Collection,
    out: Out,
    images: Annotated[
        Path | None, typer.Option(help="The folder of the MNIST files, to attach the images (for editing).")
    ] = None,
) -> None:
    """MNIST-INR of Navon et al. (2023)."""
    _import_inr("mnist-inr", source, out, images)


@import_app.command("fmnist-inr", epilog=examples("scalegmn zoo import fmnist-inr fmnist_inrs.zip zoos/fmnist"))
def fmnist_inr(source: Collection, out: Out) -> None:
    """Fashion-MNIST-INR of Navon et al. (2023)."""
    _import_inr("fmnist-inr", source, out)


@import_app.command("cifar10-inr", epilog=examples("scalegmn zoo import cifar10-inr siren_cifar_wts zoos/cifar"))
def cifar10_inr(source: Collection, out: Out) -> None:
    """CIFAR10-INR of Zhou et al. (2023), with its augmented copies if they are there."""
    _import_inr("cifar10-inr", source, out)


def _import_inr(kind: str, source: Path, out: Path, images: Path | None = None) -> None:
    from ...zoo.imports.inr import import_inr

    with interruptible(lambda: f"{out}: nothing was written"):
        zoo = import_inr(kind, source, out, images=images)
    _tell(zoo)


@import_app.command(
    "cnn-zoo",
    epilog=examples(
        "scalegmn zoo import cnn-zoo cifar10_gs zoos/cnn-relu --activation relu",
        "scalegmn zoo import cnn-zoo svhn_cropped.tar.gz zoos/svhn --every-epoch",
    ),
)
def cnn_zoo(
    source: Collection,
    out: Out,
    activation: Annotated[str | None, typer.Option(help="Only networks with this activation: relu or tanh.")] = None,
    every_epoch: Annotated[
        bool, typer.Option("--every-epoch", help="Also the checkpoints from before the last epoch.")
    ] = False,
) -> None:
    """The Small CNN Zoo of Unterthiner et al. (2020)."""
    from ...zoo.imports.cnn_zoo import import_cnn_zoo

    with interruptible(lambda: f"{out}: nothing was written"):
        zoo = import_cnn_zoo(source, out, final_only=not every_epoch, activation=activation)
    _tell(zoo)


@import_app.command(
    epilog=examples(
        "scalegmn zoo import checkpoints runs/models --labels labels.csv zoos/mine --activation relu",
        "scalegmn zoo import checkpoints runs --labels runs.csv zoos/mine --arch models:small --arch models.py:big",
        "scalegmn zoo import checkpoints inrs --labels l.csv zoos/inrs --activation sine --w0 30 --convention dws "
        "--grid 28x28",
    )
)
def checkpoints(
    folder: Annotated[Path, typer.Argument(help="The folder of the checkpoints.")],
    out: Out,
    labels: Annotated[Path, typer.Option(help="A CSV with the column file, one to learn, perhaps split and others.")],
    label_column: Annotated[
        str | None, typer.Option(help="The column to learn (default: label, or the only column of numbers).")
    ] = None,
    activation: Annotated[str | None, typer.Option(help="Hidden activation of multilayer perceptrons.")] = None,
    w0: Annotated[float | None, typer.Option(help="Frequency, with --activation sine.")] = None,
    arch: Archs = None,
    arch_column: Annotated[
        str | None, typer.Option(help="The column that says which --arch a file has (default: activation).")
    ] = None,
    prefix: Prefix = "",
    picture: Annotated[
        str | None, typer.Option("--convention", help="For INRs: their convention, dws or nfn; with --grid.")
    ] = None,
    grid: Annotated[
        str | None, typer.Option(help="For INRs: HEIGHTxWIDTH or HEIGHTxWIDTHxCOLOURS of the pictures.")
    ] = None,
) -> None:
    """Your own checkpoints (torch, safetensors, Keras, ONNX; whatever their names), of one or several architectures."""
    from ...zoo.imports.checkpoints import Ways, import_checkpoints

    likes = {reference: load_module(reference) for reference in arch or ()}
    known = hidden_activation(activation, w0)
    ways = Ways(known, likes, arch_column, prefix, None if picture is None and grid is None else _canvas(picture, grid))
    with interruptible(lambda: f"{out}: nothing was written"):
        zoo = import_checkpoints(folder, labels, out, label=label_column, ways=ways)
    _tell(zoo)
    counts = zoo.architecture_of().bincount().tolist()
    for architecture, count in zip(zoo.architectures, counts, strict=True):
        stdout().print(f"{count:8,} x {architecture}", markup=False)


def _canvas(picture: str | None, grid: str | None) -> Canvas:
    """The canvas that --convention and --grid describe together."""
    from ...zoo.inr.canvas import Canvas
    from ...zoo.inr.conventions import convention

    if picture is None or grid is None:
        raise ScaleGMNError("--convention: expected together with --grid, such as --convention dws --grid 28x28")
    sides = grid.lower().split("x")
    if len(sides) not in (2, 3) or not all(side.isdecimal() and 0 < int(side) < 1 << 16 for side in sides):
        raise ScaleGMNError(f"--grid: expected HEIGHTxWIDTH such as 28x28, or 32x32x3 with colours; got {grid!r}")
    height, width, colours = (*map(int, sides), 1)[:3]
    rule = convention(picture)
    return Canvas(rule.name, height, width, colours, rule.low, rule.high)


def _tell(zoo: Zoo) -> None:
    splits = ", ".join(f"{name} {len(zoo.split(name)):,}" for name in zoo.splits)
    stdout().print(f"{zoo.path}: {len(zoo):,} networks ({splits})", markup=False)
