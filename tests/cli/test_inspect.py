"""`scalegmn inspect` on real files, in this process and in one of its own."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from convert.examples import DWSINR, EXAMPLES, ResNet
from torch import nn

from scalegmn.cli import app
from scalegmn.cli.application import run
from scalegmn.cli.networks.inspect import symmetry
from scalegmn.core.architecture import Architecture

TESTS = Path(__file__).parents[1]


def relu() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1))


def save(module: nn.Module, path: Path) -> str:
    torch.save(module.state_dict(), path)
    return str(path)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(app, ["inspect", *arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(app, ["inspect", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_a_relu_mlp(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = relu()
    with torch.no_grad():
        module[0].weight[3] = 0
        module[0].bias[3] = -1  # dead
        module[0].weight[4] = 0
        module[0].bias[4] = 0  # dead, and without input
        module[0].weight[5] = 0
        module[0].bias[5] = 1  # constant, but alive
        module[4].weight[:, 2] = 0  # without output
    found = answer(capsys, save(module, tmp_path / "a.pt"), save(relu(), tmp_path / "b.pt"), "--activation", "relu")
    assert found["architecture"] == "2-6-5-1 [relu]"
    assert found["parameters"] == 59
    assert [row["group"] for row in found["layers"]] == ["Trivial", "PositiveScale", "PositiveScale", "Trivial"]
    assert [row["permutation_slot"] for row in found["layers"]] == [None, 0, 1, None]
    assert [row["parameters"] for row in found["layers"]] == [0, 18, 35, 6]
    expected = {"no_input": {"1": [4]}, "no_output": {"2": [2]}, "dead": {"1": [3, 4]}, "out_of_phase": {}}
    first, second = found["files"]
    assert first == {"file": str(tmp_path / "a.pt"), **expected}
    assert second == {"file": str(tmp_path / "b.pt"), **{kind: {} for kind in expected}}
    assert found["symmetry"]["scales"] == 11
    assert found["symmetry"]["log10_discrete"] == pytest.approx(math.log10(math.factorial(6) * math.factorial(5)))


def test_a_siren_out_of_phase(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))
    with torch.no_grad():
        module[0].bias.copy_(torch.tensor([0.0, 0.05, 0.06, -0.06]))
    module[1].bias.data.fill_(3.0)  # the output is no sine
    found = answer(capsys, save(module, tmp_path / "a.pt"), "--activation", "sine", "--w0", "30")
    assert found["files"][0]["out_of_phase"] == {"1": [2, 3]}
    assert found["symmetry"]["signs"] == 4
    assert found["symmetry"]["scales"] == 0


def test_the_size_of_the_group() -> None:
    found = symmetry(Architecture.mlp([1, 2, 3, 1], "tanh"))
    assert 10 ** found["log10_discrete"] == pytest.approx(2 * 6 * 2**5)
    assert symmetry(Architecture.mlp([1, 2], "tanh"))["permuted_layers"] == []


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(relu(), tmp_path / "a.pt")
    assert run(app, ["inspect", path, "--activation", "relu"]) == 0
    out = capsys.readouterr().out
    assert "2-6-5-1 [relu], 59 parameters, float32" in out
    assert "symmetry group: 6! 5! = 10^4.9 elements, and 11 continuous dimensions" in out
    assert "no idle neurons" in out
    files = [save(relu(), tmp_path / f"{i}.pt") for i in range(25)]
    broken = relu()
    nn.init.zeros_(broken[0].weight)
    save(broken, tmp_path / "0.pt")
    assert run(app, ["inspect", *files, "--activation", "relu"]) == 0
    assert "and 5 more" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["a[lr=0.1].pt", "d[/x].pt", "[red].pt"])
def test_names_with_brackets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    broken = relu()
    nn.init.zeros_(broken[0].weight)
    Path(name).parent.mkdir(exist_ok=True)
    files = [save(broken, Path(name)), save(relu(), Path("b.pt"))]
    assert run(app, ["inspect", *files, "--activation", "relu"]) == 0
    assert f" {name} " in capsys.readouterr().out


PROGRAM = """
from convert.examples import DWSINR, EXAMPLES, ResNet
tanh_cnn = EXAMPLES["tanh cnn"].make
def number(): return 3
def failing(): raise RuntimeError("not today")
"""


@pytest.mark.parametrize(
    ("function", "make", "lines"),
    [
        ("tanh_cnn", EXAMPLES["tanh cnn"].make, ["1-4-5-6-3 [tanh]", "flatten 3x3", "Sign", "1 avg 2x2 conv 3x3"]),
        ("ResNet", ResNet, ["1-4-4-4-6-6-6-3", "residual", "PositiveScale", "global avg linear"]),
    ],
)
def test_a_module_of_their_own(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    make: Any,
    lines: list[str],
) -> None:
    (tmp_path / f"their_{function}.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = save(make(), tmp_path / "a.pth")
    assert run(app, ["inspect", path, "--arch", f"their_{function}:{function}"]) == 0
    out = capsys.readouterr().out
    for line in lines:
        assert line in out


def test_a_process_of_its_own(tmp_path: Path) -> None:
    """The function is found in the current directory."""
    (tmp_path / "mine.py").write_text(PROGRAM)
    save(DWSINR(), tmp_path / "a.pth")
    result = subprocess.run(
        [str(Path(sys.executable).parent / "scalegmn"), "inspect", "a.pth", "--arch", "mine:DWSINR"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert "2-8-8-1 [sine(30)]" in result.stdout
    assert "8!^2 2^16 = 10^14.0 elements" in result.stdout


def test_complaints(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    good = save(relu(), tmp_path / "good.pt")
    other = save(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)), tmp_path / "other.pt")
    bad = relu()
    nn.init.constant_(bad[2].bias, math.nan)
    nan = save(bad, tmp_path / "nan.pt")
    (tmp_path / "cut.pt").write_bytes(Path(good).read_bytes()[:500])
    activation = ["--activation", "relu"]
    assert f"{other}: expected the architecture 2-6-5-1 [relu] as in {good}; " in complaint(
        capsys, good, other, *activation
    )
    assert f"{nan}: 2.bias has a weight that is nan" in complaint(capsys, nan, *activation)
    assert "cut.pt: cannot be read; the file is truncated" in complaint(capsys, str(tmp_path / "cut.pt"), *activation)
    assert "the activation is not in a state dict" in complaint(capsys, good)
    assert "also expected its frequency" in complaint(capsys, good, "--activation", "sine")
    assert "--w0: expected only together" in complaint(capsys, good, *activation, "--w0", "30")
    assert "expected one of identity, relu" in complaint(capsys, good, "--activation", "nothing")

    (tmp_path / "theirs.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "module:function or path/file.py:function, got 'theirs'" in complaint(capsys, good, "--arch", "theirs")
    assert "No module named 'nobodys'" in complaint(capsys, good, "--arch", "nobodys:f")
    assert "has no attribute 'missing'" in complaint(capsys, good, "--arch", "theirs:missing")
    assert "RuntimeError: not today" in complaint(capsys, good, "--arch", "theirs:failing")
    assert complaint(capsys, good, "--arch", "sys:exit").endswith("--arch sys:exit: SystemExit\n")
    assert "expected it to return an nn.Module, got int" in complaint(capsys, good, "--arch", "theirs:number")
    assert "lacks" in complaint(capsys, good, "--arch", "theirs:ResNet")


def test_a_module_by_itself_with_its_blocks_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "attending.py").write_text(
        "from torch import nn\n\n\ndef make():\n"
        "    layer = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True)\n"
        "    return nn.Sequential(nn.Linear(3, 4), layer, nn.Linear(4, 2))\n"
    )
    monkeypatch.chdir(tmp_path)
    layers = answer(capsys, "--arch", "attending:make", "--plot", "graph.svg")["layers"]
    query, key, value = layers[2]["blocks"]
    assert query["permutation_slot"] == key["permutation_slot"] != value["permutation_slot"]
    assert key["scales"] == [[query["scales"][0][0], -1.0]]
    assert layers[3]["combine"] == "attention"
    assert (tmp_path / "graph.svg").read_text().startswith("<?xml")
    assert run(app, ["inspect"]) == 2
    assert run(app, ["inspect", "--arch", "attending:make", "--plot", "graph.gif"]) == 2
