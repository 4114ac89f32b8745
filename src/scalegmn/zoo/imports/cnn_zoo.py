"""The Small CNN Zoo (Unterthiner et al., 2020): one matrix of weights, a table of metrics, a layout."""

import ast
import csv
import gzip
import io
import random
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Final, cast

import numpy as np
import torch
from torch import Tensor

from ...core.architecture import Architecture
from ...errors import ScaleGMNError
from ...files import DAMAGE, fresh_directory
from ...files.arrays import Array
from ..cnn.shape import Cnn
from ..store.writer import ZooWriter
from ..store.zoo import Zoo
from .archive import Files, copy_out, open_files

SHARD: Final = 1024
FINAL_STEP: Final = 86
# The column that checkpoints of one network have in common.
NETWORK: Final = "modeldir"
SEED: Final = 0
# Names of published columns that a zoo built here calls otherwise.
NAMES: Final = {
    "config.w_init": "weight_init",
    "config.b_init": "bias_init",
    "config.init_std": "weight_std",
    "config.l2reg": "l2",
    "config.optimizer": "optimiser",
}
# A text column with more different values than this is a name, not a category.
CATEGORIES: Final = 64
_SMALL: Final = 1 << 30


def import_cnn_zoo(
    source: str | Path, out: str | Path, *, final_only: bool = True, activation: str | None = None
) -> Zoo:
    """Convert the Small CNN Zoo to a zoo.

    The source holds `weights.npy` (N, 4970), `metrics.csv.gz` and `layout.csv`, and optionally a published permutation
    of all rows in a file `*split.csv`. The split is that of Zhou et al. (2023): of the permuted final networks the
    second half is test, the first half 80/20 train and val. Without that file, a permutation with a fixed seed is used.

    Arguments:
        source: A folder or archive (.zip, .tar, .tar.gz).
        out: The directory of the zoo.
        final_only: Whether to leave out checkpoints from before the last epoch; if kept, they have the split of their
            network.
        activation: Keep only networks with this activation, `relu` or `tanh`; the split of a network does not change.
    """
    if activation not in (None, "relu", "tanh"):
        raise ScaleGMNError(f"activation: expected relu or tanh, got {activation!r}")
    with fresh_directory(out) as folder, open_files(source) as opened, tempfile.TemporaryDirectory() as scratch:
        names = {base: _need(opened, base) for base in ("weights.npy", "metrics.csv", "layout.csv")}
        order = _layout_order(opened, names["layout.csv"])
        weights = _open_weights(opened, names["weights.npy"], Path(scratch), len(order))
        table = _read_metrics(opened, names["metrics.csv"], len(weights))
        rows, splits, rule = _select(opened, table, len(weights), final_only=final_only)
        arguments = {
            "collection": "cnn-zoo",
            "source": opened.path.name,
            "final_only": final_only,
            "activation": activation,
            "seed": SEED,
        }
        writer = ZooWriter(folder, kind="cnn", arguments=arguments)
        for kind in ("relu", "tanh") if activation is None else (activation,):
            chosen = np.flatnonzero([table["activation"][r] == kind for r in rows])
            for start in range(0, len(chosen), SHARD):
                part = chosen[start : start + SHARD]
                numbers, names_of = rows[part], [splits[i] for i in part]
                parameters = _parameters(opened.where(names["weights.npy"]), weights, numbers, order)
                columns: dict[str, Tensor | list[str]] = {"split": names_of, **_columns(table, numbers)}
                writer.append(Cnn(32, activation=kind).architecture, parameters, columns)
        if not writer.shards:
            raise ScaleGMNError(f"{opened.path}: found no networks with these options")
        writer.finish(notes={"splits": rule})
    return Zoo.open(out)


def _need(source: Files, base: str) -> str:
    found = source.find(base, f"{base}.gz") if base.endswith(".csv") else source.find(base)
    if found is None:
        raise ScaleGMNError(f"{source.path}: expected a file {base}{'.gz' if base.startswith('metrics') else ''}")
    return found


def _open_weights(source: Files, name: str, scratch: Path, width: int) -> Array:
    """The matrix, memory-mapped."""
    path = copy_out(source, name, scratch)
    try:
        weights = np.load(path, mmap_mode="r", allow_pickle=False)
    except (*DAMAGE, MemoryError) as error:
        told = str(error)[:80]
        raise ScaleGMNError(f"{source.where(name)}: is not a plain array of numbers ({told})") from error
    if not isinstance(weights, np.ndarray) or weights.ndim != 2 or weights.shape[1] != width:
        shape = weights.shape if isinstance(weights, np.ndarray) else "several arrays"
        raise ScaleGMNError(f"{source.where(name)}: expected shape (networks, {width}), got {shape}")
    if weights.dtype.kind != "f":
        raise ScaleGMNError(f"{source.where(name)}: expected floating-point numbers, got {weights.dtype}")
    return weights


def _layout_order(source: Files, name: str) -> Array:
    """For each of our parameters its column in the matrix, (4970,).

    TensorFlow keeps kernels as height, width, inputs, outputs and matrices as inputs, outputs.
    """
    architecture = Cnn(32).architecture
    columns: dict[str, list[Array]] = {"kernel": [], "bias": []}
    for row in _csv_rows(source, name):
        variable = row.get("varname", "")
        kind = variable.rpartition("/")[2].removesuffix(":0")
        try:
            start, end = int(row["start_idx"]), int(row["end_idx"])
            sizes = ast.literal_eval(row["shape"])
            grid = np.arange(start, min(end, start + architecture.parameters + 1)).reshape(sizes)
        except (KeyError, ValueError, TypeError, SyntaxError, RecursionError, OverflowError, MemoryError) as error:
            raise ScaleGMNError(
                f"{source.where(name)}: expected start_idx, end_idx and shape of {variable!r} to agree"
            ) from error
        if kind not in columns:
            raise ScaleGMNError(f"{source.where(name)}: expected kernels and biases, got {variable!r}")
        if kind == "kernel" and grid.ndim in (2, 4):
            grid = np.moveaxis(grid, (-1, -2), (0, 1))
            grid = grid.reshape(*grid.shape[:2], -1)
        columns[kind].append(grid)
    return _in_our_order(source.where(name), architecture, columns)


def _in_our_order(where: str, architecture: Architecture, columns: dict[str, list[Array]]) -> Array:
    parts = []
    for segment in architecture.segments:
        kind = "kernel" if segment.kind == "weight" else "bias"
        found = columns[kind].pop(0) if columns[kind] else np.empty(0)
        if found.shape != segment.shape:
            raise ScaleGMNError(
                f"{where}: expected kernels and biases of three 3x3 convolutions to 16 channels and a linear layer to "
                f"10, in order; got {kind} {found.shape} for {segment.shape}"
            )
        parts.append(found.reshape(-1))
    if columns["kernel"] or columns["bias"]:
        raise ScaleGMNError(f"{where}: expected four kernels and four biases, got more")
    order = np.concatenate(parts)
    if not np.array_equal(np.sort(order), np.arange(len(order))):
        raise ScaleGMNError(f"{where}: the index ranges do not cover 0 to {len(order) - 1} once")
    return order


def _parameters(where: str, weights: Array, rows: Array, order: Array) -> Tensor:
    found = np.ascontiguousarray(weights[np.sort(rows)], np.float32)[np.argsort(np.argsort(rows))]
    bad = np.flatnonzero(~np.isfinite(found).all(axis=1))
    if len(bad):
        raise ScaleGMNError(f"{where}: row {rows[bad[0]]} has NaN or infinite weights")
    return torch.from_numpy(found[:, order])


def _csv_rows(source: Files, name: str) -> Iterator[dict[str, str]]:
    try:
        with ExitStack() as stack:
            plain = stack.enter_context(source.open(name))
            if name.endswith(".gz"):
                plain = stack.enter_context(cast(IO[bytes], gzip.GzipFile(fileobj=plain)))
            text = stack.enter_context(io.TextIOWrapper(plain, encoding="utf-8", newline=""))
            for row in csv.DictReader(text, restval=""):
                yield {key: value for key, value in row.items() if key}
    except (csv.Error, UnicodeDecodeError, OSError, EOFError, zlib.error) as error:
        raise ScaleGMNError(f"{source.where(name)}: is not a readable table ({error})") from error


def _read_metrics(source: Files, name: str, count: int) -> dict[str, list[str] | Array]:
    """Columns by name: numbers as float64, categories as they are; other text is left out."""
    where = source.where(name)
    kinds = _column_kinds(_csv_rows(source, name), where, count)
    numbers = {key: np.empty(count) for key, numeric in kinds.items() if numeric}
    texts: dict[str, list[str]] = {key: [] for key, numeric in kinds.items() if not numeric}
    for number, row in enumerate(_csv_rows(source, name)):
        for key, column in numbers.items():
            column[number] = float(row[key] or "nan")
        for key, values in texts.items():
            values.append(sys.intern(row[key]))
    columns: dict[str, list[str] | Array] = {**numbers, **texts}
    table = {NAMES.get(key, key.removeprefix("config.")): values for key, values in columns.items()}
    if not {"step", "test_accuracy", "activation"} <= table.keys():
        raise ScaleGMNError(f"{where}: expected columns step, test_accuracy and config.activation")
    for numeric in ("step", "test_accuracy"):
        found = table[numeric]
        bad = np.zeros(1, np.int64) if isinstance(found, list) else np.flatnonzero(~np.isfinite(found))
        if len(bad):
            raise ScaleGMNError(f"{where}: expected a number as {numeric}, row {bad[0]} has none")
    return table


def _column_kinds(rows: Iterator[dict[str, str]], where: str, count: int) -> dict[str, bool]:
    """Which columns are numbers (True) and which are categories (False). The table is read twice to store little."""
    kinds: dict[str, bool] = {}
    values: dict[str, set[str]] = {}
    found = 0
    for row in rows:
        found += 1
        if found == 1:
            kinds, values = dict.fromkeys(row, True), {key: set() for key in row}
        for key, value in row.items():
            kinds[key] = kinds[key] and _is_number(value)
            if len(values[key]) <= CATEGORIES:
                values[key].add(value)
    if found != count:
        raise ScaleGMNError(f"{where}: expected {count} rows, one per row of weights.npy; got {found}")
    kept = (key for key in kinds if kinds[key] or len(values[key]) <= CATEGORIES or key == NETWORK)
    return {key: kinds[key] for key in kept}


def _is_number(value: str) -> bool:
    try:
        float(value or "nan")
    except ValueError:
        return False
    return True


def _columns(table: dict[str, list[str] | Array], rows: Array) -> dict[str, Tensor | list[str]]:
    found: dict[str, Tensor | list[str]] = {}
    for name, values in table.items():
        if name.startswith("Unnamed") or name in ("split", NETWORK):
            continue
        if isinstance(values, list):
            found[name] = [values[r] for r in rows]
        else:
            found[name] = torch.from_numpy(values[rows]).to(torch.int64 if name == "step" else torch.float32)
    return found


def _select(
    source: Files, table: dict[str, list[str] | Array], count: int, *, final_only: bool
) -> tuple[Array, list[str], str]:
    """The rows to keep, ascending, the split of each, and the rule in words."""
    published = [n for n in source.names if n.endswith("split.csv")]
    if published:
        order = _permutation(source, published[0], count)
        rule = f"published: {published[0].rpartition('/')[2]}, second half of the final networks test, rest 80/20"
    else:
        order = np.random.default_rng(SEED).permutation(count)
        rule = f"not published: a permutation with seed {SEED}, second half of the final networks test, rest 80/20"
    steps = table["step"]
    assert not isinstance(steps, list)
    final = order[steps[order] == FINAL_STEP]
    half = len(final) // 2
    first = list(range(half))
    # The published protocol shuffles the first half once more, with this generator and seed.
    random.Random(0).shuffle(first)
    splits = np.full(len(final), "test", dtype="<U5")
    splits[first[: int(0.8 * half)]] = "train"
    splits[first[int(0.8 * half) :]] = "val"
    if not final_only:
        rule += "; earlier checkpoints go with their final network, without which they are left out"
        return *_every_checkpoint(source, table, final, splits), rule
    ascending = np.argsort(final)
    return final[ascending], splits[ascending].tolist(), rule


def _every_checkpoint(
    source: Files, table: dict[str, list[str] | Array], final: Array, splits: Array
) -> tuple[Array, list[str]]:
    """The checkpoints of networks that have a final one, ascending, and the split of each: that of its network."""
    if NETWORK not in table:
        raise ScaleGMNError(
            f"{source.path}: expected a column {NETWORK}, which tells what network a checkpoint belongs to; "
            "without --every-epoch it is not needed"
        )
    owners = table[NETWORK]
    split_of = dict(zip((owners[row] for row in final), splits.tolist(), strict=True))
    if len(split_of) < len(final):
        raise ScaleGMNError(f"{source.path}: expected one checkpoint of step {FINAL_STEP} for each {NETWORK}, got more")
    rows = [row for row, owner in enumerate(owners) if owner in split_of]
    return np.array(rows, np.int64), [split_of[owners[row]] for row in rows]


def _permutation(source: Files, name: str, count: int) -> Array:
    lines = source.read(name, _SMALL).decode("ascii", "replace").split()
    try:
        order = np.array([int(line) for line in lines], np.int64)
    except (ValueError, OverflowError) as error:
        raise ScaleGMNError(f"{source.where(name)}: expected one row number per line") from error
    if not np.array_equal(np.sort(order), np.arange(count)):
        raise ScaleGMNError(f"{source.where(name)}: expected each row number from 0 to {count - 1} once")
    return order
