"""Small real inputs of every kind: zoos, runs, checkpoints, recipes, records, image files, published collections."""

from __future__ import annotations

import csv
import gzip
import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from scipy.io import savemat
from torch import nn

RECIPE = """\
zoo = "zoo"
task = "{task}"

[model]
name = "scalegmn"
width = 8
layers = 1

[training]
epochs = 1
batch = 8
checkpoint_every = 2
device = "cpu"
"""
# Trains as the command does, and dies after the third step.
HALF = """
import os
from pathlib import Path
from scalegmn.training.loop import train
from scalegmn.training.progress import Progress
from scalegmn.training.recipe import read_recipe
class Mortal(Progress):
    def step(self, step, networks):
        if step == 3:
            os._exit(0)
train(read_recipe(Path("classification.toml"), ()), Path("half-run"), progress=Mortal("half", quiet=True))
"""
MODULE = """\
from torch import nn


def make():
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
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
    subprocess.run([sys.executable, "-c", HALF], cwd=root, check=True, capture_output=True)
    _checkpoints(root)
    _inrs(root)
    _cnn_zoo(root, rng)
    _records(root)
    _onnx(root)
    np.save(root / "inputs.npy", rng.standard_normal((20, 2)))


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
    folder = root / "pickled" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        batch = {b"data": rng.integers(0, 256, (6, 3072), dtype=np.uint8), b"labels": [0, 1, 2, 0, 1, 2]}
        (folder / name).write_bytes(pickle.dumps(batch, 2))
    (root / "svhn").mkdir()
    for name in ("train_32x32.mat", "test_32x32.mat"):
        pixels = rng.integers(0, 256, (32, 32, 3, 6), dtype=np.uint8)
        savemat(root / "svhn" / name, {"X": pixels, "y": np.array([[1], [2], [10], [1], [2], [3]], dtype=np.uint8)})


def _checkpoints(root: Path) -> None:
    from safetensors.torch import save_file

    torch.manual_seed(0)
    folder = root / "mine"
    folder.mkdir()
    for i in range(6):
        state = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1)).state_dict()
        torch.save(state, folder / f"net{i}.pt")
        save_file({k: v.contiguous() for k, v in state.items()}, folder / f"net{i}.safetensors")
    (root / "nets.py").write_text(MODULE)
    with (root / "labels.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "accuracy", "label"])
        writer.writerows([f"net{i}.pt", 0.1 * i, i % 2] for i in range(6))


def _siren(names: tuple[str, str, str], channels: int) -> dict[str, torch.Tensor]:
    sizes = zip(names, ((32, 2), (32, 32), (channels, 32)), strict=True)
    return {f"{n}.{part}": torch.randn(s) for n, size in sizes for part, s in (("weight", size), ("bias", size[:1]))}


def _inrs(root: Path) -> None:
    dws, nfn = ("seq.0", "seq.1", "seq.2"), ("net.0.linear", "net.1.linear", "net.2")
    for split, count in (("training", 6), ("testing", 3)):
        for i in range(count):
            folder = root / "mnist-inrs" / f"mnist_png_{split}_{i % 3}_{i}" / "checkpoints"
            folder.mkdir(parents=True)
            torch.save(_siren(dws, 1), folder / "model_final.pth")
    for packed in ("zip", "gztar"):
        shutil.make_archive(str(root / "mnist-inrs"), packed, root, "mnist-inrs")
    fashion = root / "fmnist-inrs" / "fmnist"
    fashion.mkdir(parents=True)
    names = [f"fmnist/{i:03d}.pth" for i in range(8)]
    for i, name in enumerate(names):
        torch.save({**_siren(dws, 1), "label": i % 3}, fashion.parent / name)
    lists = {"train": names[:4], "val": names[4:6], "test": names[6:]}
    (fashion.parent / "splits.json").write_text(json.dumps(lists))
    for i in (0, 7, 45_000, 50_000):
        folder = root / "cifar-inrs" / f"randinit_smaller_{i % 10}s"
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(_siren(nfn, 3), folder / f"net{i}.pth")


def _onnx(root: Path) -> None:
    import onnx

    node, kind = onnx.helper.make_node, onnx.TensorProto.FLOAT
    weights = {"a": torch.randn(4, 2), "b": torch.randn(4), "c": torch.randn(1, 4), "d": torch.randn(1)}
    initial = [onnx.numpy_helper.from_array(t.numpy(), name) for name, t in weights.items()]
    nodes = [
        node("Gemm", ["x", "a", "b"], ["h"], transB=1),
        node("Relu", ["h"], ["r"]),
        node("Gemm", ["r", "c", "d"], ["y"], transB=1),
    ]
    ends = (onnx.helper.make_tensor_value_info(n, kind, s) for n, s in (("x", ["N", 2]), ("y", None)))
    begin, end = ends
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "net", [begin], [end], initial)), root / "net.onnx")


def _cnn_zoo(root: Path, rng: np.random.Generator) -> None:
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
