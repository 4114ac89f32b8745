"""Methods, datasets and tables of a person's own, in a file that is run before a command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scalegmn.cli import app
from scalegmn.cli.application import run as command
from scalegmn.errors import ScaleGMNError
from scalegmn.reproduce.extend import add_method, add_table
from scalegmn.reproduce.tables import ResultTable
from scalegmn.training.recipe import add_recipes

PLUGIN = """
from pathlib import Path
from scalegmn.reproduce.experiments import Dataset
from scalegmn.reproduce.extend import add_dataset, add_method, add_table
from scalegmn.reproduce.tables import ResultTable
from scalegmn.reproduce.zoos import Folders, open_zoo
from scalegmn.training.recipe import add_recipes, find_file

built = []
add_recipes(Path(__file__).with_name("recipes"))
add_method("narrow", "Narrow", ["inr-classification"])
add_dataset(Dataset("own", "Own", "own", "accuracy", 100.0, 1, ("inr",)), lambda name, place: built.append(name))
add_table(ResultTable("mine", "Mine", ("own",), ("mlp", "narrow")))
assert find_file("small/inr/narrow").parent.parent.parent == Path(__file__).with_name("recipes").resolve()
open_zoo("own", Folders("small", Path("zoos"), None, None, Path(".")))
assert built == ["own"]
"""


def told(plugins: str, *words: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: what a plugin adds stays."""
    environment = os.environ | {"SCALEGMN_PLUGINS": plugins}
    line = [sys.executable, "-m", "scalegmn", *words]
    return subprocess.run(line, capture_output=True, text=True, env=environment, check=False)


def test_a_plugin_adds_rows_columns_and_tables(tmp_path: Path) -> None:
    (tmp_path / "recipes/small/inr").mkdir(parents=True)
    (tmp_path / "recipes/small/inr/narrow.toml").write_text('base = "small/inr/mlp"\nmodel.width = 16\n')
    (tmp_path / "mine.py").write_text(PLUGIN)
    done = told(str(tmp_path / "mine.py"), "reproduce", "mine", "--table-only", "--json", "--results", str(tmp_path))
    assert done.returncode == 0, done.stderr
    table = json.loads(done.stdout)
    assert (table["title"], [column["title"] for column in table["datasets"]]) == ("Mine", ["Own"])


def test_without_the_plugin_there_is_no_such_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(app, ["reproduce", "mine", "--table-only"]) == 2
    assert "table: expected one of inr-classification" in capsys.readouterr().err


def test_a_plugin_that_fails_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.py").write_text("1 / 0\n")
    for name, why in (("bad.py", "ZeroDivisionError"), ("gone.py", "FileNotFoundError")):
        assert command(app, ["--plugin", str(tmp_path / name), "models"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: --plugin {tmp_path / name}: {why}")
    assert "SCALEGMN_PLUGINS" not in os.environ


def test_what_is_there_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(ScaleGMNError, match="method: 'mlp' is taken; give yours another name"):
        add_method("mlp", "Mine")
    with pytest.raises(ScaleGMNError, match="table 'mine': 'nothing' is not known; add it first"):
        add_table(ResultTable("mine", "Mine", ("mnist",), ("nothing",)))
    with pytest.raises(ScaleGMNError, match="recipes: expected a folder"):
        add_recipes(tmp_path / "gone")
