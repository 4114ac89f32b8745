"""How the cost of a training step grows with the number of edges and with the batch: a plot and two slopes.

    python benchmarks/scaling.py docs/scaling.png
"""

from __future__ import annotations

import math
import statistics
import sys
import time

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

from scalegmn.models.bench import edges, keep_memory, siren
from scalegmn.models.scalegmn import ScaleGMN
from scalegmn.networks import Networks


def seconds_per_step(width: int, batch: int, h: int, repeats: int = 3) -> float:
    """The median time of a training step on SIRENs with two hidden layers of `width` neurons."""
    architecture = siren(width, 3)
    model = ScaleGMN([architecture], 10, width=h, layers=4, readout="output")
    networks = Networks(architecture, 0.05 * torch.randn(batch, architecture.parameters))
    found = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        model(networks).square().mean().backward()
        model.zero_grad(set_to_none=True)
        found.append(time.perf_counter() - start)
    return statistics.median(found[1:])


def slope(x: list[float], y: list[float]) -> float:
    """The slope of log y over log x by least squares."""
    a, b = [math.log(v) for v in x], [math.log(v) for v in y]
    mean_a, mean_b = statistics.mean(a), statistics.mean(b)
    return sum((p - mean_a) * (q - mean_b) for p, q in zip(a, b, strict=True)) / sum((p - mean_a) ** 2 for p in a)


def main(target: str) -> None:
    """Measure, plot and print."""
    keep_memory()
    h = 32
    widths = [16, 32, 64, 128, 256, 512]
    # Enough networks at every width that the fixed cost of a step does not show: about 150,000 edges.
    batches = [max(1, round(150_000 / edges(siren(w, 3)))) for w in widths]
    per_network = [seconds_per_step(w, b, h) / b for w, b in zip(widths, batches, strict=True)]
    sizes = [float(edges(siren(w, 3))) for w in widths]
    counts = [32, 64, 128, 256, 512]
    per_batch = [seconds_per_step(32, b, h) for b in counts]
    sys.stdout.write(f"slope over edges {slope(sizes, per_network):.3f}, over batch {slope(counts, per_batch):.3f}\n")
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    left.loglog(sizes, [1e3 * t for t in per_network], "o-")
    left.set(xlabel="edges of a network (width 16 to 512)", ylabel="ms per network and training step")
    right.loglog(counts, [1e3 * t for t in per_batch], "o-")
    right.set(xlabel="networks in a batch (2-32-32-3)", ylabel="ms per training step")
    figure.savefig(target, dpi=120)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "scaling.png")
