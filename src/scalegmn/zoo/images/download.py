"""Downloading image collections from their official addresses, checked against their published sums."""

import hashlib
import logging
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pooch
import requests
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from ...errors import ScaleGMNError
from ...files import read_toml, write_atomically

_TIMEOUT_SECONDS = 60


@dataclass(frozen=True)
class Origin:
    """Where a collection comes from.

    Arguments:
        base_url: Address of the folder that holds the files.
        folder: Where they go below the root.
        files: The MD5 sum of each file.
        members: For an archive, the MD5 sum of each member to unpack below `folder`; the archive is removed afterwards.
    """

    base_url: str
    folder: str
    files: dict[str, str]
    members: dict[str, str] | None = None


ORIGINS: Final = {
    name: Origin(**told) for name, told in read_toml(Path(__file__).with_name("origins.toml")).items()
}


def download(name: str, root: str | Path, *, base_url: str | None = None, progress: bool = True) -> list[Path]:
    """Download a collection to the place where `scalegmn.zoo.images.collections.load_images` finds it.

    Files that are already there with the right sum are kept.

    Arguments:
        name: `mnist`, `fashion-mnist`, `cifar10` or `svhn`; `digits` needs no download.
        root: Folder of the files.
        base_url: Another address that serves the same files.
        progress: Show a progress bar.

    Returns:
        The files.

    >>> download("digits", "data")
    []
    """
    if name == "digits":
        return []
    if name not in ORIGINS:
        raise ScaleGMNError(f"images: expected one of digits, {', '.join(ORIGINS)}, got {name!r}")
    return fetch(ORIGINS[name], root, base_url=base_url, progress=progress)


def fetch(origin: Origin, root: str | Path, *, base_url: str | None = None, progress: bool = True) -> list[Path]:
    """Download the files of a collection; see `download`."""
    folder = Path(root) / origin.folder
    unpacked = [folder / member for member in origin.members or {}]
    sums = [p.is_file() and pooch.file_hash(str(p), alg="md5") for p in unpacked]
    if unpacked and sums == list((origin.members or {}).values()):
        return unpacked
    address = (base_url or origin.base_url).rstrip("/")
    files = [_retrieve(f"{address}/{file}", folder / file, md5, progress) for file, md5 in origin.files.items()]
    if origin.members is None:
        return files
    for archive in files:
        _unpack(archive, folder, origin.members)
        archive.unlink()
    return unpacked


def _retrieve(url: str, path: Path, md5: str, progress: bool) -> Path:
    """One file. It gets its name only once it is complete and its sum is right."""
    try:
        with _bar(path.name, progress) as bar, _quiet_pooch():
            downloader = pooch.HTTPDownloader(
                progressbar=bar if progress else False,
                chunk_size=2**16,
                timeout=_TIMEOUT_SECONDS,
                # A server must not unpack the .gz on the way: the sum is that of the packed file.
                headers={"Accept-Encoding": "identity"},
            )
            pooch.retrieve(url, f"md5:{md5}", fname=path.name, path=path.parent, downloader=downloader)
    except requests.exceptions.RequestException as error:
        reason = " ".join(str(error).split())
        raise ScaleGMNError(f"{url}: download failed, nothing was kept ({reason}); try again") from error
    except ValueError as error:
        path.unlink(missing_ok=True)
        raise ScaleGMNError(f"{url}: wrong checksum, expected md5 {md5}, the file was removed; try again") from error
    except OSError as error:
        raise ScaleGMNError(f"{path}: cannot be written ({error})") from error
    return path


def _unpack(archive: Path, folder: Path, members: dict[str, str]) -> None:
    """Writes the wanted members, and no others, each under its name only once its sum is right."""
    try:
        with tarfile.open(archive) as tar:
            for member, md5 in members.items():
                stream = tar.extractfile(member)
                if stream is None:
                    raise KeyError(member)
                target = folder / member
                target.parent.mkdir(parents=True, exist_ok=True)
                content = stream.read()
                if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
                    raise ScaleGMNError(f"{archive}: wrong checksum of {member}, expected md5 {md5}")
                write_atomically(target, content)
    except (tarfile.TarError, KeyError, EOFError, zlib.error) as error:
        raise ScaleGMNError(f"{archive}: not the expected archive ({error})") from error


class _Bar:
    """The four calls that pooch makes on a progress bar, drawn by rich."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress = progress
        self._task = progress.add_task(name, total=None)

    @property
    def total(self) -> float | None:
        return self._progress.tasks[self._task].total

    @total.setter
    def total(self, size: int) -> None:
        # Servers that do not tell the size report 0.
        self._progress.update(self._task, total=size or None)

    def update(self, size: int) -> None:
        self._progress.advance(self._task, size)

    def reset(self) -> None:
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        self._progress.stop_task(self._task)


@contextmanager
def _bar(name: str, shown: bool) -> Iterator[_Bar]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, disable=not shown) as progress:
        yield _Bar(progress, name)


@contextmanager
def _quiet_pooch() -> Iterator[None]:
    """Silence pooch's own messages about downloads; errors are raised as exceptions."""
    logger = pooch.get_logger()
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)
