"""Building INR zoos: what the networks paint, splits and views, and builds that are killed."""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalegmn.core.groups import PositiveScale, Sign, Trivial
from scalegmn.errors import ScaleGMNError
from scalegmn.zoo.cnn.build import build_cnn_zoo
from scalegmn.zoo.cnn.recipe import Budget
from scalegmn.zoo.images.collections import Images, load_images
from scalegmn.zoo.inr.build import build_inr_zoo
from scalegmn.zoo.inr.conventions import Fit
from scalegmn.zoo.store.combine import combine
from scalegmn.zoo.store.splits import select
from scalegmn.zoo.store.verify import verify
from scalegmn.zoo.store.writer import header_hash
from scalegmn.zoo.store.zoo import Zoo

DIGITS = load_images("digits")
QUICK = Fit(hidden=(8,), steps=5)
LARGE = Images("large", DIGITS.pixels[:40].repeat(4, 1).repeat(4, 2), DIGITS.labels[:40], np.arange(40) >= 30)
BUILDERS: dict[str, Callable[[Images, Path], Zoo]] = {
    "inr": partial(build_inr_zoo, fit=QUICK, count=10),
    "cnn": partial(build_cnn_zoo, count=2, budget=Budget(batch=4, steps=(1, 2))),
}


def content(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in path.iterdir()}


def colours(count: int, *, test: int = 0) -> Images:
    """Smooth random colour images of 6 x 5 pixels, the last ones official test images."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[0:6, 0:5]
    phase = rng.uniform(0, 6, (count, 1, 1, 3))
    pixels = 127 + 120 * np.sin(0.5 * x[None, ..., None] + 0.3 * y[None, ..., None] + phase)
    return Images("waves", pixels.astype(np.uint8), np.arange(count) % 4, np.arange(count) >= count - test)


# -- what is built -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("convention", ["dws", "nfn"])
@pytest.mark.parametrize("activation", ["sine", "relu", "tanh"])
def test_networks_paint_their_images(tmp_path: Path, convention: str, activation: str) -> None:
    source = colours(12)
    fit = Fit(hidden=(16,), activation=activation, convention=convention, steps=800, lr=3e-3)
    zoo = build_inr_zoo(source, tmp_path, fit=fit)
    assert zoo.canvas is not None
    images = zoo.images()
    assert np.array_equal(images.numpy(), source.pixels)
    error = zoo.canvas.render(zoo.batch().to(dtype=torch.float64)) - images.double() / 255
    psnr = -10 * torch.log10(error.square().mean((1, 2, 3)))
    assert torch.allclose(psnr, zoo.column("psnr").double(), atol=0.02)
    assert psnr.mean() > 22
    assert zoo.architecture.groups[1] == {"sine": Sign, "tanh": Sign, "relu": PositiveScale}[activation]
    assert zoo.architecture.groups[-1] == Trivial
    # The outputs themselves, without the canvas: between 0 and 1 for dws, -1 and 1 for nfn.
    outputs = zoo.batch().evaluate(zoo.grid())
    assert torch.allclose(outputs, zoo.canvas.values(images), atol=0.5)
    assert (outputs.min() < -0.3) == (convention == "nfn")


def test_grey_images_have_one_channel(tmp_path: Path) -> None:
    zoo = build_inr_zoo(DIGITS, tmp_path, fit=QUICK, count=4)
    assert zoo.architecture.layers[-1].size == 1
    assert zoo.images().shape == (4, 8, 8, 1)


def test_views_are_independent_fits_in_one_split(tmp_path: Path) -> None:
    zoo = build_inr_zoo(DIGITS, tmp_path, fit=QUICK, count=40, views=3)
    assert len(zoo) == 120
    image, view, split = (zoo.column(name).view(40, 3) for name in ("image", "view", "split"))
    assert (image == image[:, :1]).all()
    assert view.unique(dim=0).tolist() == [[0, 1, 2]]
    assert (split == split[:, :1]).all()
    assert split.unique().numel() == 3
    assert torch.equal(zoo.images([3]), zoo.images([5]))
    rows = zoo.batch().parameters
    assert len(rows.unique(dim=0)) == 120


def test_another_seed_gives_other_networks(tmp_path: Path) -> None:
    first, second = (build_inr_zoo(DIGITS, tmp_path / str(seed), fit=QUICK, count=30, seed=seed) for seed in (0, 1))
    assert not torch.equal(first.images(), second.images())
    assert not torch.equal(first.batch().parameters, second.batch().parameters)


def test_labels_belong_to_images(tmp_path: Path) -> None:
    zoo = build_inr_zoo(DIGITS, tmp_path, fit=QUICK, count=50)
    lookup = {pixels.tobytes(): label for pixels, label in zip(DIGITS.pixels, DIGITS.labels, strict=True)}
    assert [lookup[i.numpy().tobytes()] for i in zoo.images()] == zoo.column("label").tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 1798}, "count: expected 1 to 1797"),
        ({"count": 0}, "count: expected 1 to 1797"),
        ({"views": 0}, "views: expected 1 to"),
        ({"seed": -1}, "seed: expected a seed from 0"),
        ({"seed": 2**64}, "seed: expected a seed from 0"),
        ({"fit": Fit(lr=1e30, steps=50), "count": 3}, "diverged with lr=1e\\+30; lower it"),
    ],
)
def test_bad_arguments_are_refused(tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(ScaleGMNError, match=message):
        build_inr_zoo(DIGITS, tmp_path / "zoo", **options)  # type: ignore[arg-type]


def test_one_image_is_enough(tmp_path: Path) -> None:
    assert len(build_inr_zoo(DIGITS, tmp_path, fit=QUICK, count=1)) == 1


# -- splits --------------------------------------------------------------------------------------------------------


@given(st.integers(1, 400), st.integers(0, 400), st.integers(0, 5), st.data())
def test_splits_respect_the_official_test_images(train: int, test: int, seed: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, train + test))
    official = np.random.default_rng(seed).permutation(np.arange(train + test) >= train)
    chosen = select(official, count, seed)
    rows = chosen.rows.tolist()
    assert rows == sorted(set(rows))
    assert len(rows) == len(chosen.splits) == count
    if test:
        assert [s == "test" for s in chosen.splits] == official[rows].tolist()
        assert abs(chosen.splits.count("test") - count * test / (train + test)) <= 1
    else:
        assert abs(chosen.splits.count("test") - count / 5) <= 1


@pytest.mark.parametrize(
    ("train", "test", "expected"),
    [(60_000, 10_000, (55_000, 5_000, 10_000)), (50_000, 10_000, (45_000, 5_000, 10_000))],
)
def test_published_sizes(train: int, test: int, expected: tuple[int, ...]) -> None:
    chosen = select(np.arange(train + test) >= train, None, 0)
    assert tuple(chosen.splits.count(name) for name in ("train", "val", "test")) == expected


# -- the same bytes, whatever happens ------------------------------------------------------------------------------


def test_threads_do_not_change_the_bytes(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            build_inr_zoo(DIGITS, tmp_path / str(threads), fit=QUICK, count=700)
    finally:
        torch.set_num_threads(before)
    assert content(tmp_path / "1") == content(tmp_path / "3")


def command(out: Path, *options: str) -> list[str]:
    start = [sys.executable, "-m", "scalegmn", "zoo", "build", "inr", "--images", "digits", "--out", str(out)]
    return [*start, *options]


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, "the build ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_killed_build_continues_and_ends_in_the_same_bytes(tmp_path: Path) -> None:
    fit = Fit(hidden=(8,), steps=200)
    build_inr_zoo(DIGITS, tmp_path / "whole", fit=fit, views=3)
    options = ["--hidden", "8", "--steps", "200", "--views", "3"]
    process = subprocess.Popen(command(tmp_path / "killed", *options))
    wait_for(tmp_path / "killed" / "part-00001.safetensors", process)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    with pytest.raises(ScaleGMNError, match="is unfinished"):
        Zoo.open(tmp_path / "killed")
    seen: list[int] = []
    build_inr_zoo(DIGITS, tmp_path / "killed", fit=fit, views=3, report=lambda done, total, psnr: seen.append(done))
    assert 2048 <= seen[0] < 5391  # it began where the other stopped
    assert seen[-1] == 5391
    assert content(tmp_path / "killed") == content(tmp_path / "whole")
    assert verify(tmp_path / "killed") == []


def test_other_arguments_for_the_same_directory_are_refused(tmp_path: Path) -> None:
    build_inr_zoo(DIGITS, tmp_path, fit=QUICK, count=10)
    before = content(tmp_path)
    with pytest.raises(ScaleGMNError, match=r"made with steps=5, now steps=6; give another directory"):
        build_inr_zoo(DIGITS, tmp_path, fit=Fit(hidden=(8,), steps=6), count=10)
    assert content(tmp_path) == before


@pytest.mark.parametrize("kind", BUILDERS)
def test_other_images_for_the_same_directory_are_refused(tmp_path: Path, kind: str) -> None:
    build = BUILDERS[kind]
    build(LARGE, tmp_path)
    other = [
        replace(LARGE, pixels=LARGE.pixels // 2),
        replace(LARGE, labels=LARGE.labels[::-1]),
        replace(LARGE, test=LARGE.test[::-1]),
    ]
    for images in other:
        with pytest.raises(ScaleGMNError, match="holds a zoo made with images_sha256="):
            build(images, tmp_path)


@pytest.mark.parametrize(
    ("kind", "seen"), [("inr", LARGE.pixels.tobytes() + LARGE.labels.tobytes()), ("cnn", LARGE.pixels.tobytes())]
)
def test_zoos_that_say_less_about_their_images_are_recognised(tmp_path: Path, kind: str, seen: bytes) -> None:
    BUILDERS[kind](LARGE, tmp_path)
    path = tmp_path / "zoo.json"
    header = json.loads(path.read_text())
    header["arguments"]["images_sha256"] = hashlib.sha256(seen).hexdigest()
    path.write_text(json.dumps({**header, "sha256": header_hash(header)}))
    before = content(tmp_path)
    assert len(BUILDERS[kind](LARGE, tmp_path)) == header["networks"]
    assert content(tmp_path) == before


def test_a_damaged_header_is_one_line(tmp_path: Path) -> None:
    build_inr_zoo(DIGITS, tmp_path, fit=QUICK, count=10)
    for damage in ("", "{", "[]", "{}"):
        (tmp_path / "zoo.json").write_text(damage)
        with pytest.raises(ScaleGMNError, match=r"zoo\.json is damaged; delete the zoo"):
            build_inr_zoo(DIGITS, tmp_path, fit=QUICK, count=10)


@pytest.mark.parametrize("name", ["lr", "psnr", "w0"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_settings_are_finite(name: str, value: float) -> None:
    with pytest.raises(ScaleGMNError, match=f"{name}: expected a finite number, got {value}"):
        Fit(**{name: value})


def test_memory_does_not_grow_with_the_count(tmp_path: Path) -> None:
    program = """
import resource, sys
from scalegmn.zoo.inr.build import Fit, build_inr_zoo
from scalegmn.zoo.store.combine import combine
from scalegmn.zoo.images.collections import load_images
for views in (2, 6):
    build_inr_zoo(load_images("digits"), f"{sys.argv[1]}/{views}", fit=Fit(hidden=(64, 64), steps=1), views=views)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    result = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    few, many = map(int, result.stdout.split())
    # 1,024 networks of 4,417 weights are 18 MB, so 7 more shards would be 127 MB.
    assert many - few < 60_000


def descendants(pid: int) -> list[int]:
    """All processes below one, from the table of the system."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
    found = [pid]
    for p in found:
        found += [child for child, parent in parents.items() if parent == p]
    return found[1:]


def busy_workers(pid: int) -> list[int]:
    found = []
    for p in descendants(pid):
        try:
            if "scalegmn_job" in Path(f"/proc/{p}/cmdline").read_text():
                found.append(p)
        except OSError:
            continue
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the workers in /proc")
def test_a_cluster_gives_the_same_bytes_although_a_worker_is_killed(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    options = ["--hidden", "16", "--steps", "2000", "--count", "700"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command(tmp_path / "cluster", *options, "--ray", "local"), env=environment)
    deadline = time.monotonic() + 200
    while not (victims := busy_workers(process.pid)):
        assert process.poll() is None, "the build ended before a worker could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(victims[0], signal.SIGKILL)
    assert process.wait(timeout=200) == 0
    build_inr_zoo(DIGITS, tmp_path / "local", fit=Fit(hidden=(16,), steps=2000), count=700)
    assert content(tmp_path / "cluster") == content(tmp_path / "local")


def test_zoos_of_one_split_can_be_combined_with_others(tmp_path: Path) -> None:
    digits, fit = load_images("digits"), Fit(hidden=(4,), steps=1)
    parts = [
        build_inr_zoo(digits, tmp_path / f"{split}{seed}", fit=fit, count=40, split=split, seed=seed)
        for split, seed in (("train", 1), ("val", 1), ("train", 2))
    ]
    assert [zoo.splits for zoo in parts] == [("train",), ("val",), ("train",)]
    assert not torch.equal(parts[0].stored_images(), parts[2].stored_images())
    both = combine(parts, tmp_path / "both")
    assert (len(both.split("train")), len(both.split("val"))) == (80, 40)
    # Zoos that choose splits for themselves share images across them.
    careless = [build_inr_zoo(digits, tmp_path / f"c{seed}", fit=fit, count=400, seed=seed) for seed in (1, 2)]
    with pytest.raises(ScaleGMNError, match="training images"):
        combine(careless, tmp_path / "refused")
    with pytest.raises(ScaleGMNError, match="expected train, val or test, got 'x'"):
        build_inr_zoo(digits, tmp_path / "x", fit=fit, split="x")
