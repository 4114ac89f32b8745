"""The progress bar of long builds: how many networks, how fast, how good, how long still."""

from __future__ import annotations

import time
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING

from .console import stderr

if TYPE_CHECKING:
    from torch import Tensor


class BuildProgress:
    """Reports networks as they are made, on stderr where it is a terminal; counts everywhere.

    Arguments:
        metric: What the numbers mean, such as `PSNR`.
        unit: Of the metric.
    """

    def __init__(self, metric: str, unit: str = "") -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self.made = 0
        self._sum = 0.0
        self._metric, self._unit = metric, unit
        self._started = time.perf_counter()
        console = stderr()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[quality]}"),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("networks", total=None, quality="")

    def __enter__(self) -> BuildProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, done: int, total: int, values: Tensor) -> None:
        """Take in that `done` of `total` networks exist, the last ones with these metrics (n,)."""
        if not len(values):
            # What an earlier run made must not count as speed.
            self._started = time.perf_counter()
            self._bar.reset(self._task, total=total, completed=done)
            return
        self.made += len(values)
        self._sum += float(values.double().nan_to_num(posinf=0.0).sum())
        seconds = (total - done) * (time.perf_counter() - self._started) / self.made
        left = str(timedelta(seconds=round(seconds)))
        self._bar.update(self._task, total=total, completed=done, quality=f"{self.line()}, {left} left")

    def line(self) -> str:
        """Networks a second and the mean metric of what this run made; nothing where it made none."""
        if not self.made:
            return ""
        rate = self.made / max(time.perf_counter() - self._started, 1e-9)
        return f"{rate:.3g} networks/s, mean {self._metric} {self._sum / self.made:.3g}{self._unit}"
