"""`scalegmn compare`, `align`, `merge`, `dedupe` and `balance` on real files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from alignment.pairs import disguised, noisy
from convert.examples import ResNet, randomise
from safetensors.torch import load_file, save_file
from strategies import generator
from torch import nn

from scalegmn.cli import app
from scalegmn.cli.application import run
from scalegmn.core.networks import Networks

RELU = ["--activation", "relu"]
PROGRAM = "from convert.examples import ResNet\ndef residual(): return ResNet()\n"


def relu(seed: int, hidden: int = 6) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, 5), nn.ReLU(), nn.Linear(5, 1))


def copy_of(module: nn.Module, seed: int = 1, level: float = 0.0) -> dict[str, torch.Tensor]:
    networks = Networks.from_modules([module])
    return disguised(noisy(networks, level), seed).to_state_dicts()[0]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    torch.save(relu(0).state_dict(), tmp_path / "a.pt")
    torch.save(copy_of(relu(0)), tmp_path / "b.pt")
    torch.save(relu(1).state_dict(), tmp_path / "c.pt")
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    code = run(app, [*map(str, arguments), "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


def complaint(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run(app, [*map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def function(path: Path) -> torch.Tensor:
    module = relu(0)
    module.load_state_dict(torch.load(path))
    with torch.no_grad():
        return module(torch.linspace(-1, 1, 20).reshape(10, 2))


def test_compare(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "compare", files / "a.pt", files / "b.pt", *RELU)
    assert {"same", "distance", "distance_before", "exact", "seconds"} <= found.keys()
    assert found["same"] is found["exact"] is True
    assert found["distance"] < 1e-6 < 0.1 < found["distance_before"]
    other = answer(capsys, "compare", files / "a.pt", files / "c.pt", *RELU)
    assert other["same"] is False
    assert other["distance"] > 0.3
    assert other["gap"] > 0.01
    assert run(app, ["compare", str(files / "a.pt"), str(files / "b.pt"), *RELU]) == 0
    assert "the same network up to symmetry, 2-6-5-1 [relu]" in capsys.readouterr().out
    assert run(app, ["compare", str(files / "a.pt"), str(files / "c.pt"), *RELU]) == 0
    assert "different networks" in capsys.readouterr().out


def test_types_may_differ(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({k: t.half() for k, t in copy_of(relu(0)).items()}, files / "half.pt")
    assert answer(capsys, "compare", files / "a.pt", files / "half.pt", *RELU)["same"] is True
    assert answer(capsys, "compare", files / "c.pt", files / "half.pt", *RELU)["same"] is False
    answer(capsys, "merge", files / "half.pt", files / "a.pt", "-o", files / "out.pt", *RELU)
    assert {t.dtype for t in torch.load(files / "out.pt").values()} == {torch.float16}
    (group,) = answer(capsys, "dedupe", files, *RELU)["groups"]
    assert group["kind"] == "same"
    assert {Path(f).name for f in group["files"]} == {"a.pt", "b.pt", "half.pt", "out.pt"}


def test_align_writes_what_computes_the_same(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = files / "out.pt"
    found = answer(capsys, "align", files / "a.pt", files / "b.pt", "-o", out, *RELU)
    assert found["exact"] is True
    original, moved = torch.load(files / "a.pt"), torch.load(out)
    assert list(moved) == list(torch.load(files / "b.pt"))
    assert all(torch.allclose(moved[k], original[k], atol=1e-6) for k in original)
    np.save(files / "x.npy", np.random.default_rng(0).normal(size=(32, 2)))
    answer(capsys, "align", files / "a.pt", files / "c.pt", "-o", out, "--data", files / "x.npy", *RELU)
    assert torch.allclose(function(out), function(files / "c.pt"), atol=1e-6)
    assert run(app, ["align", *map(str, (files / "a.pt", files / "b.pt", "-o", out)), *RELU]) == 0
    shown, notes = capsys.readouterr()
    assert "before alignment" in shown
    assert notes == f"wrote {out}\n"


def test_what_else_a_checkpoint_holds_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = {f"module.{k}": t for k, t in copy_of(relu(0)).items()}
    torch.save({f"module.{k}": t for k, t in relu(0).state_dict().items()}, tmp_path / "a.pt")
    torch.save({"epoch": 7, "state_dict": state}, tmp_path / "b.pt")
    answer(capsys, "align", tmp_path / "a.pt", tmp_path / "b.pt", "-o", tmp_path / "out.pt", *RELU)
    found = torch.load(tmp_path / "out.pt")
    assert found["epoch"] == 7
    assert found["state_dict"].keys() == state.keys()
    assert torch.allclose(found["state_dict"]["module.0.weight"], relu(0)[0].weight, atol=1e-6)


def test_a_part_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    critic = relu(3).state_dict()
    for name, actor, epoch in (("a", relu(0).state_dict(), 1), ("b", copy_of(relu(0)), 2)):
        both = {"actor." + k: t for k, t in actor.items()} | {"critic." + k: t for k, t in critic.items()}
        torch.save({"epoch": epoch, "model": both}, tmp_path / f"{name}.bin")
    paths = [tmp_path / f"{name}.bin" for name in ("a", "b", "out")]
    found = answer(capsys, "align", *paths[:2], "-o", paths[2], "--prefix", "actor", *RELU)
    assert found["exact"] is True
    moved = torch.load(paths[2])
    assert moved["epoch"] == 2
    assert torch.allclose(moved["model"]["actor.0.weight"], relu(0)[0].weight, atol=1e-6)
    assert all(torch.equal(moved["model"]["critic." + k], t) for k, t in critic.items())
    assert answer(capsys, "compare", *paths[:2], "--prefix", "critic", *RELU)["distance_before"] == 0


def test_residual_networks_with_batch_norm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs_align.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = randomise(ResNet(), generator(1))
    save_file(module.state_dict(), tmp_path / "a.safetensors")
    save_file(copy_of(module), tmp_path / "b.safetensors")
    arch = ["--arch", "theirs_align:residual"]
    paths = [tmp_path / f"{name}.safetensors" for name in ("a", "b", "out")]
    found = answer(capsys, "align", *paths[:2], "-o", paths[2], *arch)
    assert found["exact"] is True
    assert load_file(paths[2]).keys() == module.state_dict().keys()
    found = answer(capsys, "merge", *paths[:2], "-o", paths[2], *arch)
    merged = ResNet()
    merged.load_state_dict(load_file(paths[2]))
    x = torch.rand(2, 1, 12, 12)
    with torch.no_grad():
        assert torch.allclose(merged.eval()(x), module(x), atol=1e-4)


def test_merge(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = files / "merged.pt"
    found = answer(capsys, "merge", files / "a.pt", files / "b.pt", "-o", out, *RELU)
    assert torch.allclose(function(out), function(files / "a.pt"), atol=1e-5)
    assert [f["file"] for f in found["files"]] == [str(files / "a.pt"), str(files / "b.pt")]
    assert found["restored"] is False
    torch.save(torch.randn(64, 2), files / "x.pt")
    data = ["--data", files / "x.pt", "--how", "mean"]
    found = answer(capsys, "merge", *(files / f"{n}.pt" for n in "abc"), "-o", out, *data, *RELU)
    assert found["restored"] is True
    assert run(app, ["merge", *map(str, (files / "a.pt", files / "b.pt", "-o", out)), *RELU]) == 0
    assert "distance to the result" in capsys.readouterr().out


def test_balance(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = files / "balanced.pt"
    found = answer(capsys, "balance", files / "b.pt", "-o", out, "--int8", *RELU)
    assert found["imbalance"] < found["imbalance_before"]
    assert found["int8_error"] < found["int8_error_before"]
    assert torch.allclose(function(out), function(files / "b.pt"), atol=1e-5)
    assert run(app, ["balance", str(files / "b.pt"), "-o", str(out), "--int8", *RELU]) == 0
    assert "int8 error" in capsys.readouterr().out


def test_dedupe(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "inside").mkdir()
    (files / "inside" / "d").write_bytes((files / "a.pt").read_bytes())  # whatever its name
    (files / "table.csv").write_text("file,label\na.pt,1\n")
    torch.save(copy_of(relu(1), 3, level=0.05), files / "e.pt")
    torch.save(relu(2, hidden=9).state_dict(), files / "wide.pt")
    torch.save(copy_of(relu(2, hidden=9)), files / "wide2.pt")
    torch.save(relu(5).state_dict(), files / "alone.pt")
    (files / "broken.pt").write_bytes(b"no")
    found = answer(capsys, "dedupe", files, *RELU)
    named = {g["kind"]: {Path(f).name for f in g["files"]} for g in found["groups"] if "wide.pt" not in str(g["files"])}
    assert named == {"same": {"a.pt", "b.pt", "d"}, "near": {"c.pt", "e.pt"}}
    assert {Path(f).name for g in found["groups"] for f in g["files"]} >= {"wide.pt", "wide2.pt"}
    kinds = {link["kind"] for g in found["groups"] for link in g["links"]}
    assert kinds == {"identical", "same", "near"}
    assert found["unrelated"] == [str(files / "alone.pt")]
    exact = answer(capsys, "dedupe", files, "--near", 0, *RELU)
    assert {g["kind"] for g in exact["groups"]} == {"same"}
    assert {str(files / "c.pt"), str(files / "e.pt")} <= set(exact["unrelated"])
    assert len(found["architectures"]) == 2
    (bad,) = found["unread"]
    assert bad["file"] == str(files / "broken.pt")
    assert run(app, ["dedupe", str(files), *RELU]) == 0
    out = capsys.readouterr().out
    assert "9 files, 3 group(s), 1 unrelated" in out
    assert "not read: " in out


def test_complaints(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b, out = files / "a.pt", files / "b.pt", files / "out.pt"
    torch.save(relu(0, hidden=9).state_dict(), files / "wide.pt")
    assert "expected the architecture" in complaint(capsys, "compare", a, files / "wide.pt", *RELU)
    assert "no such file" in complaint(capsys, "compare", a, files / "none.pt", *RELU)
    assert "the activation is not in a state dict" in complaint(capsys, "compare", a, b)
    assert "expected the format of b.pt" in complaint(capsys, "align", a, b, "-o", files / "x.safetensors", *RELU)
    assert "near: expected a distance" in complaint(capsys, "dedupe", files, "--near", -1, *RELU)
    assert "at: expected a number from 0 to 1" in complaint(
        capsys, "merge", a, b, "-o", out, "--how", "interpolate", "--at", 2, *RELU
    )
    assert "expected at least 2 to merge" in complaint(capsys, "merge", a, "-o", out, *RELU)
    assert "expected 2 to interpolate" in complaint(capsys, "merge", a, b, a, "-o", out, "--how", "interpolate", *RELU)
    for content in (b"nothing", b"\x93NUMPY\x01\x00\x10\x00{'descr': (((((\n"):
        (files / "x.npy").write_bytes(content)
        assert "not a readable .npy file" in complaint(
            capsys, "merge", a, b, "-o", out, "--data", files / "x.npy", *RELU
        )
    assert "expected inputs (N, ...)" in complaint(capsys, "merge", a, b, "-o", out, "--data", a, *RELU)
    assert "expected a folder" in complaint(capsys, "dedupe", a, *RELU)
    assert "expected --activation or --arch" in complaint(capsys, "dedupe", files)
    (files / "empty").mkdir()
    (files / "empty" / "notes.txt").write_text("nothing")
    assert "holds no checkpoints" in complaint(capsys, "dedupe", files / "empty", *RELU)
    assert "make it first" in complaint(capsys, "balance", a, "-o", files / "no" / "b.pt", *RELU)
