"""The examples of docs/align.md run."""

from __future__ import annotations

import doctest
from pathlib import Path


def test_the_examples_of_the_documentation_run() -> None:
    path = Path(__file__).parents[2] / "docs" / "align.md"
    failed, tried = doctest.testfile(str(path), module_relative=False)
    assert tried > 15
    assert failed == 0
