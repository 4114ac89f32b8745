"""How long alignment takes: large networks, many small ones, a folder of files."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from align_find import disguise, noisy
from align_networks import Row, say

from scalegmn.alignment.align import align
from scalegmn.core.activations import activation
from scalegmn.core.architecture import Architecture
from scalegmn.core.networks import Networks
from scalegmn.testing import random_networks


def timed(f: Callable[[], Any]) -> tuple[float, float]:
    """Seconds on the clock and of the processor."""
    wall, processor = time.perf_counter(), time.process_time()
    f()
    return time.perf_counter() - wall, time.process_time() - processor


def speed_part(quick: bool) -> list[Row]:
    """Large networks, many small ones, and a folder."""
    from scalegmn.cli.networks.dedupe import search

    draw = torch.Generator().manual_seed(4)
    siren = Architecture.mlp([2, 32, 32, 1], activation("sine", 30.0))
    large = Architecture.mlp([784, 700, 512, 256, 10])
    rows = []
    for name, a, count in (("a million parameters", large, 1), ("SIREN pairs", siren, 100 if quick else 1000)):
        say(f"speed: {name}")
        one, two = (random_networks(a, count, generator=draw, dtype=torch.float32) for _ in range(2))
        changed = noisy(one, 0.1, draw)
        kinds = {"copies": disguise(one, draw)[0], "10 % noise": disguise(changed, draw)[0], "unrelated": two}
        for kind, other in kinds.items():
            wall, processor = timed(lambda one=one, other=other: align(one, other))  # type: ignore[misc]
            rows.append({"what": f"align {count} x {name}, {kind}", "seconds": wall, "processor seconds": processor})
    count = 500 if quick else 10_000
    say(f"speed: dedupe of {count} files")
    base = random_networks(siren, count * 8 // 10, generator=draw, dtype=torch.float32)
    copied, near = base[: count // 10], base[count // 10 : count // 5]
    everything = Networks.cat([base, disguise(copied, draw)[0], disguise(noisy(near, 0.05, draw), draw)[0]])
    with tempfile.TemporaryDirectory() as folder:
        everything.to_files([Path(folder) / f"{i:05d}.pt" for i in range(count)])
        answer: Row = {}
        wall, processor = timed(
            lambda: answer.update(search(Path(folder), [], activation("sine", 30.0), 0.35))
        )
    kinds_found = [g["kind"] for g in answer["groups"]]
    rows.append(
        {
            "what": f"dedupe of {count} SIREN files: {kinds_found.count('same')} of {count // 10} copies, "
            f"{kinds_found.count('near')} of {count // 10} near, {answer['compared']} pairs compared",
            "seconds": wall,
            "processor seconds": processor,
        }
    )
    return rows
