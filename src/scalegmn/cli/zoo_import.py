"""`scalegmn zoo import`: published collections and a person's own checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .application import examples
from .console import stdout
from .zoo import zoo_app

if TYPE_CHECKING:
    from ..zoo.store.zoo import Zoo

import_app = typer.Typer(help="Convert published collections, or your own checkpoints.", no_args_is_help=True)
zoo_app.add_typer(import_app, name="import")

Source = Annotated[Path, typer.Argument(help="The folder or archive (.zip, .tar, .tar.gz).", show_default=False)]
Out = Annotated[Path, typer.Argument(help="The directory of the zoo to write.", show_default=False)]


@import_app.command("mnist-inr", epilog=examples("scalegmn zoo import mnist-inr mnist-inrs.zip zoos/mnist"))
def mnist_inr(source: Source, out: Out) -> None:
    """MNIST-INR of Navon et al. (2023)."""
    _import_inr("mnist-inr", source, out)


@import_app.command("fmnist-inr", epilog=examples("scalegmn zoo import fmnist-inr fmnist_inrs.zip zoos/fmnist"))
def fmnist_inr(source: Source, out: Out) -> None:
    """Fashion-MNIST-INR of Navon et al. (2023)."""
    _import_inr("fmnist-inr", source, out)


@import_app.command("cifar10-inr", epilog=examples("scalegmn zoo import cifar10-inr siren_cifar_wts zoos/cifar"))
def cifar10_inr(source: Source, out: Out) -> None:
    """CIFAR10-INR of Zhou et al. (2023), with its augmented copies where they are there."""
    _import_inr("cifar10-inr", source, out)


def _import_inr(kind: str, source: Path, out: Path) -> None:
    from ..zoo.imports.inr import import_inr

    _tell(import_inr(kind, source, out))


@import_app.command(
    "cnn-zoo",
    epilog=examples(
        "scalegmn zoo import cnn-zoo cifar10_gs zoos/cnn-relu --activation relu",
        "scalegmn zoo import cnn-zoo svhn_cropped.tar.gz zoos/svhn --every-epoch",
    ),
)
def cnn_zoo(
    source: Source,
    out: Out,
    activation: Annotated[
        str | None, typer.Option(help="Only networks with this activation: relu or tanh.", show_default=False)
    ] = None,
    every_epoch: Annotated[
        bool, typer.Option("--every-epoch", help="Also the checkpoints from before the last epoch.")
    ] = False,
) -> None:
    """The Small CNN Zoo of Unterthiner et al. (2020)."""
    from ..zoo.imports.cnn_zoo import import_cnn_zoo

    _tell(import_cnn_zoo(source, out, final_only=not every_epoch, activation=activation))


@import_app.command(
    epilog=examples(
        "scalegmn zoo import checkpoints runs/models --labels labels.csv zoos/mine --activation relu",
        "scalegmn zoo import checkpoints runs --labels runs.csv zoos/mine --arch models:small --arch models:big",
    )
)
def checkpoints(
    folder: Annotated[Path, typer.Argument(help="The folder of the checkpoints.", show_default=False)],
    out: Out,
    labels: Annotated[
        Path,
        typer.Option(help="A CSV with columns file and label, perhaps split and others.", show_default=False),
    ],
    activation: Annotated[
        str | None, typer.Option(help="Hidden activation of multilayer perceptrons.", show_default=False)
    ] = None,
    w0: Annotated[float | None, typer.Option(help="Frequency, with --activation sine.", show_default=False)] = None,
    arch: Annotated[
        list[str] | None,
        typer.Option(help="module:function that returns an nn.Module; once for each architecture.", show_default=False),
    ] = None,
) -> None:
    """Your own checkpoints (.pt, .pth, .ckpt, .safetensors), of one or several architectures."""
    from ..zoo.imports.checkpoints import import_checkpoints
    from .sources import hidden_activation, load_module

    likes = [load_module(reference) for reference in arch or ()]
    _tell(import_checkpoints(folder, labels, out, activation=hidden_activation(activation, w0), likes=likes))


def _tell(zoo: Zoo) -> None:
    splits = ", ".join(f"{name} {len(zoo.split(name)):,}" for name in zoo.splits)
    stdout().print(f"{zoo.path}: {len(zoo):,} networks ({splits})", markup=False)
