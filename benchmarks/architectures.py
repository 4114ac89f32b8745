"""Which architectures convert, how exactly, and what a ScaleGMN of width 32 costs on each.

    python benchmarks/architectures.py          # all of them, on one thread
    python benchmarks/architectures.py --clock  # training steps on the large ones, on all threads of a quiet machine

Errors are relative to the largest output, in float64, over two random networks: of `evaluate` against the modules, and
after a random symmetry with scales in [0.1, 10]. Seconds and memory are those of one forward pass of a ScaleGMN of 4
layers in float32 on one network, the best of three; seconds are the processor's, with `--clock` those of the clock.
Each architecture has a process of its own; before a pass it gives back what it does not use and forgets its peak
(Linux), so that the difference is that of the pass alone.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
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


def measure(example: Example, large: bool, clock: bool) -> dict[str, float]:
    """One row of the table."""
    if not clock:
        torch.set_num_threads(1)
    now = time.perf_counter if clock else time.process_time
    modules = build(example, 1 if large else 2)
    began = now()
    networks = Networks.from_modules(modules)
    converted = now() - began
    generator = torch.Generator().manual_seed(0)
    x = example.inputs(3, generator)
    expected, inputs = example.answers(modules, x), example.moved(x)
    moved = Transform.sample(networks.architecture, len(networks), generator).apply(networks)
    errors = [relative_error(n.evaluate(inputs), expected).max().item() for n in (networks, moved)]
    single = networks[:1].to(dtype=torch.float32)
    del modules, networks, moved
    model = ScaleGMN([single.architecture], 1, width=32)
    count = single.architecture.parameters
    found = {"parameters": count, "convert": converted, "evaluate": errors[0], "moved": errors[1]}

    def forward() -> None:
        with torch.no_grad():
            model.eval()(single)

    found["seconds"], found["memory"], found["peak"] = cost(forward, now)
    if clock:
        optimiser = torch.optim.Adam(model.parameters())

        def step() -> None:
            optimiser.zero_grad()
            model.train()(single).square().sum().backward()
            optimiser.step()

        found["step"], found["step_memory"], found["step_peak"] = cost(step, now)
    return found


def cost(run: Callable[[], None], now: Callable[[], float]) -> tuple[float, float, float]:
    """Seconds of the best of three runs; megabytes beyond what was held before, and of the whole process."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what is held now
    before, seconds = status("VmRSS"), []
    for _ in range(3):
        began = now()
        run()
        seconds.append(now() - began)
    return min(seconds), status("VmHWM") - before, status("VmHWM")


def status(name: str) -> float:
    """A line of this process's status, in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


def apart(run: Callable[[], dict[str, float]]) -> dict[str, object]:
    """A measurement in a process of its own."""
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            found: dict[str, object] = dict(run())
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
    """Print a table."""
    parser = argparse.ArgumentParser(description="Which architectures convert, and what a ScaleGMN costs on each")
    parser.add_argument("--clock", action="store_true", help="training steps on the large ones, by the clock")
    clock, out = parser.parse_args().clock, sys.stdout.write
    if clock:
        out("| architecture | convert (s) | forward (s) | MB | of process | training step (s) | MB | of process |\n")
        out("|---|---|---|---|---|---|---|---|\n")
    else:
        out("| architecture | parameters | converts | evaluate | after a symmetry | seconds | MB |\n")
        out("|---|---|---|---|---|---|---|\n")
    for name, example in (LARGE if clock else {**GALLERY, **LARGE}).items():
        found = apart(lambda example=example, name=name: measure(example, name in LARGE, clock))  # type: ignore[misc]
        if "error" in found:
            out(f"| {name} | | no: {found['error']} | | | | |\n")
        elif clock:
            out(
                f"| {name} | {found['convert']:.1f} | {found['seconds']:.2f} | {found['memory']:.0f} | "
                f"{found['peak']:.0f} | {found['step']:.2f} | {found['step_memory']:.0f} | {found['step_peak']:.0f} |\n"
            )
        else:
            out(
                f"| {name} | {found['parameters']:,} | yes | {found['evaluate']:.0e} | {found['moved']:.0e} | "
                f"{found['seconds']:.2f} | {found['memory']:.0f} |\n"
            )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
