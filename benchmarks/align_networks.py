"""The networks on which `align.py` measures: small classifiers of images, and sines that draw them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalegmn.core.networks import Networks
from scalegmn.zoo.images.collections import load_images

Row = dict[str, Any]
CLASSES = 10


def say(words: str) -> None:
    """One line on stderr: what is going on."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {words}\n")


class Sine(nn.Module):
    """sin(f x)."""

    def __init__(self, frequency: float = 1.0) -> None:
        super().__init__()
        self.frequency = frequency

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return torch.sin(self.frequency * x)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "sine": Sine}


class Residual(nn.Module):
    """Three blocks x + bn(conv(act(bn(conv x)))), the activation after the sum, then pooled and read."""

    def __init__(self, channels: int, width: int, act: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.stem, self.start = nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.first = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(3))
        self.norm1 = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(3))
        self.second = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(3))
        self.norm2 = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(3))
        self.act = act()
        self.read = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, C, H, W) to logits."""
        x = self.act(self.start(self.stem(x)))
        for conv1, bn1, conv2, bn2 in zip(self.first, self.norm1, self.second, self.norm2, strict=True):
            x = self.act(x + bn2(conv2(self.act(bn1(conv1(x))))))
        return self.read(x.mean((2, 3)))


@dataclass(frozen=True)
class Data:
    """Images and labels, in parts for training and test; and a folder that keeps what was trained on them."""

    name: str
    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    cache: Path | None = None
    only: str = ""  # a part of the names of families


@dataclass(frozen=True)
class Family:
    """A kind of network.

    Arguments:
        name: What it is called.
        make: An untrained one, of a width.
        width: Of those on which alignment is measured.
        flat: Whether it reads images as vectors.
        epochs: How long it is trained.
    """

    name: str
    make: Callable[[int], nn.Module]
    width: int
    flat: bool
    epochs: int

    def inputs(self, x: Tensor) -> Tensor:
        """Images in the shape that it reads."""
        return x.flatten(1) if self.flat else x


def load(images: str, root: Path | None, cache: Path | None = None, only: str = "", count: int = 2000) -> Data:
    """Images of a collection: the digits that come with scikit-learn, or others under `root`."""

    def part(split: str) -> tuple[Tensor, Tensor]:
        found = load_images(images, root, split)
        pixels = torch.from_numpy(found.pixels[:count]).float() / max(1, int(found.pixels.max()))
        pixels = pixels[:, None] if pixels.dim() == 3 else pixels.permute(0, 3, 1, 2)
        return 2 * pixels.contiguous() - 1, torch.from_numpy(found.labels[:count]).long()

    if images != "digits":
        return Data(images, *part("train"), *part("test"), cache, only)
    x, y = part("all")
    return Data(images, x[:1400], y[:1400], x[1400:], y[1400:], cache, only)


def families(data: Data) -> list[Family]:
    """MLPs, CNNs and residual CNNs with BatchNorm, with three activations each."""
    channels, pixels = data.x.shape[1], data.x[0].numel()
    found = []
    for name, act in ACTIVATIONS.items():

        def mlp(width: int, act: Callable[[], nn.Module] = act) -> nn.Module:
            return nn.Sequential(
                nn.Linear(pixels, width), act(), nn.Linear(width, width), act(), nn.Linear(width, CLASSES)
            )

        def cnn(width: int, act: Callable[[], nn.Module] = act) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(channels, width, 3, padding=1), act(), nn.AvgPool2d(2),
                nn.Conv2d(width, 2 * width, 3, padding=1), act(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                nn.Linear(2 * width, CLASSES),
            )  # fmt: skip

        def residual(width: int, act: Callable[[], nn.Module] = act) -> nn.Module:
            return Residual(channels, width, act)

        found += [
            Family(f"{name} MLP", mlp, 32, flat=True, epochs=20),
            Family(f"{name} CNN", cnn, 16, flat=False, epochs=24),
            Family(f"{name} residual CNN, BatchNorm", residual, 16, flat=False, epochs=6),
        ]
    return [family for family in found if data.only in family.name]


def vgg(data: Data) -> Family:
    """Pairs of convolutions with BatchNorm, pooled, then two linear layers: nothing but a chain."""
    channels = data.x.shape[1]

    def make(width: int) -> nn.Module:
        layers: list[nn.Module] = []
        for inputs, outputs in ((channels, width), (width, width), (width, 2 * width), (2 * width, 2 * width)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
            layers += [nn.MaxPool2d(2)] if inputs == outputs else []
        linear = [nn.Linear(2 * width, 2 * width), nn.ReLU(), nn.Linear(2 * width, CLASSES)]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), *linear)

    return Family("relu VGG, BatchNorm", make, 16, flat=False, epochs=6)


def train(module: nn.Module, family: Family, data: Data, seed: int, epochs: int | None = None) -> nn.Module:
    """Adam on cross-entropy; the module itself, in evaluation mode."""
    draw = torch.Generator().manual_seed(seed)
    x = family.inputs(data.x)
    optimiser = torch.optim.Adam(module.parameters(), lr=3e-3)
    module.train()
    for _ in range(family.epochs if epochs is None else epochs):
        for rows in torch.randperm(len(x), generator=draw).split(64):
            optimiser.zero_grad()
            F.cross_entropy(module(x[rows]), data.y[rows]).backward()
            optimiser.step()
    return module.eval()


_TRAINED: dict[str, nn.Module] = {}


def trained(family: Family, data: Data, seed: int, width: int | None = None, *, tuned: int = 0) -> nn.Module:
    """A network from a seed, trained once: what a process has trained, or finds in the cache, is not trained again.

    Arguments:
        family, data: What is trained on what.
        seed: Of the first weights and of the order of images.
        width: If not that of the family.
        tuned: Epochs of fine-tuning after that, in another order.
    """
    width = width or family.width
    key = f"{data.name} {family.name} {width} {family.epochs}+{tuned} {seed}"
    if key not in _TRAINED:
        torch.manual_seed(seed)
        module = family.make(width)
        path = None if data.cache is None else data.cache / f"{key.replace(' ', '_')}.pt"
        if path is not None and path.is_file():
            module.load_state_dict(torch.load(path))
        elif tuned:
            module = train(trained(family, data, seed, width), family, data, seed + 500, epochs=tuned)
        else:
            module = train(module, family, data, seed)
        if path is not None and not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            half = path.with_suffix(f".{os.getpid()}")
            torch.save(module.state_dict(), half)
            half.rename(path)
        _TRAINED[key] = module.eval()
    return deepcopy(_TRAINED[key])


def sirens(data: Data, count: int, steps: int = 300) -> Networks:
    """Sines 2-32-32-1 that draw one image each, fitted all at once."""
    modules = []
    for i in range(count):
        torch.manual_seed(i)
        siren = nn.Sequential(nn.Linear(2, 32), Sine(30), nn.Linear(32, 32), Sine(30), nn.Linear(32, 1))
        with torch.no_grad():
            for layer, fan in ((siren[0], 2), (siren[2], 32)):
                layer.weight.uniform_(-((6 / fan) ** 0.5) / 30, (6 / fan) ** 0.5 / 30)
        modules.append(siren)
    networks = Networks.from_modules(modules)
    height, width = data.x.shape[2:]
    grid = torch.cartesian_prod(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width))
    targets = data.x[:count, 0].flatten(1)[..., None]
    parameters = networks.parameters.clone().requires_grad_()
    optimiser = torch.optim.Adam([parameters], lr=1e-3)
    for _ in range(steps):
        optimiser.zero_grad()
        error = (networks.replace(parameters).evaluate(grid) - targets).square()
        error.mean((1, 2)).sum().backward()
        optimiser.step()
    return networks.replace(parameters.detach())
