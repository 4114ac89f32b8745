"""Training a group of CNNs, each with its own hyperparameters, data and number of steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from ...core.networks import Networks
from ...files import Array
from .compiled import Noise, Rule, descend, noise_size
from .engine import Cnn, Engine
from .recipe import Settings, generator, initial_parameters

# Gradients longer than this are shortened: otherwise a share of the drawn learning rates ends in NaN.
CLIP = 5.0
# Dropout reads a pool of random numbers from a random place on: to draw all anew would take as long as to train.
POOL = 4


class Batches:
    """One network's minibatches: its own part of the training data, shuffled again in every epoch.

    Arguments:
        rng: Where the part and the order come from.
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


class Optimiser:
    """Gradient descent, Adam and RMSProp side by side: every row of the parameters follows its own rule.

    Arguments:
        settings: One per network.
        weights: Which parameters are weights and decay, (P,) of 0 and 1.
    """

    def __init__(self, settings: Sequence[Settings], weights: Tensor) -> None:
        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=weights.dtype)[:, None]

        kinds = [s.optimiser for s in settings]
        self.lr = column([s.learning_rate for s in settings])
        # Of a penalty l2 * |W|^2.
        self.decay = 2 * column([s.l2 for s in settings]) * weights
        self.beta1 = column([0.9 if k == "adam" else 0.0 for k in kinds])
        self.beta2 = column([{"adam": 0.999, "rmsprop": 0.9, "sgd": 0.0}[k] for k in kinds])
        self.plain = torch.tensor([k == "sgd" for k in kinds])[:, None]
        self.corrected = torch.tensor([k == "adam" for k in kinds])[:, None]
        self.first = torch.zeros_like(self.decay)
        self.second = torch.zeros_like(self.decay)

    def update(self, parameters: Tensor, gradient: Tensor, step: int) -> None:
        """One step of the first b networks; `gradient` (b, P) is overwritten, `step` counts from 1."""
        b = len(parameters)
        gradient.addcmul_(self.decay[:b], parameters)
        norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
        gradient.mul_((CLIP / norm.clamp(min=CLIP)).nan_to_num_(0.0))
        gradient.nan_to_num_(0.0, 0.0, 0.0)
        beta1, beta2 = self.beta1[:b], self.beta2[:b]
        first, second = self.first[:b], self.second[:b]
        first.mul_(beta1).addcmul_(1 - beta1, gradient)
        second.mul_(beta2).addcmul_((1 - beta2) * gradient, gradient)
        one = torch.ones_like(beta1)
        size1 = torch.where(self.corrected[:b], 1 - beta1**step, one)
        size2 = torch.where(self.corrected[:b], 1 - beta2**step, one)
        root = (second / size2).sqrt_().add_(1e-7)
        root = torch.where(self.plain[:b], one, root)
        parameters.addcdiv_(first * (-self.lr[:b] / size1), root)


@torch.no_grad()
def train(
    shape: Cnn,
    settings: Sequence[Settings],
    images: Tensor,
    labels: Tensor,
    *,
    seed: int,
    indices: Sequence[int],
    batch: int,
) -> Tensor:
    """Train networks of one shape together.

    Arguments:
        shape: Of all networks.
        settings: Of each network.
        images: Training images (N, channels, side, side), uint8; networks see them scaled to [-1, 1].
        labels: Shape (N,), int64.
        seed, indices: The seed of the zoo and each network's number in it, which decide initial weights and batches.
        batch: Images of a step.

    Returns:
        The trained parameters (len(settings), P), float32.
    """
    order = sorted(range(len(settings)), key=lambda i: -settings[i].steps)
    settings, indices = [settings[i] for i in order], [indices[i] for i in order]
    rngs = [generator(seed, i, 2) for i in indices]
    parameters = torch.stack([initial_parameters(shape, s, r) for s, r in zip(settings, rngs, strict=True)])
    sources = [Batches(r, len(images), s.train_fraction, batch) for s, r in zip(settings, rngs, strict=True)]
    dropout = torch.tensor([s.dropout for s in settings])
    optimiser = Optimiser(settings, _weight_mask(shape))
    engine = Engine(shape, len(settings), batch, parameters)
    rng = generator(seed, min(indices), 3)
    pool = torch.from_numpy(rng.random(POOL * engine.noise_size, np.float32)) if dropout.any() else torch.empty(0)
    gradient = torch.empty_like(parameters)
    # The longest runs stand first, so those that still train are a prefix of all buffers.
    rows = [Networks(shape.architecture, parameters[:b]) for b in range(len(settings) + 1)]
    slopes = [Networks(shape.architecture, gradient[:b]) for b in range(len(settings) + 1)]
    for step in range(settings[0].steps):
        b = sum(s.steps > step for s in settings)
        chosen = torch.from_numpy(np.stack([source.next() for source in sources[:b]]))
        x = images[chosen.flatten()].unflatten(0, chosen.shape).permute(0, 2, 3, 4, 1)
        x = x.to(parameters.dtype, memory_format=torch.contiguous_format).mul_(2 / 255).sub_(1)
        start = int(rng.integers((POOL - 1) * engine.noise_size))
        noise = pool[start : start + engine.noise_size]
        engine.gradient(rows[b], x, labels[chosen], dropout[:b], noise, slopes[b])
        optimiser.update(parameters[:b], gradient[:b], step + 1)
    return parameters[torch.tensor(order).argsort()]


@torch.no_grad()
def train_compiled(
    shape: Cnn, settings: Settings, images: Tensor, labels: Tensor, *, seed: int, index: int, batch: int
) -> Tensor:
    """Train one network with the compiled engine, which must be there; the arguments are those of :func:`train`.

    The start and the batches are those of the other engine. Values drop out by other numbers: here they are the
    network's own.

    Returns:
        The trained parameters (P,), float32.
    """
    rng = generator(seed, index, 2)
    parameters = initial_parameters(shape, settings, rng)
    source = Batches(rng, len(images), settings.train_fraction, batch)
    chosen = torch.from_numpy(np.stack([source.next() for _ in range(settings.steps)]))
    noise = None
    if settings.dropout:
        rng, size = generator(seed, index, 3), noise_size(shape, batch)
        pool = torch.from_numpy(rng.random(POOL * size, np.float32))
        noise = Noise(pool, torch.from_numpy(rng.integers((POOL - 1) * size, size=settings.steps)))
    rule = Rule(settings.optimiser, settings.learning_rate, settings.l2, settings.dropout, CLIP)
    return descend(shape, rule, parameters, images, labels, chosen, noise)


def _weight_mask(shape: Cnn) -> Tensor:
    """1 for weights and 0 for biases, (P,)."""
    ones = torch.ones(1, shape.architecture.parameters)
    for bias in Networks(shape.architecture, ones).biases:
        if bias is not None:
            bias.zero_()
    return ones[0]
