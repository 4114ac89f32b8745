"""What torch.compile costs and brings: warm-up, then training steps in turns with the kernels and without either.

    python benchmarks/compiled.py
"""

from __future__ import annotations

import statistics
import sys
import time

from scalegmn.bench.scalegmn import Case, siren
from scalegmn.models.heads import Classifier
from scalegmn.models.scalegmn import ScaleGMNSpec, ScaleGMNTrunk
from scalegmn.native import library
from scalegmn.native.memory import keep_memory

WIDTH, BATCH, ROUNDS = 64, 32, 5


def seconds(model: Classifier, case: Case, batch: int = BATCH) -> float:
    """Time of one training step."""
    networks = case.networks(batch)
    began = time.perf_counter()
    model(networks).square().mean().backward()
    model.zero_grad()
    return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    keep_memory()
    case = Case("forward", (siren(),), BATCH, ScaleGMNSpec(WIDTH, readout="output"))
    model, compiled = case.build(), case.build()
    assert isinstance(model, Classifier)
    assert isinstance(compiled, Classifier)
    assert isinstance(compiled.trunk, ScaleGMNTrunk)
    compiled.trunk.body.compile_layers()
    warm, other = seconds(compiled, case), seconds(compiled, case, BATCH // 2)
    sys.stdout.write(f"first compiled step {warm:.1f} s, first step of another batch size {other:.2f} s\n")
    seconds(model, case)
    times: dict[str, list[float]] = {"kernels": [], "plain torch": [], "compiled": []}
    for _ in range(ROUNDS):
        times["kernels"].append(seconds(model, case))
        with library.disabled():
            times["plain torch"].append(seconds(model, case))
        times["compiled"].append(seconds(compiled, case))
    for name, values in times.items():
        sys.stdout.write(f"{name:12s} {statistics.median(values):.3f} s per step\n")


if __name__ == "__main__":
    main()
