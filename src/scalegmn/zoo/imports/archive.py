"""Folders and archives behind one interface: named files, read one at a time; an archive cannot write anywhere.

They come from other people, so names, sizes and contents are checked before they are used.
"""

import gzip
import io
import pickle
import stat
import tarfile
import tempfile
import warnings
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Final

import torch
from torch import Tensor

from ...convert.formats.files import as_state
from ...errors import ScaleGMNError
from ...files import real_path

# A checkpoint of one small network: more is not what the published collections hold.
STATE_LIMIT: Final = 64 << 20
# Trained weights hardly compress; what swells beyond this was made to fill a disk.
SWELLING: Final = 100
_BLOCK: Final = 1 << 22
_SUFFIXES: Final = (".zip", ".tar", ".tar.gz", ".tgz")


class Files(ABC):
    """Files by name.

    Arguments:
        path: The folder or archive.
        names: Relative names with slashes; files that macOS adds to archives are skipped.
    """

    def __init__(self, path: Path, names: list[str]) -> None:
        self.path = path
        self.names = sorted(name for name in names if not _is_clutter(name))

    @abstractmethod
    def open(self, name: str) -> IO[bytes]:
        """Open one of the files."""

    def read(self, name: str, limit: int = STATE_LIMIT) -> bytes:
        """The content of a file of at most `limit` bytes."""
        with self.open(name) as file:
            content = _careful(self.where(name), file, limit + 1)
        if len(content) > limit:
            raise ScaleGMNError(f"{self.where(name)}: expected at most {limit >> 20} MiB, found more")
        return content

    def where(self, name: str) -> str:
        """What to call a file in a message."""
        return f"{self.path.name}: {name}"

    def find(self, *names: str) -> str | None:
        """The one file with any of these names, in whatever folder; None if there is none."""
        found = [n for n in self.names if PurePosixPath(n).name in names]
        if len(found) > 1:
            raise ScaleGMNError(f"{self.path}: expected one {names[0]}, found {found[0]} and {found[1]}")
        return found[0] if found else None


class _Folder(Files):
    def __init__(self, path: Path) -> None:
        names = []
        for found in path.rglob("*"):
            name = found.relative_to(path).as_posix()
            if found.is_symlink() and not real_path(found).is_relative_to(real_path(path)):
                raise ScaleGMNError(f"{path}: {name} is a link that leads out of the folder")
            if found.is_file():
                names.append(name)
            elif not found.is_dir():
                raise ScaleGMNError(f"{path}: {name} is neither a file nor a folder")
        super().__init__(path, names)

    def open(self, name: str) -> IO[bytes]:
        return (self.path / name).open("rb")


class _Zip(Files):
    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._entries: dict[str, zipfile.ZipInfo] = {}
        for entry in archive.infolist():
            if entry.is_dir():
                continue
            mode = entry.external_attr >> 16
            _check_name(path, entry.filename, self._entries, regular=not mode or not stat.S_ISLNK(mode))
            if entry.file_size > SWELLING * max(entry.compress_size, 1 << 16):
                raise ScaleGMNError(f"{path.name}: {entry.filename} grows more than {SWELLING}-fold; refused")
            self._entries[entry.filename] = entry
        super().__init__(path, list(self._entries))

    def open(self, name: str) -> IO[bytes]:
        try:
            return self._archive.open(self._entries[name])
        except (zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
            raise ScaleGMNError(f"{self.where(name)}: cannot be read ({error})") from error


class _Tar(Files):
    def __init__(self, path: Path, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._entries: dict[str, tarfile.TarInfo] = {}
        for entry in archive:
            if entry.isdir():
                continue
            _check_name(path, entry.name, self._entries, regular=entry.isreg())
            self._entries[entry.name] = entry
        super().__init__(path, list(self._entries))

    def open(self, name: str) -> IO[bytes]:
        file = self._archive.extractfile(self._entries[name])
        assert file is not None
        return file


def _is_clutter(name: str) -> bool:
    return any(part.startswith("._") or part in ("__MACOSX", ".DS_Store") for part in name.split("/"))


def _check_name(path: Path, name: str, seen: Mapping[str, object], *, regular: bool) -> None:
    """Refuse names that lead out of the archive, links, devices, and a name that comes twice."""
    parts = PurePosixPath(name.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or ":" in name.split("/")[0] or "\0" in name:
        raise ScaleGMNError(f"{path.name}: {name!r} leads out of the archive; refused")
    if not regular:
        raise ScaleGMNError(f"{path.name}: {name!r} is a link or a device; expected files only")
    if name in seen:
        raise ScaleGMNError(f"{path.name}: {name!r} comes twice; refused")


@contextmanager
def open_files(path: str | Path) -> Iterator[Files]:
    """A folder, or an archive (.zip, .tar, .tar.gz, .tgz).

    Compressed tar archives are unpacked to an unnamed temporary file, so that their entries can be read in any order.
    """
    path = Path(path)
    with ExitStack() as stack:
        if path.is_dir():
            yield _Folder(path)
            return
        if not path.is_file():
            raise ScaleGMNError(f"source: no file or folder {path}")
        if not path.name.endswith(_SUFFIXES):
            raise ScaleGMNError(f"source: expected a folder or a file in {', '.join(_SUFFIXES)}; got {path}")
        try:
            if path.suffix == ".zip":
                source: Files = _Zip(path, stack.enter_context(zipfile.ZipFile(path)))
            else:
                plain = stack.enter_context(_inflated(path) if path.suffix in (".gz", ".tgz") else path.open("rb"))
                source = _Tar(path, stack.enter_context(tarfile.open(fileobj=plain, mode="r:")))
        except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ScaleGMNError(f"source: {path} is damaged or not an archive ({error})") from error
        yield source


@contextmanager
def _inflated(path: Path) -> Iterator[IO[bytes]]:
    limit = SWELLING * max(path.stat().st_size, 1 << 16)
    with tempfile.TemporaryFile() as plain, gzip.open(path) as packed:
        while block := packed.read(_BLOCK):
            plain.write(block)
            if plain.tell() > limit:
                raise ScaleGMNError(f"source: {path} grows more than {SWELLING}-fold; refused")
        plain.seek(0)
        yield plain


def _careful(where: str, file: IO[bytes], size: int) -> bytes:
    try:
        return file.read(size)
    except (zipfile.BadZipFile, zlib.error, EOFError, tarfile.TarError, OSError) as error:
        raise ScaleGMNError(f"{where}: cannot be read ({error})") from error


def copy_out(source: Files, name: str, folder: Path) -> Path:
    """A file as a path that can be memory-mapped: its own in a folder, a copy in `folder` from an archive."""
    if isinstance(source, _Folder):
        return source.path / name
    target = folder / PurePosixPath(name).name
    with source.open(name) as file, target.open("wb") as copy:
        while block := _careful(source.where(name), file, _BLOCK):
            copy.write(block)
    return target


def read_member(source: Files, name: str) -> dict[str, Tensor]:
    """The state dict in one of the files, on the CPU; code in it is refused, not run."""
    content = source.read(name)
    try:
        with warnings.catch_warnings():
            # What torch has to say about old formats is of no use to whoever imports them.
            warnings.simplefilter("ignore")
            loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ScaleGMNError(
            f"{source.where(name)}: holds Python objects, not only tensors; it was not loaded, as that could run code"
        ) from error
    except Exception as error:
        # What a damaged file raises depends on where it breaks off.
        raise ScaleGMNError(f"{source.where(name)}: is damaged or not a file that torch.save wrote") from error
    state = as_state(loaded, source.where(name)) if isinstance(loaded, Mapping) else None
    if state is None:
        raise ScaleGMNError(f"{source.where(name)}: expected a state dict, got a {type(loaded).__name__}")
    return state
