"""Small real inputs of every kind: zoos, runs, checkpoints, recipes, records, image files, published collections."""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

RECIPE = """\
zoo = "zoo"
task = "{task}"

[model]
name = "scalegmn"
width = 8
layers = 1

[training]
epochs = 2
batch = 16
device = "cpu"
"""


def build(root: Path) -> None:
    """Fill a folder with inputs that all commands accept.

    Arguments:
        root: An empty folder.
    """
    rng = np.random.default_rng(0)
    _images(root, rng)
    build_zoo = "zoo build inr --images npz:images.npz --out zoo --hidden 6,6 --activation tanh --steps 20"
    _run(root, *build_zoo.split())
    for task in ("classification", "editing"):
        (root / f"{task}.toml").write_text(RECIPE.format(task=task))
        _run(root, "train", f"{task}.toml", "--out", f"{task}-run")
    _checkpoints(root)
    _collections(root, rng)
    _records(root)


def _run(root: Path, *words: str) -> None:
    subprocess.run([sys.executable, "-m", "scalegmn", *words], cwd=root, check=True, capture_output=True)


def _images(root: Path, rng: np.random.Generator) -> None:
    x = rng.integers(0, 256, (48, 16, 16), dtype=np.uint8)
    y = (np.arange(48) % 3).astype(np.int64)
    np.savez(root / "images.npz", x=x, y=y)
    raw = root / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, count in (("train", 30), ("t10k", 10)):
        digits = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        sizes = b"".join(n.to_bytes(4, "big") for n in (count, 28, 28))
        (raw / f"{name}-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03" + sizes + digits.tobytes())
        labels = rng.integers(0, 10, count, dtype=np.uint8)
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + count.to_bytes(4, "big") + labels.tobytes())
    folder = root / "data" / "cifar-10-batches-bin"
    folder.mkdir()
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        rows = rng.integers(0, 256, (6, 3073), dtype=np.uint8)
        rows[:, 0] %= 10
        (folder / name).write_bytes(rows.tobytes())


def _checkpoints(root: Path) -> None:
    from safetensors.torch import save_file

    torch.manual_seed(0)
    folder = root / "mine"
    folder.mkdir()
    for i in range(6):
        state = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1)).state_dict()
        torch.save(state, folder / f"net{i}.pt")
        save_file({k: v.contiguous() for k, v in state.items()}, folder / f"net{i}.safetensors")
    with (root / "labels.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "accuracy", "label"])
        writer.writerows([f"net{i}.pt", 0.1 * i, i % 2] for i in range(6))


def _collections(root: Path, rng: np.random.Generator) -> None:
    sizes = [("seq.0", 32, 2), ("seq.1", 32, 32), ("seq.2", 1, 32)]
    for split, count in (("training", 6), ("testing", 3)):
        for i in range(count):
            folder = root / "mnist-inrs" / f"mnist_png_{split}_{i % 3}_{i}" / "checkpoints"
            folder.mkdir(parents=True)
            state = {f"{n}.weight": torch.randn(o, k) for n, o, k in sizes}
            state |= {f"{n}.bias": torch.randn(o) for n, o, _ in sizes}
            torch.save(state, folder / "model_final.pth")
    cnn = root / "cnn-zoo"
    cnn.mkdir()
    shapes = [
        ("sequential/conv2d/bias:0", (16,)), ("sequential/conv2d/kernel:0", (3, 3, 1, 16)),
        ("sequential/conv2d_1/bias:0", (16,)), ("sequential/conv2d_1/kernel:0", (3, 3, 16, 16)),
        ("sequential/conv2d_2/bias:0", (16,)), ("sequential/conv2d_2/kernel:0", (3, 3, 16, 16)),
        ("sequential/dense/bias:0", (10,)), ("sequential/dense/kernel:0", (16, 10)),
    ]  # fmt: skip
    with (cnn / "layout.csv").open("w") as file:
        file.write("varname,start_idx,end_idx,shape\n")
        start = 0
        for name, shape in shapes:
            size = int(np.prod(shape))
            file.write(f'{name},{start},{start + size},"{shape}"\n')
            start += size
    np.save(cnn / "weights.npy", rng.standard_normal((12, start)).astype(np.float32))
    with gzip.open(cnn / "metrics.csv.gz", "wt") as file:
        file.write("step,test_accuracy,config.activation\n")
        for i in range(12):
            file.write(f"86,{0.1 + 0.05 * i},{'relu' if i % 2 else 'tanh'}\n")


def _records(root: Path) -> None:
    folder = root / "results"
    folder.mkdir()
    source = Path(__file__).parents[2] / "results"
    for path in sorted(source.rglob("mnist.*.json"))[:6]:
        target = folder / path.relative_to(source).name
        target.write_text(path.read_text())
    json.loads(next(folder.iterdir()).read_text())
