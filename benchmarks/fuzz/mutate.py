"""Ways to damage an input: bytes, structure, kind of file, and words of a command line."""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

NUMBERS = ["-1", "0", "1", "2", str(2**31), str(2**63), str(2**64), str(10**30), "1e400", "nan", "-inf", "0.5"]
WORDS = ["", " ", "a" * 5000, "..", "/", "/dev/zero", "/dev/null", "\u202e", "*", "--", "-", "none", "auto", "~"]
VALUES: list[Any] = [
    None, True, -1, 0, 2**31, 2**64, 10**30, 1e308, float("nan"), float("inf"), "", "x", "a" * 5000, "\0", [], {}, [[]],
    {"a": {"b": []}}, [0] * 1000, "__metadata__", "../../escape",
]  # fmt: skip


def damage(path: Path, rng: random.Random) -> str:
    """Damage one file in place, and say how."""
    by_content: list[Callable[[Path, random.Random], str]] = [_flip, _truncate, _insert, _empty, _kind, _swap]
    if path.suffix in (".json", ".jsonl"):
        by_content += [_json] * 8
    elif path.suffix in (".toml", ".csv", ".txt", ".py"):
        by_content += [_text] * 8
    elif path.suffix == ".safetensors":
        by_content += [_header] * 8
    elif path.suffix in (".npy", ".npz"):
        by_content += [_numpy] * 6
    elif path.suffix in (".pt", ".pth"):
        by_content += [_tensors] * 6
    elif path.parent.name == "cifar-10-batches-py":
        by_content += [_pickle] * 8
    change = rng.choice(by_content)
    return f"{change.__name__.strip('_')} {path.name}: {change(path, rng)}"


def _flip(path: Path, rng: random.Random) -> str:
    data = bytearray(path.read_bytes())
    places = sorted({rng.randrange(len(data)) for _ in range(rng.choice([1, 1, 4, 64]))}) if data else []
    for i in places:
        data[i] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return f"{len(places)} bits, first at {places[0] if places else None}"


def _truncate(path: Path, rng: random.Random) -> str:
    data = path.read_bytes()
    size = rng.randrange(len(data) + 1)
    path.write_bytes(data[:size])
    return f"{len(data)} -> {size} bytes"


def _insert(path: Path, rng: random.Random) -> str:
    data = path.read_bytes()
    at, more = rng.randrange(len(data) + 1), rng.randbytes(rng.choice([1, 8, 1000]))
    path.write_bytes(data[:at] + more + data[at:])
    return f"{len(more)} bytes at {at}"


def _empty(path: Path, rng: random.Random) -> str:
    path.write_bytes(rng.choice([b"", b"\0", b"\0" * 4096, b"PK\3\4", b"\x80\4", b"\xff\xfe", b"{" * 100_000]))
    return "other content"


def _kind(path: Path, rng: random.Random) -> str:
    """Something else under the same name."""
    path.unlink()
    kind = rng.choice(["fifo", "directory", "loop", "dangling", "zero", "gone"])
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "loop":
            path.symlink_to(path)
        case "dangling":
            path.symlink_to(path.with_name("nowhere"))
        case "zero":
            path.symlink_to("/dev/zero")
    return kind


def _swap(path: Path, rng: random.Random) -> str:
    """The content of another file beside it."""
    others = [p for p in sorted(path.parent.rglob("*")) if p.is_file() and not p.is_symlink()]
    other = rng.choice(others)
    path.write_bytes(other.read_bytes())
    return f"content of {other.name}"


def _json(path: Path, rng: random.Random) -> str:
    try:
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        place = rng.randrange(len(lines))
        value = json.loads(lines[place])
    except (ValueError, IndexError):
        return _flip(path, rng)
    how = rng.randrange(10)
    if how == 0:
        lines[place] = "[" * 100_000
    elif how == 1:
        lines[place] = lines[place].replace("0", "9" * 5000, 1)
    else:
        value, said = _other(value, rng)
        lines[place] = json.dumps(value)
        path.write_text("\n".join(lines))
        return said
    path.write_text("\n".join(lines))
    return ("deeply nested", "5,000 digits")[how]


def _other(value: Any, rng: random.Random) -> tuple[Any, str]:
    """The same with one value somewhere inside replaced, removed or renamed."""
    place, parent, key = value, None, None
    while isinstance(place, (dict, list)) and place and rng.random() < 0.8:
        parent, key = place, rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
        place = parent[key]
    new = rng.choice(VALUES)
    if parent is None:
        return new, f"all of it -> {str(new)[:30]!r}"
    how = rng.random()
    if how < 0.2:
        del parent[key]
        return value, f"without {key!r}"
    if how < 0.3 and isinstance(parent, dict):
        parent[rng.choice(["__metadata__", "\0", "", "x" * 300])] = parent.pop(key)
        return value, f"{key!r} renamed"
    parent[key] = new
    return value, f"{key!r} -> {str(new)[:30]!r}"


def _text(path: Path, rng: random.Random) -> str:
    """One word of a text replaced."""
    import re

    text = path.read_text()
    words = list(re.finditer(r"[\w.\-+]+", text))
    if not words:
        return _insert(path, rng)
    word = rng.choice(words)
    new = rng.choice([*NUMBERS, *WORDS, "[" * 5000, "9" * 5000, "true", "\0", '"""', "{}"])
    path.write_text(text[: word.start()] + new + text[word.end() :])
    return f"{word[0][:30]!r} -> {new[:30]!r}"


def _header(path: Path, rng: random.Random) -> str:
    """Another header on the same tensors."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else 0
    try:
        header = json.loads(data[8 : 8 + size])
    except ValueError:
        return _flip(path, rng)
    how = rng.randrange(5)
    said = "size of the header"
    if how == 0:
        path.write_bytes(struct.pack("<Q", rng.choice([0, 1, 2**40, 2**63, 2**64 - 1])) + data[8:])
        return said
    if how == 1:
        names = [k for k in header if k != "__metadata__"]
        name = rng.choice(names)
        header[name]["dtype"] = rng.choice(["F8_E4M3", "F8_E5M2", "BOOL", "I64", "F64", "BF16", "F16", "C64", "X"])
        said = f"dtype of {name}"
    elif how == 2:
        names = [k for k in header if k != "__metadata__"]
        name = rng.choice(names)
        header[name]["shape"] = rng.choice([[0], [2**62, 4], [-1], [1] * 100, [10**9, 10**9], []])
        said = f"shape of {name}"
    else:
        header, said = _other(header, rng)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])
    return said


def _numpy(path: Path, rng: random.Random) -> str:
    """Other numbers, or a header that promises too much."""
    import numpy as np

    try:
        with np.load(path) as loaded:
            arrays = dict(loaded) if path.suffix == ".npz" else {"": np.load(path)}
    except (ValueError, AttributeError, TypeError):
        arrays = {"": np.load(path)}
    name = rng.choice(list(arrays))
    array = arrays[name]
    how = rng.randrange(7)
    said = ["negative", "huge", "nan", "other type", "flat", "none", "absurd header"][how]
    if how == 0:
        array = array.astype(np.int64) - 5
    elif how == 1:
        array = array.astype(np.int64) + 10 ** rng.choice([3, 6, 12])
    elif how == 2:
        array = array.astype(np.float64) * np.nan
    elif how == 3:
        array = array.astype(rng.choice(["complex64", "U5", "bool", "float16", "datetime64[s]"]))
    elif how == 4:
        array = array.reshape(-1)
    elif how == 5:
        array = array[:0]
    arrays[name] = array
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        np.save(path, array)
    if how == 6:
        data = path.read_bytes()
        path.write_bytes(data.replace(b"'shape': (", b"'shape': (999999999999, ", 1))
    return f"{name or path.stem}: {said}"


def _tensors(path: Path, rng: random.Random) -> str:
    """Other tensors in a checkpoint."""
    import torch

    state = torch.load(path, weights_only=True)
    if not isinstance(state, dict) or not state:
        return _flip(path, rng)
    name = rng.choice([key for key, value in state.items() if isinstance(value, torch.Tensor)])
    value = state[name]
    changes: dict[str, Callable[[], Any]] = {
        "nan": lambda: value * float("nan"),
        "inf": lambda: value + float("inf"),
        "denormal": lambda: value * 1e-42,
        "float64": lambda: value.double(),
        "float8": lambda: value.to(torch.float8_e4m3fn),
        "bfloat16": lambda: value.bfloat16(),
        "complex": lambda: value.to(torch.complex64),
        "sparse": lambda: value.to_sparse(),
        "meta": lambda: value.to("meta"),
        "stride 0": lambda: torch.zeros(1).expand(value.shape),
        "huge stride 0": lambda: torch.zeros(1).expand(2**40, *value.shape[1:]),
        "scalar": lambda: torch.tensor(1.0),
        "empty": lambda: value[:0],
        "string": lambda: "weights",
        "nested": lambda: {"a": {"b": value}},
        "transposed": lambda: value.T if value.dim() == 2 else value[None],
        "larger": lambda: torch.cat([value, value]),
    }
    how = rng.choice(list(changes))
    state[name] = changes[how]()
    if rng.random() < 0.1:
        state["\0" + "x" * rng.choice([1, 1000])] = state.pop(name)
    torch.save(state, path)
    return f"{name}: {how}"


def _pickle(path: Path, rng: random.Random) -> str:
    """A batch of images with other labels, another type of its array, or names and calls that nobody expects."""
    data, labels = path.read_bytes(), b"K\x00K\x01K\x02"
    changes = {
        "negative": data.replace(labels, b"J\xff\xff\xff\xffK\x01K\x02", 1),
        "million": data.replace(labels, b"J\x40\x42\x0f\x00K\x01K\x02", 1),
        "huge": data.replace(labels, b"\x8a\x09" + bytes(8) + b"\x01K\x01K\x02", 1),
        "objects": data.replace(b"X\x02\x00\x00\x00u1", b"X\x02\x00\x00\x00O8", 1),
        "floats": data.replace(b"X\x02\x00\x00\x00u1", b"X\x02\x00\x00\x00f8", 1),
        "code": b"cposix\nsystem\nX\x0b\x00\x00\x00touch owned\x85R.",
        "state of a type": data.replace(b"numpy\ndtype", b"numpy\nvoid", 1),
        "deep": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
        "endless text": b"\x80\x02" + b"X\xff\xff\xff\x7f" + data,
    }
    how = rng.choice(list(changes))
    path.write_bytes(changes[how])
    return how


def other_words(words: list[str], rng: random.Random) -> tuple[list[str], str]:
    """A command line with one word changed, removed, doubled or added."""
    at = rng.randrange(1, len(words)) if len(words) > 1 else 0
    how = rng.choice(["number", "word", "drop", "double", "swap", "option", "option", "option"])
    found = list(words)
    if how == "number":
        found[at] = rng.choice(NUMBERS)
    elif how == "word":
        found[at] = rng.choice(WORDS)
    elif how == "drop" and found[at] not in LONG:
        del found[at]
    elif how == "double":
        found.insert(at, found[at])
    elif how == "option":
        found += _option(words, rng)
    else:
        other = rng.randrange(len(found))
        found[at], found[other] = found[other], found[at]
    return found, f"command line: {how} at {at}"


def _option(words: list[str], rng: random.Random) -> list[str]:
    """An option that the command has, with a value that it may not expect; or a setting of its recipe."""
    import typer

    from scalegmn.cli import app
    from scalegmn.training.recipe import Training

    command: Any = typer.main.get_command(app)
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    options = [o for o in command.params if o.opts[0].startswith("-") and o.opts[0] not in LONG]
    if not options:
        return [rng.choice(WORDS)]
    option, value = rng.choice(options), rng.choice([*NUMBERS, *WORDS, *CODE])
    if option.opts[0] == "--set":
        keys = ["seed", "zoo", *(f"training.{name}" for name in Training.model_fields), *(f"model.{n}" for n in MODEL)]
        value = f"{rng.choice(keys)}={value}"
    return [option.opts[0]] if option.is_flag else [option.opts[0], value]


# These ask for work that may well take longer than the limit: a cluster, and all the experiments of a table.
LONG = ("--ray", "--table-only")
# Code that a person names is run.
CODE = ["sys:exit", "os:getpid", "nets.py:make", "nets.py:nothing", "nothing:nothing"]
MODEL = ["name", "width", "layers", "probes", "dropout", "readout", "sign", "backward", "nothing"]
