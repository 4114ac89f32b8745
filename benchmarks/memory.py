"""What `checkpointing` saves: memory and time of training steps on large networks and large batches, in turns.

    python benchmarks/memory.py
"""

from __future__ import annotations

import sys
from dataclasses import replace

from torch import nn

from scalegmn.bench.scalegmn import Case, Turns, cases, in_turns, siren
from scalegmn.core.networks import Networks
from scalegmn.models.scalegmn import ScaleGMNSpec


def lenet() -> nn.Module:
    """LeNet-5 (LeCun et al., 1998) with ReLU and average pooling, 61,706 parameters."""
    features = [nn.Conv2d(1, 6, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.AvgPool2d(2)]
    dense = [nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    return nn.Sequential(*features, nn.Flatten(), *dense)


def works() -> list[Case]:
    """Training steps that need gigabytes."""
    h64 = ScaleGMNSpec(64, readout="output")
    large = (Networks.from_modules([lenet()]).architecture,)
    return [
        Case("LeNets, 61,706 parameters", large, 32, h64),
        replace(cases()[-1], name="editing, 10 iterations, bidirectional"),
        Case("SIRENs 2-512-512-3", (siren(512, 3),), 4, h64),
    ]


def main() -> None:
    """Print a table in Markdown."""
    heads = "work | h | batch | MB | with `checkpointing` | seconds | with `checkpointing`"
    sys.stdout.write(f"| {heads} |\n|{'---|' * 7}\n")
    for case in works():
        both = [Turns(replace(case, spec=replace(case.spec, checkpointing=on))) for on in (True, False)]
        for _ in in_turns(both, 10.0):
            pass
        more, less = (turns.row() for turns in both)
        cells = [f"{less.peak_mb:.0f}", f"{more.peak_mb:.0f}", f"{less.seconds_per_step:.2f}"]
        words = [case.name, str(case.width), str(case.batch), *cells, f"{more.seconds_per_step:.2f}"]
        sys.stdout.write(f"| {' | '.join(words)} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
