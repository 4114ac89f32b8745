"""Training batches as a function of the step alone, so that nothing must be saved or restored."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..core.networks import Networks
from ..errors import ScaleGMNError
from ..zoo.store.zoo import Batch, Batches, Zoo

# Purposes of random numbers; those of two purposes never coincide.
ORDER, DROPOUT, AUGMENT, PREPARE, TRANSFORM, CHOICE = range(6)


def seed_for(seed: int, purpose: int, *where: int) -> int:
    """A seed for one purpose, at a place such as a step and a process.

    >>> seed_for(0, DROPOUT, 1) != seed_for(0, DROPOUT, 2)
    True
    """
    return int(np.random.SeedSequence([seed, purpose, *where]).generate_state(1, np.uint64)[0] >> np.uint64(1))


class Stream:
    """An endless sequence of training batches; every epoch is a fresh permutation of the training split.

    Arguments:
        indices: The numbers of the training networks (N,).
        batch: Networks per step.
        seed: Decides the permutations.

    >>> stream = Stream(torch.arange(10), 4, 0)
    >>> [len(stream.indices_of(step)) for step in range(4)]
    [4, 4, 2, 4]
    """

    def __init__(self, indices: Tensor, batch: int, seed: int) -> None:
        if not len(indices):
            raise ScaleGMNError("zoo: the split 'train' is empty; expected at least one network")
        self.indices = indices
        self.batch = batch
        self.seed = seed
        self.epoch_steps = -(-len(indices) // batch)
        self._order = lru_cache(maxsize=1)(self._permutation)

    def _permutation(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed_for(self.seed, ORDER, epoch))
        return self.indices[torch.randperm(len(self.indices), generator=generator)]

    def indices_of(self, step: int) -> Tensor:
        """The numbers of the networks of one step."""
        epoch, position = divmod(step, self.epoch_steps)
        return self._order(epoch)[position * self.batch : (position + 1) * self.batch]


def some(indices: Tensor, count: int | None) -> Tensor:
    """The first few in a fixed random order, sorted; all if no number is given.

    Arguments:
        indices: Numbers of networks (N,).
        count: How many.

    >>> few, more = (some(torch.arange(100), count).tolist() for count in (5, 20))
    >>> len(few), set(few) <= set(more)
    (5, True)
    """
    if count is None:
        return indices
    if count > len(indices):
        raise ScaleGMNError(f"training.networks: expected at most the {len(indices)} of the zoo, got {count}")
    generator = torch.Generator().manual_seed(seed_for(0, CHOICE))
    return indices[torch.randperm(len(indices), generator=generator)[:count]].sort().values


def unchanged_zoo(path: str | Path, sha256: str) -> Zoo:
    """The zoo of a run; refused if it is missing or has changed.

    Arguments:
        path: Its directory.
        sha256: The checksum that the run recorded.
    """
    zoo = Zoo.open(path)
    if zoo.header["sha256"] != sha256:
        raise ScaleGMNError(f"zoo: {path} is not the zoo that the run was trained on; build that one again")
    return zoo


def batch_of(zoo: Zoo, indices: Tensor) -> Batch:
    """Networks of a zoo with any number of architectures; its `indices` are in the order of the networks."""
    return Batches(zoo, indices, max(len(indices), 1))[0]


def broken(zoo: Zoo, indices: Tensor) -> list[int]:
    """The numbers of the networks with NaN or infinite weights.

    Arguments:
        zoo: The networks.
        indices: Which of them (N,).
    """
    found: list[int] = []
    for part in indices.sort().values.split(1024):
        networks, numbers = batch_of(zoo, part)
        rows = torch.cat([batch.parameters.isfinite().all(1) for batch in listed(networks)])
        found += numbers[~rows].tolist()
    return sorted(found)


def listed(networks: Networks | Sequence[Networks]) -> list[Networks]:
    """One batch or several, as a list."""
    return [networks] if isinstance(networks, Networks) else list(networks)
