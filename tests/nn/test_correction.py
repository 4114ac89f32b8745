"""Gauss-Newton steps: equivariant, right, differentiable, and towards what was wished for."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from strategies import generator
from subjects import transforms
from tiny_runs import recipe_for
from tiny_zoos import digits_zoo
from torch import Tensor

from scalegmn.audit import blocks, residual
from scalegmn.core.architecture import Architecture, Shared
from scalegmn.core.networks import Networks
from scalegmn.core.transform import Transform
from scalegmn.errors import ScaleGMNError
from scalegmn.inference.trained import load
from scalegmn.models.heads import Editor
from scalegmn.models.scalegmn import ScaleGMN
from scalegmn.nn import correction
from scalegmn.nn.correction import Correction, damped_solve
from scalegmn.nn.tangent import OutputRows, Tangent
from scalegmn.testing import random_networks, relative_error
from scalegmn.training.loop import train
from scalegmn.training.run import Run
from scalegmn.zoo.store.zoo import Zoo

ARCHITECTURES = {
    "sine": Architecture.mlp([2, 6, 5, 1], "sine"),
    "tanh": Architecture.mlp([2, 6, 5, 1], "tanh"),
    "relu": Architecture.mlp([2, 6, 5, 1], "relu"),
    "two outputs": Architecture.mlp([2, 6, 5, 2], ["relu", "tanh"]),
    "residual": residual(["relu", "leaky_relu", "tanh"]),
}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    return digits_zoo(tmp_path_factory.mktemp("zoo") / "digits", count=20, hidden=16, steps=200)


def stirred(model: Editor, networks: Networks) -> Editor:
    """An editor whose every part does something."""
    model.double().prepare([networks])
    assert model.correct is not None
    with torch.random.fork_rng():
        torch.manual_seed(1)
        torch.nn.init.normal_(model.correct.wish.net[-1].weight, std=0.02)
        torch.nn.init.normal_(model.correct.log_metric)
    return model


def broken_by(a: Architecture, copies: int) -> float:
    """How far an editor with corrections is from commuting with scales in [1e-2, 1e2]."""
    torch.manual_seed(0)
    networks, g = random_networks(a, 3, generator=generator(0)), transforms(a, 3, spread=1e2)
    editor = Editor(ScaleGMN([a], width=6, layers=2), copies=copies, corrections=2, points=10)
    model = stirred(editor, networks)
    still, moved = model(networks), model(g.apply(networks))
    # Compared in the coordinates of the original, where no entry hides behind a large multiplier.
    every = Transform(
        a,
        tuple(p.repeat_interleave(copies, 0) for p in g.permutations),
        tuple(s.repeat_interleave(copies, 0) for s in g.scales),
    )
    before = networks.parameters.repeat_interleave(copies, 0)
    assert (still.parameters - before).norm() > 0.01 * before.norm()
    return relative_error(every.inverse().apply(moved).parameters, still.parameters).max().item()


# -- symmetry ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_corrections_commute_with_symmetries(name: str, copies: int) -> None:
    assert broken_by(ARCHITECTURES[name], copies) < 1e-10


def test_without_balanced_coordinates_scales_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correction, "scaling", lambda n: Transform.identity(n.architecture, len(n)))
    assert broken_by(ARCHITECTURES["relu"], 1) > 1e-3
    assert broken_by(ARCHITECTURES["tanh"], 1) < 1e-10


# -- the step ------------------------------------------------------------------------------------------------------


def written_down(tangent: Tangent, r: Tensor, metric: Tensor, damping: Tensor) -> Tensor:
    kernel = tangent.kernel(metric)
    shift = damping * torch.diagonal(kernel, dim1=1, dim2=2).mean(1)
    return torch.linalg.solve(kernel + shift[:, None, None] * torch.eye(r.shape[1], dtype=r.dtype), r)


def solve(a: Architecture, parameters: Tensor, points: Tensor, r: Tensor, metric: Tensor, damping: Tensor) -> Tensor:
    tangent = Tangent.at(Networks(a, parameters), OutputRows(points, a.layers[-1].size))
    return damped_solve(tangent, r, metric, damping)


@pytest.mark.parametrize("name", ["tanh", "two outputs"])
def test_the_solution_and_its_gradient(name: str) -> None:
    a = ARCHITECTURES[name]
    draw = partial(torch.randn, generator=generator(3), dtype=torch.float64)
    parameters = random_networks(a, 2, generator=generator(0)).parameters
    points, r = draw(4, 2), draw(2, 4 * a.layers[-1].size)
    metric, damping = draw(len(a.segments)).exp(), torch.tensor(0.1, dtype=torch.float64)
    tangent = Tangent.at(Networks(a, parameters), OutputRows(points, a.layers[-1].size))
    torch.testing.assert_close(damped_solve(tangent, r, metric, damping), written_down(tangent, r, metric, damping))
    given = [t.requires_grad_() for t in (parameters, points, r, metric, damping)]
    assert torch.autograd.gradcheck(partial(solve, a), given)


def test_steps_approach_the_wish(digits: Zoo) -> None:
    networks = digits.batch(list(range(8)))
    model = Correction([networks.architecture], steps=4, points=32)
    with torch.no_grad():
        model.log_damping.fill_(-7)
        torch.nn.init.normal_(model.wish.net[-1].weight, std=0.05)
        rows = OutputRows(model.points, 1)
        y = rows.of(networks)
        wish = model.wish(y)
        reached = rows.of(model(networks))
    before, after = (wish - y).square().mean(), (wish - reached).square().mean()
    assert before > 1e-4
    assert after < 0.05 * before


def test_a_kernel_of_low_rank_is_solved(digits: Zoo) -> None:
    """More points than parameters, next to each other, and almost no damping: rounding would spoil the factors."""
    networks = digits.batch([0, 1])
    model = Correction([networks.architecture], steps=1, points=600)
    with torch.no_grad():
        model.points.mul_(1e-3)
        model.log_damping.fill_(-40)
    model.wish.net[-1].bias.data.fill_(0.1)
    new = model(networks).parameters
    new.sum().backward()
    assert new.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_the_wish_is_what_networks_have_at_first(digits: Zoo) -> None:
    networks = digits.batch([0, 1])
    model = Correction([networks.architecture], steps=2, points=32)
    model.measure([networks])
    torch.testing.assert_close(model(networks).parameters, networks.parameters)
    assert model.wish.scale.item() != 1


# -- in editors and recipes ----------------------------------------------------------------------------------------


def test_many_networks_are_corrected_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    a = ARCHITECTURES["sine"]
    networks = random_networks(a, 7, generator=generator(0))
    model = stirred(Editor(ScaleGMN([a], width=4, layers=1), corrections=2, points=9), networks)
    correct = model.correct
    assert correct is not None
    whole = correct(networks).parameters
    assert not torch.equal(whole, networks.parameters)
    monkeypatch.setattr(correction, "_AT_ONCE", 3)
    with torch.no_grad():
        torch.testing.assert_close(correct(networks).parameters, whole, rtol=1e-10, atol=1e-12)
        assert len(correct(networks[:0])) == 0


def test_no_corrections_change_nothing() -> None:
    a = ARCHITECTURES["sine"]
    networks = random_networks(a, 3, generator=generator(0), dtype=torch.float32)
    found = []
    for options in ({}, {"corrections": 0, "points": 7}, {"corrections": 1, "points": 7}):
        torch.manual_seed(0)
        found.append(Editor(ScaleGMN([a], width=6, layers=2), copies=2, **options))
    plain, none, one = found
    assert plain.state_dict().keys() == none.state_dict().keys() < one.state_dict().keys()
    assert torch.equal(plain(networks).parameters, none(networks).parameters)
    assert "1 steps, 7 points" in repr(one)


def test_a_recipe_trains_and_its_run_is_loaded(digits: Zoo, tmp_path: Path) -> None:
    model = {"name": "scalegmn", "width": 4, "layers": 1, "corrections": 2, "points": 16}
    recipe = recipe_for(digits.path, task="editing", model=model, epochs=15, lr=5e-3, validate_every=3)
    results = train(recipe, tmp_path / "run")
    lines = Run(tmp_path / "run").metrics()
    assert lines[-1]["train_loss"] < 0.8 * lines[0]["train_loss"]
    again = load(tmp_path / "run")
    editor = again.model
    assert isinstance(editor, Editor)
    assert editor.correct is not None
    assert editor.correct.wish.net[-1].weight.abs().max() > 0
    assert again.evaluate(digits, "test").metrics["mse"] == pytest.approx(results["test"]["mse"], rel=1e-4)
    networks = digits.batch([0])
    assert again.edit(networks).architecture == networks.architecture


@pytest.mark.parametrize(
    ("a", "why"),
    [
        (Architecture.cnn([1, 4], 3, "relu"), "expected dense layers, got layers with space in 1-4-3"),
        (blocks(["relu", "tanh", "sine"]), "expected dense layers, got layers with space"),
    ],
)
def test_what_cannot_be_corrected_is_refused(a: Architecture, why: str) -> None:
    with pytest.raises(ScaleGMNError, match=f"corrections: {why}"):
        Correction([a], steps=1, points=4)


def test_shared_parameters_and_other_ends_are_refused() -> None:
    chain = Architecture.mlp([2, 3, 3, 3, 1])
    loop = Architecture(chain.layers, chain.connections, (Shared("weight", 2, 1),))
    with pytest.raises(ScaleGMNError, match="corrections: expected dense layers, got shared parameters"):
        Correction([loop], steps=1, points=4)
    with pytest.raises(ScaleGMNError, match="expected networks with the same inputs and outputs"):
        Correction([chain, Architecture.mlp([3, 3, 1])], steps=1)
    correct, longer = Correction([chain], steps=1, points=4), Architecture.mlp([2, 3, 3, 3, 3, 1])
    networks = random_networks(longer, 1, dtype=torch.float32)
    with pytest.raises(ScaleGMNError, match="at most 8 tensors of parameters"):
        correct(networks)


def test_an_editor_reads_what_it_can_correct() -> None:
    editor = Editor(ScaleGMN([Architecture.mlp([2, 3, 1])], width=4, layers=1), corrections=1, points=4)
    assert editor.reads(Architecture.mlp([2, 5, 1])) is None
    gate = residual(["relu"] * 3)
    assert "tensors of parameters" in str(editor.correct and editor.correct.reads(gate))
    assert editor.reads(gate) is not None
