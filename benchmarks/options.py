"""What cheaper options save: a training step of width 64 with and without them, in turns.

    python benchmarks/options.py
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import torch
from torch import Tensor, nn

from scalegmn.bench.scalegmn import siren
from scalegmn.core.networks import Networks
from scalegmn.models.heads import Editor
from scalegmn.models.scalegmn import ScaleGMN
from scalegmn.native.memory import keep_memory
from scalegmn.testing import random_networks

CHOICES: dict[str, dict[str, Any]] = {
    "as in the paper": {},
    "gate 16": {"gate": 16},
    "no edge updates": {"edge_updates": False},
    "both": {"gate": 16, "edge_updates": False},
}
# Of the forward variant: layers take turns.
TURNS: dict[str, dict[str, Any]] = {
    "both, in turn": {"gate": 16, "edge_updates": False, "order": "in_turn"},
    "both, in turn, 256 hidden": {"gate": 16, "edge_updates": False, "order": "in_turn", "hidden": 256},
    "activations": {"edge_updates": False, "order": "in_turn", "messages": "activations"},
}


def loss(model: nn.Module, networks: Networks) -> Tensor:
    """Something with a gradient."""
    y = model(networks)
    found: Tensor = (y.parameters if isinstance(y, Networks) else y).square().mean()
    return found


def main() -> None:
    """Print milliseconds per step."""
    keep_memory()
    a, turns = siren(), 6
    networks = random_networks(a, 32, dtype=torch.float32)
    models: dict[str, nn.Module] = {}
    for flow in ("none", "shared"):
        for name, options in (CHOICES | (TURNS if flow == "none" else {})).items():
            shared: dict[str, Any] = {"width": 64, "layers": 3, "backward": flow, **options}
            models[f"classifier, {flow}, {name}"] = ScaleGMN([a], 10, readout="output", **shared)
            models[f"editor, {flow}, {name}"] = Editor(ScaleGMN([a], **shared))
    found: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(turns):
        for name, model in models.items():
            start = time.perf_counter()
            loss(model, networks).backward()
            model.zero_grad(set_to_none=True)
            found[name].append(time.perf_counter() - start)
    for name in sorted(found):
        sys.stdout.write(f"{name}: {1e3 * statistics.median(found[name][1:]):.0f} ms\n")


if __name__ == "__main__":
    main()
