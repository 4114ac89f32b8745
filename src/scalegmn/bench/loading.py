"""How fast a zoo serves batches."""

from __future__ import annotations

import tempfile
import time

import torch

from ..zoo.inr.build import inr_architecture
from ..zoo.inr.conventions import inr
from ..zoo.store.writer import ZooWriter
from ..zoo.store.zoo import Zoo

_SHARD, _SHARDS, _EPOCHS = 1024, 16, 3


def batches_per_second(batch_size: int = 128) -> float:
    """Batches a second from a zoo of 16,384 random 2-32-32-1 networks, in random order; the best of three passes.

    Arguments:
        batch_size: Networks in a batch.
    """
    architecture = inr_architecture(inr(1))
    generator = torch.Generator().manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        writer = ZooWriter(folder, kind="speed", arguments={})
        for _ in range(_SHARDS):
            rows = torch.randn(_SHARD, architecture.parameters, generator=generator)
            writer.append(architecture, rows, {"split": ["train"] * _SHARD})
        writer.finish()
        zoo = Zoo.open(folder)
        return max(_pass(zoo, batch_size, epoch) for epoch in range(_EPOCHS))


def _pass(zoo: Zoo, batch_size: int, epoch: int) -> float:
    started = time.perf_counter()
    count = sum(1 for _ in zoo.loader("train", batch_size, shuffle=True, epoch=epoch))
    return count / (time.perf_counter() - started)
