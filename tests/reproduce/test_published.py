"""Table 3 on networks in the published layout: real representations of digits, their images found by number."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from scalegmn.cli import app
from scalegmn.cli.application import run as command
from scalegmn.reproduce.records import read_records
from scalegmn.zoo.inr.canvas import Canvas
from scalegmn.zoo.inr.conventions import Fit
from scalegmn.zoo.inr.fit import fit_inrs
from scalegmn.zoo.store.zoo import Zoo

COUNT, TESTS = 36, 8


def digits() -> tuple[Tensor, np.ndarray]:
    """Digits in the size of MNIST (N, 28, 28) uint8, and their classes."""
    found = load_digits()
    small = torch.from_numpy(found.images[:COUNT])[:, None] * 15.9375
    large = torch.nn.functional.interpolate(small, (28, 28), mode="bilinear", align_corners=False)
    return large[:, 0].round().to(torch.uint8), found.target[:COUNT].astype(np.uint8)


def write_images(folder: Path, images: Tensor, labels: np.ndarray) -> None:
    """The files of MNIST: the last images are for the test, and each half counts from 0."""
    folder.mkdir()
    for prefix, half in (("train", slice(0, COUNT - TESTS)), ("t10k", slice(COUNT - TESTS, COUNT))):
        for name, array in (("images-idx3", images[half].numpy()), ("labels-idx1", labels[half])):
            head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            (folder / f"{prefix}-{name}-ubyte").write_bytes(head + array.tobytes())


def write_collection(folder: Path, images: Tensor, labels: np.ndarray) -> None:
    """One folder per network, named after the half, the class and the number of its image, as published."""
    canvas = Canvas("dws", 28, 28, 1)
    fitted = fit_inrs(canvas.values(images[..., None]), canvas.grid(), Fit(steps=150), threads=1)
    shapes = [(32, 2), (32,), (32, 32), (32,), (1, 32), (1,)]
    names = [f"seq.{k}.{part}" for k in range(3) for part in ("weight", "bias")]
    for i, row in enumerate(fitted.parameters):
        parts = row.split([int(np.prod(shape)) for shape in shapes])
        state = {n: p.reshape(s).clone() for n, p, s in zip(names, parts, shapes, strict=True)}
        half, number = ("training", i) if i < COUNT - TESTS else ("testing", i - COUNT + TESTS)
        path = folder / f"mnist_png_{half}_{labels[i]}_{number}" / "checkpoints" / "model_final.pth"
        path.parent.mkdir(parents=True)
        torch.save(state, path)


def test_editing_runs_on_published_networks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images, labels = digits()
    write_images(tmp_path / "images", images, labels)
    write_collection(tmp_path / "published" / "mnist-inrs", images, labels)
    folders = [f"--{kind}={tmp_path / kind}" for kind in ("images", "published", "zoos", "runs", "results")]
    words = ["reproduce", "editing", "--scale=paper", "--methods=dws", "--seeds=1", "--minutes=0.01", *folders]
    assert command(app, words) == 0
    told = capsys.readouterr()
    assert f"(published, from {tmp_path / 'published' / 'mnist-inrs'})" in told.err
    assert "Published networks: Dilation of MNIST, MSE x 100 (mnist-inrs)." in " ".join(told.out.split())
    (record,) = read_records(tmp_path / "results" / "paper")
    assert record.zoo["published"] == "mnist-inrs"
    assert record.zoo["networks"] == COUNT
    # Every network renders the image beside it, and better than that of another.
    zoo = Zoo.open(tmp_path / "zoos" / "paper" / "mnist-published")
    pictures = zoo.images(range(COUNT)).flatten(1).float() / 255
    rendered = zoo.batch().evaluate(zoo.grid()).squeeze(-1)
    errors = torch.cdist(rendered, pictures)
    assert torch.equal(errors.argmin(1), torch.arange(COUNT))
