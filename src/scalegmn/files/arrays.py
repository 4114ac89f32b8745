"""Arrays of numbers in files: NumPy's formats, and safetensors as memory maps."""

import io
import json
import math
import mmap
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ..errors import ScaleGMNError
from . import DAMAGE, StoredFile, in_one_line, open_file, write_atomically

Array = NDArray[Any]

_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip


def write_npz(path: Path, arrays: Mapping[str, Array]) -> StoredFile:
    """Write arrays as a compressed .npz."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **dict(arrays))  # type: ignore[arg-type]
    return write_atomically(path, buffer.getvalue())


def pack(arrays: Mapping[str, Array], note: Any = None) -> bytes:
    """Arrays as the bytes of a safetensors file; `note` is stored beside them as JSON."""
    from safetensors.numpy import save

    # A single entry: the order of several would vary from run to run.
    metadata = None if note is None else {"note": json.dumps(note, sort_keys=True, allow_nan=False)}
    return save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, metadata)


def read_npz_array(path: Path, name: str, limit: int = 1 << 32) -> Array:
    """One array of numbers from an .npz; its header is compared with the size of the data first.

    Arguments:
        path: The file.
        name: Of the array.
        limit: Bytes that it may have.
    """
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            members = [n.removesuffix(".npy") for n in archive.namelist()]
            if name not in members:
                raise ScaleGMNError(f"{path}: expected an array {name}, got {', '.join(members)[:80] or 'none'}")
            size = archive.getinfo(f"{name}.npy").file_size
            with archive.open(f"{name}.npy") as member:
                return _read_array(member, size, f"{path}: {name}", limit)
    except ScaleGMNError:
        raise
    except (*DAMAGE, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        raise ScaleGMNError(f"{path}: not a readable .npz file ({in_one_line(error)})") from error


def read_npy(path: Path, limit: int = 1 << 32) -> Array:
    """The array of numbers in an .npy, or the first one in an .npz.

    Arguments:
        path: The file.
        limit: Bytes that it may have.
    """
    if path.suffix == ".npz":
        try:
            with open_file(path) as file, zipfile.ZipFile(file) as archive:
                first = next(iter(archive.namelist()), "").removesuffix(".npy")
        except (zipfile.BadZipFile, *DAMAGE) as error:
            raise ScaleGMNError(f"{path}: not a readable .npz file ({in_one_line(error)})") from error
        return read_npz_array(path, first, limit)
    try:
        with open_file(path) as file:
            return _read_array(file, path.stat().st_size, str(path), limit)
    except ScaleGMNError:
        raise
    except DAMAGE as error:
        raise ScaleGMNError(f"{path}: not a readable .npy file ({in_one_line(error)})") from error


def _read_array(file: Any, size: int, what: str, limit: int) -> Array:
    """An array in NumPy's format that has `size` bytes with its header."""
    old = npy.read_magic(file) == (1, 0)
    shape, by_columns, dtype = (npy.read_array_header_1_0 if old else npy.read_array_header_2_0)(file)
    if dtype.hasobject:
        raise ScaleGMNError(f"{what}: expected numbers, got pickled objects, which were not read")
    if math.prod(shape) * dtype.itemsize != size - file.tell() or size > limit:
        raise ScaleGMNError(f"{what} of shape {shape} does not fit its {size} bytes"[:200])
    return np.frombuffer(file.read(), dtype).reshape(shape, order="F" if by_columns else "C")


class MappedArrays(Mapping[str, Array]):
    """The arrays of a safetensors file, memory-mapped and read only.

    Arguments:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open_file(path) as file:
                self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            length = int.from_bytes(self._memory[:8], "little")
            header = json.loads(self._memory[8 : 8 + length])
            self.note = json.loads(header.pop("__metadata__", {}).get("note", "null"))
            self._arrays = {name: self._array(entry, 8 + length) for name, entry in header.items()}
        except ScaleGMNError as error:
            raise ScaleGMNError(f"zoo: {error}; `scalegmn zoo verify` lists what is damaged") from error
        except DAMAGE as error:
            raise ScaleGMNError(
                f"zoo: {path} is not a readable safetensors file; `scalegmn zoo verify` lists what is damaged"
            ) from error

    def _array(self, entry: Mapping[str, Any], start: int) -> Array:
        begin, end = entry["data_offsets"]
        dtype, shape = np.dtype(_DTYPES[entry["dtype"]]), tuple(entry["shape"])
        count = math.prod(shape)
        if end - begin != count * dtype.itemsize:
            raise ValueError("shape and size disagree")
        return np.frombuffer(self._memory, dtype, count, start + begin).reshape(shape)

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def __iter__(self) -> Any:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)
