"""The zoos of the experiments: how each is built, small for two cores or at the size of the paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor

from ..errors import ScaleGMNError
from ..files import Array
from ..zoo.cnn.build import Budget, build_cnn_zoo
from ..zoo.images.collections import Images, load_images
from ..zoo.inr.build import Fit, build_inr_zoo
from ..zoo.store.combine import combine
from ..zoo.store.zoo import Zoo

Scale = Literal["small", "paper"]
Report = Callable[[int, int, Tensor], None]
STAND_IN = "svhn_testsplit_tight_grey32.npz"
SMALL_SIZES = (3000, 500, 1500)
SMALL_CNNS = 1500
PAPER_CNNS = 15_000


@dataclass(frozen=True)
class Place:
    """Where things are.

    Arguments:
        scale: `small` or `paper`.
        zoos: The folder of the zoos of this scale.
        images: The folder of the image files.
        report: As in `build_inr_zoo`.
    """

    scale: Scale
    zoos: Path
    images: Path | None
    report: Report | None = None


def open_zoo(name: str, place: Place) -> Zoo:
    """A zoo of the experiments; built, or continued, if it is not there."""
    if (place.zoos / name / "zoo.json").is_file():
        return Zoo.open(place.zoos / name)
    if name not in _BUILDERS:
        raise ScaleGMNError(f"zoo: expected one of {', '.join(_BUILDERS)}, got {name!r}")
    return _BUILDERS[name](name, place)


def _inr(name: str, place: Place) -> Zoo:
    source = load_images(name, place.images)
    sizes = SMALL_SIZES if place.scale == "small" else None
    return build_inr_zoo(source, place.zoos / name, sizes=sizes, report=place.report)


def _views(name: str, place: Place) -> Zoo:
    """CIFAR-10 in the convention of Zhou et al.; every training image is fitted several times."""
    small = place.scale == "small"
    return build_inr_zoo(
        load_images("cifar10", place.images),
        place.zoos / name,
        fit=Fit(convention="nfn"),
        sizes=SMALL_SIZES if small else None,
        views=3 if small else 20,
        held_out_views=1,
        report=place.report,
    )


def _single_view(name: str, place: Place) -> Zoo:
    return combine([open_zoo("cifar10-views", place)], place.zoos / name, where={"view": "0"})


def _cnn(name: str, place: Place) -> Zoo:
    """Small CNNs, of one activation, on grey images; at the paper's scale they train as long as the published ones."""
    images, _, activation = name.partition("-gs-")
    source = load_images("cifar10", place.images, grey=True) if images == "cifar10" else _svhn(place.images)
    small = place.scale == "small"
    return build_cnn_zoo(
        source,
        place.zoos / name,
        count=SMALL_CNNS if small else PAPER_CNNS,
        activation=activation,
        budget=Budget() if small else Budget(batch=512, epochs=86),
        report=place.report,
    )


def _both(name: str, place: Place) -> Zoo:
    images = name.removesuffix("-both")
    return combine([open_zoo(f"{images}-{a}", place) for a in ("relu", "tanh")], place.zoos / name)


_BUILDERS: dict[str, Callable[[str, Place], Zoo]] = {
    "mnist": _inr,
    "fashion-mnist": _inr,
    "cifar10-views": _views,
    "cifar10": _single_view,
    **{f"{images}-gs-{activation}": _cnn for images in ("cifar10", "svhn") for activation in ("relu", "tanh")},
    **{f"{images}-gs-both": _both for images in ("cifar10", "svhn")},
}
NAMES = tuple(_BUILDERS)


def _svhn(folder: Path | None) -> Images:
    """SVHN in grey: the official files, or the stand-in cut from its test split, if that is what the folder has."""
    stand_in = None if folder is None else folder / STAND_IN
    if stand_in is None or not stand_in.is_file():
        return load_images("svhn", folder, grey=True)
    with np.load(stand_in) as arrays:
        pixels, labels, files = arrays["x"], arrays["y"].astype(np.int64), arrays["filename"]
    return Images("svhn stand-in", pixels, labels, held_out(files))


def held_out(files: Array) -> Array:
    """A fifth of the files for the test: digits of one photograph stay together, or the test would know them.

    >>> held_out(np.array(["a", "a", "b", "c", "d", "e"])).sum() in (1, 2)
    True
    """
    names = np.unique(files)
    chosen = np.random.default_rng(0).permutation(len(names))[: max(1, len(names) // 5)]
    return np.isin(files, names[chosen])
