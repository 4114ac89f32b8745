"""The page: complete, self-contained, well-formed, and true to what the models say."""

from __future__ import annotations

import re
import shutil
import statistics
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from tiny_runs import recipe_for

from scalegmn.cli.application import BAD_INPUT, OK, app, run
from scalegmn.core.architecture import Architecture
from scalegmn.report.build import Finding, write_report
from scalegmn.report.figures import changes, png
from scalegmn.testing import random_networks
from scalegmn.training.loop import train
from scalegmn.training.progress import Progress
from scalegmn.training.run import Run
from scalegmn.zoo.store.writer import ZooWriter

VOID = {"meta", "img"}


class Outline(HTMLParser):
    """Checks that tags close in order and collects what a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [v or "" for k, v in attrs if k in ("src", "href", "srcset", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def written(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Finding], str]:
    out = tmp_path_factory.mktemp("page") / "report.html"
    return write_report([runs], out, title="A <b>title</b>"), out.read_text(encoding="utf-8")


def test_it_needs_nothing_but_itself(written: tuple[list[Finding], str]) -> None:
    outline = Outline()
    outline.feed(written[1])
    assert outline.open == []
    assert outline.fetched
    assert all(source.startswith("data:image/png;base64,") for source in outline.fetched)
    assert set(re.findall(r"<script[^>]*>", written[1])) == {"<script>"}
    assert not re.search(r"url\(|@import|https?:", written[1])


def test_it_has_every_part(written: tuple[list[Finding], str]) -> None:
    text = written[1]
    titles = ("Results", "Learning curves", "Confusion", "Predicted and true", "Before and after editing", "Runs")
    titles += ("Try it", "Answers, wrong ones first", "Map of embeddings")
    assert [title for title in titles if f"<h3>{title}</h3>" not in text] == []
    assert text.count("<h3>Symmetry audit</h3>") == 3
    assert "A &lt;b&gt;title&lt;/b&gt;" in text
    assert ">nan" not in text


def test_the_table_has_mean_and_deviation_over_seeds(written: tuple[list[Finding], str], runs: Path) -> None:
    values = [Run(runs / name).results()["test"]["accuracy"] for name in ("mlp-0", "mlp-1")]
    expected = f"{100 * statistics.fmean(values):.1f} ± {100 * statistics.stdev(values):.1f} %"
    assert expected in written[1]


def test_the_audit_tells_invariant_models_from_others(written: tuple[list[Finding], str]) -> None:
    (finding,) = [f for f in written[0] if f.section.task.name == "classification"]
    found = {
        s.label: max(a.change.max().item() for a in audits)
        for s, audits in zip(finding.section.series, finding.audits, strict=True)
    }
    assert found["ScaleGMN"] < 1e-4
    assert found["ScaleGMN, probes 4"] < 1e-4
    assert found["MLP"] > 1e-2


@pytest.mark.parametrize("strange", [np.inf, np.nan])
def test_an_infinite_change_stands_at_the_end_of_the_axis(strange: float) -> None:
    drawn = changes([(0, "a", torch.tensor([1.0, 50.0, strange])), (1, "b", torch.tensor([0.0, strange, strange]))])
    assert "1e+02" in drawn
    assert "nan" not in drawn
    assert changes([(0, "a", torch.tensor([strange]))])


def test_an_edit_moves_with_the_network(written: tuple[list[Finding], str]) -> None:
    (finding,) = [f for f in written[0] if f.section.task.name == "editing"]
    ((audit,),) = finding.audits
    assert audit.change.max().item() < 1e-3
    assert finding.pictures is not None
    assert finding.pictures.shape == audit.plain.outputs.shape
    assert not finding.pictures.equal(audit.plain.outputs)


def test_wrong_answers_come_first(written: tuple[list[Finding], str]) -> None:
    (finding,) = [f for f in written[0] if f.section.task.name == "classification"]
    sheets = re.findall(r'<div class="contact">(.*?)</div>', written[1])
    assert len(sheets) == len(finding.audits)
    for sheet, (audit, *_) in zip(sheets, finding.audits, strict=True):
        marks = ["wrong" in tag for tag in re.findall("<figure[^>]*>", sheet)]
        wrong = int((audit.plain.outputs.argmax(1) != audit.plain.targets).sum())
        assert marks == [i < wrong for i in range(len(marks))]
        assert sum(", said " in caption for caption in re.findall("<figcaption>.*?<", sheet)) == sum(marks)


def test_without_its_zoo_a_run_still_has_results(runs: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(runs / "mlp-0", tmp_path / "run"))
    config = moved / "config.json"
    config.write_text(re.sub(r'"zoo": "[^"]*"', '"zoo": "gone"', config.read_text()))
    (finding,) = write_report([moved], tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert "gone" in finding.note
    assert "<h3>Results</h3>" in text
    assert "Left out: zoo: gone" in text


def test_an_unfinished_run_is_shown_as_such(runs: Path, tmp_path: Path) -> None:
    half = Path(shutil.copytree(runs / "mlp-0", tmp_path / "half"))
    for name in ("results.json", "model.safetensors"):
        (half / name).unlink()
    write_report([half], tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert "not finished" in text
    assert "no run has weights yet" in text


def test_fewer_networks_on_demand(runs: Path, tmp_path: Path) -> None:
    (finding,) = write_report([runs / "mlp-0"], tmp_path / "r.html", networks=3)
    assert len(finding.audits[0][0].plain.targets) == 3


def test_the_command(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine.html"
    assert run(app, ["report", str(runs / "mlp-0"), "-o", str(out)]) == OK
    assert out.read_text().startswith("<!DOCTYPE html>")
    assert capsys.readouterr().out.strip() == str(out)
    assert run(app, ["report", str(tmp_path), "-o", str(out)]) == BAD_INPUT
    assert "holds no run" in capsys.readouterr().err
    assert run(app, ["report", str(runs), "-o", "x.pdf"]) == BAD_INPUT
    assert run(app, ["report", str(runs / "mlp-0"), "--zoo", str(tmp_path), "-o", str(out)]) == BAD_INPUT


@pytest.mark.parametrize("channels", [1, 3])
def test_png_is_read_back(channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, channels), dtype=np.uint8)
    found = (imread(BytesIO(png(pixels)), format="png") * 255).round().astype(np.uint8)
    assert (found.reshape(5, 7, -1)[..., :channels] == pixels).all()


def test_files_of_a_zoo_are_named_the_worst_first(tmp_path: Path) -> None:
    writer = ZooWriter(tmp_path / "zoo", kind="checkpoints", arguments={})
    networks = random_networks(Architecture.mlp([2, 4, 1], "relu"), 40, dtype=torch.float32)
    split = ["train"] * 20 + ["val"] * 10 + ["test"] * 10
    accuracy = torch.linspace(0, 1, 40)
    accuracy[35] = 50.0
    files = [f"run_<{i}>.pt" for i in range(40)]
    writer.append(networks.architecture, networks.parameters, {"accuracy": accuracy, "split": split, "file": files})
    writer.finish()
    task = {"name": "regression", "column": "accuracy"}
    recipe = recipe_for(tmp_path / "zoo", epochs=1, task=task, model={"name": "statnn"})
    train(recipe, tmp_path / "run", progress=Progress("files", quiet=True))
    (finding,) = write_report([tmp_path / "run"], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    listed = re.findall(r'data-heading="file">run_&lt;(\d+)&gt;.pt<', text)
    assert finding.files == tuple(files[30:])
    assert sorted(listed) == [str(i) for i in range(30, 40)]
    assert listed[0] == "35"
