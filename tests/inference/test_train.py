"""Training in one call, and what notebooks show."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest
from tiny_runs import recipe_for, same, weights

import scalegmn
from scalegmn.errors import ScaleGMNError
from scalegmn.training.loop import train as run
from scalegmn.zoo.store.zoo import Zoo

TRAINING = {"epochs": 2, "batch": 10, "device": "cpu"}
MODEL = {"name": "mlp", "width": 16, "dropout": 0.2}


def test_keywords_a_recipe_and_the_command_train_the_same(digits: Zoo, tmp_path: Path) -> None:
    run(recipe_for(digits.path, epochs=2), tmp_path / "loop")
    trained = scalegmn.train(zoo=digits, task="classification", model=MODEL, training=TRAINING, out=tmp_path / "call")
    assert isinstance(trained, scalegmn.Trained)
    assert same(weights(tmp_path / "loop"), weights(tmp_path / "call"))
    scalegmn.train(recipe_for(digits.path, epochs=9), training={"epochs": 2}, out=tmp_path / "recipe")
    assert same(weights(tmp_path / "loop"), weights(tmp_path / "recipe"))
    (tmp_path / "r.toml").write_text(recipe_for(digits.path, epochs=2).to_toml())
    again = scalegmn.train(tmp_path / "r.toml", out=tmp_path / "call", resume=True)
    assert again.predict(digits.batch([0])) == trained.predict(digits.batch([0]))


def test_what_is_missing_is_one_line(digits: Zoo, tmp_path: Path) -> None:
    with pytest.raises(ScaleGMNError, match="or zoo, task and model; got no task and no model"):
        scalegmn.train(zoo=digits)
    with pytest.raises(ScaleGMNError, match="did you mean 'epochs'"):
        scalegmn.train(zoo=digits, task="classification", model="mlp", training={"epoch": 1}, out=tmp_path / "x")


def test_a_notebook_sees_a_bar_that_moves(
    digits: Zoo, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    scalegmn.train(zoo=digits, task="classification", model=MODEL, training=TRAINING, out=tmp_path / "a")
    err = capsys.readouterr().err
    steps = [int(n) for n in re.findall(r"\rmlp \[[#.]{30}\] (\d+)/10 ", err)]
    assert steps == sorted(steps)
    assert steps[-1] == 10
    assert "accuracy" in err


def test_objects_in_notebooks(digits: Zoo, tmp_path: Path) -> None:
    trained = scalegmn.train(zoo=digits, task="classification", model=MODEL, training=TRAINING, out=tmp_path / "a")
    shown = [digits, digits.architecture, digits.batch([0, 1]), trained]
    for thing in shown:
        html = thing._repr_html_()  # type: ignore[attr-defined]
        assert html.startswith("<table>")
        assert html.count("<tr>") == html.count("</tr>") >= 2
        assert "2-8-8-1 [sine(30)]" in html
