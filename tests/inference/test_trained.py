"""Trained models in use: on modules, state dicts, files and zoos; the commands around them; the hub's format."""

from __future__ import annotations

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
from tiny_sirens import Siren, sirens
from torch import nn

import scalegmn
from scalegmn.cli import app
from scalegmn.cli.application import run
from scalegmn.core.networks import Networks
from scalegmn.errors import ScaleGMNError
from scalegmn.inference.embedding import table_of
from scalegmn.inference.trained import Trained, load
from scalegmn.tasks import Classification, Editing
from scalegmn.training.evaluation import Evaluation, compare
from scalegmn.training.loop import train
from scalegmn.training.recipe import read_recipe
from scalegmn.zoo.store.writer import ZooWriter
from scalegmn.zoo.store.zoo import Zoo

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def classifier(digits: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "classifier"
    train(recipe_for(digits.path, epochs=2), path)
    return path


@pytest.fixture(scope="module")
def invariant(digits: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "invariant"
    model = {"name": "scalegmn", "width": 8, "layers": 2}
    train(recipe_for(digits.path, model=model, epochs=1), path)
    return path


@pytest.fixture(scope="module")
def editor(digits: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "editor"
    train(recipe_for(digits.path, task="editing", epochs=2), path)
    return path


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*words: object, code: int = 0) -> str:
        assert run(app, [str(w) for w in words]) == code
        out, err = capsys.readouterr()
        return err if code else out

    return call


# -- Python ----------------------------------------------------------------------------------------------------


def test_modules_state_dicts_files_and_networks_get_the_same_answers(
    digits: Zoo, classifier: Path, tmp_path: Path
) -> None:
    trained = scalegmn.load(classifier)
    modules = sirens(digits, 3)
    states = [module.state_dict() for module in modules]
    files = [tmp_path / f"{i}.pt" for i in range(2)] + [tmp_path / "2.safetensors"]
    for state, file in zip(states[:2], files[:2], strict=True):
        torch.save(state, file)
    save_file(states[2], files[2])
    expected = trained.predict(digits.batch([0, 1, 2]))
    assert [set(answer) for answer in expected] == [{"label", "probability"}] * 3
    assert expected == trained.predict(modules) == trained.predict(digits)[:3]
    assert expected == trained.predict(states, activation="sine") == trained.predict(files, activation="sine")
    assert trained.predict(modules[1]) == trained.predict(str(files[1]), activation="sine(30)") == expected[1:2]
    embedding = trained.embed(modules)
    assert embedding.shape == (3, 16)
    with pytest.warns(UserWarning, match=r"0\.pt and 2 more: the files do not tell .*; assumed sine\(30\)"):
        assert torch.allclose(embedding, trained.embed(files))


def test_predictions_equal_what_the_evaluation_saw(digits: Zoo, classifier: Path) -> None:
    trained = load(classifier)
    test = digits.split("test")
    labels = [answer["label"] for answer in trained.predict(digits.batch(test))]
    accuracy = np.mean(np.array(labels) == digits.column("label")[test].numpy())
    assert trained.evaluate(digits).metrics["accuracy"] == pytest.approx(accuracy)


def test_edits_come_back_in_the_form_in_which_they_came(digits: Zoo, editor: Path, tmp_path: Path) -> None:
    trained = load(editor)
    module = sirens(digits, 1)[0]
    torch.save(module.state_dict(), tmp_path / "a.pt")
    networks = trained.edit(digits.batch([0]))
    assert isinstance(networks, Networks)
    edited = trained.edit(module)
    assert isinstance(edited, Siren)
    state = trained.edit(tmp_path / "a.pt", activation="sine")
    assert list(state) == list(module.state_dict())
    x = torch.rand(5, 2)
    assert torch.allclose(edited(x), networks.evaluate(x)[0])
    assert not torch.allclose(edited(x), module(x))
    module.load_state_dict(state)
    assert torch.equal(edited(x), module(x))
    assert [type(m) for m in trained.edit([module, module])] == [Siren, Siren]
    assert trained.edit(module.double()).seq[0].weight.dtype == torch.float64


def test_a_model_says_what_it_cannot_do(digits: Zoo, classifier: Path, editor: Path) -> None:
    with pytest.raises(ScaleGMNError, match="edit: this model was trained for classification"):
        load(classifier).edit(digits.batch([0]))
    for wish in ("predict", "embed"):
        with pytest.raises(ScaleGMNError, match=f"{wish}: this model was trained for editing"):
            getattr(load(editor), wish)(digits.batch([0]))
    with pytest.raises(ScaleGMNError, match="expected at least one, got none"):
        load(classifier).predict([])


def test_another_architecture_is_one_line_with_both(classifier: Path, tmp_path: Path) -> None:
    trained = load(classifier)
    wide = Siren(hidden=12)
    torch.save(wide.state_dict(), tmp_path / "wide.pt")
    for source in (wide, wide.state_dict(), tmp_path / "wide.pt"):
        with pytest.raises(ScaleGMNError) as caught:
            trained.predict(source)
        assert "built for 2-8-8-1 [sine(30)]; got 2-12-12-1" in str(caught.value)


def test_a_broken_weight_is_named(digits: Zoo, classifier: Path) -> None:
    state = sirens(digits, 1)[0].state_dict()
    state["seq.2.weight"][0, 0] = float("nan")
    with pytest.raises(ScaleGMNError, match=r"seq\.2\.weight has a weight that is nan"):
        load(classifier).predict(state)


def test_equal_shapes_need_an_activation(mixed: Zoo, tmp_path: Path) -> None:
    task = {"name": "regression", "column": "score", "sigmoid": True}
    train(recipe_for(mixed.path, task=task, model="statnn", epochs=1), tmp_path / "run")
    trained = load(tmp_path / "run")
    state = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1)).state_dict()
    with pytest.raises(ScaleGMNError, match=r"fits several .* \(2-6-1 \[relu\]; 2-6-1 \[tanh\]\)"):
        trained.predict(state)
    (answer,) = trained.predict(state, activation="tanh")
    assert 0 < answer["score"] < 1
    with pytest.raises(ScaleGMNError, match="built for relu, tanh; got 'sine'"):
        trained.predict(state, activation="sine")


def test_embeddings_of_an_invariant_model_do_not_move(digits: Zoo, invariant: Path) -> None:
    trained = load(invariant)
    plain, moved = (trained.evaluate(digits, "test", transform_seed=seed) for seed in (None, 3))
    assert torch.allclose(plain.outputs, moved.outputs, atol=1e-4)
    assert torch.equal(plain.targets, moved.targets)


def test_a_plain_perceptron_is_moved_by_a_transform(digits: Zoo, classifier: Path) -> None:
    trained = load(classifier)
    plain, moved = (trained.evaluate(digits, "test", transform_seed=seed) for seed in (None, 3))
    assert (plain.outputs - moved.outputs).abs().max() > 1e-2


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_directory_without_a_model_is_one_line(tmp_path: Path, missing: str) -> None:
    if missing != "config.json":
        (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ScaleGMNError, match=f"holds no {missing}"):
        load(tmp_path)


def test_weights_of_another_model_are_refused(classifier: Path, invariant: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((classifier / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes((invariant / "model.safetensors").read_bytes())
    with pytest.raises(ScaleGMNError, match=r"model\.safetensors: does not belong to this config\.json"):
        load(tmp_path)


# -- sharing ---------------------------------------------------------------------------------------------------


def test_a_model_survives_the_format_of_the_hub(digits: Zoo, classifier: Path, tmp_path: Path) -> None:
    trained = load(classifier)
    trained.save_pretrained(tmp_path / "shared")
    assert {p.name for p in (tmp_path / "shared").iterdir()} == {"README.md", "config.json", "model.safetensors"}
    networks = digits.batch([0, 1])
    for again in (Trained.from_pretrained(tmp_path / "shared"), load(tmp_path / "shared")):
        assert again.predict(networks) == trained.predict(networks)
        assert again.config == trained.config


# -- commands --------------------------------------------------------------------------------------------------


def test_predict(digits: Zoo, classifier: Path, tmp_path: Path, command: Command) -> None:
    files = [tmp_path / "a.pt", tmp_path / "b.pt"]
    for file, module in zip(files, sirens(digits, 2), strict=True):
        torch.save(module.state_dict(), file)
    rows = json.loads(command("predict", classifier, *files, "--json"))
    expected = load(classifier).predict(files, activation="sine")
    about = {"assumed": "sine(30)", "unseen": None}
    assert rows == [{"file": str(file), **answer, **about} for file, answer in zip(files, expected, strict=True)]
    assert "probability" in command("predict", classifier, *files)
    torch.save(Siren(hidden=3).state_dict(), tmp_path / "c.pt")
    message = command("predict", classifier, tmp_path / "c.pt", code=2)
    assert message.count("\n") == 1
    assert "built for 2-8-8-1 [sine(30)]; got 2-3-3-1" in message


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_edit(digits: Zoo, editor: Path, tmp_path: Path, command: Command, suffix: str) -> None:
    from matplotlib.image import imread
    from safetensors.torch import load_file

    state = sirens(digits, 1)[0].state_dict()
    file, out, picture = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}", tmp_path / "b.png"
    if suffix == ".pt":
        torch.save(state, file)
    else:
        save_file(state, file)
    command("edit", editor, file, "-o", out, "--render", picture)
    edited = torch.load(out, weights_only=True) if suffix == ".pt" else load_file(out)
    assert {k: v.shape for k, v in edited.items()} == {k: v.shape for k, v in state.items()}
    expected = load(editor).edit(file, activation="sine")
    assert all(torch.equal(edited[k], expected[k]) for k in edited)
    image = imread(picture)
    assert image.shape[:2] == (64, 136)
    task = load(editor).task
    assert isinstance(task, Editing)
    before = task.canvas.render(digits.batch([0])).clamp(0, 1)[0, 3, 4, 0].item()
    assert image[3 * 8 + 1, 4 * 8 + 1, 0] == pytest.approx(before, abs=1 / 255)
    command("edit", editor, file, "-o", tmp_path / f"c{suffix}", "--activation", "sine", "--render", picture)
    strange = command("edit", editor, file, "-o", tmp_path / f"d{suffix}", "--activation", "relu", code=2)
    assert "built for sine; got 'relu'" in strange
    wrong = command("edit", editor, file, "-o", tmp_path / "b.onnx", code=2)
    assert wrong.startswith("error: out: expected the format of")


def test_embed(digits: Zoo, classifier: Path, tmp_path: Path, command: Command) -> None:
    command("embed", classifier, digits.path, "-o", tmp_path / "zoo.npz", "--split", "test")
    found = np.load(tmp_path / "zoo.npz")
    test = digits.split("test")
    assert np.array_equal(np.sort(found["index"]), test.numpy())
    assert np.array_equal(found["label"], digits.column("label")[found["index"]].numpy())
    assert set(found["split"]) == {"test"}
    expected = load(classifier).embed(digits.batch(torch.from_numpy(found["index"])))
    assert np.allclose(found["embeddings"], expected, atol=1e-6)
    torch.save(sirens(digits, 1)[0].state_dict(), tmp_path / "a.pt")
    command("embed", classifier, tmp_path / "a.pt", "-o", tmp_path / "files.npz")
    assert np.load(tmp_path / "files.npz")["names"].tolist() == [str(tmp_path / "a.pt")]
    assert "ends in .npz" in command("embed", classifier, digits.path, "-o", "x.csv", code=2)
    nowhere = command("embed", classifier, digits.path, "-o", tmp_path / "none" / "x.npz", code=2)
    assert nowhere == f"error: out: expected an existing directory, got {tmp_path / 'none'}; make it first\n"


def test_a_column_may_not_take_the_place_of_embeddings(digits: Zoo, classifier: Path, tmp_path: Path) -> None:
    writer = ZooWriter(tmp_path, kind="inr", arguments={})
    writer.append(digits.architecture, digits.batch([0]).parameters, {"index": torch.tensor([7]), "split": ["test"]})
    writer.finish()
    with pytest.raises(ScaleGMNError, match="column 'index'"):
        table_of(load(classifier).read(tmp_path))


def test_evaluate(digits: Zoo, classifier: Path, invariant: Path, command: Command) -> None:
    plain = json.loads(command("evaluate", classifier, "--split", "val", "--json"))
    assert plain["networks"] == len(digits.split("val"))
    assert "transformed" not in plain
    fixed = json.loads(command("evaluate", invariant, "--transform", "--json"))
    assert fixed["largest_change"] < 1e-4
    assert fixed["transformed"]["accuracy"] == fixed["metrics"]["accuracy"]
    loose = json.loads(command("evaluate", classifier, "--transform", "--json"))
    assert loose["largest_change"] > 1e-2
    assert "on transformed copies" in command("evaluate", invariant, "--transform")
    assert "split: " in command("evaluate", classifier, "--split", "tset", code=2)


def test_evaluate_asks_about_the_zoo_of_the_run(
    digits: Zoo, mixed: Zoo, classifier: Path, tmp_path: Path, command: Command
) -> None:
    shutil.copytree(classifier, tmp_path / "run")
    config = json.loads((classifier / "config.json").read_text())
    config["zoo"]["sha256"] = mixed.header["sha256"]
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    assert "is not the zoo that the run was trained on" in command("evaluate", tmp_path / "run", code=2)
    asked = json.loads(command("evaluate", tmp_path / "run", "--zoo", digits.path, "--json"))
    assert asked["networks"] == len(digits.split("test"))
    assert "--seed" in command("evaluate", classifier, "--transform", "--seed", "-1", code=2)


def test_evaluate_against_another_run(classifier: Path, invariant: Path, editor: Path, command: Command) -> None:
    found = json.loads(command("evaluate", invariant, "--against", classifier, "--json"))
    other = json.loads(command("evaluate", classifier, "--json"))["metrics"]
    assert found["against"]["metrics"] == other
    difference = found["against"]["differences"]["accuracy"]
    assert difference["value"] == pytest.approx(found["metrics"]["accuracy"] - other["accuracy"])
    assert difference["low"] < difference["value"] < difference["high"]
    same = json.loads(command("evaluate", invariant, "--against", invariant, "--json"))["against"]["differences"]
    assert same["accuracy"] == {"value": 0, "low": 0, "high": 0}
    assert "difference (95 %)" in command("evaluate", invariant, "--against", classifier)
    assert "against: expected a run of the same task" in command("evaluate", invariant, "--against", editor, code=2)


def test_intervals_are_those_of_a_difference_of_shares() -> None:
    # Each is right where a coin of its own says so: the variance of the difference is 2 p (1 - p) / n.
    n, generator = 2000, torch.Generator().manual_seed(0)
    task, targets = Classification("label", (0, 1)), torch.zeros(n, dtype=torch.long)
    right = torch.rand(2, n, generator=generator) < 0.7
    outputs = torch.stack([right, ~right], -1).float()
    one, other = (Evaluation(o, targets, task.metrics(o, targets)) for o in outputs)
    found = compare(task, one, other)["accuracy"]
    assert found.value == pytest.approx(float((right[0].sum() - right[1].sum()) / n), abs=1e-6)
    assert found.high - found.low == pytest.approx(2 * 1.96 * (2 * 0.7 * 0.3 / n) ** 0.5, rel=0.15)


def test_models(command: Command) -> None:
    rows = {row["name"]: row for row in json.loads(command("models", "--json"))}
    assert rows["scalegmn"]["symmetries"] == ["permutation", "scale"]
    assert rows["mlp"]["symmetries"] == []
    assert rows["statnn"]["tasks"] == ["classification", "regression"]
    assert "editing" in rows["mlp"]["tasks"]
    assert all(row["parameters"] > 0 and row["year"] >= 2000 for row in rows.values())
    assert rows["mlp"]["parameters"] == 1185 * 512 + 512 + 512 * 512 + 512 + 512 * 10 + 10
    table = command("models")
    assert all(name in table for name in rows)


# -- canonical forms -------------------------------------------------------------------------------------------


def test_a_canonical_form_is_part_of_the_model(digits: Zoo, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(recipe_for(digits.path, epochs=1).to_toml())
    train(read_recipe(tmp_path / "recipe.toml", ["canonical=phase"]), tmp_path / "run")
    trained = load(tmp_path / "run")
    networks = digits.batch([0, 1])
    shifted = networks.replace(networks.parameters.clone())
    bias = shifted.biases[1]
    assert bias is not None
    bias += 2 * torch.pi / 30
    assert torch.allclose(trained.embed(networks), trained.embed(shifted), atol=1e-4)
    plain = Trained(trained.model, trained.task, {**trained.config, "canonical": "none"})
    assert not torch.allclose(plain.embed(networks), plain.embed(shifted), atol=1e-2)


def test_a_canonical_form_makes_any_model_invariant(digits: Zoo, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(recipe_for(digits.path, epochs=1).to_toml())
    train(read_recipe(tmp_path / "recipe.toml", ["canonical=all"]), tmp_path / "run")
    trained = load(tmp_path / "run")
    plain, moved = (trained.evaluate(digits, "test", transform_seed=seed) for seed in (None, 3))
    assert torch.allclose(plain.outputs, moved.outputs, atol=1e-4)
