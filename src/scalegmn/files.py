"""Files of a zoo: written whole or not at all, checked against their hash, and memory-mapped."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import ScaleGMNError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

Array = NDArray[Any]

_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip
_BLOCK = 1 << 22


@dataclass(frozen=True)
class StoredFile:
    """A file as `zoo.json` records it: its name, its size in bytes and its SHA-256."""

    file: str
    bytes: int
    sha256: str


def write_atomically(path: Path, content: bytes) -> StoredFile:
    """Write a file so that after a crash it is there whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    # Without this the rename itself may be lost with the power.
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return StoredFile(path.name, len(content), hashlib.sha256(content).hexdigest())


@contextmanager
def alone(path: Path, complaint: str) -> Iterator[None]:
    """Hold a lock file, or raise the complaint if another process holds it; the end of a process frees it, however.

    Arguments:
        path: The lock file, made if missing.
        complaint: What to say.
    """
    with path.open("ab") as file:
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ScaleGMNError(complaint) from None
        yield


def pack(arrays: Mapping[str, Array], note: Any = None) -> bytes:
    """Arrays as the bytes of a safetensors file; `note` is stored beside them as JSON."""
    from safetensors.numpy import save

    # A single entry: the order of several would vary from run to run.
    metadata = None if note is None else {"note": json.dumps(note, sort_keys=True, allow_nan=False)}
    return save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, metadata)


def hash_file(path: Path) -> str:
    """The SHA-256 of a file, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


class MappedArrays(Mapping[str, Array]):
    """The arrays of a safetensors file, memory-mapped and read only.

    Arguments:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            length = int.from_bytes(self._memory[:8], "little")
            header = json.loads(self._memory[8 : 8 + length])
            self.note = json.loads(header.pop("__metadata__", {}).get("note", "null"))
            self._arrays = {name: self._array(entry, 8 + length) for name, entry in header.items()}
        except FileNotFoundError as error:
            raise ScaleGMNError(f"zoo: {path} is missing; `scalegmn zoo verify` lists what is damaged") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ScaleGMNError(
                f"zoo: {path} is not a readable safetensors file; `scalegmn zoo verify` lists what is damaged"
            ) from error

    def _array(self, entry: Mapping[str, Any], start: int) -> Array:
        begin, end = entry["data_offsets"]
        dtype, shape = np.dtype(_DTYPES[entry["dtype"]]), tuple(entry["shape"])
        count = int(np.prod(shape, dtype=np.int64))
        if end - begin != count * dtype.itemsize:
            raise ValueError("shape and size disagree")
        return np.frombuffer(self._memory, dtype, count, start + begin).reshape(shape)

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def __iter__(self) -> Any:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)
