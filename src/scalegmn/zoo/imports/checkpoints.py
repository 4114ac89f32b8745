"""A person's own checkpoints: a folder of state dicts and a table of what is known about them."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from ...convert import files
from ...core.activations import Activation
from ...core.architecture import Architecture
from ...core.networks import Networks
from ...errors import ScaleGMNError
from ...files import fresh_directory
from ..store.splits import select
from ..store.writer import SPLITS, ZooWriter
from ..store.zoo import Zoo

SHARD: Final = 1024
SEED: Final = 0
State = dict[str, Tensor]


@dataclass
class _Kind:
    """Checkpoints with the same entries that wait for their shard."""

    like: nn.Module | Architecture | None
    rows: list[int] = field(default_factory=list)
    states: list[State] = field(default_factory=list)


def import_checkpoints(
    folder: str | Path,
    labels: str | Path,
    out: str | Path,
    *,
    activation: str | Activation | None = None,
    likes: Sequence[nn.Module | Architecture] = (),
) -> Zoo:
    """Make a zoo of checkpoints (.pt, .pth, .ckpt, .safetensors); several architectures are allowed.

    Nothing in a file is executed, and nothing is left at `out` if any of them is refused.

    Arguments:
        folder: Where the files are.
        labels: A CSV file with the columns `file` (relative to the folder) and `label`. Further columns, numbers or
            texts, are kept; a column `split` with `train`, `val` and `test` is used, else a fixed seed decides.
        out: The directory of the zoo.
        activation: Of the hidden layers of multilayer perceptrons, which a state dict does not tell; for files that
            none of `likes` fits.
        likes: Modules with such state dicts, or architectures; each file takes the first that fits.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ScaleGMNError(f"checkpoints: no folder {root}")
    table = _read_table(Path(labels))
    paths = [_inside(root, name, Path(labels)) for name in table.pop("file")]
    if "split" in table:
        splits: Sequence[str] = table.pop("split")
        rule = f"column split of {Path(labels).name}"
    else:
        splits = select(torch.zeros(len(paths), dtype=torch.bool), None, SEED).splits
        rule = f"70/10/20 with seed {SEED}"
    columns = {name: _typed(values) for name, values in table.items()}
    known = columns["label"]
    if isinstance(known, Tensor) and not bool(known.isfinite().all()):
        raise ScaleGMNError(f"{labels}: expected finite labels, got {known[~known.isfinite()][0].item()}")
    with fresh_directory(out) as unfinished:
        arguments = {"collection": "checkpoints", "source": root.name, "labels": Path(labels).name, "seed": SEED}
        writer = ZooWriter(unfinished, kind="checkpoints", arguments=arguments)
        for kind in _shards(paths, activation, likes):
            names = [str(paths[row]) for row in kind.rows]
            hidden = None if kind.like is not None else activation
            networks = Networks.from_state_dicts(kind.states, like=kind.like, activation=hidden, names=names)
            picked: dict[str, Tensor | list[str]] = {"split": [splits[row] for row in kind.rows]}
            picked |= {name: _rows(column, kind.rows) for name, column in columns.items()}
            picked["row"] = torch.tensor(kind.rows)
            writer.append(networks.architecture, networks.parameters.float(), picked)
        writer.finish(notes={"splits": rule})
    return Zoo.open(out)


def _shards(
    paths: Sequence[Path], activation: str | Activation | None, likes: Sequence[nn.Module | Architecture]
) -> Iterator[_Kind]:
    """Checkpoints in lots of one kind each, in the order in which the lots are full."""
    waiting: dict[object, _Kind] = {}
    for row, path in enumerate(paths):
        state = files.read(path)
        key = tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in state.items())
        if key not in waiting:
            waiting[key] = _Kind(_first_that_fits(state, likes, path, or_none=activation is not None))
        kind = waiting[key]
        kind.rows.append(row)
        kind.states.append(state)
        if len(kind.rows) == SHARD:
            yield kind
            waiting[key] = _Kind(kind.like)
    yield from (kind for kind in waiting.values() if kind.rows)


def _first_that_fits(
    state: State, likes: Sequence[nn.Module | Architecture], path: Path, *, or_none: bool
) -> nn.Module | Architecture | None:
    complaint = None
    for like in likes:
        try:
            Networks.from_state_dicts([state], like=like, names=[str(path)])
        except ScaleGMNError as error:
            complaint = error
        else:
            return like
    if complaint is not None and not or_none:
        raise complaint
    return None


# -- table -------------------------------------------------------------------------------------------------------------


def _read_table(path: Path) -> dict[str, list[str]]:
    """The columns of the CSV file, checked as far as every import needs them."""
    if not path.is_file():
        raise ScaleGMNError(f"labels: no file {path}")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header, *rows = [row for row in csv.reader(file) if row] or [[]]
    except (csv.Error, UnicodeDecodeError) as error:
        raise ScaleGMNError(f"{path}: is not a readable CSV file ({error})") from error
    if not {"file", "label"} <= set(header) or len(set(header)) < len(header):
        raise ScaleGMNError(f"{path}: expected different columns with file and label among them, got {header}")
    if not rows:
        raise ScaleGMNError(f"{path}: expected at least one row below the header")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise ScaleGMNError(f"{path}: expected {len(header)} values in row {number}, got {len(row)}")
    table = {name: [row[i].strip() for row in rows] for i, name in enumerate(header)}
    wrong = set(table.get("split", ())) - set(SPLITS)
    if wrong:
        raise ScaleGMNError(f"{path}: expected {', '.join(SPLITS)} in the column split, got {min(wrong)!r}")
    if "row" in table or "image" in table:
        raise ScaleGMNError(f"{path}: the column names row and image are taken; rename the column")
    if len(set(table["file"])) < len(rows):
        twice = next(n for n in table["file"] if table["file"].count(n) > 1)
        raise ScaleGMNError(f"{path}: lists {twice} twice")
    return table


def _inside(root: Path, name: str, table: Path) -> Path:
    path = root / name
    if not path.resolve().is_relative_to(root.resolve()):
        raise ScaleGMNError(f"{table}: {name!r} leads out of {root}; refused")
    if not path.is_file():
        raise ScaleGMNError(f"{table}: lists {name}, which is not in {root}")
    return path


def _typed(values: list[str]) -> Tensor | list[str]:
    """Whole numbers, numbers or texts, whichever all values are."""
    for parse, dtype in ((int, torch.int64), (float, torch.float32)):
        try:
            return torch.tensor([parse(value) for value in values], dtype=dtype)
        except (ValueError, RuntimeError):
            continue
    return values


def _rows(column: Tensor | list[str], rows: list[int]) -> Tensor | list[str]:
    return column[rows] if isinstance(column, Tensor) else [column[row] for row in rows]
