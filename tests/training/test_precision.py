"""Compiled losses, mixed precision, and what a person sees."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from tiny_runs import recipe_for
from torch import nn

from scalegmn.tasks import Classification
from scalegmn.tasks.build import build_model
from scalegmn.training.compiled import Compiled
from scalegmn.training.loop import Objective, train
from scalegmn.training.precision import Precision
from scalegmn.training.progress import Progress
from scalegmn.zoo.store.zoo import Zoo


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize(("name", "options"), [("mlp", {"width": 8}), ("scalegmn", {"width": 4, "layers": 1})])
def test_a_compiled_loss_has_the_same_values_and_gradients(digits: Zoo, name: str, options: dict[str, int]) -> None:
    task = Classification.from_zoo(digits)
    torch.manual_seed(0)
    model = build_model(name, options, task, digits.architectures).double()
    plain = Objective(model, task)
    compiled = Compiled(plain, backend="eager")

    def run(objective: nn.Module, count: int) -> tuple[float, list[torch.Tensor]]:
        torch.manual_seed(1)
        model.zero_grad()
        indices = torch.arange(count)
        loss = objective(digits.batch(indices).to(dtype=torch.float64), task.targets(digits, indices))
        loss.backward()
        return loss.item(), [p.grad.clone() for p in model.parameters() if p.grad is not None]

    # The first size is compiled, the second is not, and then the first again.
    for count in (8, 5, 8):
        a, b = run(plain, count), run(compiled, count)
        assert a[0] == pytest.approx(b[0], abs=1e-9)
        assert len(a[1]) == len(b[1])
        assert all(torch.allclose(g, h, atol=1e-9) for g, h in zip(a[1], b[1], strict=True))


def test_bfloat16_trains_and_full_precision_is_the_default() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(8, 1)
    precision = Precision("float32", torch.device("cpu"))
    assert precision.dtype is None
    precision.dtype = torch.bfloat16
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
    x = torch.randn(64, 8)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        with precision.autocast():
            y = layer(x)
            assert y.dtype == torch.bfloat16
            loss = (y.float() - x[:, :1]).square().mean()
        precision.step(loss, optimizer, layer.parameters(), clip=1.0)
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
    assert layer.weight.dtype == torch.float32


def test_gradients_are_clipped_unless_clip_is_0() -> None:
    for clip, expected in ((1.0, 1.0), (0.0, 300.0)):
        layer = nn.Linear(9, 1, bias=False)
        precision = Precision("mixed", torch.device("cpu"))
        precision.step(
            layer(torch.full((1, 9), 100.0)).sum(),
            torch.optim.SGD(layer.parameters(), lr=0.0),
            layer.parameters(),
            clip,
        )
        assert layer.weight.grad is not None
        assert layer.weight.grad.norm().item() == pytest.approx(expected, rel=1e-4)


def test_mixed_precision_and_tensorboard_work_in_a_run(digits: Zoo, tmp_path: Path) -> None:
    train(recipe_for(digits.path, epochs=2, precision="mixed", tensorboard=True), tmp_path / "run")
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_where_there_is_no_terminal(digits: Zoo, tmp_path: Path) -> None:
    text = io.StringIO()
    train(recipe_for(digits.path, epochs=3), tmp_path / "run", progress=Progress("digits", file=text))
    lines = text.getvalue().splitlines()
    assert len(lines) == 3
    for word in ("epoch 1 ", "train_loss", "accuracy", "networks/s", "left"):
        assert word in lines[0]
    assert "\x1b" not in text.getvalue()


def test_a_bar_moves_on_a_terminal(digits: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    text = Terminal()
    train(recipe_for(digits.path, epochs=3), tmp_path / "run", progress=Progress("digits", file=text))
    assert "\x1b[" in text.getvalue()
    assert "15/15" in text.getvalue()
