"""What the tests of CNN zoos share: images that are easy to learn, plain hyperparameters, the bytes of a directory."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from scalegmn.zoo.cnn.recipe import Settings
from scalegmn.zoo.images.collections import Images


def stripes(count: int = 400, side: int = 16, *, test: int = 100) -> Images:
    """Ten classes of stripes, of different width and direction, at a random phase: easy to learn."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, count)
    angle, phase = labels * np.pi / 10, rng.uniform(0, 2 * np.pi, count)
    y, x = np.mgrid[:side, :side]
    wave = np.cos(angle)[:, None, None] * x + np.sin(angle)[:, None, None] * y
    pixels = np.uint8(np.rint(127.5 * (1 + np.sin(wave * 1.3 + phase[:, None, None]))))
    return Images("stripes", pixels, labels, np.arange(count) < test)


def hashes(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file."""
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def settings(**changes: object) -> Settings:
    """Five steps of gradient descent and nothing else, up to the changes."""
    plain = Settings("sgd", 0.1, 0.0, 0.0, 1.0, "he_normal", 0.1, "zeros", 0.1, 5)
    return Settings(**{**vars(plain), **changes})  # type: ignore[arg-type]
