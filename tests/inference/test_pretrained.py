"""Models that come with the package: by name, with a card, for networks that others fitted; packing a run."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_runs import recipe_for
from tiny_sirens import Siren, sirens
from torch import Tensor, nn

from scalegmn.cli import app
from scalegmn.cli.application import run
from scalegmn.core.networks import Networks
from scalegmn.errors import ScaleGMNError
from scalegmn.inference.places import PRETRAINED, find_model, pretrained
from scalegmn.inference.pretrained import export, halved
from scalegmn.inference.trained import load
from scalegmn.training.loop import train
from scalegmn.zoo.images.collections import Images
from scalegmn.zoo.inr.build import build_inr_zoo
from scalegmn.zoo.inr.conventions import Fit
from scalegmn.zoo.store.zoo import Zoo

Command = Callable[..., tuple[str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*words: object, code: int = 0) -> tuple[str, str]:
        assert run(app, [str(w) for w in words]) == code
        out, err = capsys.readouterr()
        return out, err

    return call


@pytest.fixture(scope="module")
def packed(digits: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    train(recipe_for(digits.path, model={"name": "scalegmn", "width": 8, "layers": 1}, epochs=1), folder / "run")
    return export(folder / "run", folder / "model", about="Which of three digits?", limits=["Knows three digits."])


@pytest.fixture(scope="module")
def editor(digits: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("editor")
    train(recipe_for(digits.path, task="editing", epochs=1), folder / "run")
    return export(folder / "run", folder / "model")


def _size(folder: Path) -> int:
    return (folder / "model.safetensors").stat().st_size


# -- packing -------------------------------------------------------------------------------------------------------


def test_a_packed_run_answers_as_the_run_does(digits: Zoo, packed: Path) -> None:
    networks = digits.batch(digits.split("test"))
    ours, theirs = (load(path).model(networks).detach() for path in (packed, packed.parent / "run"))
    # Its parameters are kept in half precision.
    assert 0 < (ours - theirs).abs().max() < 1e-2 * theirs.abs().max()
    assert _size(packed) < 0.75 * _size(packed.parent / "run")
    files = sorted(path.name for path in packed.iterdir())
    assert files == ["README.md", "config.json", "familiar.safetensors", "model.safetensors"]


def test_the_card_says_what_was_measured(digits: Zoo, packed: Path) -> None:
    card = json.loads((packed / "config.json").read_text())["card"]
    assert card["value"] == load(packed).evaluate(digits).metrics["accuracy"]
    assert card["networks"] == {name: len(digits.split(name)) for name in digits.splits}
    text = (packed / "README.md").read_text()
    assert f"Test accuracy {card['value']:.4f}" in text
    assert "Knows three digits." in text
    assert str(digits.path.parent) not in text + (packed / "config.json").read_text()


def test_constants_and_entries_that_half_precision_would_lose_stay_as_they_are() -> None:
    model = nn.Linear(3, 1)
    model.register_buffer("constant", torch.tensor([1e-12, 1e6]))
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1e5, 1.0, 0.0]]))
    found = halved(model)
    assert {name: t.dtype for name, t in found.items()} == {
        "weight": torch.float32,
        "bias": torch.float16,
        "constant": torch.float32,
    }
    assert torch.equal(found["weight"], model.weight)


def test_only_finished_runs_are_packed(digits: Zoo, tmp_path: Path) -> None:
    train(recipe_for(digits.path, epochs=1), tmp_path / "run")
    (tmp_path / "run" / "results.json").unlink()
    with pytest.raises(ScaleGMNError, match="not finished"):
        export(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_directory_of_something_else_is_left_alone(packed: Path) -> None:
    run = packed.parent / "run"
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    with pytest.raises(ScaleGMNError, match="which is not of a packed model"):
        export(run, run)
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before
    assert export(run, packed, about="Which of three digits?", limits=["Knows three digits."]) == packed


def test_the_command_packs(packed: Path, tmp_path: Path, command: Command) -> None:
    _, err = command("export", packed.parent / "run", tmp_path / "out", "--about", "Digits.", "--limit", "Three.")
    assert "wrote" in err
    assert load(tmp_path / "out").config["card"]["limits"] == ["Three."]


# -- strangers -------------------------------------------------------------------------------------------------------


def test_far_networks_get_their_answer_with_a_warning(digits: Zoo, packed: Path, tmp_path: Path) -> None:
    trained = load(packed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained.predict(digits.batch([0]))
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="module 0: far from the networks in training"):
        (answer,) = trained.predict(Siren())
    assert answer["label"] in (0, 1, 2)


class Plain(nn.Module):
    """The same pictures, written as sin(W x + b), with nothing added to the output."""

    def __init__(self, like: Siren) -> None:
        super().__init__()
        layers = [nn.Linear(2, 8), nn.Linear(8, 8), nn.Linear(8, 1)]
        self.layers = nn.ModuleList(layers)
        with torch.no_grad():
            for mine, theirs in zip(layers, (like.seq[0], like.seq[2], like.seq[4]), strict=True):
                factor = 1.0 if mine is layers[2] else 30.0
                mine.weight.copy_(theirs.weight * factor)
                mine.bias.copy_(theirs.bias * factor)
            layers[2].bias += 0.5

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sin(self.layers[1](torch.sin(self.layers[0](x))))
        return self.layers[2](x)


def test_other_spellings_get_the_same_answers(digits: Zoo, packed: Path, tmp_path: Path) -> None:
    trained = load(packed)

    def labels(networks: list[Any]) -> list[int]:
        return [answer["label"] for answer in trained.predict(trained.read(networks))]

    originals = sirens(digits, 12)
    expected = labels(originals)
    plain = [Plain(module) for module in originals]
    # A module says what it computes, a state dict does not.
    assert labels(plain) == expected
    states = [{k: t.half() for k, t in module.state_dict().items()} for module in plain]
    assert labels(states) == expected
    words = "read as sin(W x + b), values from 0 to 1, nothing added to the output"
    assert any(words in text for text in trained.read(states).notes())


def turned(modules: list[Siren]) -> list[dict[str, Tensor]]:
    """The same pictures, with points given as (row, column)."""
    states = [dict(module.state_dict()) for module in modules]
    first = next(iter(states[0]))
    return [{**state, first: state[first].flip(1)} for state in states]


def test_users_may_say_what_the_inputs_are(digits: Zoo, packed: Path, editor: Path, tmp_path: Path) -> None:
    trained, originals = load(packed), sirens(digits, 6)
    expected = trained.embed(trained.read(originals, points="x,y"))
    given = turned(originals)
    # One at a time, as nothing but the option says how they are written.
    found = [trained.read(state, points="row,column") for state in given]
    assert torch.allclose(torch.cat([trained.embed(one) for one in found]), expected, atol=1e-5)
    assert not torch.allclose(trained.embed(trained.read(given, points="x,y")), expected, atol=1e-3)
    assert all("points (row, column)" in " ".join(one.notes()) for one in found)

    other = load(editor)
    wish = other.edit(other.read(originals[0].state_dict(), points="x,y"))
    edited = other.edit(other.read(given[0], points="row,column"))
    assert torch.allclose(next(iter(edited.values())).flip(1), next(iter(wish.values())), atol=1e-5)

    # A run without statistics of its training networks guesses nothing, and believes what it is told.
    shutil.copytree(packed, tmp_path / "bare", ignore=shutil.ignore_patterns("familiar.safetensors"))
    bare = load(tmp_path / "bare")
    assert torch.allclose(bare.embed(bare.read(given, points="row,column")), expected, atol=1e-5)
    assert not torch.allclose(bare.embed(bare.read(given)), expected, atol=1e-3)


def test_points_that_say_nothing_are_refused(digits: Zoo, packed: Path, tmp_path: Path, command: Command) -> None:
    torch.save(sirens(digits, 1)[0].state_dict(), tmp_path / "one.pt")
    _, err = command("predict", packed, tmp_path / "one.pt", "--points", "column,row", code=2)
    assert "points: expected one of x,y; row,column, got 'column,row'" in err
    out, _ = command("predict", packed, tmp_path / "one.pt", "--points", "row,column", "--json")
    assert "points (row, column)" in json.loads(out)[0]["read_as"]
    cnns = load("cifar10-gs")
    (a, *_) = cnns.model.architectures
    with pytest.raises(ScaleGMNError, match="points: expected a model of INRs of pictures"):
        cnns.read(Networks(a, torch.zeros(1, a.parameters)), points="x,y")


def test_a_zoo_says_how_its_networks_are_written(digits: Zoo, packed: Path, tmp_path: Path) -> None:
    trained = load(packed)
    images = Images("d", digits.stored_images().numpy()[:12, ..., 0], np.zeros(12, np.int64), np.ones(12, np.bool_))
    fit = Fit(hidden=(8, 8), convention="nfn", w0=20.0, steps=30)
    other = build_inr_zoo(images, tmp_path / "nfn", fit=fit)
    (piece,) = trained.read(other).pieces
    (chunk,) = piece.chunks()
    (seen,) = chunk.networks
    assert seen.architecture == digits.architecture
    assert digits.canvas is not None
    assert other.canvas is not None
    assert torch.allclose(digits.canvas.render(seen), other.canvas.render(other.batch()), atol=1e-4)
    assert len(trained.predict(trained.read(other))) == 12
    with pytest.raises(ScaleGMNError, match="paints on"):
        trained.evaluate(build_inr_zoo(images, tmp_path / "z", fit=replace(fit, w0=30.0)))


def test_edits_come_back_in_the_spelling_in_which_they_came(digits: Zoo, editor: Path) -> None:
    trained = load(editor)
    (original,) = sirens(digits, 1)
    plain = Plain(original)
    x = torch.rand(7, 2)
    assert torch.allclose(plain(x), original(x), atol=1e-5)
    edited = trained.edit(plain)
    assert isinstance(edited, Plain)
    assert torch.allclose(edited(x), trained.edit(original)(x), atol=1e-4)
    assert not torch.allclose(edited(x), plain(x), atol=1e-4)


# -- by name ---------------------------------------------------------------------------------------------------------


def test_answers_say_what_people_call_the_classes(digits: Zoo, tmp_path: Path, command: Command) -> None:
    model = {"name": "scalegmn", "width": 8, "layers": 1}
    train(recipe_for(digits.path, model=model, epochs=1), tmp_path / "run")
    plain = load(export(tmp_path / "run", tmp_path / "plain"))
    titled = load(export(tmp_path / "run", tmp_path / "model", titles=["none", "one", "two"]))
    networks = digits.batch(range(5))
    for old, new in zip(plain.predict(networks), titled.predict(networks), strict=True):
        assert new == {"label": old["label"], "title": ("none", "one", "two")[old["label"]], **old}
    assert titled.evaluate(digits).metrics == plain.evaluate(digits).metrics
    out, _ = command("predict", tmp_path / "model", digits.path, "--top", 2)
    assert "title" in out
    with pytest.raises(ScaleGMNError, match="titles: expected one for each of 3 classes, got 1"):
        export(tmp_path / "run", tmp_path / "other", titles=["none"])
    assert not (tmp_path / "other").exists()


def test_only_classes_have_titles(digits: Zoo, tmp_path: Path) -> None:
    train(recipe_for(digits.path, task="editing", epochs=1), tmp_path / "run")
    with pytest.raises(ScaleGMNError, match="titles: expected a classifier, got a run of task 'editing'"):
        export(tmp_path / "run", tmp_path / "model", titles=["none"])


def test_every_shipped_model_loads_and_says_what_it_is(command: Command) -> None:
    rows = json.loads(command("models", "--pretrained", "--json")[0])
    assert [row["name"] for row in rows] == pretrained()
    assert "mnist" in pretrained()
    for row in rows:
        trained = load(row["name"])
        card = trained.config["card"]
        assert (row["metric"], row["task"]) == (card["metric"], trained.task.name)
        assert row["parameters"] == sum(p.numel() for p in trained.model.parameters())
        assert row["about"]
        assert card["limits"]
        assert trained.familiar is not None
    assert sum(row["bytes"] for row in rows) < 10_000_000
    assert "mnist" in command("models", "--pretrained")[0]


def test_a_directory_with_a_model_comes_before_a_name(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mnist").mkdir()
    assert find_model("mnist") == PRETRAINED / "mnist"
    shutil.copytree(packed, "mnist", dirs_exist_ok=True)
    assert find_model("mnist") == Path("mnist")
    assert find_model(Path("mnist")) == Path("mnist")


def test_unknown_names_are_one_line(tmp_path: Path, command: Command) -> None:
    _, err = command("predict", "mnits", "a.pt", code=2)
    assert "neither a run nor a shipped model; did you mean 'mnist'?" in err
    _, err = command("predict", tmp_path, "a.pt", code=2)
    assert "holds no config.json" in err
    _, err = command("evaluate", "mnist", code=2)
    assert "came without the networks that it was trained on; give --zoo" in err


def test_commands_take_a_name(tmp_path: Path, command: Command) -> None:
    torch.manual_seed(0)
    strange = Siren(32)
    torch.save(strange.state_dict(), tmp_path / "a.pt")
    out, err = command("predict", "mnist", tmp_path / "a.pt", "--json")
    (row,) = json.loads(out)
    assert row["label"] in range(10)
    assert row["distance"] > 1
    assert "far from the networks in training" in err
    command("embed", "mnist", tmp_path / "a.pt", "-o", tmp_path / "e.npz")
    assert (tmp_path / "e.npz").is_file()


def test_the_mnist_model_reads_digits_in_every_spelling(tmp_path: Path) -> None:
    """Ten networks of test images, one of each digit, as `scalegmn zoo build inr --images mnist` fits them."""
    stored: dict[str, Tensor] = torch.load(Path(__file__).parent / "digits.pt", weights_only=True)
    trained, truth = load("mnist"), stored["labels"].tolist()
    networks = Networks(trained.model.architectures[0], stored["parameters"])
    found = trained.read(networks)
    answers = [answer["label"] for answer in trained.predict(found)]
    assert sum(a == b for a, b in zip(answers, truth, strict=True)) >= 9
    assert not any("read as" in text for text in found.notes())
    for i, state in enumerate(networks.to_state_dicts()):
        plain = {k: t * (1.0 if k.startswith("3.") else 30.0) for k, t in state.items()}
        torch.save({k: t.half() for k, t in plain.items()}, tmp_path / f"{i}.pt")
    found = trained.read(tmp_path)
    assert [answer["label"] for answer in trained.predict(found)] == answers
    assert any("read as sin(W x + b), values from 0 to 1, 0.5 added to the output" in text for text in found.notes())
