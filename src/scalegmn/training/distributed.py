"""One process or several: which one writes, what each reads, and how they exchange values."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import ScaleGMNError

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """The processes that train one model together.

    Arguments:
        rank: The number of this process.
        size: How many there are.
        device: Where this process computes.

    >>> World(0, 1, torch.device("cpu")).once(lambda: 3)
    3
    """

    rank: int
    size: int
    device: torch.device

    @property
    def main(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def once(self, action: Callable[[], T]) -> T:
        """Do something in the main process only; all processes get its result, or its error."""
        if self.size == 1:
            return action()
        box: list[Any] = [None, None]
        if self.main:
            try:
                box = [action(), None]
            except ScaleGMNError as error:
                box = [None, str(error)]
        dist.broadcast_object_list(box)
        result, complaint = box
        if complaint is not None:
            raise ScaleGMNError(complaint)
        found: T = result
        return found

    def part(self, indices: Tensor) -> Tensor:
        """This process's share of some indices, dealt out in turns."""
        return indices[self.rank :: self.size]

    def join(self, mine: Tensor, total: int) -> Tensor:
        """Join what the processes computed for their parts of `total` rows.

        Arguments:
            mine: On the CPU, one row for each index of `part`.
            total: The number of rows of all processes.
        """
        if self.size == 1:
            return mine
        pieces: list[Any] = [None] * self.size
        dist.all_gather_object(pieces, mine)
        whole = mine.new_empty(total, *mine.shape[1:])
        for rank, piece in enumerate(pieces):
            whole[rank :: self.size] = piece
        return whole

    def mean(self, value: Tensor) -> float:
        """The mean of a scalar over all processes."""
        if self.size > 1:
            value = value.detach().clone()
            dist.all_reduce(value)
            value /= self.size
        return float(value.detach())

    def total(self, value: float) -> float:
        """The sum over all processes."""
        if self.size == 1:
            return value
        pieces: list[Any] = [None] * self.size
        dist.all_gather_object(pieces, value)
        return float(sum(pieces))


@contextmanager
def world(device: str = "auto") -> Iterator[World]:
    """Join the processes that torchrun started; without torchrun, a single process.

    Arguments:
        device: As torch names it; `auto` takes a GPU if there is one.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0")) if size > 1 else 0
    where = _device(device, int(os.environ.get("LOCAL_RANK", "0")) if size > 1 else 0)
    if size == 1:
        yield World(rank, size, where)
        return
    if where.type == "cuda":
        torch.cuda.set_device(where)
    dist.init_process_group("nccl" if where.type == "cuda" else "gloo")
    try:
        yield World(rank, size, where)
        # Nobody leaves while another still talks to it: a process that ends in the middle of that takes the other down.
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _device(name: str, local_rank: int) -> torch.device:
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", local_rank)
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        if torch.empty(0, device=device).is_meta:
            raise RuntimeError("tensors there have no data")
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ScaleGMNError(f"device: cannot use {name!r} ({reason}); expected auto, cpu, cuda or mps") from None
    return device
