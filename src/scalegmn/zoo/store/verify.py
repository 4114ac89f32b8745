"""Finding damage: every file of a zoo is compared with the size and the SHA-256 that `zoo.json` records."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ...errors import ScaleGMNError
from ...files import StoredFile, hash_file
from ...files.arrays import MappedArrays
from .writer import HEADER, JOURNAL, header_hash
from .zoo import Zoo, read_header, stored_files

# Networks looked at together.
_ROWS = 1024


def verify(path: str | Path) -> list[str]:
    """One line for each problem of a zoo; none if it is intact.

    Arguments:
        path: The directory.
    """
    path = Path(path)
    if (path / JOURNAL).is_file() and not (path / HEADER).exists():
        return [f"{path}: unfinished; run the command that began it again"]
    if not (path / HEADER).is_file():
        raise ScaleGMNError(f"zoo: {path} holds no {HEADER}; build one with `scalegmn zoo build`")
    try:
        header = read_header(path)
        if header_hash(header) != header.get("sha256"):
            return [f"{HEADER}: changed since it was written (wrong checksum)"]
        found = [problem for stored in stored_files(header) if (problem := _problem(path, stored))]
        return found or list(_inconsistencies(Zoo.open(path)))
    except ScaleGMNError as error:
        return [str(error)]


def _problem(path: Path, stored: StoredFile) -> str | None:
    file = path / stored.file
    if not file.is_file():
        return f"{stored.file}: missing"
    size = file.stat().st_size
    if size != stored.bytes:
        what = "truncated" if size < stored.bytes else "too long"
        return f"{stored.file}: {what}, expected {stored.bytes} bytes, got {size}"
    if hash_file(file) != stored.sha256:
        return f"{stored.file}: changed since it was written (wrong checksum)"
    return None


def _inconsistencies(zoo: Zoo) -> Iterator[str]:
    """Problems that checksums do not show: intact files that do not fit together."""
    table = MappedArrays(zoo.path / zoo.header["table"]["file"])
    for name, column in table.items():
        if column.shape != (len(zoo),):
            yield f"{table.path.name}: column {name!r} has shape {column.shape}, expected ({len(zoo)},)"
    for shard, entry in enumerate(zoo.header["shards"]):
        try:
            weights = zoo.read_shard(shard)
        except ScaleGMNError as error:
            yield f"{entry['file']}: {error}"
            continue
        for start in range(0, len(weights), _ROWS):
            bad = np.flatnonzero(~np.isfinite(weights[start : start + _ROWS]).all(axis=1))
            if len(bad):
                number = zoo.start(shard) + start + int(bad[0])
                more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
                yield f"{entry['file']}: NaN or infinite weights in network {number}{more}"
                break
