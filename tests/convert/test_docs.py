"""docs/networks.md says what the tracer does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from scalegmn.cli import app
from scalegmn.cli.application import run

PAGE = (Path(__file__).parents[2] / "docs" / "networks.md").read_text(encoding="utf-8")


def test_the_page_shows_what_inspect_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A network with random biases has other numbers in the last column and the same lines otherwise."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 32), nn.Linear(32, 32), nn.Linear(32, 3))
    torch.save(module.state_dict(), tmp_path / "siren.pth")
    assert run(app, ["inspect", str(tmp_path / "siren.pth"), "--activation", "sine", "--w0", "30"]) == 0
    printed = [re.sub(r"\d+$", "", line.rstrip()).rstrip() for line in capsys.readouterr().out.splitlines()]
    shown = PAGE.split("$ scalegmn inspect siren.pth --activation sine --w0 30\n")[1].split("```")[0]
    assert [re.sub(r"\d+$", "", line.rstrip()).rstrip() for line in shown.splitlines()] == printed
