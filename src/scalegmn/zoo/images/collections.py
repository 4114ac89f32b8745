"""The images that zoos are made from: where their official files are and how they become arrays."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...errors import ScaleGMNError
from .formats import Labels, Pixels, read_cifar_binary, read_cifar_python, read_idx, read_npz, read_svhn

SPLITS: Final = ("all", "train", "test")
# IDX files of MNIST and Fashion-MNIST have the same names; their labels tell them apart.
_LABEL_SUMS: Final = {
    "a25bea736e30d166cdddb491f175f624": "mnist",
    "27ae3e4e09519cfbb04c329615203637": "mnist",
    "9018921c3c673c538a1fc5bad174d6f9": "fashion-mnist",
    "15d484375f8d13e6eb1aabb0c3f46965": "fashion-mnist",
}
_IDX_FOLDERS: Final = {
    "mnist": ("MNIST/raw", "MNIST", "mnist/raw", "mnist", "."),
    "fashion-mnist": ("FashionMNIST/raw", "FashionMNIST", "fashion-mnist", "fashion_mnist", "fashion", "."),
}
_CIFAR_FOLDERS: Final = (".", "cifar10", "CIFAR10", "cifar-10")
_SVHN_FOLDERS: Final = (".", "SVHN", "svhn")


@dataclass(frozen=True)
class Images:
    """Labelled images.

    Arguments:
        name: Name of the collection.
        pixels: (N, H, W), or (N, H, W, C) with colours last, uint8.
        labels: (N,), int64.
        test: Which rows belong to the official test set, (N,) of bool; all False if there is no official split.
    """

    name: str
    pixels: Pixels
    labels: Labels
    test: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def channels(self) -> int:
        """Number of colours of a pixel."""
        return int(self.pixels.shape[3]) if self.pixels.ndim == 4 else 1

    def checksum(self) -> str:
        """The SHA-256 of everything that a zoo uses: shape, pixels, labels and the official split."""
        digest = hashlib.sha256(repr(self.pixels.shape).encode())
        for array in (self.pixels, self.labels.astype(np.int64), self.test.astype(np.bool_)):
            digest.update(array.tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class _Part:
    """Half of a collection, train or test."""

    pixels: Pixels
    labels: Labels


def load_images(name: str, root: str | Path | None = None, split: str = "all", grey: bool = False) -> Images:
    """Load images from their official files; training rows come first.

    `digits` is part of scikit-learn and needs no root; its values 0..16 become `rint(255 / 16 * value)`.
    `mnist` and `fashion-mnist` are IDX files (raw or .gz), `cifar10` binary or Python batches, `svhn` the
    cropped .mat files. Any other images are read from `npz:PATH` or `root/NAME.npz` with arrays x and y.

    Arguments:
        name: Name of the collection.
        root: Folder of the files; the usual sub-folders are searched as well.
        split: `all`, `train` or `test` (official).
        grey: Replace colours by their mean, rounded.

    >>> images = load_images("digits")
    >>> images.pixels.shape, images.pixels.dtype, len(images)
    ((1797, 8, 8), dtype('uint8'), 1797)
    """
    if split not in SPLITS:
        raise ScaleGMNError(f"split: expected one of {', '.join(SPLITS)}, got {split!r}")
    if name == "digits":
        images = _without_split(name, *_digits())
    elif name.startswith("npz:"):
        images = _without_split(Path(name[4:]).stem, *read_npz(_existing(Path(name[4:]))))
    else:
        images = _from_root(name, root, split)
    if split != "all":
        images = _select(images, split)
    return _grey(images) if grey else images


def _from_root(name: str, root: str | Path | None, split: str) -> Images:
    folder = None if root is None else Path(root)
    archive = None if folder is None else folder / f"{name}.npz"
    if name not in _READERS:
        if archive is None or not archive.is_file():
            known = ", ".join(["digits", *_READERS])
            raise ScaleGMNError(f"images: expected {known}, npz:PATH or NAME with root/NAME.npz, got {name!r}")
        return _without_split(name, *read_npz(archive))
    if folder is None or archive is None:
        raise ScaleGMNError(f"{name}: needs the folder of its files; get them with {command(name, 'DIR')}")
    if not folder.is_dir():
        raise ScaleGMNError(f"{name}: no folder {folder}; get the files with {command(name, folder)}")
    wanted = ["train", "test"] if split == "all" else [split]
    try:
        parts = [_READERS[name](name, folder, half) for half in wanted]
    except FileNotFoundError as error:
        if archive.is_file():
            return _without_split(name, *read_npz(archive))
        raise ScaleGMNError(f"{name}: no {error} in {folder}; get it with {command(name, folder)}") from None
    test = np.concatenate([np.full(len(p.labels), half == "test") for p, half in zip(parts, wanted, strict=True)])
    pixels = np.concatenate([part.pixels for part in parts])
    return Images(name, pixels, np.concatenate([part.labels for part in parts]), test)


def command(name: str, root: str | Path) -> str:
    """The command that downloads a collection.

    >>> command("mnist", "data")
    'scalegmn zoo images mnist --root data'
    """
    return f"scalegmn zoo images {name} --root {root}"


def _digits() -> tuple[Pixels, Labels]:
    # Imported here: scikit-learn takes long to load, and only this collection needs it.
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.rint(bunch.images * (255 / 16)).astype(np.uint8), bunch.target.astype(np.int64)


def _without_split(name: str, pixels: Pixels, labels: Labels) -> Images:
    return Images(name, pixels, labels, np.zeros(len(labels), dtype=np.bool_))


def _select(images: Images, split: str) -> Images:
    rows = images.test if split == "test" else ~images.test
    if not rows.any():
        raise ScaleGMNError(f"split: {images.name} has no official {split} images; use split='all'")
    return Images(images.name, images.pixels[rows], images.labels[rows], images.test[rows])


def _grey(images: Images) -> Images:
    if images.pixels.ndim == 3:
        return images
    pixels = np.rint(images.pixels.mean(axis=3, dtype=np.float32)).astype(np.uint8)
    return Images(images.name, pixels, images.labels, images.test)


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise ScaleGMNError(f"images: no file {path}; expected an .npz with arrays x and y")
    return path


def _find(root: Path, folders: tuple[str, ...], names: tuple[str, ...]) -> Path:
    """The first file of these names in the first folder that has one."""
    for folder in folders:
        for name in names:
            if (root / folder / name).is_file():
                return root / folder / name
    raise FileNotFoundError(names[0])


def _read_idx_part(name: str, root: Path, half: str) -> _Part:
    prefix = "train" if half == "train" else "t10k"
    folders = _IDX_FOLDERS[name]
    arrays = []
    for kind in ("images-idx3", "labels-idx1"):
        plain, dotted = f"{prefix}-{kind}-ubyte", f"{prefix}-{kind.replace('-', '.')}-ubyte"
        path = _find(root, folders, (plain, f"{plain}.gz", dotted, f"{dotted}.gz"))
        # The labels must lie beside their images.
        folders = (str(path.parent.relative_to(root)),)
        arrays.append(read_idx(path))
    pixels, labels = arrays
    if pixels.ndim != 3 or labels.shape != pixels.shape[:1]:
        raise ScaleGMNError(f"{path}: expected one label per image, got {labels.shape} for images {pixels.shape}")
    header = b"\x00\x00\x08\x01" + len(labels).to_bytes(4, "big")
    whose = _LABEL_SUMS.get(hashlib.md5(header + labels.tobytes(), usedforsecurity=False).hexdigest(), name)
    if whose != name:
        raise ScaleGMNError(
            f"{path}: expected {name}, got those of {whose}; keep {name} in ROOT/{_IDX_FOLDERS[name][0]}"
        )
    return _Part(pixels, labels.astype(np.int64))


def _read_cifar_part(name: str, root: Path, half: str) -> _Part:
    names = [f"data_batch_{n}" for n in range(1, 6)] if half == "train" else ["test_batch"]
    binary = tuple(f"{folder}/cifar-10-batches-bin" for folder in _CIFAR_FOLDERS) + _CIFAR_FOLDERS
    python = tuple(f"{folder}/cifar-10-batches-py" for folder in _CIFAR_FOLDERS) + _CIFAR_FOLDERS
    batches = []
    for batch in names:
        try:
            batches.append(read_cifar_binary(_find(root, binary, (f"{batch}.bin",))))
        except FileNotFoundError:
            try:
                batches.append(read_cifar_python(_find(root, python, (batch,))))
            except FileNotFoundError:
                raise FileNotFoundError(f"cifar-10-batches-bin/{batch}.bin") from None
    return _Part(np.concatenate([b[0] for b in batches]), np.concatenate([b[1] for b in batches]))


def _read_svhn_part(name: str, root: Path, half: str) -> _Part:
    return _Part(*read_svhn(_find(root, _SVHN_FOLDERS, (f"{half}_32x32.mat",))))


_READERS: Final[dict[str, Callable[[str, Path, str], _Part]]] = {
    "mnist": _read_idx_part,
    "fashion-mnist": _read_idx_part,
    "cifar10": _read_cifar_part,
    "svhn": _read_svhn_part,
}
NAMES: Final = ("digits", *_READERS)
