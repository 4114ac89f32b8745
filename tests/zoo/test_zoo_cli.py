"""The commands of `scalegmn zoo`: what they write, where, and with which exit code."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.image import imread
from scipy.stats import kendalltau
from torch import nn

from scalegmn.cli import app
from scalegmn.cli.application import run
from scalegmn.core.activations import activation
from scalegmn.core.architecture import Architecture
from scalegmn.zoo.store.stats import layer_statistics, tau_cap
from scalegmn.zoo.store.writer import ZooWriter
from scalegmn.zoo.store.zoo import Zoo


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("zoos") / "digits"
    words = ["zoo", "build", "inr", "--images", "digits", "--out", str(path)]
    assert run(app, [*words, "--count", "200", "--hidden", "16", "--steps", "150", "--lr", "3e-3"]) == 0
    return path


@pytest.fixture
def varied(tmp_path: Path) -> Path:
    """Networks of two architectures with strings, accuracies and NaN in the table, and no images."""
    writer = ZooWriter(tmp_path / "varied", kind="cnn", arguments={"seed": 3})
    for channels in ([1, 4], [1, 4, 4]):
        a = Architecture.cnn(channels, 3, "relu")
        writer.append(
            a,
            torch.randn(30, a.parameters, generator=torch.Generator().manual_seed(0)),
            {
                "test_accuracy": torch.linspace(0.1, 0.9, 30),
                "optimiser": ["adam", "sgd", "sgd"] * 10,
                "momentum": torch.full((30,), torch.nan),
                "split": ["train", "test"] * 15,
            },
        )
    writer.finish()
    return tmp_path / "varied"


def test_info_as_json_agrees_with_the_zoo(digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["zoo", "info", str(digits), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    zoo = Zoo.open(digits)
    assert found["networks"] == 200
    assert found["splits"] == {"train": 140, "val": 20, "test": 40}
    assert sum(found["labels"].values()) == 200
    assert found["metrics"]["psnr"]["mean"] == pytest.approx(float(zoo.column("psnr").mean()), rel=1e-5)
    assert sum(found["metrics"]["psnr"]["histogram"]["counts"]) == 200
    assert found["arguments"]["steps"] == 150
    weights = zoo.batch().views.weights[0]
    assert weights is not None
    first = found["layers"][0]
    assert first["name"] == "W1"
    assert first["std"] == pytest.approx(float(weights.std(correction=0)), rel=1e-4)
    assert first["negative"] == pytest.approx(float((weights < 0).float().mean()), rel=1e-4)
    norms = weights.flatten(2).norm(dim=2)
    assert first["norm_spread"] == pytest.approx(float(norms.std(correction=0) / norms.mean()), rel=1e-4)


def test_info_in_words(digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["zoo", "info", str(digits)]) == 0
    text = capsys.readouterr().out
    assert "200 inr networks" in text
    assert "train 140, val 20, test 40" in text
    assert "2-16-1 [sine(30)]" in text


def test_info_tells_the_largest_tau_that_ties_allow(varied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["zoo", "info", str(varied), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["tau_cap"]
    zoo = Zoo.open(varied)
    # Every accuracy occurs twice in its split.
    assert told == {name: pytest.approx(math.sqrt(1 - 15 / 435)) for name in zoo.splits}
    assert run(app, ["zoo", "info", str(varied)]) == 0
    assert "largest tau of test_accuracy that ties allow: train 0.9826, test 0.9826" in capsys.readouterr().out


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=2, max_size=40).filter(lambda v: len(set(v)) > 1))
def test_the_cap_is_the_tau_of_a_perfect_order_without_ties(values: list[int]) -> None:
    order = np.argsort(values, kind="stable")
    perfect = np.empty(len(values))
    perfect[order] = np.arange(len(values))
    assert tau_cap(np.array(values)) == pytest.approx(kendalltau(perfect, values).statistic)


def test_info_of_several_architectures(varied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["zoo", "info", str(varied)]) == 0
    text = capsys.readouterr().out
    assert "optimiser: adam 20, sgd 40" in text
    assert "30 x 1-4-4-3 [relu]" in text
    assert run(app, ["zoo", "info", str(varied), "--json", "--plot", str(varied / "plot.png")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [a["networks"] for a in found["architectures"]] == [30, 30]
    assert [layer["name"] for layer in found["layers"]] == ["W1", "b1", "W2", "b2", "W1", "b1", "W2", "b2", "W3", "b3"]
    assert found["metrics"]["momentum"] == {"count": 0}


def test_statistics_do_not_depend_on_the_shards(tmp_path: Path) -> None:
    a = Architecture.mlp([2, 6, 1], activation("sine", 30.0))
    rows = torch.randn(90, a.parameters)
    for name, size in (("one", 90), ("many", 7)):
        writer = ZooWriter(tmp_path / name, kind="inr", arguments={})
        for part in rows.split(size):
            writer.append(a, part, {})
        writer.finish()
    one, many = (layer_statistics(Zoo.open(tmp_path / name)) for name in ("one", "many"))
    for x, y in zip(one, many, strict=True):
        for name in ("mean", "std", "negative", "norm", "norm_spread"):
            assert getattr(x, name) == pytest.approx(getattr(y, name), rel=1e-9)


def test_verify(digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["zoo", "verify", str(digits)]) == 0
    assert capsys.readouterr().out == f"{digits}: no damage found\n"
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in digits.iterdir():
        content = bytearray(file.read_bytes())
        if file.name == "images.safetensors":
            content[-1] ^= 255
        (broken / file.name).write_bytes(content)
    (broken / "table.safetensors").unlink()
    assert run(app, ["zoo", "verify", str(broken)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "error: table.safetensors: missing",
        "error: images.safetensors: changed since it was written (wrong checksum)",
    ]


def test_sheet_and_distributions_are_pictures(digits: Path, tmp_path: Path) -> None:
    assert run(app, ["zoo", "show", str(digits), "--plot", str(tmp_path / "sheet.png"), "--count", "7"]) == 0
    assert run(app, ["zoo", "info", str(digits), "--plot", str(tmp_path / "weights.png")]) == 0
    for name in ("sheet.png", "weights.png"):
        picture = imread(tmp_path / name)
        assert min(picture.shape[:2]) > 200
        assert np.unique(picture[..., :3].reshape(-1, 3), axis=0).shape[0] > 20


def test_building_again_says_that_nothing_is_left(digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["zoo", "build", "inr", "--images", "digits", "--out", str(digits)]
    assert run(app, [*words, "--count", "200", "--hidden", "16", "--steps", "150", "--lr", "3e-3"]) == 0
    assert "200 networks" in (out := capsys.readouterr().out)
    assert "nothing left to do" in out


def test_a_cnn_zoo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 2
    pixels = (rng.integers(0, 100, (200, 16, 16)) + 150 * labels[:, None, None]).astype(np.uint8)
    np.savez(tmp_path / "bright.npz", x=pixels, y=labels)
    words = ["zoo", "build", "cnn", "--images", f"npz:{tmp_path}/bright.npz", "--out", str(tmp_path / "zoo")]
    assert run(app, [*words, "--count", "6", "--steps", "5,40", "--activation", "tanh"]) == 0
    assert "6 networks, test accuracy" in capsys.readouterr().out
    assert run(app, ["zoo", "verify", str(tmp_path / "zoo")]) == 0
    assert run(app, ["zoo", "info", str(tmp_path / "zoo"), "--plot", str(tmp_path / "plot.png")]) == 0
    assert "test_accuracy" in capsys.readouterr().out


def test_own_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["file,label,width"]
    for i in range(10):
        width = 3 + i % 2
        module = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 1))
        torch.save(module.state_dict(), tmp_path / f"{i}.pt")
        lines.append(f"{i}.pt,{i},{width}")
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    words = ["zoo", "import", "checkpoints", str(tmp_path), str(tmp_path / "zoo"), "--activation", "tanh"]
    assert run(app, [*words, "--labels", str(tmp_path / "labels.csv")]) == 0
    assert "10 networks (train" in capsys.readouterr().out
    zoo = Zoo.open(tmp_path / "zoo")
    assert sorted(a.layers[1].size for a in zoo.architectures) == [3, 4]
    assert sorted(zoo.column("label").tolist()) == list(range(10))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["info", "{tmp}"], "holds no zoo.json; build one with `scalegmn zoo build`"),
        (["verify", "{tmp}"], "holds no zoo.json"),
        (["show", "{varied}", "--plot", "{tmp}/x.png"], "holds cnn networks, which have no pictures"),
        (["info", "{digits}", "--plot", "{tmp}/none/x.png"], "none/x.png: cannot be written"),
        (["show", "{digits}", "--plot", "{tmp}/x.nothing"], "cannot write"),
        (["build", "inr", "--images", "digits", "--out", "{tmp}/z", "--hidden", "a,b"], "hidden: expected whole"),
        (["build", "inr", "--images", "digits", "--out", "{digits}", "--count", "9"], "count=200, hid"),
        (["build", "inr", "--images", "mnist", "--out", "{tmp}/z"], "scalegmn zoo images mnist --root DIR"),
        (["build", "inr", "--images", "digits", "--out", "{tmp}/z", "--lr", "nan"], "lr: expected a finite number"),
        (["build", "inr", "--images", "digits", "--out", "{tmp}/z", "--psnr", "nan"], "psnr: expected a finite number"),
        (["build", "inr", "--images", "digits", "--out", "{tmp}/z", "--seed", "-1"], "--seed"),
        (["build", "inr", "--images", "digits", "--out", "{tmp}/z", "--seed", str(2**64)], "--seed"),
        (["build", "cnn", "--images", "digits", "--out", "{tmp}/z", "--count", "4", "--seed", str(2**64)], "--seed"),
        (["build", "inr", "--images", "digits", "--out", "{tmp}/z", "--steps", str(10**30)], "steps"),
        (["build", "inr", "--images", "digits", "--out", "{tmp}/z", "--hidden", str(10**30)], "hidden: expected up to"),
        (["build", "inr", "--images", "digits", "--out", "{tmp}/z", "--hidden", ",".join("9" * 99)], "up to 32 layers"),
        (["build", "inr", "--images", "digits", "--out", "{tmp}/z", "--views", str(10**15)], "views: expected 1 to"),
        (["build", "inr", "--images", "digits", "--out", "{tmp}/z\0z", "--count", "9"], "null byte"),
        (["build", "inr", "--images", "digits", "--out", "{tmp}/z", "--hidden", "9" * 5000], "hidden: expected whole"),
        (["build", "cnn", "--images", "digits", "--out", "{tmp}/z", "--count", "4", "--batch", str(10**15)], "batches"),
        (["build", "cnn", "--images", "digits", "--out", "{tmp}/z", "--count", "4", "--steps", str(10**15)], "steps"),
        (["build", "cnn", "--images", "digits", "--out", "{tmp}/z", "--count", str(10**15)], "count >= 1"),
        (["combine", "{digits}", "--out", "{tmp}/z\0z"], "null byte"),
        (["info", "/dev/null"], "holds no zoo.json"),
        (["build", "inr", "--images", "digits", "--out", "/proc/z", "--count", "9"], "'/proc/z' cannot be made"),
        (["show", "{digits}", "--plot", "{tmp}/x.png", "--seed", "-1"], "--seed"),
        (["combine", "{digits}", "--out", "{tmp}/z", "--where", "label=0", "--where", "zzz"], "view=0, got 'zzz'"),
        (["build", "cnn", "--images", "digits", "--out", "{tmp}/z", "--count", "4", "--steps", "1,2,3"], "steps:"),
        (["import", "mnist-inr", "{tmp}/none", "{tmp}/z"], "none"),
        (["import", "cnn-zoo", "{tmp}/none", "{tmp}/z"], "none"),
        (["import", "checkpoints", "{tmp}/none", "{tmp}/z", "--labels", "{tmp}/l.csv"], "no folder"),
        (["images", "nothing", "--root", "{tmp}"], "expected one of digits, mnist"),
    ],
)
def test_mistakes_are_one_line_and_code_2(
    words: list[str], message: str, digits: Path, varied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled = [w.format(tmp=tmp_path, varied=varied, digits=digits) for w in words]
    assert run(app, ["zoo", *filled]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert message in err


def test_progress_tells_speed_quality_and_time_left(tmp_path: Path) -> None:
    words = ["zoo", "build", "inr", "--images", "digits", "--out", str(tmp_path / "zoo"), "--steps", "20"]
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "150", "TERM": "xterm", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-m", "scalegmn", *words], stderr=theirs, env=environment)
    os.close(theirs)
    seen = b""
    # Linux reports the end of a terminal as an error.
    with contextlib.suppress(OSError):
        while piece := os.read(ours, 65536):
            seen += piece
    os.close(ours)
    assert process.wait(timeout=60) == 0
    text = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", seen).decode()
    assert re.search(r"\d+/1797 .*networks/s, mean PSNR \d+(\.\d+)? dB, \d:\d\d:\d\d left", text)
