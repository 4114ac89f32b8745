"""Reading and writing files: regular files only, written whole or not at all; JSON, TOML and hashes."""

import errno
import hashlib
import io
import json
import os
import shutil
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, BinaryIO

from ..errors import ScaleGMNError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_BLOCK = 1 << 22
# What reading a damaged file may raise, depending on where it breaks off.
DAMAGE = (
    ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, EOFError, OSError, SyntaxError,
    TokenError,  # numpy takes headers of old versions apart as Python does
)  # fmt: skip


@dataclass(frozen=True)
class StoredFile:
    """A file as `zoo.json` records it: its name, its size in bytes and its SHA-256."""

    file: str
    bytes: int
    sha256: str


def write_atomically(path: Path, content: bytes) -> StoredFile:
    """Write a file so that after a crash either the whole new file is there or the old one is unchanged."""
    with _named(path), _draft(path.with_name(f".{path.name}.tmp")) as draft:
        if path.exists() and not path.is_file() and not path.is_dir():
            # A rename would put a file in the place of a pipe or a device, such as /dev/null.
            raise OSError(errno.EINVAL, "it is not a regular file")
        _write_through(draft, content)
        Path(draft.name).replace(path)
        flush_directory(path.parent)
    return StoredFile(path.name, len(content), hashlib.sha256(content).hexdigest())


def write_directory(path: Path, contents: Mapping[str, bytes]) -> None:
    """Write a directory of files so that after a crash it is either complete or absent.

    Arguments:
        path: The directory, which must not exist yet.
        contents: The bytes of each file, by name.
    """
    with _named(path):
        draft = path.with_name(f".{path.name}.tmp")
        shutil.rmtree(draft, ignore_errors=True)
        try:
            draft.mkdir(parents=True)
            for name, content in contents.items():
                with (draft / name).open("wb") as file:
                    _write_through(file, content)
            draft.rename(path)
            flush_directory(path.parent)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise


def append_line(path: Path, line: str) -> None:
    """Append a line to a file; if the disk is full, nothing of it is kept."""
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
    """Turn errors of the system while writing a file into one line with the name of the file."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ScaleGMNError(f"{path}: cannot be written ({reason}); nothing of it was kept") from error


@contextmanager
def _draft(path: Path) -> Iterator[BinaryIO]:
    """An empty file that no other process fills meanwhile; if something goes wrong it vanishes."""
    # Opened without emptying it: another process may be at it.
    with path.open("ab") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _still_there(path, file.fileno())
            except BlockingIOError as error:
                raise BlockingIOError(error.errno, "another process is writing it") from None
            except OSError:
                pass  # a file system without locks
        try:
            file.truncate(0)
            yield file
        except BaseException:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            raise


def _write_through(file: BinaryIO, content: bytes) -> None:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def flush_directory(path: Path) -> None:
    """Flush the names in a directory to disk; without this a rename may be lost when the power fails."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write_json(path: Path, value: Any) -> StoredFile:
    """Write JSON that people can read; NaN and infinities are refused."""
    return write_atomically(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def write_lines(path: Path, values: Iterable[Mapping[str, Any]]) -> None:
    """Replace a file of JSON objects, one on each line."""
    write_atomically(path, "".join(json.dumps(value) + "\n" for value in values).encode())


def make_directory(path: Path) -> None:
    """Make a directory and its parents if they do not exist."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ScaleGMNError(f"out: {path} is a file; give a directory") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ScaleGMNError(f"out: {str(path)!r} cannot be made ({reason}); give another directory") from error


@contextmanager
def directory_for(path: Path) -> Iterator[Path]:
    """Make a directory for what is written next; if nothing could be, and it is new, it is taken away again."""
    new = not path.exists()
    make_directory(path)
    try:
        yield path
    except BaseException:
        if new:
            with suppress(OSError):
                path.rmdir()
        raise


@contextmanager
def fresh_directory(out: str | Path) -> Iterator[Path]:
    """A temporary directory beside `out` that becomes `out` at the end, or is removed if something goes wrong."""
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
    """Hold a lock, or raise an error if another process holds it. The lock is freed when its process ends.

    Arguments:
        path: The file that is locked, made if missing, or a directory.
        complaint: The error message.
    """
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        raise ScaleGMNError(f"{path}: cannot be opened ({error.strerror}); give another place") from error
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _still_there(path, descriptor)
        yield
    except BlockingIOError:
        raise ScaleGMNError(complaint) from None
    finally:
        os.close(descriptor)


def _still_there(path: Path, descriptor: int) -> None:
    """Whoever held the lock of a file before may have put it away in the meantime."""
    if not path.exists() or not os.path.samestat(os.fstat(descriptor), path.stat()):
        raise BlockingIOError(errno.EAGAIN, "another process put it away")


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading; pipes, devices and folders are refused, since reading them may never end."""
    try:
        if not path.is_file():
            raise ScaleGMNError(f"{path}: {'is not a regular file' if path.exists() else 'is missing'}")
        return path.open("rb")
    except OSError as error:
        raise ScaleGMNError(f"{path}: cannot be read ({error.strerror}); check its name and permissions") from error


def real_path(path: str | Path) -> Path:
    """The absolute path without links, whatever is there; a link that leads to itself stays as it is."""
    try:
        return Path(os.path.realpath(path))
    except ValueError as error:
        raise ScaleGMNError(f"{str(path)!r} is not a valid file name ({error})") from error


def read_bytes(path: Path, limit: int = 1 << 32) -> bytes:
    """The content of a file of at most `limit` bytes."""
    with open_file(path) as file:
        content = read_at_most(file, limit)
    if content is None:
        raise ScaleGMNError(f"{path}: expected at most {limit} bytes, found more")
    return content


def read_at_most(file: IO[bytes] | io.BufferedIOBase, limit: int) -> bytes | None:
    """The rest of an open file, block by block; nothing if it has more than `limit` bytes.

    >>> import io
    >>> read_at_most(io.BytesIO(b"abc"), 3), read_at_most(io.BytesIO(b"abcd"), 3)
    (b'abc', None)
    """
    # Asked for all at once, it would first set aside memory for `limit` bytes.
    content = bytearray()
    while block := file.read(_BLOCK):
        content += block
        if len(content) > limit:
            return None
    return bytes(content)


def read_json(path: Path) -> Any:
    """The JSON in a file."""
    content = read_bytes(path)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ScaleGMNError(f"{path}: is damaged or not JSON ({in_one_line(error)})") from error


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise ScaleGMNError(f"{path}: expected a JSON object, got {type(found).__name__}")
    return found


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a file of JSON objects; a line that a crash cut short is left out."""
    if not path.exists():
        return []
    content = read_bytes(path)
    with believing(path):
        found = [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]
    if not all(isinstance(line, dict) for line in found):
        raise ScaleGMNError(f"{path}: expected a JSON object on every line")
    return found


def read_toml(path: Path) -> dict[str, Any]:
    """The TOML in a file."""
    content = read_bytes(path, 1 << 24)
    try:
        return parse_toml(content.decode())
    except (ValueError, RecursionError) as error:
        raise ScaleGMNError(f"{path}: not valid TOML ({in_one_line(error)})") from error


def parse_toml(text: str) -> dict[str, Any]:
    """The values of a TOML text; as the format demands, integers have at most 64 bits."""
    found = tomllib.loads(text)
    values: list[Any] = [found]
    while values:
        match values.pop():
            case dict() as table:
                values += table.values()
            case list() as array:
                values += array
            case int() as number if number.bit_length() > 64:
                raise ValueError("an integer of more than 64 bits")
    return found


@contextmanager
def believing(path: Path, advice: str = "") -> Iterator[None]:
    """Turn errors while using the content of a file (missing or senseless entries) into one line with its name.

    Arguments:
        path: The file.
        advice: What the reader of the message can do.

    >>> with believing(Path("config.json")):
    ...     {}["task"]
    Traceback (most recent call last):
    scalegmn.errors.ScaleGMNError: config.json: is damaged (it lacks 'task')
    """
    try:
        yield
    except ScaleGMNError as error:
        raise ScaleGMNError(str(error) if str(path) in str(error) else f"{path}: {error}") from error
    except (*DAMAGE, IndexError, ZeroDivisionError, MemoryError) as error:
        told = f"it lacks {in_one_line(error)}" if isinstance(error, KeyError) else in_one_line(error)
        raise ScaleGMNError(f"{path}: is damaged ({told}){advice and f'; {advice}'}") from error


def in_one_line(error: BaseException) -> str:
    """The message of an error in one line."""
    return " ".join(str(error).split())[:120] or type(error).__name__


def hash_file(path: Path) -> str:
    """The SHA-256 of a file, read in blocks."""
    digest = hashlib.sha256()
    with open_file(path) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
