"""The zoos of the experiments: how each is built, small for two cores or at the size of the paper."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from ..errors import ScaleGMNError
from ..files.arrays import Array
from ..zoo.cnn.build import build_cnn_zoo
from ..zoo.cnn.recipe import Budget
from ..zoo.images.collections import Images, load_images
from ..zoo.imports.cnn_zoo import import_cnn_zoo
from ..zoo.imports.inr import import_inr
from ..zoo.inr.build import Report, build_inr_zoo
from ..zoo.inr.conventions import Fit
from ..zoo.store.combine import combine
from ..zoo.store.zoo import Zoo

Scale = Literal["small", "paper"]
STAND_IN = "svhn_testsplit_tight_grey32.npz"
SMALL_SIZES = (3000, 500, 1500)
SMALL_CNNS = 1500
# Per activation. The published ones, 15,000 of each, trained for 86 epochs: 8 s of a core for each network.
PAPER_CNNS = 5000
PAPER_STEPS = (200, 5000)
# Fits of every training image of CIFAR-10; the published ones are 21.
SMALL_VIEWS, PAPER_VIEWS = 3, 2


@dataclass(frozen=True)
class Folders:
    """Where things are.

    Arguments:
        scale: `small` or `paper`.
        zoos: The folder of the zoos of this scale.
        images: The folder of the image files.
        report: As in `build_inr_zoo`.
        published: The folder of published collections, which are used if they are there.
        runs, results: The folders of the runs and of the records of this scale.
    """

    scale: Scale
    zoos: Path
    images: Path | None
    report: Report | None = None
    published: Path | None = None
    runs: Path = Path("runs")
    results: Path = Path("results")


def collection(name: str, place: Folders) -> Path | None:
    """The published collection that a zoo is converted from, a folder or an archive; None if it is not given.

    >>> collection("mnist", Folders("paper", Path("zoos"), None)) is None
    True
    """
    if place.published is None:
        return None
    found = (path for pattern in _PUBLISHED.get(name, ()) for path in sorted(place.published.glob(pattern)))
    return next((path for path in found if path.is_file() or any(path.rglob(_MARKS[name in CNNS]))), None)


def zoo_path(name: str, place: Folders) -> Path:
    """Where a zoo is, or will be; converted collections are beside our own zoos."""
    return place.zoos / (name if collection(name, place) is None else f"{name}-published")


def open_zoo(name: str, place: Folders) -> Zoo:
    """A zoo of the experiments; built, converted or continued if it is not complete."""
    if name not in _BUILDERS:
        raise ScaleGMNError(f"zoo: expected one of {', '.join(_BUILDERS)}, got {name!r}")
    path = zoo_path(name, place)
    if (path / "zoo.json").is_file():
        return Zoo.open(path)
    source = collection(name, place)
    if source is None or name in PARTS:
        return _BUILDERS[name](name, place)
    if name in CNNS:
        return import_cnn_zoo(source, path, activation=name.rpartition("-")[2])
    return import_inr(_KINDS[name], source, path, images=place.images if name == "mnist" else None)


def add_zoo(name: str, build: Callable[[str, Folders], Zoo]) -> None:
    """Say how a zoo of your own is made; `open_zoo` calls it if the zoo does not exist yet."""
    _BUILDERS[name] = build


def _inr(name: str, place: Folders) -> Zoo:
    source = load_images(name, place.images)
    sizes = SMALL_SIZES if place.scale == "small" else None
    return build_inr_zoo(source, place.zoos / name, sizes=sizes, report=place.report)


def _one_view(name: str, place: Folders) -> Zoo:
    """CIFAR-10 in the convention of Zhou et al., one network per image."""
    if place.scale == "small" or collection(name, place) is not None:
        return _combined(name, place)
    source = load_images("cifar10", place.images)
    return build_inr_zoo(source, place.zoos / name, fit=Fit(convention="nfn"), report=place.report)


def _views(name: str, place: Folders) -> Zoo:
    """The same with several networks per training image; at full size each further view is a zoo of its own."""
    source, fit = load_images("cifar10", place.images), Fit(convention="nfn")
    if place.scale == "small":
        return build_inr_zoo(
            source,
            place.zoos / name,
            fit=fit,
            sizes=SMALL_SIZES,
            views=SMALL_VIEWS,
            held_out_views=1,
            report=place.report,
        )
    views = [open_zoo("cifar10", place)]
    for view in range(1, PAPER_VIEWS):
        out = place.zoos / f"cifar10-view-{view}"
        views.append(build_inr_zoo(source, out, fit=fit, split="train", seed=view, report=place.report))
    return combine(views, place.zoos / name)


def _cnn(name: str, place: Folders) -> Zoo:
    """Small CNNs, of one activation, on grey images."""
    images, _, activation = name.partition("-gs-")
    source = load_images("cifar10", place.images, grey=True) if images == "cifar10" else _svhn(place.images)
    small = place.scale == "small"
    return build_cnn_zoo(
        source,
        place.zoos / name,
        count=SMALL_CNNS if small else PAPER_CNNS,
        activation=activation,
        budget=Budget() if small else Budget(steps=PAPER_STEPS),
        report=place.report,
    )


def _combined(name: str, place: Folders) -> Zoo:
    """Several zoos as one, or one view of each image of a zoo."""
    where = {"view": "0"} if name == "cifar10" else None
    return combine([open_zoo(part, place) for part in PARTS[name]], zoo_path(name, place), where=where)


CNNS = tuple(f"{images}-gs-{kind}" for images in ("cifar10", "svhn") for kind in ("relu", "tanh", "both"))
# Made of other zoos, wherever those come from.
PARTS = {
    "cifar10": ("cifar10-views",),
    "cifar10-gs-both": ("cifar10-gs-relu", "cifar10-gs-tanh"),
    "svhn-gs-both": ("svhn-gs-relu", "svhn-gs-tanh"),
}
_BUILDERS: dict[str, Callable[[str, Folders], Zoo]] = {
    "mnist": _inr,
    "fashion-mnist": _inr,
    "cifar10-views": _views,
    **dict.fromkeys(CNNS, _cnn),
    **dict.fromkeys(PARTS, _combined),
    "cifar10": _one_view,
}
NAMES = tuple(_BUILDERS)
# The names under which collections are published, as folders or archives, and a file that such a folder holds.
_PUBLISHED = {
    "mnist": ("mnist-inr*", "mnist_inr*"),
    "fashion-mnist": ("fmnist-inr*", "fmnist_inr*"),
    **dict.fromkeys(("cifar10", "cifar10-views"), ("siren_cifar_wts*",)),
    **{name: ("cifar10*",) if name.startswith("cifar10") else ("svhn_cropped*", "svhn*") for name in CNNS},
}
_MARKS = ("*.pth", "weights.npy")
_KINDS = {"mnist": "mnist-inr", "fashion-mnist": "fmnist-inr", "cifar10-views": "cifar10-inr"}


def _svhn(folder: Path | None) -> Images:
    """SVHN in grey: the official files, or the stand-in cut from its test split, if that is what the folder has."""
    stand_in = None if folder is None else folder / STAND_IN
    if stand_in is None or not stand_in.is_file():
        return load_images("svhn", folder, grey=True)
    with np.load(stand_in) as arrays:
        pixels, labels, files = arrays["x"], arrays["y"].astype(np.int64), arrays["filename"]
    return Images("svhn stand-in", pixels, labels, held_out(files))


def held_out(files: Array) -> Array:
    """A fifth of the files for the test: digits of one photograph stay together, so that none is in both parts.

    >>> held_out(np.array(["a", "a", "b", "c", "d", "e"])).sum() in (1, 2)
    True
    """
    names = np.unique(files)
    chosen = np.random.default_rng(0).permutation(len(names))[: max(1, len(names) // 5)]
    return np.isin(files, names[chosen])
