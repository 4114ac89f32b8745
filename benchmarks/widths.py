"""Accuracy prediction on widths that a model has never seen.

Trains small ReLU perceptrons on 4x4 digits with widths 8, 16 and 32 and metanetworks on those, then asks about 12, 24
and 48 as well:

    python benchmarks/widths.py
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F

import scalegmn
from scalegmn.core.architecture import Architecture
from scalegmn.core.networks import Networks
from scalegmn.training.progress import Progress
from scalegmn.zoo.store.writer import ZooWriter
from scalegmn.zoo.store.zoo import Zoo

SEEN, UNSEEN = (8, 16, 32), (12, 24, 48)


def data() -> tuple[Tensor, Tensor]:
    """Digits of 4x4 pixels, standardised, and their labels, in random order."""
    digits = load_digits()
    x = F.avg_pool2d(torch.from_numpy(digits.images).float()[:, None], 2).flatten(1)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return ((x - x.mean(0)) / (x.std(0) + 1e-3))[order], torch.from_numpy(digits.target)[order]


def classifiers(width: int, count: int, seed: int) -> tuple[Networks, Tensor]:
    """Perceptrons 16-w-w-10 trained with settings of all kinds, and their test accuracies (N,)."""
    generator = torch.Generator().manual_seed(seed)
    x, y = data()
    train_x, train_y, test_x, test_y = x[:1000], y[:1000], x[1000:], y[1000:]
    architecture = Architecture.mlp([16, width, width, 10], "relu")

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, generator=generator)

    rate, gain, steps = 10 ** uniform(-2.5, -0.3), 10 ** uniform(-0.7, 0.4), uniform(1, 150).long()
    noisy = torch.rand(count, len(train_y), generator=generator) < uniform(0, 0.6)[:, None]
    random = torch.randint(10, noisy.shape, generator=generator)
    labels = torch.where(noisy, random, train_y.expand(count, -1))
    parts = []
    for s in architecture.segments:
        scale = gain[:, None] * (2 / s.shape[1]) ** 0.5 if s.kind == "weight" else torch.zeros(count, 1)
        parts.append(scale * torch.randn(count, s.size, generator=generator))
    theta = torch.cat(parts, 1).requires_grad_()
    for step in range(int(steps.max())):
        rows = torch.randint(len(train_x), (128,), generator=generator)
        out = Networks(architecture, theta).evaluate(train_x[rows])
        loss = F.cross_entropy(out.flatten(0, 1), labels[:, rows].flatten(), reduction="none")
        (slope,) = torch.autograd.grad(loss.view(count, -1).mean(1).sum(), theta)
        with torch.no_grad():
            theta -= ((step < steps) * rate)[:, None] * slope.nan_to_num().clamp(-10, 10)
    networks = Networks(architecture, theta.detach())
    hits = (networks.evaluate(test_x).argmax(-1) == test_y).float().mean(1)
    return networks, hits


def zoo(path: Path, widths: tuple[int, ...], count: int, seed: int, splits: tuple[str, ...]) -> Zoo:
    """Such networks of several widths, in turns of the splits."""
    writer = ZooWriter(path, kind="mlp", arguments={"seed": seed})
    for width in widths:
        networks, accuracy = classifiers(width, count, seed + width)
        rows = {"test_accuracy": accuracy, "split": [splits[i % len(splits)] for i in range(count)]}
        writer.append(networks.architecture, networks.parameters, rows)
    writer.finish()
    return Zoo.open(path)


def main() -> None:
    """Print tau per width."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", type=int, default=200, help="per width, for training and validation")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--models", nargs="+", default=["scalegmn", "scalegmn-b", "gmn"])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        zoo(folder / "zoo", SEEN, arguments.networks, 0, ("train", "train", "train", "train", "val"))
        asked = {w: zoo(folder / f"ask{w}", (w,), 200, 1000, ("test",)) for w in sorted(SEEN + UNSEEN)}
        heads = [f"{w}{'' if w in SEEN else ' (unseen)'}" for w in asked]
        sys.stdout.write(f"| model | {' | '.join(heads)} |\n|---|{'---|' * len(asked)}\n")
        for model in arguments.models:
            trained = scalegmn.train(
                zoo=folder / "zoo",
                task={"name": "regression", "sigmoid": True},
                model={"name": model, "width": 32, "layers": 3},
                training={"epochs": arguments.epochs, "batch": 64, "lr": 2e-3, "schedule": "cosine", "device": "cpu"},
                out=folder / model,
                progress=Progress(model, quiet=True),
            )
            taus = [trained.evaluate(z, "test").metrics["tau"] for z in asked.values()]
            sys.stdout.write(f"| {model} | {' | '.join(f'{t:.3f}' for t in taus)} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
