"""Small zoos for tests, made by the real code: SIRENs of 8x8 digits, and random networks of two architectures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

from scalegmn.core.activations import activation
from scalegmn.core.architecture import Architecture, Connection, Layer
from scalegmn.zoo.inr.canvas import Canvas
from scalegmn.zoo.inr.conventions import Fit
from scalegmn.zoo.inr.fit import fit_inrs
from scalegmn.zoo.store.writer import ZooWriter
from scalegmn.zoo.store.zoo import Zoo


def siren(hidden: int = 8) -> Architecture:
    """The architecture of the digits' INRs: 2-h-h-1, frequency 30, and 0.5 on the output."""
    act = activation("sine", 30.0)
    layers = (Layer(2, bias=False), Layer(hidden, act), Layer(hidden, act), Layer(1, offset=0.5))
    return Architecture(layers, tuple(Connection(i, i + 1) for i in range(3)))


def splits(count: int) -> list[str]:
    """Six tenths for training, two for validation, two for the test."""
    return [("train", "train", "train", "val", "test")[i % 5] for i in range(count)]


def digits_zoo(path: Path, *, count: int = 80, hidden: int = 8, steps: int = 60) -> Zoo:
    """SIRENs of the digits 0, 1 and 2."""
    digits = load_digits()
    chosen = np.flatnonzero(digits.target < 3)[:count]
    images = torch.from_numpy((digits.images[chosen] * 15.9375).round().astype(np.uint8))[..., None]
    canvas = Canvas("dws", 8, 8, 1)
    fitted = fit_inrs(canvas.values(images), canvas.grid(), Fit(hidden=(hidden, hidden), steps=steps), threads=1)
    writer = ZooWriter(path, kind="inr", arguments={"seed": 0}, canvas=canvas)
    columns = {
        "label": torch.from_numpy(digits.target[chosen]),
        "psnr": fitted.psnr,
        "image": torch.arange(count),
        "parity": ["odd" if label % 2 else "even" for label in digits.target[chosen]],
        "split": splits(count),
    }
    writer.append(siren(hidden), fitted.parameters, columns)
    writer.finish(images=images)
    return Zoo.open(path)


def mixed_zoo(path: Path, *, count: int = 60) -> Zoo:
    """Random perceptrons of two architectures whose `score` is a function of their last bias."""
    generator = torch.Generator().manual_seed(0)
    writer = ZooWriter(path, kind="mixed", arguments={"seed": 0})
    for hidden in ("relu", "tanh"):
        architecture = Architecture.mlp([2, 6, 1], hidden)
        rows = torch.randn(count // 2, architecture.parameters, generator=generator)
        writer.append(architecture, rows, {"score": rows[:, -1].sigmoid(), "split": splits(count // 2)})
    writer.finish()
    return Zoo.open(path)
