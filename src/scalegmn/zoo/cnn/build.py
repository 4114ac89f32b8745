"""Building CNN zoos: image classifiers with random hyperparameters, their weights and their accuracy."""

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ... import __version__
from ...errors import ScaleGMNError
from ...files.arrays import Array
from ...native import library
from ..images.collections import Images
from ..images.formats import CLASSES
from ..inr.build import Report
from ..inr.fit import EngineName, on_threads
from ..store.splits import check_seed, select
from ..store.writer import ZooWriter
from ..store.zoo import Zoo
from . import compiled, plain
from .recipe import Budget, Settings, draw_settings, draw_shape, settings_columns
from .shape import Cnn
from .train import train

SHARD = 64
# Shapes of a varied zoo at least.
VARIETY = 8
MOST = 10**8
SPLIT_RULE = "networks at random: a fifth test, a tenth val, the rest train"


class Pictures(NamedTuple):
    """Images (N, C, H, W), uint8 for training and in [-1, 1] for the test, and their labels (N,)."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor


class Drawn(NamedTuple):
    """A network to train: its number in the zoo, its shape and its hyperparameters."""

    number: int
    shape: Cnn
    settings: Settings


class Finished(NamedTuple):
    """A trained network: parameters (P,), accuracy and loss on the test images (1,)."""

    drawn: Drawn
    parameters: Tensor
    accuracy: Tensor
    loss: Tensor


def build_cnn_zoo(
    source: Images,
    out: str | Path,
    *,
    count: int,
    activation: str = "relu",
    vary: bool = False,
    budget: Budget | None = None,
    test_images: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    report: Report | None = None,
) -> Zoo:
    """Train classifiers with random hyperparameters and write them to a zoo, continuing where an earlier run stopped.

    The recipe is that of the Small CNN Zoo (Unterthiner et al., 2020): three 3x3 convolutions with stride 2 and 16
    channels, global average pooling, a linear layer; `cnn_recipe` says what is drawn for each network. The bytes depend
    on the arguments alone, not on interruptions or the number of threads. The zoo records the engine, compiled or
    torch, and is not continued with the other one.

    Arguments:
        source: The images; each network sees its own part of the official training images.
        out: The directory of the zoo.
        count: Number of networks.
        activation: `relu`, `tanh`, or `both`, which alternate from shard to shard.
        vary: Whether depth, widths and kernel size vary as well, from shard to shard; with two activations, both have
            each shape.
        budget: How long networks train.
        test_images: Number of test images that decide accuracy and loss; all if omitted.
        seed: Of everything random.
        threads: Networks trained at the same time; as many as torch uses if omitted.
        report: Called with the networks done, the networks in all and the accuracy of those just done (n,).

    >>> import tempfile
    >>> from scalegmn.zoo.images.collections import load_images
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     zoo = build_cnn_zoo(
    ...         load_images("digits"), folder, count=6, vary=True, budget=Budget(batch=16, steps=(5, 20))
    ...     )
    ...     len(zoo), "test_accuracy" in zoo.columns
    (6, True)
    """
    budget = budget or Budget()
    if not 1 <= count <= MOST:
        raise ScaleGMNError(f"build: expected count >= 1 and at most {MOST}, got {count}")
    check_seed(seed)
    if source.labels.min() < 0 or source.labels.max() >= CLASSES:
        raise ScaleGMNError(f"images: expected labels from 0 to {CLASSES - 1} in {source.name}, got others")
    if activation not in ("relu", "tanh", "both"):
        raise ScaleGMNError(f"activation: expected relu, tanh or both, got {activation!r}")
    pictures = _pictures(source, test_images, seed)
    engine: EngineName = "compiled" if library.usable(source=compiled.SOURCE) else "torch"
    plan = _Plan(activation, vary, budget, count, seed, pictures, max(2, int(source.labels.max()) + 1), engine)
    plan.shape(0)
    arguments = {
        "images": source.name,
        "count": count,
        "activation": activation,
        "vary": vary,
        "batch": budget.batch,
        "steps": list(budget.steps),
        "epochs": budget.epochs,
        "test_images": len(pictures.test),
        "seed": seed,
        "images_sha256": source.checksum(),
        "engine": engine,
    }
    older = {"images_sha256": hashlib.sha256(source.pixels.tobytes()).hexdigest()}
    writer = ZooWriter(out, kind="cnn", arguments=arguments, formerly=older)
    if not writer.finished:
        plan.run(writer, threads or torch.get_num_threads(), report)
        writer.finish(notes={"splits": SPLIT_RULE, "scalegmn": __version__, "torch": str(torch.__version__)})
    return Zoo.open(out)


@dataclass(frozen=True)
class _Plan:
    """Everything that decides the networks of a zoo."""

    activation: str
    vary: bool
    budget: Budget
    count: int
    seed: int
    pictures: Pictures
    classes: int
    engine: EngineName

    def shape(self, shard: int) -> Cnn:
        """The shape of a shard's networks."""
        channels, side = self.pictures.train.shape[1:3]
        both = self.activation == "both"
        activation = ("relu", "tanh")[shard % 2] if both else self.activation
        return draw_shape(
            self.seed,
            # Every shape occurs with both activations.
            shard // 2 if both else shard,
            side=side,
            channels=channels,
            classes=self.classes,
            activation=activation,
            vary=self.vary,
        )

    def draw(self, shards: Iterable[int]) -> Iterator[Drawn]:
        """The networks of shards, those that take longest first within a shard."""
        for shard in shards:
            shape, images = self.shape(shard), len(self.pictures.train)
            drawn = [Drawn(i, shape, draw_settings(self.seed, i, self.budget, images)) for i in self.rows(shard)]
            yield from sorted(drawn, key=lambda d: (d.settings.dropout > 0, d.settings.steps), reverse=True)

    def rows(self, shard: int) -> range:
        """The numbers of a shard's networks."""
        return range(self.starts[shard], self.starts[shard + 1])

    @cached_property
    def starts(self) -> list[int]:
        """The first networks of the shards, and the end; small zoos too have several shapes with both activations."""
        turns = 2 if self.activation == "both" else 1
        size = min(SHARD, math.ceil(self.count / (turns * (VARIETY if self.vary else 1))))
        starts = list(range(0, self.count, size))
        if turns == 2 and len(starts) % 2 and self.count - starts[-1] > 1:
            starts.append((starts[-1] + self.count) // 2)
        return [*starts, self.count]

    def run(self, writer: ZooWriter, threads: int, report: Report | None) -> None:
        """Train and append the networks that are still missing."""
        splits = select(torch.zeros(self.count, dtype=torch.bool), None, self.seed).splits
        shards = range(writer.shards, len(self.starts) - 1)
        done = len(writer)
        if report is not None:
            report(done, self.count, torch.empty(0))
        results = on_threads(self._train, self.draw(shards), threads)
        for shard in shards:
            parts: list[Finished] = []
            while len(parts) < len(self.rows(shard)):
                parts.append(next(results))
                done += 1
                if report is not None:
                    report(done, self.count, parts[-1].accuracy)
            self._append(writer, sorted(parts, key=lambda part: part.drawn.number), splits)

    def _train(self, drawn: Drawn) -> Finished:
        data = self.pictures
        parameters = train(
            drawn.shape,
            drawn.settings,
            data.train,
            data.train_labels,
            seed=self.seed,
            index=drawn.number,
            batch=self.budget.batch,
            engine=self.engine,
        )
        evaluate = compiled.evaluate if self.engine == "compiled" else plain.evaluate
        return Finished(drawn, parameters, *evaluate(drawn.shape, parameters[None], data.test, data.test_labels))

    def _append(self, writer: ZooWriter, parts: list[Finished], splits: tuple[str, ...]) -> None:
        shape, count = parts[0].drawn.shape, len(parts)
        columns: dict[str, Tensor | list[str]] = {
            "test_accuracy": torch.cat([part.accuracy for part in parts]),
            "test_loss": torch.cat([part.loss for part in parts]),
            "split": [splits[part.drawn.number] for part in parts],
            "activation": [shape.activation] * count,
            "layers": torch.full((count,), len(shape.channels) - 1),
            "kernel": torch.full((count,), shape.kernel),
            **settings_columns([part.drawn.settings for part in parts]),
        }
        writer.append(shape.architecture, torch.stack([part.parameters for part in parts]), columns)


def _pictures(source: Images, test_images: int | None, seed: int) -> Pictures:
    pixels = source.pixels[..., None] if source.pixels.ndim == 3 else source.pixels
    if pixels.shape[1] != pixels.shape[2]:
        raise ScaleGMNError(f"images: expected squares, got {pixels.shape[1]}x{pixels.shape[2]}")
    test = source.test
    if not test.any():
        test = np.zeros(len(pixels), np.bool_)
        test[np.random.default_rng([seed, 4]).permutation(len(pixels))[: max(1, len(pixels) // 5)]] = True
    available = int(test.sum())
    if available == len(pixels):
        raise ScaleGMNError(f"images: {source.name} has test images only; expected training images as well")
    if test_images is not None and not 1 <= test_images <= available:
        raise ScaleGMNError(f"test_images: expected 1 to {available}, got {test_images}")

    def part(rows: Array) -> tuple[Tensor, Tensor]:
        images = np.ascontiguousarray(pixels[rows].transpose(0, 3, 1, 2))
        return torch.from_numpy(images), torch.from_numpy(source.labels[rows].astype(np.int64))

    shown, shown_labels = part(np.flatnonzero(test)[:test_images])
    return Pictures(*part(np.flatnonzero(~test)), shown.float().mul_(2 / 255).sub_(1), shown_labels)
