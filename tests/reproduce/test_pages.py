"""Pages of results: what the records say, and which of them are older than the recipes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

import pytest

from scalegmn.reproduce import render
from scalegmn.reproduce.records import read_records
from scalegmn.reproduce.tables import TABLES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("page", "scale"), [("results.md", "small"), ("results-paper.md", "paper")])
def test_the_pages_in_the_documentation_are_what_the_records_say(page: str, scale: Literal["small", "paper"]) -> None:
    shown = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert shown == render.results_page(ROOT / "results" / scale, scale, ROOT / "docs" / "distributions")


def test_results_of_former_settings_are_named() -> None:
    records = [r for r in read_records(ROOT / "results" / "paper") if r.method == "scalegmn-128-moved"]
    wanted = TABLES["inr-classification"]
    assert {r.dataset for r in records} >= {"mnist", "fashion-mnist"}
    now = render.table_data(wanted, records, "paper")
    assert all(row["outdated"] == [] for row in now["rows"])
    assert not any("other settings" in line for line in render.footers(now))
    former = [
        dataclasses.replace(r, recipe={**r.recipe, "training": {**r.recipe["training"], "batch": 31}})
        if r.dataset == "mnist"
        else r
        for r in records
    ]
    then = render.table_data(wanted, former, "paper")
    assert [row["outdated"] for row in then["rows"] if row["method"] == "scalegmn-128-moved"] == [["mnist"]]
    (line,) = [line for line in render.footers(then) if "other settings" in line]
    assert line.endswith("has now: ScaleGMN, 128 probes, inputs moved on MNIST.")
