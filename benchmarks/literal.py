"""Times and memory of ScaleGMN against the literal edge-list implementation in tests/oracle.py.

python benchmarks/literal.py [SECONDS]
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scalegmn.bench.scalegmn import Case, cases, measure, peak_mb, seconds_of, step_of
from scalegmn.core.networks import Networks
from scalegmn.native.memory import keep_memory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from oracle import Oracle


def measure_literal(case: Case, model: Any, read: Callable[[Networks], Any]) -> tuple[float, float | None]:
    """Seconds and megabytes of a literal step: of one on few networks, times what is missing to the batch."""
    few = min(4 if case.spec.layers <= 4 else 1, case.batch)
    step = step_of(model, case.networks(few), case.training, read)
    step()
    times: list[float] = []
    peak = peak_mb(lambda: times.append(seconds_of(step)))
    while len(times) < 3 and sum(times) < 2:
        times.append(seconds_of(step))
    share = case.batch / few
    return share * statistics.median(times), None if peak is None else share * peak


def main(seconds: float) -> None:
    keep_memory()
    columns = ("work", "h", "batch", "seconds", "times literal", "peak MB", "literal MB")
    sys.stdout.write(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|\n")
    for case in cases():
        model = case.build()
        row = measure(case, model, seconds)
        slow, peak = measure_literal(case, model, Oracle(model))
        memory = " | ".join("-" if n is None else f"{n:.0f}" for n in (row.peak_mb, peak))
        own = f"{row.seconds_per_step:.3f} | {slow / row.seconds_per_step:.1f}"
        sys.stdout.write(f"| {row.name} | {row.h} | {row.batch} | {own} | {memory} |\n")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
