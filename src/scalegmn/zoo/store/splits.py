"""Which images a zoo uses, and which of its networks are for training, validation and test."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import ScaleGMNError

RULE = (
    "test: the official test images, or a fifth where there are none; val: half as many, drawn from the rest; "
    "all networks of an image are in one split"
)
_PURPOSE = 1  # keeps these random numbers apart from those of the initial weights


@dataclass(frozen=True)
class Selection:
    """The images of a zoo.

    Arguments:
        rows: Their numbers among all images, ascending (M,).
        splits: For each `train`, `val` or `test`.
    """

    rows: Tensor
    splits: tuple[str, ...]


def select(
    test: NDArray[np.bool_] | Tensor, count: int | None, seed: int, sizes: Sequence[int] | None = None
) -> Selection:
    """Choose images at random and assign them to splits.

    The official share of test images is kept. MNIST gives 55,000 / 5,000 / 10,000, CIFAR-10 45,000 / 5,000 / 10,000.

    Arguments:
        test: Which images are official test images (M,) bool; all False if there is no official split.
        count: How many images; all if omitted.
        seed: Decides the choice.
        sizes: Instead of a count, the numbers of training, validation and test images.

    >>> chosen = select(np.arange(60) >= 50, 12, seed=0)
    >>> [chosen.splits.count(name) for name in ("train", "val", "test")]
    [9, 1, 2]
    """
    test = np.asarray(test)
    total = len(test)
    if sizes is not None:
        count = _checked(sizes, count, test)
    wanted = total if count is None else count
    if not 1 <= wanted <= total:
        raise ScaleGMNError(f"count: expected 1 to {total}, the number of images; got {wanted}")
    share = float(test.mean()) or 0.2
    tests = round(wanted * share) if sizes is None else sizes[2]
    validations = tests // 2 if sizes is None else sizes[1]
    order = np.random.default_rng([seed, _PURPOSE]).permutation(total)
    if test.any():
        official = test[order]
        order = np.concatenate([order[official], order[~official]])
        # The official test images come first, as many as are wanted, then training images.
        skip = int(official.sum())
        order = np.concatenate([order[:tests], order[skip : skip + wanted - tests]])
    names = np.array(["test"] * tests + ["val"] * validations + ["train"] * wanted)[:wanted]
    rows = order[:wanted]
    ascending = np.argsort(rows)
    return Selection(torch.from_numpy(rows[ascending]), tuple(str(n) for n in names[ascending]))


def part(test: NDArray[np.bool_] | Tensor, count: int | None, seed: int, split: str) -> Selection:
    """Some images of one split of all images (of seed 0), so that no two such zoos share an image across splits.

    Arguments:
        test: As in `select`.
        count: How many; all of the split if omitted.
        seed: Decides the choice within the split.
        split: `train`, `val` or `test`.

    >>> whole, some = select(np.arange(60) >= 50, None, seed=0), part(np.arange(60) >= 50, 7, 1, "val")
    >>> of_val = [row for row, name in zip(whole.rows.tolist(), whole.splits) if name == "val"]
    >>> set(some.rows.tolist()) <= set(of_val), some.splits
    (True, ('val', 'val', 'val', 'val', 'val'))
    """
    whole = select(test, None, 0)
    rows = whole.rows[torch.tensor([name == split for name in whole.splits])]
    if not len(rows):
        raise ScaleGMNError(f"split: expected train, val or test, got {split!r}")
    order = np.random.default_rng([seed, _PURPOSE, 1]).permutation(len(rows))
    kept = rows[torch.from_numpy(order[: len(rows) if count is None else count])].sort().values
    return Selection(kept, (split,) * len(kept))


def check_seed(seed: int) -> None:
    """Refuse a seed that a random generator does not take."""
    if not 0 <= seed < 2**63:
        raise ScaleGMNError(f"seed: expected a seed from 0 to {2**63 - 1}, got {seed}")


def _checked(sizes: Sequence[int], count: int | None, test: NDArray[np.bool_]) -> int:
    """The number of images that the sizes of the splits add up to."""
    if len(sizes) != 3 or min(sizes) < 0 or not sum(sizes):
        raise ScaleGMNError(f"sizes: expected numbers of train, val and test images, got {tuple(sizes)}")
    if count is not None:
        raise ScaleGMNError(f"sizes: give sizes or a count, not both; got {tuple(sizes)} and {count}")
    official = int(test.sum())
    if official and (sizes[2] > official or sizes[0] + sizes[1] > len(test) - official):
        have = f"{len(test) - official} training and {official} test images"
        raise ScaleGMNError(f"sizes: expected no more than the {have} there are, got {tuple(sizes)}")
    return sum(sizes)
