"""Reading and writing files: regular files only, written whole or not at all, with hashes and memory maps."""

from __future__ import annotations

import hashlib
import io
import json
import math
import mmap
import os
import shutil
import tomllib
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
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
# What reading a damaged file may raise, depending on where it breaks off.
_DAMAGE = (
    ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, EOFError, OSError, SyntaxError,
)  # fmt: skip


@dataclass(frozen=True)
class StoredFile:
    """A file as `zoo.json` records it: its name, its size in bytes and its SHA-256."""

    file: str
    bytes: int
    sha256: str


# -- writing -----------------------------------------------------------------------------------------------------------


def write_atomically(path: Path, content: bytes) -> StoredFile:
    """Write a file so that after a crash it is there whole or not at all; what was there stays until then."""
    with _named(path):
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            _write_through(temporary, content)
            temporary.replace(path)
            flush_directory(path.parent)
        except BaseException:
            # What could not be made cannot be removed either.
            with suppress(OSError, ValueError):
                temporary.unlink(missing_ok=True)
            raise
    return StoredFile(path.name, len(content), hashlib.sha256(content).hexdigest())


def write_directory(path: Path, contents: Mapping[str, bytes]) -> None:
    """Write a directory of files so that after a crash it is there whole or not at all.

    Arguments:
        path: Of the directory, which is not there yet.
        contents: By the name of the file.
    """
    with _named(path):
        draft = path.with_name(f".{path.name}.tmp")
        shutil.rmtree(draft, ignore_errors=True)
        try:
            draft.mkdir(parents=True)
            for name, content in contents.items():
                _write_through(draft / name, content)
            draft.rename(path)
            flush_directory(path.parent)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise


def append_line(path: Path, line: str) -> None:
    """Add a line to a file; where there is no room for all of it, none of it stays."""
    with _named(path), path.open("ab") as file:
        before = file.tell()
        try:
            file.write(f"{line}\n".encode())
            file.flush()
        except OSError:
            with suppress(OSError):
                os.truncate(path, before)
            raise


def write_figure(path: str | Path, figure: Any, *, dpi: int, tight: bool = False) -> None:
    """Write a figure of matplotlib; the suffix decides the format.

    Arguments:
        path: A name that ends in .png, .svg or .pdf.
        figure: The `matplotlib.figure.Figure`.
        dpi: Pixels per inch.
        tight: Whether to cut off the empty margins.
    """
    path, buffer = Path(path), io.BytesIO()
    try:
        figure.savefig(buffer, dpi=dpi, format=path.suffix[1:] or "png", bbox_inches="tight" if tight else None)
    except ValueError as error:
        raise ScaleGMNError(f"plot: cannot write {path} ({str(error)[:120]})") from error
    write_atomically(path, buffer.getvalue())


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """What the system says while a file is written, with the name of the file."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ScaleGMNError(f"{path}: cannot be written ({reason}); nothing of it was kept") from error


def _write_through(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def flush_directory(path: Path) -> None:
    """Names too go to the disk; without this a rename itself may be lost with the power."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write_json(path: Path, value: Any) -> StoredFile:
    """Write JSON that people can read; NaN and infinities are refused."""
    return write_atomically(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def write_npz(path: Path, arrays: Mapping[str, Array]) -> StoredFile:
    """Write arrays as a compressed .npz."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **dict(arrays))  # type: ignore[arg-type]
    return write_atomically(path, buffer.getvalue())


def make_directory(path: Path) -> None:
    """Make a directory and those above it, where they are not there yet."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ScaleGMNError(f"out: {path} is a file; give a directory") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ScaleGMNError(f"out: {str(path)!r} cannot be made ({reason}); give another directory") from error


@contextmanager
def fresh_directory(out: str | Path) -> Iterator[Path]:
    """A directory to fill beside `out` that becomes `out` at the end, or vanishes if something goes wrong."""
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ScaleGMNError(f"out: {out} exists and is not an empty directory; give another one")
    unfinished = out.with_name(f".{out.name}.unfinished")
    make_directory(unfinished)
    with alone(unfinished, f"out: another process is writing {out}; wait for it"):
        try:
            # What a process that was killed has left.
            for path in unfinished.iterdir():
                path.unlink()
            yield unfinished
            if out.exists():
                out.rmdir()
            unfinished.rename(out)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise


@contextmanager
def alone(path: Path, complaint: str) -> Iterator[None]:
    """Hold a lock, or raise the complaint if another process holds it. It is free again when that process ends.

    Arguments:
        path: The file that is locked, made if missing, or a directory.
        complaint: What to say.
    """
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        raise ScaleGMNError(f"{path}: cannot be opened ({error.strerror}); give another place") from error
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever held it may have put the file away in the meantime.
            if not path.exists() or not os.path.samestat(os.fstat(descriptor), path.stat()):
                raise BlockingIOError
        yield
    except BlockingIOError:
        raise ScaleGMNError(complaint) from None
    finally:
        os.close(descriptor)


def pack(arrays: Mapping[str, Array], note: Any = None) -> bytes:
    """Arrays as the bytes of a safetensors file; `note` is stored beside them as JSON."""
    from safetensors.numpy import save

    # A single entry: the order of several would vary from run to run.
    metadata = None if note is None else {"note": json.dumps(note, sort_keys=True, allow_nan=False)}
    return save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, metadata)


# -- reading -----------------------------------------------------------------------------------------------------------


def open_file(path: Path) -> BinaryIO:
    """A file to read; pipes, devices and folders are refused, since reading them may never end."""
    try:
        if not path.is_file():
            raise ScaleGMNError(f"{path}: {'is not a regular file' if path.exists() else 'is missing'}")
        return path.open("rb")
    except OSError as error:
        raise ScaleGMNError(f"{path}: cannot be read ({error.strerror}); check its name and permissions") from error


def read_bytes(path: Path, limit: int = 1 << 32) -> bytes:
    """The content of a file of at most `limit` bytes."""
    with open_file(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ScaleGMNError(f"{path}: expected at most {limit} bytes, found more")
    return content


def read_json(path: Path) -> Any:
    """The JSON in a file."""
    try:
        return json.loads(read_bytes(path))
    except ScaleGMNError:
        raise
    except (ValueError, RecursionError) as error:
        raise ScaleGMNError(f"{path}: is damaged or not JSON ({_short(error)})") from error


def read_toml(path: Path) -> dict[str, Any]:
    """The TOML in a file."""
    try:
        return tomllib.loads(read_bytes(path, 1 << 24).decode())
    except ScaleGMNError:
        raise
    except (ValueError, RecursionError) as error:
        raise ScaleGMNError(f"{path}: not valid TOML ({_short(error)})") from error


@contextmanager
def believing(path: Path, advice: str = "") -> Iterator[None]:
    """While what a file says is put to use: what it lacks, and what makes no sense, is one line with its name.

    Arguments:
        path: The file that is believed.
        advice: What to do.

    >>> with believing(Path("config.json")):
    ...     {}["task"]
    Traceback (most recent call last):
    scalegmn.errors.ScaleGMNError: config.json: is damaged (it lacks 'task')
    """
    try:
        yield
    except ScaleGMNError as error:
        raise ScaleGMNError(str(error) if str(path) in str(error) else f"{path}: {error}") from error
    except (*_DAMAGE, IndexError, ZeroDivisionError, MemoryError) as error:
        told = f"it lacks {_short(error)}" if isinstance(error, KeyError) else _short(error)
        raise ScaleGMNError(f"{path}: is damaged ({told}){advice and f'; {advice}'}") from error


def _short(error: BaseException) -> str:
    """The words of an error in one line."""
    return " ".join(str(error).split())[:120] or type(error).__name__


def read_npz_array(path: Path, name: str, limit: int = 1 << 32) -> Array:
    """One array of numbers from an .npz; its header is compared with what is there before it is believed.

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
    except (*_DAMAGE, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        raise ScaleGMNError(f"{path}: not a readable .npz file ({_short(error)})") from error


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
        except (zipfile.BadZipFile, *_DAMAGE) as error:
            raise ScaleGMNError(f"{path}: not a readable .npz file ({_short(error)})") from error
        return read_npz_array(path, first, limit)
    try:
        with open_file(path) as file:
            return _read_array(file, path.stat().st_size, str(path), limit)
    except ScaleGMNError:
        raise
    except _DAMAGE as error:
        raise ScaleGMNError(f"{path}: not a readable .npy file ({_short(error)})") from error


def _read_array(file: Any, size: int, what: str, limit: int) -> Array:
    """An array in NumPy's format that has `size` bytes with its header."""
    old = npy.read_magic(file) == (1, 0)
    shape, by_columns, dtype = (npy.read_array_header_1_0 if old else npy.read_array_header_2_0)(file)
    if dtype.hasobject:
        raise ScaleGMNError(f"{what}: expected numbers, got pickled objects, which were not read")
    if math.prod(shape) * dtype.itemsize != size - file.tell() or size > limit:
        raise ScaleGMNError(f"{what} of shape {shape} does not fit its {size} bytes"[:200])
    return np.frombuffer(file.read(), dtype).reshape(shape, order="F" if by_columns else "C")


def hash_file(path: Path) -> str:
    """The SHA-256 of a file, read in blocks."""
    digest = hashlib.sha256()
    with open_file(path) as file:
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
            with open_file(path) as file:
                self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            length = int.from_bytes(self._memory[:8], "little")
            header = json.loads(self._memory[8 : 8 + length])
            self.note = json.loads(header.pop("__metadata__", {}).get("note", "null"))
            self._arrays = {name: self._array(entry, 8 + length) for name, entry in header.items()}
        except ScaleGMNError as error:
            raise ScaleGMNError(f"zoo: {error}; `scalegmn zoo verify` lists what is damaged") from error
        except _DAMAGE as error:
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
