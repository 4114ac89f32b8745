"""One thread or two: what a training run gives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_runs import recipe_for, same, weights

from scalegmn.native import library
from scalegmn.zoo.store.zoo import Zoo


@pytest.mark.skipif(library.load() is None, reason="no compiler")
def test_one_and_two_threads_train_the_same_model(digits: Zoo, tmp_path: Path) -> None:
    model = {"name": "scalegmn", "width": 16, "layers": 2}
    (tmp_path / "recipe.toml").write_text(recipe_for(digits.path, epochs=1, batch=16, model=model).to_toml())
    for threads in ("1", "2"):
        words = ["train", str(tmp_path / "recipe.toml"), "--out", str(tmp_path / threads)]
        environment = {**os.environ, "OMP_NUM_THREADS": threads}
        subprocess.run([sys.executable, "-m", "scalegmn", *words], env=environment, check=True, capture_output=True)
    assert same(weights(tmp_path / "1"), weights(tmp_path / "2"))
