"""Learning curves: drawn from records that have them, and shown on the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from scalegmn.files import write_json
from scalegmn.reproduce import render
from scalegmn.reproduce.curves import draw_curves
from scalegmn.reproduce.records import read_records

ROOT = Path(__file__).parents[2]


def test_curves_are_drawn_and_shown(tmp_path: Path) -> None:
    some = [r for r in read_records(ROOT / "results" / "small") if (r.dataset, r.seed) == ("dilation", 0)]
    picture = tmp_path / "curves-small.png"
    assert not draw_curves([replace(r, curve=[]) for r in some], picture)
    assert not picture.exists()
    records = [replace(r, curve=[[1.0, 60.0, 0.05], [2.0, 120.0, None], [3.0, 180.0, 0.03]]) for r in some]
    assert draw_curves(records, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    for record in records:
        write_json(tmp_path / f"{record.dataset}.{record.method}.{record.seed}.json", vars(record))
    assert read_records(tmp_path) == records
    assert "distributions/curves-small.png" in render.results_page(tmp_path, "small", tmp_path)
    assert "curves" not in render.results_page(tmp_path, "small", tmp_path / "elsewhere")
