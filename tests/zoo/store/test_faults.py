"""Zoos and files when something goes wrong: full disks, damaged headers, pipes, weights that are no numbers."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from scalegmn.cli import app
from scalegmn.cli.application import run
from scalegmn.convert.formats import files as states
from scalegmn.core.architecture import Architecture
from scalegmn.errors import ScaleGMNError
from scalegmn.files import fresh_directory, open_file, read_bytes, read_json, write_atomically, write_json
from scalegmn.files.arrays import write_npz
from scalegmn.zoo.store.verify import verify
from scalegmn.zoo.store.writer import ZooWriter, header_hash
from scalegmn.zoo.store.zoo import Zoo

SMALL = Architecture.mlp([2, 16, 1])


def write(path: Path, count: int = 200) -> Zoo:
    writer = ZooWriter(path, kind="test", arguments={})
    rows = torch.randn(count, SMALL.parameters, generator=torch.Generator().manual_seed(0))
    writer.append(SMALL, rows, {"label": torch.arange(count), "split": ["train"] * count})
    writer.finish()
    return Zoo.open(path)


# -- full disks --------------------------------------------------------------------------------------------------------


class Full:
    """A disk on which no file can be longer than so many bytes, for the time of a block."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def __enter__(self) -> None:
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.limit, self.before[1]))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)
        signal.signal(signal.SIGXFSZ, self.handler)


def tree(path: Path) -> dict[str, str]:
    files = (p for p in path.rglob("*") if p.is_file())
    return {str(p.relative_to(path)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.mark.parametrize("limit", [0, 100, 3000, 50_000])
def test_combine_on_a_full_disk_leaves_nothing_and_names_the_file(
    tmp_path: Path, limit: int, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "a", 1000)
    before = tree(tmp_path)
    with Full(limit):
        assert run(app, ["zoo", "combine", str(tmp_path / "a"), "--out", str(tmp_path / "b")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "cannot be written (File too large)" in error
    assert str(tmp_path) in error
    assert tree(tmp_path) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]
    assert run(app, ["zoo", "combine", str(tmp_path / "a"), "--out", str(tmp_path / "b")]) == 0
    assert torch.equal(Zoo.open(tmp_path / "b").batch().parameters, Zoo.open(tmp_path / "a").batch().parameters)


def test_a_zoo_that_met_a_full_disk_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    rows = torch.randn(1000, SMALL.parameters, generator=torch.Generator().manual_seed(0))

    def build(path: Path) -> None:
        writer = ZooWriter(path, kind="test", arguments={})
        for size in (10, 1000, 10)[writer.shards :]:
            writer.append(SMALL, rows[:size], {"label": torch.arange(size)})
        writer.finish()

    with Full(20_000), pytest.raises(ScaleGMNError, match=r"parameters-00001\.safetensors: cannot be written"):
        build(tmp_path / "full")
    assert not list(tmp_path.rglob("*.tmp"))
    for name in ("full", "whole"):
        build(tmp_path / name)
    assert tree(tmp_path / "full") == tree(tmp_path / "whole")


@pytest.mark.parametrize("suffix", [".npz", ".json", ".pt", ".safetensors", ".bin"])
def test_what_was_there_stays_when_the_disk_is_full(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"file{suffix}"
    noise = np.random.default_rng(0).random(1000)

    def save() -> None:
        if suffix == ".npz":
            write_npz(path, {"x": noise})
        elif suffix == ".json":
            write_json(path, noise.tolist())
        elif suffix == ".bin":
            write_atomically(path, noise.tobytes())
        else:
            states.write({"x": torch.from_numpy(noise)}, path)

    path.write_bytes(b"precious")
    with Full(100), pytest.raises(ScaleGMNError, match=f"file{suffix}: cannot be written") as caught:
        save()
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == b"precious"
    assert list(tmp_path.iterdir()) == [path]
    save()
    assert path.read_bytes() != b"precious"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real disk of 64 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_no_space_left_names_the_file_and_keeps_the_old_one(small_disk: Path) -> None:
    path = small_disk / "file.bin"
    write_atomically(path, b"precious")
    with pytest.raises(ScaleGMNError, match=r"file\.bin: cannot be written \(No space left on device\)"):
        write_atomically(path, bytes(1 << 20))
    assert path.read_bytes() == b"precious"
    assert list(small_disk.iterdir()) == [path]


def test_a_directory_in_which_nothing_could_be_written_is_taken_away_again(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for name in ("new", "mine"):
        with Full(10), pytest.raises(ScaleGMNError, match=r"building\.json: cannot be written"):
            ZooWriter(tmp_path / name, kind="test", arguments={})
    assert [p.name for p in tmp_path.rglob("*")] == ["mine"]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads its own size in /proc")
def test_a_small_file_is_read_in_little_memory(tmp_path: Path) -> None:
    """The limit says what is refused, not what is set aside: 1 GB of addresses is enough for a limit of 4 GB."""
    path = tmp_path / "small.json"
    path.write_text("{}")
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), limits[1]))
    try:
        assert read_json(path) == {}
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    with pytest.raises(ScaleGMNError, match="expected at most 1 bytes"):
        read_bytes(path, 1)


def test_a_file_that_another_process_writes_is_left_to_it(tmp_path: Path) -> None:
    path, draft = tmp_path / "file.bin", tmp_path / ".file.bin.tmp"
    program = "import fcntl, sys; f = open(sys.argv[1], 'wb'); f.write(b'its'); f.flush(); fcntl.flock(f, 2)"
    with subprocess.Popen(
        [sys.executable, "-c", f"{program}; print(flush=True); input()", str(draft)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(ScaleGMNError, match=r"file\.bin: cannot be written \(another process is writing it\)"):
            write_atomically(path, b"mine")
        assert draft.read_bytes() == b"its"
        other.stdin.close()
    # What a process that died has left is in nobody's way.
    write_atomically(path, b"mine")
    assert path.read_bytes() == b"mine"
    assert list(tmp_path.iterdir()) == [path]


def test_a_fresh_directory_belongs_to_one_process(tmp_path: Path) -> None:
    program = "import sys; from scalegmn.files import fresh_directory\nwith fresh_directory(sys.argv[1]): pass"
    words = [sys.executable, "-c", program, str(tmp_path / "out")]
    with fresh_directory(tmp_path / "out") as folder:
        (folder / "mine").write_text("1")
        result = subprocess.run(words, capture_output=True, text=True, check=False)
        assert "another process is writing" in result.stderr
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["mine"]
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


# -- damaged zoos ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_verify_finds_weights_that_are_no_numbers(
    tmp_path: Path, value: float, capsys: pytest.CaptureFixture[str]
) -> None:
    zoo = write(tmp_path)
    assert verify(tmp_path) == []
    file = tmp_path / zoo.header["shards"][0]["file"]
    content = bytearray(file.read_bytes())
    start = len(content) - 4 * SMALL.parameters * (200 - 17)
    content[start : start + 4] = np.float32(value).tobytes()
    file.write_bytes(content)
    header = json.loads((tmp_path / "zoo.json").read_text())
    header["shards"][0]["sha256"] = hashlib.sha256(content).hexdigest()
    header["sha256"] = header_hash(header)
    write_json(tmp_path / "zoo.json", header)
    assert run(app, ["zoo", "verify", str(tmp_path)]) == 2
    assert "network 17 has NaN or infinite weights" in capsys.readouterr().err
    assert run(app, ["zoo", "info", str(tmp_path), "--plot", str(tmp_path / "out.png")]) == 2
    assert "has NaN or infinite weights" in capsys.readouterr().err
    assert not (tmp_path / "out.png").exists()


@pytest.mark.parametrize("name", ["__metadata__", "a\0b", ""])
def test_columns_that_a_file_cannot_hold_are_refused(tmp_path: Path, name: str) -> None:
    writer = ZooWriter(tmp_path, kind="test", arguments={})
    with pytest.raises(ScaleGMNError, match=r"column .*: expected another name"):
        writer.append(SMALL, torch.zeros(1, SMALL.parameters), {name: torch.zeros(1)})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("networks", 10**30),
        ("shards", [{"file": "x", "bytes": 1, "sha256": "", "networks": 10**30, "architecture": 0}]),
        ("shards", [{"file": "x", "bytes": 1, "sha256": "", "networks": -5, "architecture": 0}]),
        ("shards", [{"file": "x", "bytes": 1, "sha256": "", "networks": 200, "architecture": 7}]),
        ("shards", [{"file": "x\0", "bytes": 1, "sha256": "", "networks": 200, "architecture": 0}]),
        ("shards", 3),
        ("canvas", 3),
        ("architectures", None),
        ("table", {"file": "x"}),
    ],
)
def test_headers_that_make_no_sense_are_one_line(
    tmp_path: Path, key: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)
    header = json.loads((tmp_path / "zoo.json").read_text())
    header[key] = value
    header["sha256"] = header_hash(header)
    (tmp_path / "zoo.json").write_text(json.dumps(header))
    for command in ("info", "verify"):
        assert run(app, ["zoo", command, str(tmp_path)]) == 2
        assert "internal" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["zoo.json", "table.safetensors", "parameters-00000.safetensors"])
def test_pipes_in_the_place_of_files_are_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    for command in ("info", "verify"):
        assert run(app, ["zoo", command, str(tmp_path)]) == 2
        assert "internal" not in capsys.readouterr().err


def test_a_pipe_or_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ScaleGMNError, match=r"pipe: cannot be written \(it is not a regular file\)"):
        write_atomically(pipe, b"content")
    assert pipe.is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_devices_and_absurd_json_are_refused(tmp_path: Path) -> None:
    for path in (Path("/dev/zero"), tmp_path, tmp_path / "none", Path("a\0b")):
        with pytest.raises(ScaleGMNError, match=r"is not a regular file|is missing"):
            open_file(path)
    for text in ("[" * 10**5, "9" * 5000, "{", "\xff"):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(ScaleGMNError, match=r"x\.json: is damaged or not JSON") as caught:
            read_json(tmp_path / "x.json")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "header",
    [
        {"parameters": {"dtype": "F32", "shape": [10**30, 33], "data_offsets": [0, 4]}},
        {"parameters": {"dtype": "F32", "shape": [2**32, 2**32], "data_offsets": [0, 0]}},
        {"parameters": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}},
        {"parameters": {"dtype": "F32", "shape": [1], "data_offsets": [-400, -396]}},
        {"parameters": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}},
        {"parameters": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}},
        {"__metadata__": 3},
        {"__metadata__": {"note": "["}},
    ],
)
def test_shards_with_absurd_headers_are_refused(tmp_path: Path, header: object) -> None:
    zoo = write(tmp_path)
    text = json.dumps(header).encode()
    content = len(text).to_bytes(8, "little") + text + bytes(8)
    (tmp_path / zoo.header["shards"][0]["file"]).write_bytes(content)
    with pytest.raises(ScaleGMNError, match=r"is not a readable safetensors file|does not hold"):
        Zoo.open(tmp_path).shard(0)
