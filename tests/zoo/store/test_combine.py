"""Zoos made from parts of others: what is kept, what is joined, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scalegmn.core.architecture import Architecture
from scalegmn.errors import ScaleGMNError
from scalegmn.zoo.cnn.build import build_cnn_zoo
from scalegmn.zoo.cnn.recipe import Budget
from scalegmn.zoo.images.collections import Images, load_images
from scalegmn.zoo.inr.build import build_inr_zoo
from scalegmn.zoo.inr.conventions import Fit
from scalegmn.zoo.store.combine import combine
from scalegmn.zoo.store.splits import select
from scalegmn.zoo.store.verify import verify
from scalegmn.zoo.store.writer import Column, ZooWriter
from scalegmn.zoo.store.zoo import Zoo

DIGITS = load_images("digits")
QUICK = Fit(hidden=(8,), steps=3)


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    out = tmp_path_factory.mktemp("zoo") / "views"
    return build_inr_zoo(DIGITS, out, fit=QUICK, sizes=(30, 5, 10), views=3, held_out_views=1)


def test_sizes_and_views_of_held_out_images(views: Zoo) -> None:
    assert [len(views.split(name)) for name in ("train", "val", "test")] == [90, 5, 10]
    assert len(views.column("image").unique()) == 45
    held_out = torch.cat([views.split("val"), views.split("test")])
    assert not views.column("view")[held_out].any()
    # Every network fits its own image: its target is the image that its row names.
    label = torch.from_numpy(DIGITS.labels)
    stored = views.images(range(len(views))).flatten(1)
    pixels = torch.from_numpy(DIGITS.pixels).flatten(1)
    for row, seen in zip(views.column("label").tolist(), stored, strict=True):
        assert row in label[(pixels == seen).all(1)].tolist()


def test_a_part_keeps_networks_table_and_images(views: Zoo, tmp_path: Path) -> None:
    part = combine([views], tmp_path / "part", where={"view": "2"})
    rows = torch.nonzero(views.column("view") == 2).flatten()
    assert torch.equal(part.batch().parameters, views.batch(rows).parameters)
    assert torch.equal(part.images(), views.images(rows))
    assert torch.equal(part.column("psnr"), views.column("psnr")[rows])
    assert part.splits == ("train",)
    assert not verify(part.path)


def test_zoos_together_keep_their_architectures_and_splits(tmp_path: Path) -> None:
    large = Images("large", DIGITS.pixels[:100].repeat(4, 1).repeat(4, 2), DIGITS.labels[:100], DIGITS.test[:100])
    parts = [
        build_cnn_zoo(large, tmp_path / kind, count=12, activation=kind, budget=Budget(batch=8, steps=(2, 4)))
        for kind in ("relu", "tanh")
    ]
    both = combine(parts, tmp_path / "both")
    assert len(both) == 24
    assert both.architectures == (*parts[0].architectures, *parts[1].architectures)
    expected = torch.cat([part.column("test_accuracy") for part in parts])
    assert torch.equal(both.column("test_accuracy"), expected)
    for name in ("train", "val", "test"):
        assert torch.equal(both.split(name), torch.cat([parts[0].split(name), parts[1].split(name) + 12]))
    again = combine(parts, tmp_path / "both")
    assert again.header == both.header


def test_images_of_several_zoos_follow_each_other(views: Zoo, tmp_path: Path) -> None:
    other = build_inr_zoo(DIGITS, tmp_path / "other", fit=QUICK, count=7, seed=3)
    both = combine([views, other], tmp_path / "both")
    assert torch.equal(both.images(range(len(views), len(both))), other.images())


def _labelled(path: Path, labels: Column) -> Zoo:
    architecture = Architecture.mlp([2, 3, 1])
    writer = ZooWriter(path, kind="example", arguments={})
    rows = torch.randn(len(labels), architecture.parameters)
    writer.append(architecture, rows, {"label": labels, "split": ["train"] * len(labels)})
    writer.finish()
    return Zoo.open(path)


def test_names_and_numbers_do_not_mix(tmp_path: Path) -> None:
    zoos = [_labelled(tmp_path / "a", torch.tensor([7, 8])), _labelled(tmp_path / "b", ["cat", "dog"])]
    for sources in (zoos, zoos[::-1]):
        with pytest.raises(ScaleGMNError, match=r"column 'label' of .* holds names in one and numbers in the other"):
            combine(sources, tmp_path / "out")
    writer = ZooWriter(tmp_path / "c", kind="example", arguments={})
    architecture = Architecture.mlp([2, 3, 1])
    writer.append(architecture, torch.zeros(1, architecture.parameters), {"label": ["cat"]})
    with pytest.raises(ScaleGMNError, match="column 'label': expected names as in the shards before, got numbers"):
        writer.append(architecture, torch.zeros(1, architecture.parameters), {"label": torch.tensor([1])})


def test_an_image_is_not_for_training_here_and_for_the_test_there(tmp_path: Path) -> None:
    one, other = (build_inr_zoo(DIGITS, tmp_path / str(s), fit=QUICK, count=300, seed=s) for s in (0, 1))
    with pytest.raises(ScaleGMNError, match=r"\d+ training images of .* are validation or test images of"):
        combine([one, other], tmp_path / "both")
    assert combine([one, other], tmp_path / "both", where={"split": "train"}).splits == ("train",)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"colour": "red"}, "column: expected one of"),
        ({"view": "second"}, "holds numbers; got 'second'"),
        ({"split": "training"}, "holds train, val, test; got 'training'"),
        ({"view": "9"}, "no network has view 9"),
    ],
)
def test_refusals(views: Zoo, tmp_path: Path, where: dict[str, str], message: str) -> None:
    with pytest.raises(ScaleGMNError, match=message):
        combine([views], tmp_path / "out", where=where)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("sizes", "count", "message"),
    [
        ((3, 2), None, "expected numbers of train, val and test"),
        ((3, 2, 2), 7, "give sizes or a count, not both"),
        ((3, 2, 6), None, "no more than the 10 training and 5 test images"),
        ((9, 2, 5), None, "no more than the 10 training and 5 test images"),
    ],
)
def test_sizes_that_cannot_be(sizes: tuple[int, ...], count: int | None, message: str) -> None:
    with pytest.raises(ScaleGMNError, match=message):
        select(torch.arange(15) >= 10, count, 0, sizes)
