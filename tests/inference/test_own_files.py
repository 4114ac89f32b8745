"""From a folder of a person's own checkpoints to a prediction, through the commands."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny_runs import recipe_for
from torch import nn

import scalegmn
from scalegmn.cli import app
from scalegmn.cli.application import run
from scalegmn.errors import ScaleGMNError
from scalegmn.training.loop import train
from scalegmn.zoo.store.zoo import Zoo

Command = Callable[..., str]

MODELS = """
from torch import nn

def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3),
    )

def wide():
    module = cnn()
    module[4], module[5], module[9] = nn.Conv2d(4, 9, 3), nn.BatchNorm2d(9), nn.Linear(9, 3)
    return module
"""


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*words: object, code: int = 0) -> str:
        assert run(app, [str(w) for w in words]) == code, capsys.readouterr().err
        out, err = capsys.readouterr()
        call.err = err  # type: ignore[attr-defined]
        return err if code else out

    return call


def made(function: str) -> nn.Module:
    """A module with statistics of its own."""
    space: dict[str, Any] = {}
    exec(MODELS, space)
    module: nn.Module = space[function]()
    for m in module.modules():
        if isinstance(m, nn.BatchNorm2d):
            nn.init.uniform_(m.running_mean, -1, 1)  # type: ignore[arg-type]
            nn.init.uniform_(m.running_var, 0.5, 2)  # type: ignore[arg-type]
    return module.eval()


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of CNNs with BatchNorm under all kinds of names, a zoo of them, and a model trained on that."""
    root = tmp_path_factory.mktemp("own")
    torch.manual_seed(0)
    (root / "models.py").write_text(MODELS)
    (root / "nets").mkdir()
    lines = ["file,accuracy,note"]
    for i in range(20):
        name = f"net{i}" + ("", ".th", ".bin", ".pt")[i % 4]
        torch.save({"state_dict": made("cnn").state_dict(), "epoch": 3}, root / "nets" / name)
        lines.append(f"{name},{i / 20},{'good' if i % 2 else ''}")
    (root / "nets" / "labels.csv").write_text("\n".join(lines))
    words = ["zoo", "import", "checkpoints", root / "nets", root / "zoo", "--labels", root / "nets" / "labels.csv"]
    assert run(app, [str(w) for w in [*words, "--arch", root / "models.py:cnn"]]) == 0
    model = {"name": "scalegmn", "width": 8, "layers": 2}
    train(recipe_for(root / "zoo", task="regression", model=model, epochs=1), root / "run")
    return root


def test_a_model_reads_the_files_that_it_was_trained_on(collection: Path, command: Command) -> None:
    nets = collection / "nets"
    rows = json.loads(command("predict", collection / "run", nets, "--json"))
    assert "assumed relu, as in training" in command.err  # type: ignore[attr-defined]
    assert len(rows) == 20
    assert {(row["assumed"], row["unseen"]) for row in rows} == {("relu", None)}
    of_zoo = json.loads(command("predict", collection / "run", collection / "zoo", "--json"))
    assert [row["file"] for row in of_zoo] == [f"net{i}" + ("", ".th", ".bin", ".pt")[i % 4] for i in range(20)]
    by_file = {Path(row["file"]).name: row["accuracy"] for row in rows}
    assert by_file == pytest.approx({row["file"]: row["accuracy"] for row in of_zoo}, abs=1e-5)
    some = json.loads(command("predict", collection / "run", nets / "*.th", nets / "net0", "--json"))
    assert [Path(row["file"]).name for row in some] == [f"net{i}.th" for i in (1, 13, 17, 5, 9)] + ["net0"]
    assert len(json.loads(command("predict", collection / "run", collection / "zoo", "--split", "test", "--json"))) == 4


def test_the_zoo_keeps_names_label_and_gaps(collection: Path) -> None:
    zoo = Zoo.open(collection / "zoo")
    assert zoo.label("nothing") == "accuracy"
    assert zoo.categories("note") == ("", "good")
    assert zoo.names()[:2] == ["net0", "net1.th"]
    assert len(zoo.layouts) == 1
    assert scalegmn.load(collection / "run").task.to_json()["column"] == "accuracy"


def test_csv(collection: Path, command: Command) -> None:
    rows = list(csv.DictReader(io.StringIO(command("predict", collection / "run", collection / "nets", "--csv"))))
    assert len(rows) == 20
    assert set(rows[0]) == {"file", "accuracy"}
    vectors = list(csv.reader(io.StringIO(command("embed", collection / "run", collection / "zoo", "--csv"))))
    assert vectors[0][:2] == ["file", "embedding_0"]
    command("embed", collection / "run", collection / "zoo", "-o", collection / "e.npz")
    found = np.load(collection / "e.npz")
    assert np.allclose(found["embeddings"], np.array(vectors)[1:, 1:].astype(float), atol=1e-6)
    assert found["names"].tolist() == [row[0] for row in vectors[1:]]
    assert np.allclose(found["accuracy"], np.arange(20) / 20)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_the_type_of_a_file_does_not_matter(collection: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    state = torch.load(collection / "nets" / "net0", weights_only=True)["state_dict"]
    trained = scalegmn.load(collection / "run")
    plain = trained.embed(state, activation="relu")
    save_file({k: t.to(dtype) if t.is_floating_point() else t for k, t in state.items()}, tmp_path / "x.safetensors")
    # bfloat16 has eight bits.
    assert torch.allclose(trained.embed(tmp_path / "x.safetensors", activation="relu"), plain, atol=0.05, rtol=0.05)
    statistics = {k: t.to(dtype) if k.endswith("weight") else t for k, t in state.items()}
    assert torch.allclose(trained.embed(statistics, activation="relu"), plain, atol=0.05, rtol=0.05)


def test_another_width_needs_its_module_and_is_reported(collection: Path, tmp_path: Path, command: Command) -> None:
    torch.save(made("wide").state_dict(), tmp_path / "wide.pt")
    refused = command("predict", collection / "run", tmp_path / "wide.pt", code=2)
    assert refused.count("\n") == 1
    words = ["predict", collection / "run", tmp_path / "wide.pt", "--arch", collection / "models.py:wide", "--json"]
    (row,) = json.loads(command(*words))
    assert row["unseen"] == "1-4-9-3 [relu]"
    assert "not seen in training: 1-4-9-3 [relu]" in command.err  # type: ignore[attr-defined]
    module = made("wide")
    module.load_state_dict(torch.load(tmp_path / "wide.pt", weights_only=True))
    trained = scalegmn.load(collection / "run")
    (answer,) = trained.predict(trained.read(module))
    assert answer["accuracy"] == pytest.approx(row["accuracy"])


def test_weights_that_are_no_numbers(collection: Path, tmp_path: Path, command: Command) -> None:
    trained = scalegmn.load(collection / "run")
    zoo = Zoo.open(collection / "zoo")
    networks = zoo.batch([0, 1])
    networks.parameters[1, 7] = float("inf")
    for ask in (trained.predict, trained.embed):
        with pytest.raises(ScaleGMNError, match="network 1: has infinite or NaN weights"):
            ask(networks)
    shutil.copytree(zoo.path, tmp_path / "bad")
    shard = tmp_path / "bad" / zoo.header["shards"][0]["file"]
    shard.write_bytes(shard.read_bytes()[:-4] + np.float32("nan").tobytes())
    last = Zoo.open(tmp_path / "bad").names()[zoo.header["shards"][0]["networks"] - 1]
    for words in (["predict"], ["embed", "-o", str(tmp_path / "out.npz")]):
        said = command(words[0], collection / "run", tmp_path / "bad", *words[1:], code=2)
        assert said == f"error: {tmp_path / 'bad'}: network {last}: has infinite or NaN weights; leave it out\n"
    assert not (tmp_path / "out.npz").exists()


def test_plain_misuse_is_one_line(collection: Path, command: Command, tmp_path: Path) -> None:
    trained = scalegmn.load(collection / "run")
    with pytest.raises(ScaleGMNError, match="expected a module, a state dict, a path, a zoo or Networks, got int"):
        trained.predict([3])  # type: ignore[list-item]
    with pytest.raises(ScaleGMNError, match="expected Networks, got Sequential"):
        trained.model(made("cnn"))
    with pytest.raises(ScaleGMNError, match="expected a list of them, got one, 2-3-1"):
        scalegmn.ScaleGMN(scalegmn.Architecture.mlp([2, 3, 1]), 1)  # type: ignore[arg-type]
    assert "no file fits this pattern" in command("predict", collection / "run", tmp_path / "*.pt", code=2)
    assert "holds no checkpoints" in command("predict", collection / "run", tmp_path, code=2)
    assert "task classification" in command("predict", collection / "run", collection / "zoo", "--top", 2, code=2)


def test_disk_content_survives_a_failed_embedding(
    collection: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("embed", collection / "run", collection / "zoo", "-o", tmp_path / "e.npz")
    before = (tmp_path / "e.npz").read_bytes()
    (tmp_path / ".e.npz.tmp").mkdir()  # nothing can be written beside it
    command("embed", collection / "run", collection / "zoo", "--split", "test", "-o", tmp_path / "e.npz", code=2)
    assert (tmp_path / "e.npz").read_bytes() == before


# -- kinds -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def siren_run(digits: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "siren"
    train(recipe_for(digits.path, model={"name": "scalegmn", "width": 8, "layers": 2}, epochs=1), path)
    return path


def test_bare_weights_are_answered_with_what_was_assumed(siren_run: Path, tmp_path: Path, command: Command) -> None:
    relu = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    torch.save(relu.state_dict(), tmp_path / "bare")
    (row,) = json.loads(command("predict", siren_run, tmp_path / "bare", "--top", 3, "--json"))
    assert row["assumed"] == "sine(30)"
    assert row["top"][0]["label"] == row["label"]
    assert sum(answer["probability"] for answer in row["top"]) == pytest.approx(1, abs=1e-3)
    assert "do not tell their activations; assumed sine(30)" in command.err  # type: ignore[attr-defined]
    told = command("predict", siren_run, tmp_path / "bare", "--activation", "relu", code=2)
    assert "built for sine; got 'relu'" in told
    with pytest.raises(ScaleGMNError, match=r"activation relu is not among identity, sine\(30\)"):
        scalegmn.load(siren_run).predict(relu)


def test_other_widths_and_depths_of_bare_perceptrons(siren_run: Path, command: Command, tmp_path: Path) -> None:
    torch.save(nn.Sequential(nn.Linear(2, 11), nn.Linear(11, 5), nn.Linear(5, 1)).state_dict(), tmp_path / "a")
    torch.save(nn.Sequential(nn.Linear(2, 11), nn.Linear(11, 1)).state_dict(), tmp_path / "b")
    rows = json.loads(command("predict", siren_run, tmp_path, "--activation", "sine", "--json"))
    assert [row["unseen"] for row in rows] == ["2-11-5-1 [sine(30)]", "2-11-1 [sine(30)]"]
    deep = [nn.Linear(2, 4), *(nn.Linear(4, 4) for _ in range(3)), nn.Linear(4, 1)]
    torch.save(nn.Sequential(*deep).state_dict(), tmp_path / "c")
    assert "at most 4 layers" in command("predict", siren_run, tmp_path / "c", code=2)


def test_an_offset_is_told_in_words_and_treated_alike(digits: Zoo, siren_run: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    from scalegmn.core.architecture import Architecture
    from scalegmn.core.networks import Networks
    from scalegmn.zoo.store.writer import ZooWriter

    a = digits.architecture
    plain = Architecture((*a.layers[:-1], replace(a.layers[-1], offset=0.0)), a.connections)
    networks = Networks(plain, digits.batch([0, 1]).parameters)
    writer = ZooWriter(tmp_path / "z", kind="inr", arguments={})
    writer.append(plain, networks.parameters, {"label": torch.tensor([0, 1]), "split": ["test"] * 2})
    writer.finish()
    trained = scalegmn.load(siren_run)
    reading = trained.read(networks)
    assert reading.pieces[0].unseen == "layer 3 has offset 0.5 and 0.0"
    assert trained.predict(reading) == trained.predict(trained.read(tmp_path / "z"))
    assert len(trained.evaluate(tmp_path / "z").outputs) == len(trained.embed(reading)) == 2
    path = tmp_path / "mlp"
    train(recipe_for(digits.path, epochs=1), path)
    for ask in (lambda t: t.read(networks), lambda t: t.read(tmp_path / "z"), lambda t: t.evaluate(tmp_path / "z")):
        with pytest.raises(ScaleGMNError, match=r"got layer 3 has offset 0\.5 and 0\.0"):
            ask(scalegmn.load(path))


def test_a_part_of_a_file_is_edited_in_its_own_precision(digits: Zoo, tmp_path: Path, command: Command) -> None:
    train(recipe_for(digits.path, task="editing", epochs=1), tmp_path / "run")
    (state,) = digits.batch([0]).to_state_dicts()
    whole = {f"inr.{k}": t.double() for k, t in state.items()}
    whole |= {"other.weight": torch.rand(3, 3), "step": torch.tensor(7)}
    torch.save(whole, tmp_path / "a.th")
    command("edit", tmp_path / "run", tmp_path / "a.th", "-o", tmp_path / "b.th", code=2)
    command("edit", tmp_path / "run", tmp_path / "a.th", "-o", tmp_path / "b.th", "--prefix", "inr")
    assert "assumed sine(30)" in command.err  # type: ignore[attr-defined]
    edited = torch.load(tmp_path / "b.th", weights_only=True)
    assert {k: t.dtype for k, t in edited.items()} == {k: t.dtype for k, t in whole.items()}
    assert torch.equal(edited["other.weight"], whole["other.weight"])
    assert not torch.equal(edited["inr.1.weight"], whole["inr.1.weight"])
