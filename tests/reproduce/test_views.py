"""CIFAR-10 at full size: one view is a zoo of its own, and further views of the training images are added to it."""

from pathlib import Path

import numpy as np
import torch

from scalegmn.reproduce.zoos import PAPER_VIEWS, Folders, open_zoo


def test_further_views_show_the_training_images_once_more(tmp_path: Path) -> None:
    folder, draw = tmp_path / "images" / "cifar-10-batches-bin", np.random.default_rng(0)
    folder.mkdir(parents=True)
    for name in [f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"]:
        rows = draw.integers(0, 256, (4, 1 + 3 * 32 * 32)).astype(np.uint8)
        rows[:, 0] %= 10
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    place = Folders("paper", tmp_path / "zoos", tmp_path / "images")
    one = open_zoo("cifar10", place)
    assert len(one) == 24
    several = open_zoo("cifar10-views", place)
    kinds = ("train", "val", "test")
    sizes = [[len(zoo.split(kind)) for kind in kinds] for zoo in (one, several)]
    assert sizes[1] == [PAPER_VIEWS * sizes[0][0], *sizes[0][1:]]
    train = [zoo.batch(zoo.split("train")).parameters for zoo in (one, several)]
    assert len(torch.unique(train[1], dim=0)) == PAPER_VIEWS * len(train[0])
