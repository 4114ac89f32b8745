"""Tasks: what they read from a zoo, their losses and metrics against other ways to compute them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau
from sklearn.metrics import r2_score
from tiny_zoos import digits_zoo, mixed_zoo
from torch import Tensor, nn

from scalegmn.core.architecture import Architecture
from scalegmn.core.mixed import each_architecture
from scalegmn.core.networks import Networks
from scalegmn.errors import ScaleGMNError
from scalegmn.models.heads import Editor
from scalegmn.models.peers.flat import FlatMLP
from scalegmn.models.trunk import EditingTrunk, Pooling
from scalegmn.tasks import TASKS, Classification, Editing, Regression, Task, task_from_json
from scalegmn.tasks.editing import contrast, dilate
from scalegmn.zoo.inr.canvas import Canvas
from scalegmn.zoo.store.writer import Column, ZooWriter
from scalegmn.zoo.store.zoo import Zoo


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    return digits_zoo(tmp_path_factory.mktemp("zoo") / "digits", count=20, steps=20)


class Brightening(EditingTrunk):
    """Says the same about all networks: 1 at the last bias, 0 elsewhere."""

    def build(self) -> None:
        self.one = nn.Parameter(torch.ones(()))

    def forward(self, networks: Networks) -> Tensor:
        return self.one * nn.functional.one_hot(torch.full((len(networks),), -1) % networks.parameters.shape[1])

    def pooling(self) -> Pooling:
        raise NotImplementedError

    def writing(self, copies: int) -> nn.Module:
        return nn.Unflatten(1, (1, -1)) if copies == 1 else Repeat(copies)


class Repeat(nn.Module):
    """The same for every copy."""

    def __init__(self, copies: int) -> None:
        super().__init__()
        self.copies = copies

    def forward(self, found: Tensor) -> Tensor:
        return found[:, None].expand(-1, self.copies, -1)


def editor(zoo: Zoo, *, gamma: float, copies: int = 1) -> Editor:
    """Adds gamma to the last bias."""
    brighten = dataclasses.replace(FlatMLP, trunk=Brightening)
    return Editor(brighten(zoo.architectures), gamma=gamma, copies=copies)


# -- classification --------------------------------------------------------------------------------------------


def test_classes_are_the_values_of_the_column(zoo: Zoo) -> None:
    task = Classification.from_zoo(zoo)
    assert task.classes == (0, 1, 2)
    assert task.attach(FlatMLP(zoo.architectures), {})(zoo.batch([0])).shape == (1, 3)
    indices = torch.tensor([5, 0, 19])
    assert torch.equal(torch.tensor(task.classes)[task.targets(zoo, indices)], zoo.column("label")[indices])


def test_a_column_of_names_answers_with_names(zoo: Zoo) -> None:
    task = Classification.from_zoo(zoo, column="parity")
    target = task.targets(zoo, torch.arange(20))
    assert [task.names[i] for i in target] == ["odd" if v % 2 else "even" for v in zoo.column("label")]
    (answer,) = task.answers(torch.tensor([[0.0, 5.0]]))
    assert answer["label"] == "odd"
    assert answer["probability"] == pytest.approx(1 / (1 + np.exp(-5)), abs=1e-4)


def _labelled(path: Path, labels: Column) -> Zoo:
    architecture = Architecture.mlp([2, 3, 1])
    writer = ZooWriter(path, kind="example", arguments={})
    columns = {"label": labels, "score": torch.tensor([0.5, torch.nan])[torch.arange(len(labels)) % 2]}
    split = ["train"] * len(labels)
    writer.append(architecture, torch.zeros(len(labels), architecture.parameters), {**columns, "split": split})
    writer.finish()
    return Zoo.open(path)


def test_names_are_compared_as_names(tmp_path: Path) -> None:
    everything = torch.arange(2)
    task = Classification.from_zoo(_labelled(tmp_path / "a", ["dog", "cat"]))
    assert task.targets(_labelled(tmp_path / "b", ["dog", "dog"]), everything).tolist() == [1, 1]
    with pytest.raises(ScaleGMNError, match=r"expected one of \('cat', 'dog'\), got 'bird'"):
        task.targets(_labelled(tmp_path / "c", ["bird", "cat"]), everything)
    numbers = _labelled(tmp_path / "d", torch.tensor([0, 1]))
    with pytest.raises(ScaleGMNError, match=r"expected one of \('cat', 'dog'\), got 0"):
        task.targets(numbers, everything)
    with pytest.raises(ScaleGMNError, match=r"expected one of \(0, 1\), got 'dog'"):
        Classification.from_zoo(numbers).targets(_labelled(tmp_path / "e", ["dog", "dog"]), everything)


def test_numbers_to_learn_are_finite(tmp_path: Path) -> None:
    with pytest.raises(ScaleGMNError, match="column 'score': network 1 has nan; expected finite numbers"):
        Regression.from_zoo(_labelled(tmp_path / "a", ["x", "y"]), column="score")


def test_labels_need_not_be_consecutive(zoo: Zoo) -> None:
    task = Classification("label", (0, 2))
    known = torch.nonzero(zoo.column("label") != 1)[:, 0]
    assert set(task.targets(zoo, known).tolist()) == {0, 1}
    with pytest.raises(ScaleGMNError, match=r"expected one of \(0, 2\), got 1"):
        task.targets(zoo, torch.arange(20))


def test_accuracy_and_cross_entropy_by_hand() -> None:
    task = Classification("label", (0, 1, 2))
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    found = task.metrics(logits, torch.tensor([0, 1]))
    p = logits.double().softmax(1)
    assert found["accuracy"] == 0.5
    assert found["loss"] == pytest.approx(-(p[0, 0].log() + p[1, 1].log()).item() / 2, rel=1e-6)


def test_numbers_are_no_classes(zoo: Zoo) -> None:
    with pytest.raises(ScaleGMNError, match=r"column 'psnr' holds torch\.float32; expected integers or names"):
        Classification.from_zoo(zoo, column="psnr")
    with pytest.raises(ScaleGMNError, match=r"column: expected one of .*label.*; got 'lable'"):
        Classification.from_zoo(zoo, column="lable")


# -- regression ------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=30))
def test_regression_metrics_equal_those_of_other_libraries(pairs: list[tuple[int, int]]) -> None:
    outputs, targets = (torch.tensor(c, dtype=torch.float32) / 5 for c in zip(*pairs, strict=True))
    found = Regression("score").metrics(outputs, targets)
    assert found["mse"] == pytest.approx(np.mean((outputs.numpy() - targets.numpy()) ** 2), abs=1e-7)
    expected = kendalltau(outputs, targets).statistic
    assert found["tau"] == pytest.approx(expected, nan_ok=True)
    if len(set(targets.tolist())) > 1:
        assert found["r2"] == pytest.approx(r2_score(targets.double(), outputs.double()), rel=1e-9, abs=1e-9)
    else:
        assert np.isnan(found["r2"])


def test_regression_answers_in_units_of_the_column(zoo: Zoo) -> None:
    task = Regression.from_zoo(zoo, column="psnr")
    training = zoo.column("psnr")[zoo.split("train")].double()
    assert task.mean == pytest.approx(training.mean().item())
    assert task.std == pytest.approx(training.std(correction=0).item())
    found = task.respond(lambda networks: torch.tensor([[0.0], [1.0]]), [])  # type: ignore[arg-type]
    assert found.tolist() == pytest.approx([task.mean, task.mean + task.std], rel=1e-6)
    assert task.loss(torch.tensor([task.mean + task.std]), torch.tensor([task.mean])).item() == pytest.approx(1)


def test_a_sigmoid_needs_numbers_between_0_and_1(zoo: Zoo, tmp_path: Path) -> None:
    with pytest.raises(ScaleGMNError, match=r"sigmoid = true needs values in \[0, 1\]; column 'psnr' runs from"):
        Regression.from_zoo(zoo, column="psnr", sigmoid=True)
    task = Regression.from_zoo(mixed_zoo(tmp_path / "mixed"), column="score", sigmoid=True)
    found = task.respond(lambda networks: torch.tensor([[-100.0], [0.0]]), [])  # type: ignore[arg-type]
    assert found.tolist() == pytest.approx([0.0, 0.5])


def test_names_are_no_numbers(zoo: Zoo) -> None:
    with pytest.raises(ScaleGMNError, match="column 'parity' holds names"):
        Regression.from_zoo(zoo, column="parity")


# -- editing ---------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.sampled_from([1, 3]), st.integers(0, 2**32 - 1))
def test_dilation_is_the_largest_neighbour(height: int, width: int, channels: int, seed: int) -> None:
    images = np.random.default_rng(seed).integers(0, 256, (2, height, width, channels), dtype=np.uint8)
    found = dilate(images)
    for n, i, j, c in np.ndindex(images.shape):
        block = images[n, max(i - 1, 0) : i + 2, max(j - 1, 0) : j + 2, c]
        assert found[n, i, j, c] == block.max()


def test_contrast_pushes_from_the_mean_and_clips() -> None:
    image = np.array([[100, 110], [120, 130]], dtype=np.uint8).reshape(1, 2, 2, 1)
    assert contrast(image).ravel().tolist() == [85, 105, 125, 145]
    flat = np.full((1, 3, 3, 3), 77, dtype=np.uint8)
    assert (contrast(flat) == flat).all()
    hard = np.array([0, 255], dtype=np.uint8).reshape(1, 1, 2, 1)
    assert (contrast(hard) == hard).all()


def test_an_editor_that_does_nothing_shows_the_image_as_fitted(zoo: Zoo) -> None:
    task = Editing.from_zoo(zoo)
    networks = zoo.batch()
    shown = task.respond(editor(zoo, gamma=0.0), networks)
    assert torch.allclose(shown, task.canvas.render(networks))
    target = task.targets(zoo, torch.arange(20))
    assert torch.equal(target, torch.from_numpy(dilate(zoo.images().numpy())) / 255)
    assert task.metrics(shown, target)["mse"] == pytest.approx(((shown - target) ** 2).mean().item())


@pytest.mark.parametrize("copies", [1, 3])
def test_an_edit_is_measured_on_the_unit_scale(zoo: Zoo, copies: int) -> None:
    task = Editing("contrast", Canvas("nfn", 8, 8, 1, low=-1.0, high=1.0))
    networks = zoo.batch([0, 1])
    still = task.respond(editor(zoo, gamma=0.0, copies=copies), networks)
    bright = task.respond(editor(zoo, gamma=0.2, copies=copies), networks)
    # 0.2 on a scale from -1 to 1 is 0.1 on a scale from 0 to 1.
    assert torch.allclose(bright - still, torch.tensor(0.1), atol=1e-6)


def test_pictures_of_another_canvas_are_refused(zoo: Zoo) -> None:
    with pytest.raises(ScaleGMNError, match=r"the model knows pictures of .*28.* holds those of .*8"):
        Editing("dilation", Canvas("dws", 28, 28, 1)).targets(zoo, torch.arange(2))


def test_editing_needs_images(tmp_path: Path) -> None:
    with pytest.raises(ScaleGMNError, match="expected a zoo of INRs with their images"):
        Editing.from_zoo(mixed_zoo(tmp_path / "mixed"))


# -- all -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "task",
    [
        Classification("label", (0, 3), ("a", "b")),
        Regression("score", sigmoid=True, mean=0.5, std=2.0),
        Editing("contrast", Canvas("dws", 4, 5, 3)),
    ],
)
def test_a_task_survives_json(task: Task) -> None:
    import json

    assert task_from_json(json.loads(json.dumps(task.to_json()))) == task


def test_better_follows_the_direction_of_the_metric_and_nan_never_wins() -> None:
    for kind in TASKS.values():
        low, high = (1.0, 2.0) if kind.maximise else (2.0, 1.0)
        task = {"classification": Classification("a", ()), "regression": Regression("a")}.get(
            kind.name, Editing("dilation", Canvas("dws", 1, 1, 1))
        )
        assert task.better(high, low)
        assert not task.better(low, high)
        assert not task.better(float("nan"), low)


def test_mixed_architectures_are_answered_in_order(tmp_path: Path) -> None:
    a, b = Architecture.mlp([2, 3, 1]), Architecture.mlp([2, 5, 1])
    rows = [Networks(x, torch.full((1, x.parameters), float(i))) for i, x in enumerate([a, b, b, a, b])]

    def first(networks: Networks | Sequence[Networks]) -> Tensor:
        assert isinstance(networks, Networks)
        return networks.parameters[:, 0]

    assert each_architecture(first, rows).tolist() == [0, 1, 2, 3, 4]
