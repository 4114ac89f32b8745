"""Reading a zoo: memory-mapped, lazily, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...core.architecture import Architecture
from ...core.html import html_table
from ...core.networks import Networks
from ...core.schema import Json, architecture_from_json, from_json
from ...errors import ScaleGMNError
from ...files import StoredFile, read_json
from ...files.arrays import Array, MappedArrays
from ..inr.canvas import Canvas
from .writer import HEADER, JOURNAL, VERSION

Indices = Tensor | Sequence[int] | slice | None


class Batch(NamedTuple):
    """Networks and their numbers in the zoo.

    Arguments:
        networks: One batch, or several if the zoo has several architectures.
        indices: The numbers (B,) of the networks, in the order of the concatenated batches.
    """

    networks: Networks | list[Networks]
    indices: Tensor


class Zoo:
    """A collection of networks on disk.

    Opening reads only `zoo.json`. A zoo can be passed to other processes, which open it again by its path.

    Arguments:
        path: The directory.
        header: The content of `zoo.json`; use `Zoo.open`.
    """

    def __init__(self, path: Path, header: Json) -> None:
        self.path = path
        self.header = header
        self.kind: str = header["kind"]
        self.architectures = tuple(architecture_from_json(a) for a in header["architectures"])
        self.canvas = None if header["canvas"] is None else from_json(Canvas, header["canvas"], "canvas")
        self._shards: list[Json] = header["shards"]
        if not all(isinstance(header[name], dict) for name in ("arguments", "notes", "categories")):
            raise ScaleGMNError(f"zoo: {path / HEADER} is inconsistent; `scalegmn zoo verify` says where")
        for names in (*header["categories"].values(), [self.kind, header["sha256"]]):
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise ScaleGMNError(f"zoo: {path / HEADER} is inconsistent; `scalegmn zoo verify` says where")
        for stored in stored_files(header):
            if Path(stored.file).name != stored.file:
                raise ScaleGMNError(f"zoo: {path / HEADER} names {stored.file!r}, which leads out of the zoo; refused")
        sizes = np.array([shard["networks"] for shard in self._shards], np.int64)
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        self._kinds = np.array([shard["architecture"] for shard in self._shards], np.int64)
        self._mapped: list[Array | None] = [None] * len(self._shards)
        kinds_fit = all(0 <= k < len(self.architectures) for k in self._kinds)
        if int(self._starts[-1]) != header["networks"] or (sizes < 0).any() or not kinds_fit:
            raise ScaleGMNError(f"zoo: {path / HEADER} is inconsistent; `scalegmn zoo verify` says where")

    @staticmethod
    def open(path: str | Path) -> Zoo:
        """Open the zoo in a directory."""
        path = Path(path)
        if not (path / HEADER).is_file():
            if (path / JOURNAL).is_file():
                raise ScaleGMNError(f"zoo: {path} is unfinished; run the command that began it again")
            raise ScaleGMNError(f"zoo: {path} holds no {HEADER}; build one with `scalegmn zoo build`")
        header = read_header(path)
        try:
            return Zoo(path, header)
        except ScaleGMNError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError, IndexError, OverflowError, RecursionError) as error:
            told = str(error)[:80]
            raise ScaleGMNError(f"zoo: {path / HEADER} lacks {told}; it was not written by scalegmn") from error

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Zoo.open, (self.path,)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __repr__(self) -> str:
        which = ", ".join(map(str, self.architectures[:3])) + (", ..." if len(self.architectures) > 3 else "")
        return f"Zoo({len(self)} x {which}, {self.path})"

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        counts = zip(self.architectures, self.architecture_of().bincount().tolist(), strict=True)
        splits = ", ".join(f"{name} {len(self.split(name)):,}" for name in self.splits)
        rows = {"splits": splits, "columns": ", ".join(self.columns), **{str(a): f"{n:,} networks" for a, n in counts}}
        return html_table(f"{self.path}: {len(self):,} networks ({self.kind})", rows)

    @property
    def architecture(self) -> Architecture:
        """The one architecture of all networks."""
        if len(self.architectures) != 1:
            raise ScaleGMNError(
                f"zoo: expected one architecture, {self.path} has {len(self.architectures)}; use `architectures`"
            )
        return self.architectures[0]

    @property
    def arguments(self) -> Json:
        """What the zoo was made with: seeds and all settings."""
        arguments: Json = self.header["arguments"]
        return arguments

    @cached_property
    def _table(self) -> MappedArrays:
        table = MappedArrays(self.path / self.header["table"]["file"])
        for name, column in table.items():
            if column.shape != (len(self),):
                found = f"column {name!r} of shape {column.shape}, expected ({len(self)},)"
                raise ScaleGMNError(f"zoo: {table.path} has {found}; `scalegmn zoo verify` says more")
        for name, names in self.header["categories"].items():
            codes = table.get(name)
            if codes is None or not _within(codes, len(names)):
                raise ScaleGMNError(f"zoo: {table.path} has codes in {name!r} that stand for no name; it is damaged")
        return table

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the table's columns."""
        return tuple(sorted(self._table))

    def column(self, name: str) -> Tensor:
        """A column of the table (N,); of strings, the codes that `categories` explains."""
        if name not in self._table:
            raise ScaleGMNError(f"column: expected one of {', '.join(self.columns)}; got {name!r}")
        return torch.from_numpy(self._table[name].copy())

    def categories(self, name: str) -> tuple[str, ...]:
        """The names that the codes of a column of strings stand for; empty for numbers."""
        return tuple(self.header["categories"].get(name, ()))

    def names(self) -> list[str]:
        """The names of the networks: the files they came from if the zoo knows them, otherwise their numbers."""
        files = self.categories("file")
        return [files[code] for code in self._table["file"].tolist()] if files else [str(i) for i in range(len(self))]

    @property
    def layouts(self) -> list[Json]:
        """How the imported files were read, as JSON."""
        return list(self.header["notes"].get("layouts", ()))

    def label(self, default: str) -> str:
        """The column to learn: the one that the import named, otherwise the given one."""
        return str(self.header["notes"].get("label", default))

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return self.categories("split")

    def split(self, name: str) -> Tensor:
        """The numbers of the networks of a split, ascending."""
        if name not in self.splits:
            raise ScaleGMNError(f"split: {self.path} has {', '.join(self.splits) or 'none'}; got {name!r}")
        return torch.from_numpy(np.flatnonzero(self._table["split"] == self.splits.index(name)))

    def batch(self, indices: Indices = None) -> Networks:
        """Some networks (all if omitted) of a zoo with one architecture; only these are copied."""
        numbers = self._numbers(indices)
        return Networks(self.architecture, torch.from_numpy(self._gather(numbers, self.architecture.parameters)))

    def batches(self, indices: Indices = None) -> tuple[list[Networks], Tensor]:
        """Some networks of a zoo with any architectures, grouped.

        Returns:
            One batch for each architecture that occurs, and the positions (B,) in `indices` of their networks, in the
            order of the concatenated batches.
        """
        numbers = self._numbers(indices)
        kinds = self._kinds[np.searchsorted(self._starts, numbers, side="right") - 1]
        order = np.argsort(kinds, kind="stable")
        found = []
        for k in np.unique(kinds):
            architecture = self.architectures[k]
            rows = self._gather(numbers[kinds == k], architecture.parameters)
            found.append(Networks(architecture, torch.from_numpy(rows)))
        return found, torch.from_numpy(order)

    def architecture_of(self, indices: Indices = None) -> Tensor:
        """The position in `architectures` of every network's architecture (B,)."""
        numbers = self._numbers(indices)
        return torch.from_numpy(self._kinds[np.searchsorted(self._starts, numbers, side="right") - 1])

    def _numbers(self, indices: Indices) -> Array:
        if indices is None or isinstance(indices, slice):
            return np.arange(len(self))[indices or slice(None)]
        numbers = np.asarray(indices, dtype=np.int64).reshape(-1)
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < len(self)):
            raise ScaleGMNError(f"indices: expected 0 to {len(self) - 1}, got {numbers.min()} to {numbers.max()}")
        return numbers

    def _gather(self, numbers: Array, width: int) -> Array:
        rows = np.empty((len(numbers), width), np.float32)
        shards = np.searchsorted(self._starts, numbers, side="right") - 1
        order = np.argsort(shards, kind="stable")
        bounds = np.flatnonzero(np.diff(shards[order])) + 1
        for positions in np.split(order, bounds) if len(order) else ():
            shard = int(shards[positions[0]])
            rows[positions] = self.shard(shard)[numbers[positions] - self._starts[shard]]
        return rows

    def start(self, shard: int) -> int:
        """The number of the first network of a shard."""
        return int(self._starts[shard])

    def shard(self, shard: int) -> Array:
        """The weights (n, P) of one shard, memory-mapped and read-only; it stays mapped."""
        found = self._mapped[shard]
        if found is None:
            found = self._mapped[shard] = self.read_shard(shard)
        return found

    def read_shard(self, shard: int) -> Array:
        """Like `shard`, but mapped only while it is used: for going through a whole zoo once."""
        entry = self._shards[shard]
        path = self.path / entry["file"]
        found = MappedArrays(path).get("parameters")
        expected = (entry["networks"], self.architectures[entry["architecture"]].parameters)
        if found is None or found.shape != expected or found.dtype != np.float32:
            raise ScaleGMNError(f"zoo: {path} does not hold {expected} weights; run `scalegmn zoo verify`")
        return found

    @property
    def has_images(self) -> bool:
        """Whether the images that the networks were fitted to are stored as well."""
        return self.header["images"] is not None

    def images(self, indices: Indices = None) -> Tensor:
        """The images that networks were fitted to (B, H, W, C) uint8."""
        if not self.has_images:
            raise ScaleGMNError(f"zoo: {self.path} holds no images")
        if "image" not in self._table or not _within(self._table["image"], len(self._images["images"])):
            raise ScaleGMNError(f"zoo: {self.path} does not say which image belongs to which network; it is damaged")
        rows = self._table["image"][self._numbers(indices)]
        return torch.from_numpy(self._images["images"][rows])

    def stored_images(self) -> Tensor:
        """All images that are stored (M, H, W, C) uint8; the column `image` points to them."""
        return torch.from_numpy(self._images["images"].copy())

    @cached_property
    def _images(self) -> MappedArrays:
        found = MappedArrays(self.path / self.header["images"]["file"])
        pictures = found.get("images")
        sides = None if self.canvas is None else (self.canvas.height, self.canvas.width, self.canvas.channels)
        if pictures is None or pictures.dtype != np.uint8 or pictures.shape[1:] != (sides or pictures.shape[1:4]):
            raise ScaleGMNError(f"zoo: {found.path} does not hold the images of these networks; it is damaged")
        return found

    def grid(self) -> Tensor:
        """The coordinates of the pixels (H * W, 2) for INRs."""
        if self.canvas is None:
            raise ScaleGMNError(f"zoo: {self.path} holds {self.kind} networks, which have no pixel grid")
        return self.canvas.grid()

    def loader(
        self,
        split: str,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        epoch: int = 0,
        drop_last: bool = False,
    ) -> Batches:
        """The batches of a split, the same for the same seed and epoch.

        Arguments:
            split: `train`, `val` or `test`.
            batch_size: Networks in a batch.
            shuffle: Whether to go through them in random order.
            seed, epoch: Decide that order.
            drop_last: Whether to leave out a last, smaller batch.
        """
        indices = self.split(split)
        if shuffle:
            indices = indices[np.random.default_rng([seed, epoch]).permutation(len(indices))]
        return Batches(self, indices, batch_size, drop_last=drop_last)


class Batches:
    """Batches of a zoo by number: iterate over them, or give them to a `DataLoader` with `batch_size=None`.

    Arguments:
        zoo: The zoo.
        indices: The numbers of the networks, in order (N,).
        batch_size: Networks in a batch.
        drop_last: Whether to leave out a last, smaller batch.
    """

    def __init__(self, zoo: Zoo, indices: Tensor, batch_size: int, *, drop_last: bool = False) -> None:
        if batch_size < 1:
            raise ScaleGMNError(f"batch_size: expected at least 1, got {batch_size}")
        self.zoo = zoo
        self.indices = indices
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __len__(self) -> int:
        whole, rest = divmod(len(self.indices), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __getitem__(self, number: int) -> Batch:
        if not 0 <= number < len(self):
            raise IndexError(f"batch {number} of {len(self)}")
        indices = self.indices[number * self.batch_size : (number + 1) * self.batch_size]
        if len(self.zoo.architectures) == 1:
            return Batch(self.zoo.batch(indices), indices)
        networks, order = self.zoo.batches(indices)
        return Batch(networks, indices[order])

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))


def _within(numbers: Array, end: int) -> bool:
    """Whether all are whole numbers from 0 to below `end`."""
    return numbers.dtype.kind in "iu" and (not len(numbers) or (numbers.min() >= 0 and numbers.max() < end))


def read_header(path: Path) -> Json:
    """The content of `zoo.json`, of a format that this version reads."""
    header = read_json(path / HEADER)
    if not isinstance(header, dict) or header.get("format") != "scalegmn zoo":
        raise ScaleGMNError(f"zoo: {path / HEADER} was not written by scalegmn")
    if header.get("version") != VERSION:
        raise ScaleGMNError(f"zoo: {path} has format version {header.get('version')}; this program reads {VERSION}")
    return header


def stored_files(header: Json) -> list[StoredFile]:
    """All files of a zoo except `zoo.json`, as it records them."""
    try:
        entries = [*header["shards"], header["table"], *([header["images"]] if header["images"] else [])]
        return [from_json(StoredFile, {k: e[k] for k in ("file", "bytes", "sha256")}, "zoo.json") for e in entries]
    except (KeyError, TypeError) as error:
        raise ScaleGMNError(f"zoo: {HEADER} lacks {str(error)[:80]}; it was not written by scalegmn") from error
