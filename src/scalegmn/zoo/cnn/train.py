"""Training one CNN of a zoo with its own hyperparameters, data and number of steps."""

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from ...files.arrays import Array
from ..inr.fit import EngineName
from . import compiled, plain
from .recipe import Settings, generator, initial_parameters
from .shape import Cnn, Noise, Rule, noise_size

# Gradients longer than this are shortened: otherwise a share of the drawn learning rates ends in NaN.
CLIP = 5.0
# Dropout reads a pool of random numbers from a random place on: to draw all anew would take as long as to train.
POOL = 4


class Minibatches:
    """One network's minibatches: its own part of the training data, shuffled again in every epoch.

    Arguments:
        rng: Decides the part and the order.
        images: Number of training images.
        fraction: The part of them that the network sees.
        size: Images in a batch; smaller parts are repeated.
    """

    def __init__(self, rng: Generator, images: int, fraction: float, size: int) -> None:
        self._rng = rng
        self._size = size
        self.part: Array = rng.permutation(images)[: max(1, round(fraction * images))].astype(np.int32)
        self._queue: Array = self.part[:0]

    def next(self) -> Array:
        """The numbers of the next batch's images, (size,)."""
        while len(self._queue) < self._size:
            self._queue = np.concatenate([self._queue, self._rng.permutation(self.part)])
        batch, self._queue = self._queue[: self._size], self._queue[self._size :]
        return batch


def train(
    shape: Cnn,
    settings: Settings,
    images: Tensor,
    labels: Tensor,
    *,
    seed: int,
    index: int,
    batch: int,
    engine: EngineName,
) -> Tensor:
    """Train one network; its initial weights, batches and dropout do not depend on the engine.

    Arguments:
        shape: Of the network.
        settings: Its hyperparameters.
        images: Training images (N, channels, side, side), uint8; networks see them scaled to [-1, 1].
        labels: Shape (N,), int64.
        seed, index: The seed of the zoo and the network's number in it, which decide initial weights and batches.
        batch: Images in a step.
        engine: `compiled`, which must be available, or `torch`.

    Returns:
        The trained parameters (P,), float32.
    """
    rng = generator(seed, index, 2)
    parameters = initial_parameters(shape, settings, rng)
    source = Minibatches(rng, len(images), settings.train_fraction, batch)
    chosen = torch.from_numpy(np.stack([source.next() for _ in range(settings.steps)]))
    noise = None
    if settings.dropout:
        rng, size = generator(seed, index, 3), noise_size(shape, batch)
        pool = torch.from_numpy(rng.random(POOL * size, np.float32))
        noise = Noise(pool, torch.from_numpy(rng.integers((POOL - 1) * size, size=settings.steps)))
    rule = Rule(settings.optimiser, settings.learning_rate, settings.l2, settings.dropout, CLIP)
    descend = compiled.descend if engine == "compiled" else plain.descend
    return descend(shape, rule, parameters, images, labels, chosen, noise)
