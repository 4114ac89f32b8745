"""Processor time of a training step of every model, per network, relative to ScaleGMN at equal width.

    python benchmarks/peers.py
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
from torch import nn

from scalegmn.bench.scalegmn import siren
from scalegmn.core.networks import Networks
from scalegmn.models.registry import METHODS
from scalegmn.native.memory import keep_memory

WIDTH, BATCH, ROUNDS = 64, 32, 4


def seconds(model: nn.Module, networks: Networks) -> float:
    """Processor time of one training step."""
    began = time.process_time()
    model(networks).square().mean().backward()
    model.zero_grad()
    return time.process_time() - began


def main() -> None:
    """Measure all models in turns, so that a busy machine disturbs all of them alike."""
    torch.set_num_threads(1)
    keep_memory()
    architecture = siren()
    networks = Networks(architecture, 0.05 * torch.randn(BATCH, architecture.parameters))
    models: dict[str, nn.Module] = {}
    for method in METHODS.values():
        options = {"width": WIDTH, **({"pretraining": 1} if method.name == "inr2vec" else {})}
        model = method([architecture], 10, **options)
        model.prepare([networks])
        model.train()
        seconds(model, networks)
        models[method.name] = model
    turns = [{name: seconds(model, networks) for name, model in models.items()} for _ in range(ROUNDS)]
    medians = {name: statistics.median(turn[name] for turn in turns) for name in models}
    for name, value in sorted(medians.items(), key=lambda item: item[1]):
        milliseconds, ratio = 1000 * value / BATCH, value / medians["scalegmn"]
        sys.stdout.write(f"{name:14s} {milliseconds:7.2f} ms per network, {ratio:5.2f} of scalegmn\n")


if __name__ == "__main__":
    main()
