"""How the cost of a training step grows with the number of edges and with the batch: a plot, two slopes and a peak.

    python benchmarks/scaling.py docs/scaling.png
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

from scalegmn.bench.scalegmn import edges, peak_mb, siren
from scalegmn.core.networks import Networks
from scalegmn.models.scalegmn import ScaleGMN
from scalegmn.native.memory import keep_memory


def seconds_per_step(width: int, batch: int, h: int, repeats: int = 3) -> float:
    """The median time of a training step on SIRENs with two hidden layers of `width` neurons."""
    step = training_step(width, batch, h)
    found = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        step()
        found.append(time.perf_counter() - start)
    return statistics.median(found[1:])


def training_step(width: int, batch: int, h: int) -> Callable[[], None]:
    """A training step of the forward variant on 2-width-width-3 SIRENs."""
    architecture = siren(width, 3)
    model = ScaleGMN([architecture], 10, width=h, layers=4, readout="output")
    networks = Networks(architecture, 0.05 * torch.randn(batch, architecture.parameters))

    def step() -> None:
        model(networks).square().mean().backward()
        model.zero_grad(set_to_none=True)

    return step


def slope(x: list[float], y: list[float]) -> float:
    """The slope of log y over log x by least squares."""
    a, b = [math.log(v) for v in x], [math.log(v) for v in y]
    mean_a, mean_b = statistics.mean(a), statistics.mean(b)
    return sum((p - mean_a) * (q - mean_b) for p, q in zip(a, b, strict=True)) / sum((p - mean_a) ** 2 for p in a)


def main(target: str) -> None:
    """Measure, plot and print."""
    keep_memory()
    h = 64
    widths = [16, 32, 64, 128, 256, 512]
    # Enough networks at every width that the fixed cost of a step does not show, and an even number of them, since
    # threads share out whole networks.
    batches = [2 * max(1, round(75_000 / edges(siren(w, 3)))) for w in widths]
    per_network = [seconds_per_step(w, b, h) / b for w, b in zip(widths, batches, strict=True)]
    sizes = [float(edges(siren(w, 3))) for w in widths]
    counts = [32, 64, 128, 256, 512]
    per_batch = [seconds_per_step(32, b, h) for b in counts]
    sys.stdout.write(f"slope over edges {slope(sizes, per_network):.3f}, over batch {slope(counts, per_batch):.3f}\n")
    training_step(16, 1, h)()
    peak = peak_mb(training_step(512, 4, h))
    sys.stdout.write(f"2-512-512-3 at h = {h}, batch 4: peak {peak:.0f} MB\n")
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    left.loglog(sizes, [1e3 * t for t in per_network], "o-")
    left.set(xlabel="edges of a network (width 16 to 512)", ylabel="ms per network and training step")
    right.loglog(counts, [1e3 * t for t in per_batch], "o-")
    right.set(xlabel="networks in a batch (2-32-32-3)", ylabel="ms per training step")
    right.set_xticks(counts, [str(c) for c in counts], minor=False)
    right.tick_params(axis="x", which="minor", labelbottom=False)
    figure.savefig(target, dpi=120)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "scaling.png")
