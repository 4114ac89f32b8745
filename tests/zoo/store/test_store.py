"""Zoos on disk: round trips, damage, speed, order, and several processes."""

from __future__ import annotations

import json
import os
import pickle
import time
from pathlib import Path

import pytest
import torch
from safetensors.numpy import load_file
from torch.utils.data import DataLoader

from scalegmn.core.activations import activation
from scalegmn.core.architecture import Architecture
from scalegmn.core.networks import Networks
from scalegmn.errors import ScaleGMNError
from scalegmn.zoo.inr.canvas import Canvas
from scalegmn.zoo.store.verify import verify
from scalegmn.zoo.store.writer import ZooWriter
from scalegmn.zoo.store.zoo import Zoo

SIREN = Architecture.mlp([2, 32, 32, 1], activation("sine", 30.0))
SMALL = Architecture.mlp([2, 5, 1], "relu")
OTHER = Architecture.cnn([1, 3, 4], 2, "tanh")


def write(path: Path, *shards: tuple[Architecture, int], images: bool = False) -> list[torch.Tensor]:
    """A zoo of random networks; the column `number` counts them."""
    generator = torch.Generator().manual_seed(0)
    writer = ZooWriter(path, kind="test", arguments={"seed": 0}, canvas=Canvas("dws", 4, 3, 1))
    written = []
    for architecture, count in shards:
        start = len(writer)
        rows = torch.randn(count, architecture.parameters, generator=generator)
        split = [("train", "val", "test")[i % 3] for i in range(start, start + count)]
        number = torch.arange(start, start + count)
        writer.append(
            architecture,
            rows,
            {"number": number, "image": number // 2, "split": split, "width": ["b", "a"] * (count // 2)},
        )
        written.append(rows)
    pictures = torch.arange(len(writer) // 2 * 12).to(torch.uint8).view(-1, 4, 3, 1)
    writer.finish(images=pictures if images else None, notes={"rule": "every third"})
    return written


# -- round trips ---------------------------------------------------------------------------------------------------


def test_networks_come_back_in_the_order_asked(tmp_path: Path) -> None:
    written = torch.cat(write(tmp_path, (SMALL, 6), (SMALL, 4), (SMALL, 10)))
    zoo = Zoo.open(tmp_path)
    assert len(zoo) == 20
    assert zoo.architecture == SMALL
    assert torch.equal(zoo.batch().parameters, written)
    wanted = torch.tensor([19, 0, 7, 7, 6, 5])
    assert torch.equal(zoo.batch(wanted).parameters, written[wanted])
    assert torch.equal(zoo.batch(slice(3, 9)).parameters, written[3:9])
    assert zoo.batch([]).parameters.shape == (0, SMALL.parameters)
    with pytest.raises(ScaleGMNError, match="expected 0 to 19, got 3 to 20"):
        zoo.batch([3, 20])
    with pytest.raises(ScaleGMNError, match="got -1 to 2"):
        zoo.batch([2, -1])


def test_several_architectures_are_grouped(tmp_path: Path) -> None:
    write(tmp_path, (SMALL, 4), (OTHER, 6), (SMALL, 2))
    zoo = Zoo.open(tmp_path)
    assert zoo.architectures == (SMALL, OTHER)
    with pytest.raises(ScaleGMNError, match="has 2; use `architectures`"):
        zoo.batch([0])
    wanted = torch.tensor([11, 4, 0, 9, 10])
    groups, order = zoo.batches(wanted)
    assert [g.architecture for g in groups] == [SMALL, OTHER]
    assert wanted[order].tolist() == [11, 0, 10, 4, 9]
    expected = [zoo.shard(2)[1], zoo.shard(0)[0], zoo.shard(2)[0]]
    assert torch.equal(groups[0].parameters, torch.stack([torch.tensor(e) for e in expected]))
    assert zoo.architecture_of(wanted).tolist() == [0, 1, 0, 1, 0]
    for networks, indices in zoo.loader("train", 3):
        assert isinstance(networks, list)
        kinds = [k for k, g in enumerate(networks) for _ in range(len(g))]
        assert len(kinds) == len(indices) == sum(zoo.architecture_of(indices) >= 0)
        assert sum(len(g) for g in networks) == len(indices)


def test_table_splits_and_categories(tmp_path: Path) -> None:
    write(tmp_path, (SMALL, 6), (SMALL, 4))
    zoo = Zoo.open(tmp_path)
    assert zoo.columns == ("image", "number", "split", "width")
    assert zoo.column("number").tolist() == list(range(10))
    assert zoo.splits == ("train", "val", "test")
    assert zoo.split("val").tolist() == [1, 4, 7]
    assert zoo.categories("width") == ("a", "b")
    assert zoo.column("width").tolist() == [1, 0] * 5
    with pytest.raises(ScaleGMNError, match="expected one of image, number, split, width; got 'psnr'"):
        zoo.column("psnr")
    with pytest.raises(ScaleGMNError, match="has train, val, test; got 'training'"):
        zoo.split("training")


def test_images_follow_their_networks(tmp_path: Path) -> None:
    write(tmp_path, (SMALL, 8), images=True)
    zoo = Zoo.open(tmp_path)
    images = zoo.images([7, 0, 1])
    assert images.shape == (3, 4, 3, 1)
    assert images.dtype == torch.uint8
    assert images[:, 0, 0, 0].tolist() == [36, 0, 0]  # networks 0 and 1 share an image
    assert zoo.grid().shape == (12, 2)
    write(tmp_path / "without", (SMALL, 8))
    with pytest.raises(ScaleGMNError, match="holds no images"):
        Zoo.open(tmp_path / "without").images()


def test_files_are_plain_safetensors(tmp_path: Path) -> None:
    (written,) = write(tmp_path, (SMALL, 6), images=True)
    stored = load_file(tmp_path / "parameters-00000.safetensors")
    assert list(stored) == ["parameters"]
    assert torch.equal(torch.from_numpy(stored["parameters"]), written)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "images.safetensors", "parameters-00000.safetensors", "table.safetensors", "zoo.json",
    ]  # fmt: skip


def test_a_canvas_turns_outputs_into_pixels() -> None:
    canvas = Canvas("nfn", 4, 3, 2, low=-1, high=1)
    images = torch.randint(256, (5, 4, 3, 2), dtype=torch.uint8)
    values = canvas.values(images)
    assert values.shape == (5, 12, 2)
    assert torch.allclose(canvas.picture(values), images / 255, atol=1e-6)


# -- loading -------------------------------------------------------------------------------------------------------


def test_batches_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    write(tmp_path, (SMALL, 30), (SMALL, 30))
    zoo = Zoo.open(tmp_path)

    def order(**options: int) -> list[int]:
        return torch.cat([b.indices for b in zoo.loader("train", 6, shuffle=True, **options)]).tolist()

    assert order(seed=1, epoch=2) == order(seed=1, epoch=2)
    assert order(seed=1, epoch=2) != order(seed=1, epoch=3)
    assert order(seed=1, epoch=2) != order(seed=2, epoch=2)
    assert sorted(order()) == zoo.split("train").tolist()
    assert [len(b.indices) for b in zoo.loader("train", 6)] == [6, 6, 6, 2]
    assert len(zoo.loader("train", 6, drop_last=True)) == 3
    with pytest.raises(ScaleGMNError, match="batch_size: expected at least 1, got 0"):
        zoo.loader("train", 0)


def test_workers_of_a_data_loader_give_the_same_batches(tmp_path: Path) -> None:
    write(tmp_path, (SMALL, 30), (SMALL, 30))
    batches = Zoo.open(tmp_path).loader("train", 4, shuffle=True)
    loader = DataLoader(batches, batch_size=None, num_workers=2, multiprocessing_context="spawn")  # type: ignore[arg-type]
    found = list(loader)
    assert len(found) == len(batches) == 5
    for (ours, numbers), (theirs, others) in zip(batches, found, strict=True):
        assert isinstance(ours, Networks)
        assert torch.equal(ours.parameters, theirs.parameters)
        assert ours.architecture == theirs.architecture
        assert torch.equal(numbers, others)


def test_a_pickled_zoo_is_its_path(tmp_path: Path) -> None:
    write(tmp_path, (SIREN, 200))
    zoo = Zoo.open(tmp_path)
    assert len(pickle.dumps(zoo)) < 500
    assert torch.equal(pickle.loads(pickle.dumps(zoo)).batch([5]).parameters, zoo.batch([5]).parameters)


@pytest.mark.skipif("SCALEGMN_SANITIZE" in os.environ, reason="time means nothing under a sanitizer")
def test_a_large_zoo_opens_at_once_and_serves_quickly(tmp_path: Path) -> None:
    # Time of this process, so that others do not decide the outcome.
    write(tmp_path, *[(SIREN, 1000)] * 60)
    started = time.process_time()
    zoo = Zoo.open(tmp_path)
    assert time.process_time() - started < 0.05

    def epoch() -> float:
        started = time.process_time()
        served = sum(len(batch.indices) for batch in zoo.loader("train", 128, shuffle=True))
        return served / (time.process_time() - started)

    assert max(epoch() for _ in range(3)) > 50_000


# -- writing -------------------------------------------------------------------------------------------------------


def test_writing_again_with_the_same_arguments_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, (SMALL, 6))
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    writer = ZooWriter(tmp_path, kind="test", arguments={"seed": 0})
    assert writer.finished
    writer.finish()
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_other_arguments_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "done", (SMALL, 6))
    with pytest.raises(ScaleGMNError, match="holds a zoo made with seed=0, now seed=1; give another"):
        ZooWriter(tmp_path / "done", kind="test", arguments={"seed": 1})
    ZooWriter(tmp_path / "begun", kind="test", arguments={"seed": 0, "lr": 0.1})
    with pytest.raises(ScaleGMNError, match=r"was begun with lr=0.1, steps=None, now lr=0.2, steps=5"):
        ZooWriter(tmp_path / "begun", kind="test", arguments={"seed": 0, "lr": 0.2, "steps": 5})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(ScaleGMNError, match="is not empty and not a zoo"):
        ZooWriter(tmp_path / "full", kind="test", arguments={})
    with pytest.raises(ScaleGMNError, match="is a file"):
        ZooWriter(tmp_path / "full" / "thesis.tex", kind="test", arguments={})


def test_two_writers_at_once_are_refused(tmp_path: Path) -> None:
    first = ZooWriter(tmp_path, kind="test", arguments={})
    with pytest.raises(ScaleGMNError, match="another process is building"):
        ZooWriter(tmp_path, kind="test", arguments={})
    first.append(SMALL, torch.zeros(1, SMALL.parameters), {})
    first.finish()


@pytest.mark.parametrize("lost", ["part-00001.safetensors", "parameters-00001.safetensors"])
def test_a_half_written_shard_is_written_again(tmp_path: Path, lost: str) -> None:
    def begin(folder: str) -> ZooWriter:
        return ZooWriter(tmp_path / folder, kind="test", arguments={})

    rows = torch.randn(3, 4, SMALL.parameters)
    whole = begin("whole")
    for i in range(3):
        whole.append(SMALL, rows[i], {"a": torch.full((4,), i), "b": [f"name {i}"] * 4})
    whole.finish()
    torn = begin("torn")
    for i in range(2):
        torn.append(SMALL, rows[i], {"a": torch.full((4,), i), "b": [f"name {i}"] * 4})
    del torn
    path = tmp_path / "torn" / lost
    path.write_bytes(path.read_bytes()[:10]) if lost.startswith("parameters") else path.unlink()
    again = begin("torn")
    assert again.shards == 1
    for i in range(again.shards, 3):
        again.append(SMALL, rows[i], {"a": torch.full((4,), i), "b": [f"name {i}"] * 4})
    again.finish()
    files = [{p.name: p.read_bytes() for p in (tmp_path / f).iterdir()} for f in ("whole", "torn")]
    assert files[0] == files[1]


def test_bad_shards_are_refused(tmp_path: Path) -> None:
    writer = ZooWriter(tmp_path, kind="test", arguments={})
    rows = torch.zeros(3, SMALL.parameters)
    with pytest.raises(ScaleGMNError, match="expected at least one network"):
        writer.finish()
    with pytest.raises(ScaleGMNError, match=r"expected shape \(n, 21\)"):
        writer.append(SMALL, rows[:, 1:], {})
    with pytest.raises(ScaleGMNError, match="column 'label': expected 3 rows, got 2"):
        writer.append(SMALL, rows, {"label": torch.zeros(2)})
    with pytest.raises(ScaleGMNError, match="expected train, val, test; got 'dev'"):
        writer.append(SMALL, rows, {"split": ["train", "dev", "test"]})
    with pytest.raises(ScaleGMNError, match="network 1 has NaN"):
        writer.append(SMALL, rows.index_fill(0, torch.tensor(1), torch.nan), {})
    writer.append(SMALL, rows, {"label": torch.zeros(3)})
    with pytest.raises(ScaleGMNError, match="columns: expected label; got psnr"):
        writer.append(SMALL, rows, {"psnr": torch.zeros(3)})


# -- damage --------------------------------------------------------------------------------------------------------


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "name", ["parameters-00001.safetensors", "table.safetensors", "images.safetensors", "zoo.json"]
)
def test_a_flipped_byte_is_found_and_named(tmp_path: Path, name: str) -> None:
    write(tmp_path, (SMALL, 6), (SMALL, 6), images=True)
    assert verify(tmp_path) == []
    content = (tmp_path / name).read_bytes()
    # In JSON, a digit of the seed; elsewhere any byte of the data.
    flip(tmp_path / name, content.index(b'"seed": ') + 8 if name == "zoo.json" else len(content) - 7)
    (problem,) = verify(tmp_path)
    assert problem == f"{name}: changed since it was written (wrong checksum)"


def test_missing_and_truncated_shards_are_found(tmp_path: Path) -> None:
    write(tmp_path, (SMALL, 6), (SMALL, 6), (SMALL, 6))
    (tmp_path / "parameters-00000.safetensors").unlink()
    shard = tmp_path / "parameters-00002.safetensors"
    size = shard.stat().st_size
    shard.write_bytes(shard.read_bytes()[:-9])
    assert verify(tmp_path) == [
        "parameters-00000.safetensors: missing",
        f"parameters-00002.safetensors: truncated, expected {size} bytes, got {size - 9}",
    ]
    zoo = Zoo.open(tmp_path)
    assert len(zoo.batch([7])) == 1  # what is intact can still be read
    with pytest.raises(ScaleGMNError, match="is missing"):
        zoo.batch([0])
    with pytest.raises(ScaleGMNError, match="not a readable safetensors"):
        zoo.batch([12])


def test_what_is_not_a_zoo_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScaleGMNError, match=r"holds no zoo.json"):
        Zoo.open(tmp_path)
    ZooWriter(tmp_path, kind="test", arguments={})
    with pytest.raises(ScaleGMNError, match="is unfinished; run the command"):
        Zoo.open(tmp_path)
    assert "unfinished" in verify(tmp_path)[0]
    for content, message in [
        (b"{", "is damaged or not JSON"),
        (b"[" * 100_000, "is damaged or not JSON"),
        (b"1" * 5000, "is damaged or not JSON"),
        (b"[]", "not written by scalegmn"),
        (b'{"format": "scalegmn zoo", "version": 2}', "format version 2; this program reads 1"),
        (b'{"format": "scalegmn zoo", "version": 1}', "lacks 'kind'"),
    ]:
        (tmp_path / "zoo.json").write_bytes(content)
        with pytest.raises(ScaleGMNError, match=message):
            Zoo.open(tmp_path)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "a/b.safetensors"])
def test_files_outside_the_zoo_are_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path, (SMALL, 6))
    header = json.loads((tmp_path / "zoo.json").read_text())
    header["shards"][0]["file"] = name
    (tmp_path / "zoo.json").write_text(json.dumps(header))
    with pytest.raises(ScaleGMNError, match="leads out of the zoo; refused"):
        Zoo.open(tmp_path)
