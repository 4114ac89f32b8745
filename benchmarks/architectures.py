"""Which architectures convert, how exactly, and what a ScaleGMN of width 32 costs on each.

    python benchmarks/architectures.py

Errors are relative to the largest output, in float64, over two random networks: of `evaluate` against the modules, and
after a random symmetry with scales in [0.1, 10]. Seconds (processor time) and memory are those of one forward pass of a
ScaleGMN of 4 layers in float32 on one network, each in a process of its own.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from convert.gallery import GALLERY, GPT, Basic, Example, ViT, build, conv_bn

from scalegmn.core.networks import Networks
from scalegmn.core.transform import Transform
from scalegmn.models.scalegmn import ScaleGMN
from scalegmn.testing import relative_error


def resnet18() -> nn.Module:
    """The ResNet-18 for images of 224 x 224."""
    blocks = [Basic(64, 64, 1), Basic(64, 64, 1)]
    for size in (128, 256, 512):
        blocks += [Basic(size // 2, size, 2), Basic(size, size, 1)]
    stem = [*conv_bn(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


LARGE = {
    "ResNet-18, full size": Example(resnet18, (3, 64, 64)),
    "ViT, 192 channels, 3 heads": Example(lambda: ViT(192, 3, 9), (1, 12, 12)),
    "GPT, 128 channels, 4 heads": Example(lambda: GPT(256, 64, 128, 4), (16,), last=True, tokens=256),
}


def measure(example: Example, large: bool) -> dict[str, object]:
    """One row of the table."""
    torch.set_num_threads(1)
    began = time.process_time()
    modules = build(example, 1 if large else 2)
    networks = Networks.from_modules(modules)
    converted = time.process_time() - began
    generator = torch.Generator().manual_seed(0)
    x = example.inputs(3, generator)
    expected, inputs = example.answers(modules, x), example.moved(x)
    moved = Transform.sample(networks.architecture, len(networks), generator).apply(networks)
    errors = [relative_error(n.evaluate(inputs), expected).max().item() for n in (networks, moved)]
    single = networks[:1].to(dtype=torch.float32)
    del modules, networks, moved
    model = ScaleGMN([single.architecture], 1, width=32).eval()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with torch.no_grad():
        model(single)
        began = time.process_time()
        model(single)
        seconds = time.process_time() - began
    memory = max(0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    a = single.architecture
    return {"parameters": a.parameters, "layers": len(a.layers), "convert": converted, "evaluate": errors[0],
            "moved": errors[1], "seconds": seconds, "memory": memory}  # fmt: skip


def apart(run: Callable[[], dict[str, object]]) -> dict[str, object]:
    """A measurement in a process of its own."""
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            found: dict[str, object] = run()
        except Exception as error:
            found = {"error": str(error)}
        os.write(write, json.dumps(found).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        found = json.loads(pipe.read())
    os.wait()
    return found


def main() -> None:
    """Print the table."""
    out = sys.stdout.write
    out("| architecture | parameters | converts | evaluate | after a symmetry | seconds | MB |\n")
    out("|---|---|---|---|---|---|---|\n")
    for name, example in {**GALLERY, **LARGE}.items():
        found = apart(lambda example=example, name=name: measure(example, name in LARGE))  # type: ignore[misc]
        if "error" in found:
            out(f"| {name} | | no: {found['error']} | | | | |\n")
            continue
        out(
            f"| {name} | {found['parameters']:,} | yes | {found['evaluate']:.0e} | {found['moved']:.0e} | "
            f"{found['seconds']:.2f} | {found['memory']:.0f} |\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
