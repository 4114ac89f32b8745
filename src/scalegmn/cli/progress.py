"""Progress bars, also for long builds: number of networks, speed, quality, remaining time."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from .console import stderr

if TYPE_CHECKING:
    from rich.progress import ProgressColumn
    from torch import Tensor


class Bar:
    """A progress bar on stderr, if that is a terminal; it is removed at the end.

    Arguments:
        columns: Columns of rich after the description and the bar.
    """

    def __init__(self, *columns: ProgressColumn) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        console = stderr()
        silent = not console.is_terminal
        first = TextColumn("{task.description}")
        self.bar = Progress(first, BarColumn(), *columns, console=console, disable=silent, transient=True)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()


class BuildProgress(Bar):
    """Reports networks as they are made, on stderr if it is a terminal; counts them in any case.

    Arguments:
        metric: What the numbers mean, such as `PSNR`.
        unit: Of the metric.
    """

    def __init__(self, metric: str, unit: str = "") -> None:
        from rich.progress import MofNCompleteColumn, TextColumn

        super().__init__(MofNCompleteColumn(), TextColumn("{task.fields[quality]}"))
        self.made = 0
        self._sum = 0.0
        self._metric, self._unit = metric, unit
        self._started = time.perf_counter()
        self._task = self.bar.add_task("networks", total=None, quality="")

    def __call__(self, done: int, total: int, values: Tensor) -> None:
        """Record that `done` of `total` networks exist, the last ones with these metrics (n,)."""
        if not len(values):
            # What an earlier run made must not count as speed.
            self._started = time.perf_counter()
            self.bar.reset(self._task, total=total, completed=done)
            return
        self.made += len(values)
        self._sum += float(values.double().nan_to_num(posinf=0.0).sum())
        seconds = (total - done) * (time.perf_counter() - self._started) / self.made
        left = str(timedelta(seconds=round(seconds)))
        self.bar.update(self._task, total=total, completed=done, quality=f"{self.line()}, {left} left")

    def line(self) -> str:
        """Networks per second and their mean metric in this run; empty if there are none."""
        if not self.made:
            return ""
        rate = self.made / max(time.perf_counter() - self._started, 1e-9)
        return f"{rate:.3g} networks/s, mean {self._metric} {self._sum / self.made:.3g}{self._unit}"
