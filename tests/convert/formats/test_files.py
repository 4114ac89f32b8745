"""Files: what is in them is never run, and what is wrong with them is said in one line that names them."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from scalegmn.convert.formats.files import read_state_dict, write
from scalegmn.errors import ScaleGMNError


class Code:
    """A pickle of it runs a command when it is loaded."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.witness}",)


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    return dict(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)).state_dict())


def error(path: Path) -> str:
    with pytest.raises(ScaleGMNError) as caught:
        read_state_dict(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{path}: ")
    return message


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".ckpt", ".safetensors"])
def test_round_trip(tmp_path: Path, state: dict[str, torch.Tensor], suffix: str) -> None:
    write(state, tmp_path / f"a{suffix}")
    found = read_state_dict(tmp_path / f"a{suffix}")
    assert found.keys() == state.keys()
    assert all(torch.equal(found[k], state[k]) for k in state)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("wrapper", ["state_dict", "model", "model_state_dict"])
def test_checkpoints(tmp_path: Path, state: dict[str, torch.Tensor], wrapper: str, legacy: bool) -> None:
    content = {"epoch": 3, wrapper: state, "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]}}
    torch.save(content, tmp_path / "a.pt", _use_new_zipfile_serialization=not legacy)
    assert list(read_state_dict(tmp_path / "a.pt")) == list(state)


def test_plain_numbers_become_tensors(tmp_path: Path, state: dict[str, torch.Tensor]) -> None:
    torch.save({**state, "label": 7}, tmp_path / "a.pt")
    assert read_state_dict(tmp_path / "a.pt")["label"].item() == 7


@pytest.mark.parametrize("kind", ["torch", "legacy", "safetensors"])
@pytest.mark.parametrize("part", [0.01, 0.3, 0.9, 0.99])
def test_truncated(tmp_path: Path, state: dict[str, torch.Tensor], kind: str, part: float) -> None:
    path = tmp_path / ("a.safetensors" if kind == "safetensors" else "a.pt")
    if kind == "safetensors":
        save_file(state, path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=kind == "torch")
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    assert "truncated" in error(path)


@pytest.mark.parametrize("kind", ["torch", "legacy", "pickle 2", "pickle 4"])
def test_code_is_refused_and_not_run(tmp_path: Path, kind: str) -> None:
    witness = tmp_path / "witness"
    content = {"state_dict": Code(witness)}
    path = tmp_path / "a.pt"
    if kind.startswith("pickle"):
        path.write_bytes(pickle.dumps(content, protocol=int(kind[-1])))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=kind == "torch")
    assert "holds Python objects or code (posix.system)" in error(path)
    assert not witness.exists()
    # The control: ordinary loading would have run it.
    torch.load(path, weights_only=False) if not kind.startswith("pickle") else pickle.loads(path.read_bytes())
    assert witness.exists()


def test_a_whole_module_is_refused_with_advice(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 3), tmp_path / "a.pt")
    assert "save module.state_dict() instead of the module" in error(tmp_path / "a.pt")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.pt", b"", "the file is empty"),
        ("empty.safetensors", b"", "the file is empty"),
        ("text.pt", b"weights: none\n", "not one that torch.save wrote"),
        ("numbers.pt", pickle.dumps({"a": 1}), "not one that torch.save wrote"),
        ("text.safetensors", b"weights: none\n", "nor safetensors, Keras or ONNX"),
        ("model.onnx", b"123", "nor safetensors, Keras or ONNX"),
    ],
)
def test_not_a_checkpoint(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert message in error(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (torch.zeros(3), "got a Tensor"),
        ({"epoch": 1}, "got a dictionary with epoch"),
        ({}, "got a dictionary with nothing"),
        ([1, 2], "got a list"),
    ],
)
def test_no_state_dict_inside(tmp_path: Path, content: object, message: str) -> None:
    torch.save(content, tmp_path / "a.pt")
    assert message in error(tmp_path / "a.pt")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda t: t.to_sparse(), "sparse"),
        (lambda t: t.to("meta"), "without data"),
        (lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8), "quantised"),
    ],
)
def test_tensors_that_are_not_plain_numbers(
    tmp_path: Path, state: dict[str, torch.Tensor], change: Callable[[torch.Tensor], torch.Tensor], kind: str
) -> None:
    name = next(iter(state))
    torch.save({"state_dict": {**state, name: change(state[name])}}, tmp_path / "a.pt")
    assert f"a.pt: {name}: expected a dense tensor of numbers, got one that is {kind}" in error(tmp_path / "a.pt")


def test_missing_and_directories(tmp_path: Path) -> None:
    assert "no such file" in error(tmp_path / "none.pt")
    (tmp_path / "directory.pt").mkdir()
    assert "is not a file" in error(tmp_path / "directory.pt")
    with pytest.raises(ScaleGMNError, match="expected a name that ends in"):
        write({}, tmp_path / "a.npz")


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_file_that_may_not_be_read(
    tmp_path: Path, state: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    write(state, tmp_path / f"a{suffix}")

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    for name in ("builtins.open", "io.open"):
        monkeypatch.setattr(name, refuse)
    assert "cannot be read (Permission denied)" in error(tmp_path / f"a{suffix}")


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_place_that_cannot_be_written(tmp_path: Path, state: dict[str, torch.Tensor], suffix: str) -> None:
    (tmp_path / f"folder{suffix}").mkdir()
    for path, message in ((tmp_path / "none" / f"a{suffix}", "make it first"), (tmp_path / f"folder{suffix}", "writ")):
        with pytest.raises(ScaleGMNError, match=message) as caught:
            write(state, path)
        assert "\n" not in str(caught.value)
        assert str(caught.value).startswith(f"{path}: ")


def test_tensors_saved_on_a_gpu_load_on_the_cpu(tmp_path: Path, state: dict[str, torch.Tensor]) -> None:
    torch.save(state, tmp_path / "cpu.pt")
    path = tmp_path / "cuda.pt"
    # The same archive with another device written into its pickle.
    with zipfile.ZipFile(tmp_path / "cpu.pt") as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith("data.pkl"):
                assert b"X\x03\x00\x00\x00cpu" in content
                content = content.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
            target.writestr(name, content)
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="CUDA"):
            torch.load(path, weights_only=True)
    found = read_state_dict(path)
    assert {t.device.type for t in found.values()} == {"cpu"}
    assert all(torch.equal(found[k], state[k]) for k in state)
