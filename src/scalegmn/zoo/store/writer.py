"""Writing a zoo shard by shard, so that a killed build continues where it stopped."""

import hashlib
import json
import os
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.architecture import Architecture
from ...core.schema import Json, architecture_from_json, architecture_to_json, from_json, to_json
from ...errors import ScaleGMNError
from ...files import StoredFile, alone, directory_for, hash_file, read_json, write_atomically, write_json
from ...files.arrays import Array, MappedArrays, pack
from ..inr.canvas import Canvas

VERSION = 1
HEADER, JOURNAL, TABLE, IMAGES = "zoo.json", "building.json", "table.safetensors", "images.safetensors"
SPLITS = ("train", "val", "test")
Column = Tensor | Array | Sequence[str]


class ZooWriter:
    """A zoo under construction.

    While it is built, the directory holds `building.json` (the arguments), and for each complete shard its weights and
    a part of the table. `finish` joins the parts and writes `zoo.json` last.

    Arguments:
        path: The directory; created if it does not exist.
        kind: What the networks are, such as `inr` or `cnn`.
        arguments: Everything that decides the content. A directory that was begun with other arguments is refused.
        canvas: The pictures of the networks, for INRs.
        formerly: Other values of arguments that mean the same, in older zoos.

    >>> import tempfile
    >>> architecture = Architecture.mlp([2, 8, 1], "tanh")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     writer = ZooWriter(folder, kind="example", arguments={"seed": 0})
    ...     writer.append(architecture, torch.randn(3, 33), {"label": torch.arange(3), "split": ["train"] * 3})
    ...     writer.finish()
    ...     sorted(path.name for path in Path(folder).iterdir())
    ['parameters-00000.safetensors', 'table.safetensors', 'zoo.json']
    """

    def __init__(
        self,
        path: str | Path,
        *,
        kind: str,
        arguments: Mapping[str, Any],
        canvas: Canvas | None = None,
        formerly: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = Path(path)
        self.kind = kind
        self.canvas = canvas
        self.formerly = dict(formerly or {})
        self.arguments: Json = json.loads(json.dumps({"kind": kind, **arguments}, allow_nan=False))
        self._unlock: weakref.finalize[..., ZooWriter] | None = None
        with directory_for(self.path):
            self.finished = self._prepare()
        self.parts: list[Json] = [] if self.finished else complete_parts(self.path)

    @property
    def shards(self) -> int:
        """Number of complete shards, from this run and the runs before."""
        return len(self.parts)

    def __len__(self) -> int:
        return sum(part["networks"] for part in self.parts)

    def _prepare(self) -> bool:
        """Prepare the directory, and return whether it already holds the finished zoo."""
        header, journal = self.path / HEADER, self.path / JOURNAL
        if header.exists():
            self._refuse_other(_read(header, "arguments"), "holds a zoo made")
            self._clean()
            return True
        if not journal.exists() and any(self.path.iterdir()):
            raise ScaleGMNError(f"out: {self.path} is not empty and not a zoo; give another directory")
        # Released when the zoo is finished or the writer is gone. The lock comes before the content: of two processes
        # that begin at once, the other sees that it is held.
        held = ExitStack()
        held.enter_context(alone(journal, f"out: another process is building {self.path}; wait for it"))
        self._unlock = weakref.finalize(self, held.close)
        if not journal.stat().st_size:
            self._note(journal)
        self._refuse_other(_read(journal), "was begun")
        return False

    def _note(self, journal: Path) -> None:
        """Write the arguments into the locked file itself; a new file in its place would not be locked."""
        try:
            with journal.open("w", encoding="utf-8") as file:
                file.write(json.dumps(self.arguments, indent=1) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            journal.unlink()
            raise ScaleGMNError(f"{journal}: cannot be written ({error.strerror}); nothing was begun") from error

    def _refuse_other(self, before: Json, what: str) -> None:
        now = self.arguments
        names = [*before, *(name for name in now if name not in before)]
        differ = [n for n in names if before.get(n) not in (now.get(n), self.formerly.get(n, now.get(n)))]
        if differ:
            old = ", ".join(f"{n}={before.get(n)}" for n in differ)
            new = ", ".join(f"{n}={now.get(n)}" for n in differ)
            raise ScaleGMNError(f"out: {self.path} {what} with {old}, now {new}; give another directory")

    def append(self, architecture: Architecture, parameters: Tensor, columns: Mapping[str, Column]) -> None:
        """Write the next shard: networks of one architecture and their rows of the table.

        Arguments:
            architecture: Of all networks of this shard.
            parameters: Shape (n, P); stored in float32.
            columns: Per name n numbers or n strings; every shard has the same names. The column `split` holds
                `train`, `val` or `test`, and `image` the row of a network's image.
        """
        assert not self.finished
        rows = parameters.detach().to("cpu", torch.float32).numpy()
        if rows.ndim != 2 or rows.shape[1] != architecture.parameters:
            raise ScaleGMNError(
                f"parameters: expected shape (n, {architecture.parameters}) for {architecture}, got {rows.shape}"
            )
        bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        if len(bad):
            raise ScaleGMNError(f"parameters: network {len(self) + int(bad[0])} has NaN or infinite weights")
        arrays, categories = _encode_columns(columns, len(rows))
        if self.parts and set(self.parts[0]["columns"]) != set(arrays):
            raise ScaleGMNError(f"columns: expected {', '.join(self.parts[0]['columns'])}; got {', '.join(arrays)}")
        if self.parts:
            self._refuse_other_kinds(categories)
        stored = write_atomically(self.path / f"parameters-{self.shards:05d}.safetensors", pack({"parameters": rows}))
        note = {
            **to_json(stored),
            "networks": len(rows),
            "architecture": architecture_to_json(architecture),
            "columns": list(arrays),
            "categories": categories,
        }
        note["part_sha256"] = _part_hash(note, arrays)
        # The part is written second: where it exists, the weights do as well.
        write_atomically(self.path / _part(self.shards), pack(arrays, note))
        self.parts.append(note)

    def _refuse_other_kinds(self, categories: Mapping[str, list[str]]) -> None:
        for name in sorted(set(self.parts[0]["categories"]) ^ set(categories)):
            before, now = ("numbers", "names") if name in categories else ("names", "numbers")
            raise ScaleGMNError(f"column {name!r}: expected {before} as in the shards before, got {now}")

    def finish(self, *, images: Tensor | None = None, notes: Mapping[str, Any] | None = None) -> None:
        """Join the table, write the images and `zoo.json`, and remove files that only an unfinished zoo needs.

        Arguments:
            images: The source images (M, H, W, C) uint8, to which the column `image` points.
            notes: Conventions and rules that a reader should know; free JSON.
        """
        if self.finished:
            return
        if not self.parts:
            raise ScaleGMNError("zoo: expected at least one network, got none")
        arrays, categories = self._joined_table()
        table = write_atomically(self.path / TABLE, pack(arrays))
        picture: StoredFile | None = None
        if images is not None:
            picture = write_atomically(self.path / IMAGES, pack({"images": images.numpy()}))
        header = {
            "format": "scalegmn zoo",
            "version": VERSION,
            "kind": self.kind,
            "networks": len(self),
            "arguments": self.arguments,
            "canvas": None if self.canvas is None else to_json(self.canvas),
            "notes": dict(notes or {}),
            "categories": categories,
            **_shard_index(self.parts),
            "table": to_json(table),
            "images": None if picture is None else to_json(picture),
        }
        header["sha256"] = header_hash(header)
        write_json(self.path / HEADER, header)
        self.finished = True
        self._clean()

    def _joined_table(self) -> tuple[dict[str, Array], dict[str, list[str]]]:
        pieces = [MappedArrays(self.path / _part(i)) for i in range(self.shards)]
        categories: dict[str, list[str]] = {}
        arrays: dict[str, Array] = {}
        for name in sorted(self.parts[0]["columns"]):
            if name not in self.parts[0]["categories"]:
                arrays[name] = np.concatenate([piece[name] for piece in pieces])
                continue
            names = {n for part in self.parts for n in part["categories"][name]}
            ordered = [s for s in SPLITS if s in names] if name == "split" else sorted(names)
            code = {n: i for i, n in enumerate(ordered)}
            maps = [np.array([code[n] for n in part["categories"][name]], np.int32) for part in self.parts]
            arrays[name] = np.concatenate([m[piece[name]] for m, piece in zip(maps, pieces, strict=True)])
            categories[name] = ordered
        return arrays, categories

    def _clean(self) -> None:
        for path in (*self.path.glob("part-*.safetensors"), *self.path.glob(".*.tmp"), self.path / JOURNAL):
            path.unlink(missing_ok=True)
        if self._unlock is not None:
            self._unlock()


def complete_parts(path: Path) -> list[Json]:
    """The records of the shards of an unfinished zoo, up to the first that is missing or damaged.

    Arguments:
        path: Its directory.
    """
    found: list[Json] = []
    for part in sorted(path.glob("part-*.safetensors")):
        try:
            table = MappedArrays(part)
            note = table.note
            stored = from_json(StoredFile, {k: note[k] for k in ("file", "bytes", "sha256")}, part.name)
            shard = path / f"parameters-{len(found):05d}.safetensors"
            # Those that an older version began do not say how their table was.
            known = note.get("part_sha256")
            whole = stored.file == shard.name and known in (None, _part_hash(note, table))
            whole = whole and hash_file(shard) == stored.sha256
        except (ScaleGMNError, KeyError, TypeError, AttributeError):
            break
        if part.name != _part(len(found)) or not whole:
            break
        found.append(note)
    return found


def _part_hash(note: Mapping[str, Any], arrays: Mapping[str, Array]) -> str:
    """The SHA-256 of a part of the table and its records."""
    rest = {name: value for name, value in note.items() if name != "part_sha256"}
    digest = hashlib.sha256(json.dumps(rest, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(name.encode() + arrays[name].tobytes())
    return digest.hexdigest()


def header_hash(header: Mapping[str, Any]) -> str:
    """The SHA-256 of everything in `zoo.json` except itself."""
    rest = {name: value for name, value in header.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _read(path: Path, key: str | None = None) -> Json:
    """A JSON object, or the one under a key of it."""
    try:
        whole = read_json(path)
        found: Json = dict(whole if key is None else whole[key])
    except (ValueError, TypeError, KeyError):
        raise ScaleGMNError(f"out: {path} is damaged; delete the zoo, or give another directory") from None
    return found


def _part(index: int) -> str:
    return f"part-{index:05d}.safetensors"


def _shard_index(parts: Sequence[Json]) -> Json:
    """Each architecture once, and shards that refer to them by number."""
    numbers: dict[Architecture, int] = {}
    shards = []
    for part in parts:
        architecture = architecture_from_json(part["architecture"])
        number = numbers.setdefault(architecture, len(numbers))
        stored = from_json(StoredFile, {k: part[k] for k in ("file", "bytes", "sha256")}, "shard")
        shards.append({**to_json(stored), "networks": part["networks"], "architecture": number})
    return {"architectures": [architecture_to_json(a) for a in numbers], "shards": shards}


def _encode_columns(columns: Mapping[str, Column], count: int) -> tuple[dict[str, Array], dict[str, list[str]]]:
    """Numbers as they are, strings as codes and their names."""
    arrays: dict[str, Array] = {}
    categories: dict[str, list[str]] = {}
    for name, column in columns.items():
        if name == "__metadata__" or not name or "\0" in name:
            raise ScaleGMNError(f"column {name!r}: expected another name, this one has a meaning of its own in files")
        if len(column) != count:
            raise ScaleGMNError(f"column {name!r}: expected {count} rows, got {len(column)}")
        if isinstance(column, Tensor):
            arrays[name] = column.detach().cpu().numpy()
        elif isinstance(column, np.ndarray):
            arrays[name] = column
        else:
            categories[name] = sorted(set(column))
            code = {n: i for i, n in enumerate(categories[name])}
            arrays[name] = np.array([code[n] for n in column], np.int32)
    unknown = set(categories.get("split", ())) - set(SPLITS)
    if unknown:
        raise ScaleGMNError(f"column 'split': expected {', '.join(SPLITS)}; got {sorted(unknown)[0]!r}")
    return arrays, categories
