"""A user's own checkpoints: a folder of state dicts and a table of what is known about them."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from ...convert.batch import find_layout, pack_states
from ...convert.chain import Described
from ...convert.formats import files
from ...convert.layout import Layout
from ...core.activations import Activation
from ...core.activations import activation as as_activation
from ...core.architecture import Architecture
from ...core.schema import to_json
from ...errors import ScaleGMNError
from ...files import fresh_directory, real_path
from ..inr.canvas import Canvas
from ..inr.conventions import convention
from ..store.splits import select
from ..store.writer import SPLITS, ZooWriter
from ..store.zoo import Zoo

SHARD: Final = 1024
SEED: Final = 0
State = dict[str, Tensor]


@dataclass
class _Kind:
    """Checkpoints that are read in the same way and collected for a shard."""

    layout: Layout
    rows: list[int] = field(default_factory=list)
    states: list[State] = field(default_factory=list)


@dataclass(frozen=True)
class Ways:
    """How checkpoints are read.

    Arguments:
        activation: Of the hidden layers of multilayer perceptrons, which a state dict does not contain; for files that
            fit none of `likes`.
        likes: Modules with such state dicts, or architectures, by name.
        column: The column of the table that says which of `likes` a file follows, by name or by activation. The column
            `activation` is used if there is one.
        prefix: Read only the entries under this name.
        canvas: The pictures of the networks, for implicit representations.
    """

    activation: str | Activation | None = None
    likes: Mapping[str, nn.Module | Architecture] = field(default_factory=dict)
    column: str | None = None
    prefix: str = ""
    canvas: Canvas | None = None

    def layout(self, state: State, told: str | None) -> Layout:
        """How to read a file.

        Arguments:
            state: Its content.
            told: What the table says about it.
        """
        fits: dict[str, Layout] = {}
        complaint = None
        for name, like in self.likes.items():
            try:
                layout = find_layout(state, like, None, self.prefix)
                pack_states([state], layout, [name])
                fits[name] = layout
            except ScaleGMNError as error:
                complaint = complaint or error
        if not fits:
            if complaint is not None and self.activation is None and told is None:
                raise ScaleGMNError(str(complaint).partition(": ")[2] or str(complaint))
            return self._bare(state, told)
        kept = {name: k for name, k in fits.items() if told is None or _named(name, k.architecture, told)}
        if not kept:
            known = ", ".join(f"{name} ({k.architecture})" for name, k in fits.items())
            raise ScaleGMNError(f"the table says {told!r}, but its shapes are those of {known}")
        if len({k.architecture for k in kept.values()}) > 1:
            known = ", ".join(f"{name} ({k.architecture})" for name, k in kept.items())
            raise ScaleGMNError(
                f"fits {known}; name a column of the table that says which (--arch-column), or add a column activation"
            )
        return next(iter(kept.values()))

    def _bare(self, state: State, told: str | None) -> Layout:
        """A multilayer perceptron by its shapes."""
        given = None if self.activation is None else as_activation(self.activation)
        if told is not None and (given is None or told not in (given.name, str(given))):
            given = as_activation(told)
            if given.name == "sine":
                raise ScaleGMNError("the table says 'sine', whose frequency is unknown; give --activation sine --w0")
        layout = find_layout(state, None, given, self.prefix)
        offset = 0.0 if self.canvas is None else convention(self.canvas.convention).offset
        layers = layout.architecture.layers
        painted = Architecture((*layers[:-1], replace(layers[-1], offset=offset)), layout.architecture.connections)
        return replace(layout, architecture=painted)


def _named(name: str, architecture: Architecture, told: str) -> bool:
    """Whether a word in a table names an architecture: by its name, its function's name, or its activation."""
    acts = {layer.activation for layer in architecture.layers[1:-1]}
    return told in (name, name.rpartition(":")[2]) or any(told in (act.name, str(act)) for act in acts)


def import_checkpoints(
    folder: str | Path, labels: str | Path, out: str | Path, *, label: str | None = None, ways: Ways | None = None
) -> Zoo:
    """Make a zoo of checkpoints (torch, safetensors or Keras); several architectures are allowed.

    Nothing in a file is executed, and nothing is left at `out` if any of them is refused. The zoo remembers the names
    of the files and how they were read, and so does a model that is trained on it.

    Arguments:
        folder: Where the files are.
        labels: A CSV file with the column `file` (relative to the folder) and what is known about the networks. A
            column `split` with `train`, `val` and `test` is used; without one, a fixed seed decides.
        out: The directory of the zoo.
        label: The column to learn; if omitted, `label`, or the only one that holds numbers.
        ways: How the files are read.
    """
    ways = ways or Ways()
    root = Path(folder)
    if not root.is_dir():
        raise ScaleGMNError(f"checkpoints: no folder {root}")
    table = _read_table(Path(labels))
    label = _label_column(table, label, ways, Path(labels))
    told = _told(table, ways, Path(labels))
    paths = [_inside(root, name, Path(labels)) for name in table["file"]]
    if "split" in table:
        splits: Sequence[str] = table.pop("split")
        rule = f"column split of {Path(labels).name}"
    else:
        splits = select(torch.zeros(len(paths), dtype=torch.bool), None, SEED).splits
        rule = f"70/10/20 with seed {SEED}"
    columns = {name: values if name == "file" else _typed(values) for name, values in table.items()}
    layouts: dict[Layout, None] = {}
    with fresh_directory(out) as unfinished:
        arguments = {"collection": "checkpoints", "source": root.name, "labels": Path(labels).name, "seed": SEED}
        writer = ZooWriter(unfinished, kind="checkpoints", arguments=arguments, canvas=ways.canvas)
        for kind in _shards(paths, ways, told):
            names = [str(paths[row]) for row in kind.rows]
            _, parameters, _ = pack_states(kind.states, kind.layout, names)
            layouts[kind.layout] = None
            picked: dict[str, Tensor | list[str]] = {"split": [splits[row] for row in kind.rows]}
            picked |= {name: _rows(column, kind.rows) for name, column in columns.items()}
            picked["row"] = torch.tensor(kind.rows)
            writer.append(_painted(kind.layout, ways, names[0]), parameters.float(), picked)
        notes = {"splits": rule, "label": label, "layouts": [to_json(layout) for layout in layouts]}
        writer.finish(notes=notes)
    return Zoo.open(out)


def _painted(layout: Layout, ways: Ways, name: str) -> Architecture:
    """The architecture, if it fits the canvas."""
    a, canvas = layout.architecture, ways.canvas
    if canvas is not None and (a.layers[0].size, a.layers[-1].size) != (2, canvas.channels):
        raise ScaleGMNError(
            f"{name}: a picture needs 2 inputs and {canvas.channels} output(s), as the first file has; got {a}"
        )
    return a


def _shards(paths: Sequence[Path], ways: Ways, told: Sequence[str] | None) -> Iterator[_Kind]:
    """Checkpoints in groups of one kind each, in the order in which the groups fill up."""
    waiting: dict[object, _Kind] = {}
    for row, path in enumerate(paths):
        state = files.read_state_dict(path)
        word = (told[row] or None) if told is not None else None
        key: object = word, tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in state.items())
        if key not in waiting or isinstance(state, Described):
            try:
                layout = ways.layout(state, word)
            except ScaleGMNError as error:
                gap = f" (row {row + 2} of the table does not tell)" if told is not None and word is None else ""
                raise ScaleGMNError(f"{path}: {error}{gap}") from None
            key = (key, layout) if isinstance(state, Described) else key
            waiting.setdefault(key, _Kind(layout))
        kind = waiting[key]
        kind.rows.append(row)
        kind.states.append(state)
        if len(kind.rows) == SHARD:
            yield kind
            waiting[key] = _Kind(kind.layout)
    yield from (kind for kind in waiting.values() if kind.rows)


def _read_table(path: Path) -> dict[str, list[str]]:
    """The columns of the CSV file, with the checks that every import needs."""
    if not path.is_file():
        raise ScaleGMNError(f"labels: no file {path}")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header, *rows = [row for row in csv.reader(file) if row] or [[]]
    except (csv.Error, UnicodeDecodeError) as error:
        raise ScaleGMNError(f"{path}: is not a readable CSV file ({error})") from error
    if "file" not in header or len(set(header)) < len(header) or len(header) < 2:
        raise ScaleGMNError(f"{path}: expected different columns with file and a label among them, got {header}")
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
    odd = [name for name in table if name in ("", "__metadata__") or "\0" in name]
    if odd:
        raise ScaleGMNError(f"{path}: a column cannot be called {odd[0]!r}; rename it")
    if len(set(table["file"])) < len(rows):
        twice = next(n for n in table["file"] if table["file"].count(n) > 1)
        raise ScaleGMNError(f"{path}: lists {twice} twice")
    return table


def _label_column(table: Mapping[str, list[str]], label: str | None, ways: Ways, path: Path) -> str:
    """The column to learn, without gaps."""
    if label is None and "label" not in table:
        free = [name for name in table if name not in ("file", "split", "activation", ways.column)]
        numeric = [name for name in free if isinstance(_typed(table[name]), Tensor)]
        if len(numeric) != 1:
            found = ", ".join(numeric) or "none"
            raise ScaleGMNError(
                f"{path}: expected a column label or one column of numbers, got {found}; name one with --label-column"
            )
        label = numeric[0]
    label = label or "label"
    if label not in table or label in ("file", "split"):
        raise ScaleGMNError(f"{path}: expected {label!r} among the columns {', '.join(table)}")
    for number, cell in enumerate(table[label], start=2):
        if not cell:
            raise ScaleGMNError(f"{path}: row {number} has no value in the column {label!r}")
        if cell.lower() in ("nan", "inf", "-inf", "+inf"):
            raise ScaleGMNError(f"{path}: row {number}: expected finite labels, got {cell}")
    return label


def _told(table: Mapping[str, list[str]], ways: Ways, path: Path) -> list[str] | None:
    """What the table says about the architecture of each file, if it does."""
    if ways.column is not None and ways.column not in table:
        raise ScaleGMNError(f"{path}: expected {ways.column!r} among the columns {', '.join(table)}")
    return table.get(ways.column or "activation")


def _inside(root: Path, name: str, table: Path) -> Path:
    path = root / name
    if not real_path(path).is_relative_to(real_path(root)):
        raise ScaleGMNError(f"{table}: {name!r} leads out of {root}; refused")
    if not path.is_file():
        raise ScaleGMNError(f"{table}: lists {name}, which is not in {root}")
    return path


def _typed(values: list[str]) -> Tensor | list[str]:
    """Values as whole numbers, numbers or text, whichever fits all of them; an empty cell among numbers is NaN."""
    if any(values) and not all(values):
        numbers = isinstance(_typed([value for value in values if value]), Tensor)
        values = [value or "nan" for value in values] if numbers else values
    for parse, dtype in ((int, torch.int64), (float, torch.float32)):
        try:
            return torch.tensor([parse(value) for value in values], dtype=dtype)
        except (ValueError, RuntimeError):
            continue
    return values


def _rows(column: Tensor | list[str], rows: list[int]) -> Tensor | list[str]:
    return column[rows] if isinstance(column, Tensor) else [column[row] for row in rows]
