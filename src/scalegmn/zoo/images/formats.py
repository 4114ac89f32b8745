"""Readers of the official image file formats: IDX, CIFAR-10 batches, SVHN .mat and .npz.

Every reader returns pixels (N, H, W) or (N, H, W, C) as uint8 with labels (N,) as int64, and refuses a damaged file in
one line that names it.
"""

import gzip
import io
import math
import zlib
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...errors import ScaleGMNError
from ...files import read_at_most, read_bytes
from ...files.arrays import read_npz_array
from .pickled import read_pickle

Pixels: TypeAlias = NDArray[np.uint8]
Labels: TypeAlias = NDArray[np.int64]

_CIFAR_RECORD = 1 + 3 * 32 * 32
# Labels are classes: more of them, or negative ones, are a mistake in the file.
CLASSES = 1000
_LIMIT = 1 << 32


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An IDX file of unsigned bytes (LeCun et al., 1998), raw or gzipped.

    Arguments:
        path: File; a name that ends in `.gz` is decompressed.

    Returns:
        The array, with as many axes as the file says.
    """
    data = read_bytes(path)
    if path.suffix == ".gz":
        try:
            data = read_at_most(gzip.GzipFile(fileobj=io.BytesIO(data)), _LIMIT) or b""
        except (OSError, EOFError, zlib.error) as error:
            raise ScaleGMNError(f"{path}: not a complete gzip file ({error}); download it again") from error
    if len(data) < 4 or data[:3] != b"\x00\x00\x08" or data[3] not in (1, 2, 3, 4):
        raise ScaleGMNError(f"{path}: expected an IDX file of unsigned bytes, got one that starts with {data[:4]!r}")
    start = 4 + 4 * data[3]
    sizes = tuple(int.from_bytes(data[i : i + 4], "big") for i in range(4, start, 4))
    expected = math.prod(sizes)
    if len(data) - start != expected:
        raise ScaleGMNError(f"{path}: expected {expected} bytes of data for sizes {sizes}, got {len(data) - start}")
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(sizes)


def read_cifar_binary(path: Path) -> tuple[Pixels, Labels]:
    """A CIFAR-10 binary batch (Krizhevsky, 2009): a label byte, then 3 x 32 x 32 pixels, for each image."""
    data = np.frombuffer(read_bytes(path), dtype=np.uint8)
    if not len(data) or len(data) % _CIFAR_RECORD:
        raise ScaleGMNError(f"{path}: expected a multiple of {_CIFAR_RECORD} bytes, got {len(data)}")
    rows = data.reshape(-1, _CIFAR_RECORD)
    return _cifar_pixels(rows[:, 1:]), classes(path, rows[:, 0])


def read_cifar_python(path: Path) -> tuple[Pixels, Labels]:
    """A CIFAR-10 Python batch: a pickled dictionary with `data` (N, 3072) and `labels`.

    The file is not unpickled; anything but numbers, arrays and plain containers in it is refused by name.
    """
    try:
        batch = read_pickle(read_bytes(path))
    except ScaleGMNError as error:
        raise ScaleGMNError(f"{path}: {error}; download it again") from error
    entries = batch if isinstance(batch, dict) else {}
    data, labels = entries.get("data"), entries.get("labels")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (_CIFAR_RECORD - 1,):
        raise ScaleGMNError(f"{path}: expected an entry data of shape (N, {_CIFAR_RECORD - 1}) in uint8")
    if not isinstance(labels, list | np.ndarray) or len(labels) != len(data):
        raise ScaleGMNError(f"{path}: expected an entry labels with {len(data)} numbers")
    return _cifar_pixels(data), classes(path, labels)


def read_svhn(path: Path) -> tuple[Pixels, Labels]:
    """A cropped SVHN file (Netzer et al., 2011): X (32, 32, 3, N) and y (N, 1), where 10 stands for the digit 0."""
    # Imported here: scipy.io takes long to load, and only this format needs it.
    from scipy.io import loadmat

    try:
        content: dict[str, Any] = loadmat(path, variable_names=["X", "y"])
    except Exception as error:  # scipy raises many kinds on damaged files
        raise ScaleGMNError(f"{path}: not a readable .mat file ({type(error).__name__}); download it again") from error
    pixels, labels = content.get("X"), content.get("y")
    if pixels is None or labels is None or pixels.dtype != np.uint8 or pixels.ndim != 4:
        raise ScaleGMNError(f"{path}: expected X (H, W, 3, N) in uint8 and y, got {_shapes(content)}")
    if labels.size != pixels.shape[3]:
        raise ScaleGMNError(f"{path}: expected {pixels.shape[3]} labels in y, got {labels.size}")
    return np.ascontiguousarray(pixels.transpose(3, 0, 1, 2)), classes(path, labels.reshape(-1)) % 10


def read_npz(path: Path) -> tuple[Pixels, Labels]:
    """An .npz with x, uint8 of shape (N, H, W) or (N, H, W, C), and y, N integers."""
    x, y = (read_npz_array(path, name) for name in ("x", "y"))
    if x.dtype != np.uint8 or x.ndim not in (3, 4) or not x.size:
        raise ScaleGMNError(f"{path}: expected x (N, H, W) or (N, H, W, C) in uint8, got {x.shape} in {x.dtype}")
    if y.shape != x.shape[:1] or not np.issubdtype(y.dtype, np.integer):
        raise ScaleGMNError(f"{path}: expected y with {len(x)} integers, got {y.shape} in {y.dtype}")
    return x, classes(path, y)


def classes(path: Path, labels: Any) -> Labels:
    """Checked labels: whole numbers from 0 to 999.

    Arguments:
        path: The file, for the error message.
        labels: Numbers (N,).
    """
    plain = isinstance(labels, np.ndarray) or all(isinstance(n, int) for n in labels)
    found = np.asarray(labels if plain else "no numbers")
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise ScaleGMNError(f"{path}: expected labels that are whole numbers, got others")
    wrong = np.flatnonzero((found < 0) | (found >= CLASSES))
    if len(wrong):
        raise ScaleGMNError(
            f"{path}: expected labels from 0 to {CLASSES - 1}, image {wrong[0]} has {found[wrong[0]]}; "
            "number the classes from 0"
        )
    return found.astype(np.int64)


def _cifar_pixels(rows: NDArray[np.uint8]) -> Pixels:
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _shapes(content: dict[str, Any]) -> str:
    found = [f"{name} {value.shape}" for name, value in content.items() if isinstance(value, np.ndarray)]
    return ", ".join(found) or "no arrays"
