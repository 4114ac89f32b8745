"""The Small CNN Zoo in its published layout, whole and broken."""

from __future__ import annotations

import gzip
import io
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from archives import FORMS, Evil, Files, Form, as_folder, as_tar, as_zip
from archives import refused as refused_by
from torch import Tensor
from torch.nn import functional as F

from scalegmn.zoo.imports.cnn_zoo import import_cnn_zoo
from scalegmn.zoo.store.verify import verify

VARIABLES = [
    ("sequential/conv2d/bias:0", (16,)),
    ("sequential/conv2d/kernel:0", (3, 3, 1, 16)),
    ("sequential/conv2d_1/bias:0", (16,)),
    ("sequential/conv2d_1/kernel:0", (3, 3, 16, 16)),
    ("sequential/conv2d_2/bias:0", (16,)),
    ("sequential/conv2d_2/kernel:0", (3, 3, 16, 16)),
    ("sequential/dense/bias:0", (10,)),
    ("sequential/dense/kernel:0", (16, 10)),
]
STEPS = (0, 1, 2, 3, 20, 40, 60, 80, 86)


def refused(tmp_path: Path, source: Path, complaint: str) -> None:
    refused_by(tmp_path, lambda out: import_cnn_zoo(source, out), complaint)


def cnn_zoo(networks: int = 20) -> tuple[Files, np.ndarray, list[dict[str, str]]]:
    """As published: nine checkpoints of every network, biases before kernels, TensorFlow order."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((networks * len(STEPS), 4970)).astype(np.float32) / 4
    layout, start = ["varname,start_idx,end_idx,size,shape"], 0
    for name, shape in VARIABLES:
        size = int(np.prod(shape))
        layout.append(f'{name},{start},{start + size},{size},"{shape}"')
        start += size
    rows = []
    for i in range(len(weights)):
        kind = ("relu", "tanh")[(i // len(STEPS)) % 2]
        rows.append({
            "": str(i), "modeldir": f"/path/{i // len(STEPS)}", "step": str(STEPS[i % len(STEPS)]),
            "test_accuracy": f"{i / 1000}", "test_loss": "" if i == 17 else "2.25",
            "config.activation": kind, "config.optimizer": "adam", "config.l2reg": "1e-05",
            "config.w_init": "he_normal",
        })  # fmt: skip
    table = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
    buffer = io.BytesIO()
    np.save(buffer, weights)
    files = {
        "cifar10/weights.npy": buffer.getvalue(),
        "cifar10/metrics.csv.gz": gzip.compress("\n".join(table).encode()),
        "cifar10/layout.csv": "\n".join(layout).encode(),
    }
    return files, weights, rows


def tensorflow(row: np.ndarray, x: Tensor, kind: str) -> Tensor:
    """The published network, read as its layout says."""
    tensors, start = {}, 0
    for name, shape in VARIABLES:
        size = int(np.prod(shape))
        tensors[name.removeprefix("sequential/")] = torch.from_numpy(row[start : start + size].reshape(shape))
        start += size
    for layer in ("conv2d", "conv2d_1", "conv2d_2"):
        kernel = torch.einsum("hwio->oihw", tensors[f"{layer}/kernel:0"])
        x = F.conv2d(x, kernel, tensors[f"{layer}/bias:0"], stride=2)
        x = x.relu() if kind == "relu" else x.tanh()
    return x.mean((2, 3)) @ tensors["dense/kernel:0"] + tensors["dense/bias:0"]


@pytest.mark.parametrize("form", FORMS)
def test_cnn_zoo(tmp_path: Path, form: Form) -> None:
    files, weights, rows = cnn_zoo()
    zoo = import_cnn_zoo(form(files, tmp_path / "s"), tmp_path / "out")
    assert verify(tmp_path / "out") == []
    assert len(zoo) == 20
    assert [str(a) for a in zoo.architectures] == ["1-16-16-16-10 [relu]", "1-16-16-16-10 [tanh]"]
    assert zoo.column("step").tolist() == [86] * 20
    assert {"optimiser", "l2", "weight_init", "activation", "test_loss"} <= set(zoo.columns)
    assert "modeldir" not in zoo.columns
    x = torch.rand(3, 1, 32, 32)
    groups, positions = zoo.batches()
    outputs = torch.cat([group.evaluate(x) for group in groups])
    accuracy = zoo.column("test_accuracy")[positions]
    for output, value in zip(outputs, accuracy, strict=True):
        row = round(float(value) * 1000)
        torch.testing.assert_close(output, tensorflow(weights[row], x, rows[row]["config.activation"]))


def test_cnn_zoo_filters(tmp_path: Path) -> None:
    source = as_zip(cnn_zoo()[0], tmp_path / "s")
    both = import_cnn_zoo(source, tmp_path / "both")
    relu = import_cnn_zoo(source, tmp_path / "relu", activation="relu")
    everything = import_cnn_zoo(source, tmp_path / "all", final_only=False)
    assert (len(relu), len(everything)) == (10, 180)
    assert str(relu.architecture) == "1-16-16-16-10 [relu]"
    assert set(everything.column("step").tolist()) == set(STEPS)
    for split in ("train", "val", "test"):
        kept = {round(v, 4) for v in relu.column("test_accuracy")[relu.split(split)].tolist()}
        assert kept <= {round(v, 4) for v in both.column("test_accuracy")[both.split(split)].tolist()}


def test_checkpoints_of_a_network_are_in_one_split(tmp_path: Path) -> None:
    source = as_zip(cnn_zoo()[0], tmp_path / "s")
    final = import_cnn_zoo(source, tmp_path / "final")
    every = import_cnn_zoo(source, tmp_path / "every", final_only=False)
    networks = [(zoo.column("test_accuracy") * 1000).round().long() // len(STEPS) for zoo in (final, every)]
    split_of = dict(zip(networks[0].tolist(), final.column("split").tolist(), strict=True))
    assert [split_of[n] for n in networks[1].tolist()] == every.column("split").tolist()
    assert "earlier checkpoints go with their final network" in every.header["notes"]["splits"]
    assert "modeldir" not in every.columns


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [(b"modeldir", b"folder", "expected a column modeldir"), (b"/path/1,", b"/path/0,", "one checkpoint of step 86")],
)
def test_checkpoints_without_a_network_are_refused(tmp_path: Path, old: bytes, new: bytes, complaint: str) -> None:
    files = cnn_zoo(3)[0]
    table = gzip.decompress(files["cifar10/metrics.csv.gz"]).replace(old, new)
    source = as_zip(files | {"cifar10/metrics.csv.gz": gzip.compress(table)}, tmp_path / "s")
    refused_by(tmp_path, lambda out: import_cnn_zoo(source, out, final_only=False), complaint)


def test_cnn_zoo_keeps_the_published_split(tmp_path: Path) -> None:
    files, _, rows = cnn_zoo()
    order = np.random.default_rng(5).permutation(len(rows))
    files["cifar10/cifar10_split.csv"] = "\n".join(map(str, order)).encode()
    zoo = import_cnn_zoo(as_folder(files, tmp_path / "s"), tmp_path / "out")
    final = [int(i) for i in order if rows[i]["step"] == "86"]
    first = list(range(10))
    random.Random(0).shuffle(first)
    wanted = {"train": [final[i] for i in first[:8]], "val": [final[i] for i in first[8:]], "test": final[10:]}
    for split, numbers in wanted.items():
        found = (zoo.column("test_accuracy")[zoo.split(split)] * 1000).round().long()
        assert sorted(found.tolist()) == sorted(numbers)


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def with_nan() -> np.ndarray:
    weights = cnn_zoo(3)[1].copy()
    weights[17, 100] = np.nan
    return weights


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("weights.npy", npy(with_nan()), r"weights\.npy: row 17 has NaN"),
        ("weights.npy", npy(np.zeros((27, 4969), np.float32)), r"weights\.npy: expected shape \(networks, 4970\)"),
        ("weights.npy", npy(np.zeros((27, 4970), np.int32)), r"weights\.npy: expected floating-point"),
        ("weights.npy", npy(np.array([[Evil(Path("/tmp/evil-trap"))]], object)), r"weights\.npy: is not a plain array"),
        ("weights.npy", npy(np.zeros((27, 4970)))[:-5], r"weights\.npy: is not a plain array"),
        ("weights.npy", npy(np.zeros((26, 4970))), r"metrics\.csv\.gz: expected 26 rows.*got 27"),
        ("metrics.csv.gz", gzip.compress(b"step,test_accuracy\n" + b"1,2\n" * 27, mtime=0), "expected columns step"),
        ("metrics.csv.gz", b"hello", r"metrics\.csv\.gz: is not a readable table"),
        (
            "metrics.csv.gz",
            gzip.compress(b"step,test_accuracy,config.activation\n" + b"86,,relu\n" * 27, mtime=0),
            "expected a number as test_accuracy, row 0 has none",
        ),
        ("layout.csv", b"varname,start_idx,end_idx,shape\na/kernel:0,0,5,(4)", "to agree"),
        ("layout.csv", b"varname,start_idx,end_idx,shape\na/kernel:0,0,4970,__import__('os')", "to agree"),
        (
            "layout.csv",
            b"varname,start_idx,end_idx,shape\na/gamma:0,0,5,(5)",
            "expected kernels and biases, got 'a/gamma",
        ),
        ("layout.csv", cnn_zoo(1)[0]["cifar10/layout.csv"].replace(b"160,", b"161,"), "to agree"),
        ("layout.csv", cnn_zoo(1)[0]["cifar10/layout.csv"].replace(b"3, 3, 16, 16", b"16, 3, 3, 16"), "got kernel"),
    ],
)
def test_bad_cnn_zoos_are_refused(tmp_path: Path, name: str, content: bytes, complaint: str) -> None:
    files = cnn_zoo(3)[0] | {f"cifar10/{name}": content}
    refused(tmp_path, as_zip(files, tmp_path / "s"), complaint)
    assert not Path("/tmp/evil-trap").exists()


@pytest.mark.parametrize("name", ["weights.npy", "metrics.csv.gz", "layout.csv"])
def test_an_incomplete_cnn_zoo_is_refused(tmp_path: Path, name: str) -> None:
    files = cnn_zoo(1)[0]
    del files[f"cifar10/{name}"]
    refused(tmp_path, as_tar(files, tmp_path / "s"), f"expected a file {name}")


@pytest.mark.parametrize("content", [b"1 2", b"a", b"0 " * 27])
def test_a_wrong_permutation_is_refused(tmp_path: Path, content: bytes) -> None:
    files = cnn_zoo(3)[0] | {"cifar10_split.csv": content}
    refused(tmp_path, as_zip(files, tmp_path / "s"), r"cifar10_split\.csv: expected (each|one) row number")


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("split.csv", b"1" + b"0" * 30, "expected one row number per line"),
        ("split.csv", b"9" * 6000, "expected one row number per line"),
        ("weights.npy", b"(99999999999999999999, 4970)", "is not a plain array of numbers"),
        ("weights.npy", b"(999999999999, 4970)", "is not a plain array of numbers"),
        ("layout.csv", b"varname,start_idx,end_idx,size,shape\na/kernel:0,0,9" + b"9" * 30 + b',1,"(3,)"', "to agree"),
        ("layout.csv", b"varname,start_idx,end_idx,size,shape\na/kernel:0,0,9,9," + b"(" * 9999, "to agree"),
        ("metrics.csv.gz", b"__metadata__", "column '__metadata__': expected another name"),
    ],
)
def test_absurd_numbers_and_names_are_refused(tmp_path: Path, name: str, content: bytes, complaint: str) -> None:
    files, _, _ = cnn_zoo(2)
    if name == "weights.npy":
        header = b"{'descr': '<f4', 'fortran_order': False, 'shape': " + content + b", }\n"
        content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(64)
    if name == "metrics.csv.gz":
        content = gzip.compress(gzip.decompress(files[f"cifar10/{name}"]).replace(b"config.l2reg", content))
    files[f"cifar10/{name}"] = content
    refused(tmp_path, as_zip(files, tmp_path / "s"), complaint)
