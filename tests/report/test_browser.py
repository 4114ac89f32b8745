"""Programs and the interactive figure, in a real browser: the same numbers as torch, and the law seen on the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from browser import needs_browser, run_in_browser
from tiny_zoos import siren
from torch import Tensor, nn

from scalegmn import Architecture, Networks, ScaleGMN, ScaleGMNError, Zoo, load
from scalegmn.inference.trained import Trained
from scalegmn.models.peers.flat import FlatMLP
from scalegmn.models.scalegmn import GMN
from scalegmn.report import browser, play
from scalegmn.tasks import Classification
from scalegmn.testing import random_networks
from scalegmn.zoo.inr.canvas import Canvas

SIREN, RELU = siren(8), Architecture.mlp([2, 8, 8, 1], "relu")
SIZES = {"width": 8, "layers": 2}
MODELS = {
    "forward": ScaleGMN([SIREN], 3, **SIZES),
    "bidirectional, probes": ScaleGMN([SIREN], 3, **SIZES, backward="auto", probes=4),
    "dual": ScaleGMN([RELU], 3, **SIZES, backward="auto"),
    "gmn": GMN([SIREN], 3, **SIZES, edge_updates=False),
    "mlp": FlatMLP([SIREN], 3, width=16),
}


def test_operations_that_nobody_knows_are_refused() -> None:
    with pytest.raises(ScaleGMNError, match="common operations, got one with sort"):
        browser.program(lambda x: x.sort().values, torch.randn(3))


def test_what_does_not_depend_on_the_argument_is_computed_before() -> None:
    weight = torch.randn(4, 3)
    found = browser.program(lambda x: x @ (weight.T.exp() + 1), torch.randn(2, 3))
    assert [step[0] for step in found["steps"]] == ["input", "matmul"]
    assert found["constants"] == [[3, 4]]


FUNCTIONS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.transpose(0, 2)[1:, :, ::2] * x.mean((0, 1))[1:, None, None],
    lambda x: torch.cat([x, -x], 1).amax(2),
    lambda x: nn.functional.layer_norm(x, (4,), torch.arange(4.0), torch.ones(4)),
    lambda x: torch.where(x < 0, x.abs().sqrt(), x**3).reshape(6, 4) @ torch.arange(8.0).view(4, 2),
    lambda x: torch.stack(x.split([1, 2], 1)[1].unbind(1), 1).masked_fill(x[:, :2] < 0.3, 7.0) / 3 - 1,
]


@needs_browser
def test_programs_give_what_torch_gives(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 4, generator=generator)
    cases = [(browser.program(f, x), x, f(x)) for f in FUNCTIONS]
    for model in MODELS.values():
        (architecture,) = model.architectures
        model.eval()
        networks = random_networks(architecture, 1, generator=generator, dtype=torch.float32)

        def answer(row: Tensor, model: nn.Module = model, architecture: Architecture = architecture) -> Tensor:
            found: Tensor = model(Networks(architecture, row))
            return found

        with torch.no_grad():
            exact = model.double()(networks.to(dtype=torch.float64))
        model.float()
        cases.append((browser.program(answer, networks.parameters), networks.parameters, exact))
    data = [{"program": p, "x": x.flatten().tolist()} for p, x, _ in cases]
    page = f"<script>{Path(browser.__file__).with_name('programs.js').read_text()}</script>"
    run = "({program, x}) => Array.from(programs.load(program)(Float64Array.from(x)))"
    script = f"return {json.dumps(data)}.map({run});"
    for found, (program, _, expected) in zip(run_in_browser(page, script, tmp_path), cases, strict=True):
        values = torch.tensor(found, dtype=torch.float64).view(program["output"])
        # Constants are stored as float32.
        torch.testing.assert_close(values, expected.double(), rtol=1e-5, atol=1e-5)


def test_the_figure_needs_one_architecture_of_plain_layers(digits: Zoo, runs: Path) -> None:
    trained = load(runs / "scalegmn")
    assert play.playable(digits, trained.task)
    assert not play.playable(digits, load(runs / "editing").task)


def test_models_that_see_canonical_forms_are_left_out_by_name(digits: Zoo, runs: Path) -> None:
    trained = load(runs / "mlp-0")
    trained.canonical = "phase"
    models = {"good": load(runs / "scalegmn"), "<bad>": trained}
    found = play.playground(models, digits, digits.split("test"))
    assert "Left out: &lt;bad&gt;" in found
    assert play.playground({"<bad>": trained}, digits, digits.split("test")) == ""


@needs_browser
@pytest.mark.parametrize("width", [1200, 390])
def test_only_the_invariant_model_stays_still(digits: Zoo, runs: Path, tmp_path: Path, width: int) -> None:
    models = {"ScaleGMN": load(runs / "scalegmn"), "MLP": load(runs / "mlp-0")}
    page = f"<div>{play.playground(models, digits, digits.split('test'))}</div>"
    script = """
        const all = (selector) => [...document.querySelectorAll(selector)];
        const button = (text) => all('.play button').find((b) => b.textContent === text);
        const pixels = (c) => c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        const image = (canvas) => Array.from(pixels(canvas));
        const state = () => ({
          picture: image(all('.picture canvas')[0]), weights: all('.maps canvas').map(image),
          bars: all('.model').map((m) => [...m.querySelectorAll('i')].map((i) => parseFloat(i.style.height))),
          verdicts: all('.verdict').map((v) => v.textContent),
        });
        const states = [state()];
        button('Shuffle').click();
        states.push(state());
        button('Back').click();
        states.push(state());
        const [permuted, scaled] = all('.play input');
        scaled.value = 60;
        scaled.dispatchEvent(new Event('input'));
        states.push(state());
        all('.choose button')[1].click();
        states.push(state());
        return {states, wide: document.documentElement.scrollWidth, seen: window.innerWidth};
    """
    found = run_in_browser(page, script, tmp_path, width=width)
    start, shuffled, back, flipped, other = found["states"]
    assert found["wide"] <= found["seen"]
    assert start == back
    for moved in (shuffled, flipped):
        assert moved["picture"] == start["picture"]
        assert moved["weights"] != start["weights"]
        assert moved["verdicts"] == ["stays still", "moves"]
        still, moving = (zip(a, b, strict=True) for a, b in zip(start["bars"], moved["bars"], strict=True))
        assert max(abs(a - b) for a, b in still) < 1e-6
        assert max(abs(a - b) for a, b in moving) > 1e-3
    assert other["picture"] != start["picture"]
    # What the page shows at first is what torch says.
    chosen = play.one_of_each(digits, digits.split("test"), "label")[:1]
    for trained, bars in zip(models.values(), start["bars"], strict=True):
        with torch.no_grad():
            answer = trained.model(digits.batch(chosen)).softmax(1)[0]
        torch.testing.assert_close(torch.tensor(bars) / 100, answer, rtol=1e-3, atol=1e-3)


@needs_browser
def test_neurons_with_positive_scales_are_rescaled(tmp_path: Path) -> None:
    task, plain = Classification("label", (0, 1, 2)), {"canonical": "none"}
    kinds = {"ScaleGMN": ScaleGMN, "GMN": GMN}
    trained = {name: Trained(kind([RELU], 3, **SIZES), task, plain) for name, kind in kinds.items()}
    models = {name: play.classifier(model, RELU) for name, model in trained.items()}
    networks = random_networks(RELU, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    page = f"<div>{play.figure(models, list('012'), networks, ['x', 'y'], Canvas('dws', 8, 8, 1))}</div>"
    script = """
        const label = document.querySelector('.play label:last-of-type').textContent;
        document.querySelector('.play .buttons button').click();
        const verdicts = [...document.querySelectorAll('.verdict')].map((v) => v.textContent);
        return [label, verdicts, document.querySelector('.picture .still').textContent];
    """
    label, verdicts, note = run_in_browser(page, script, tmp_path)
    assert "rescaled" in label
    assert verdicts == ["stays still", "moves"]
    assert float(note.rsplit(" ", 1)[1].replace("\u2212", "-")) < 1e-9
