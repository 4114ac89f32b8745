"""Progress of training: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar


class Progress:
    """Shows epoch, loss, metrics, networks per second and the time left, on stderr.

    Use it as a context manager. A line is written for each validation; below them, a terminal shows a progress bar and
    a notebook a line of text.

    Arguments:
        label: What is trained.
        quiet: Whether to show nothing at all.
        file: Where to write; stderr if omitted.
    """

    def __init__(self, label: str, *, quiet: bool = False, file: TextIO | None = None) -> None:
        self.console = Console(file=file or sys.stderr, highlight=False, quiet=quiet, soft_wrap=True)
        self.label = label
        self.bar: Bar | None = None
        self.total = 0
        self.epoch_steps = 1
        self._began: tuple[float, int] | None = None
        # A notebook shows what is written to stderr, where a carriage return begins a line anew.
        self._notebook = "ipykernel" in sys.modules and not quiet
        self._drawn = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def begin(self, total: int, step: int, epoch_steps: int) -> None:
        """Training begins at `step` and ends at `total`."""
        self.total, self.epoch_steps = total, epoch_steps
        self._began = (time.perf_counter(), 0)
        if self.console.is_terminal and not self.console.quiet:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self.bar = Bar(*columns, TextColumn("{task.fields[rate]}"), console=self.console, transient=True)
            self.bar.start()
            self.bar.add_task(self.label, total=total, completed=step, rate="")

    def step(self, step: int, networks: int) -> None:
        """One step was done.

        Arguments:
            step: Steps done.
            networks: Of this step.
        """
        now = time.perf_counter()
        start, seen = self._began or (now, 0)
        self._began = (start, seen + networks)
        if self.bar is not None:
            rate = f"{self.rate:,.0f} networks/s"
            epoch = f"{self.label} epoch {step / self.epoch_steps:.1f}"
            self.bar.update(self.bar.task_ids[0], completed=step, rate=rate, description=epoch)
        elif self._notebook and (now - self._drawn > 0.25 or step == self.total):
            self._drawn = now
            self.console.file.write("\r" + self._line(step).ljust(100))
            self.console.file.flush()

    def _line(self, step: int) -> str:
        done = 30 * step // max(self.total, 1)
        return f"{self.label} [{'#' * done}{'.' * (30 - done)}] {step}/{self.total} {self.rate:,.0f} networks/s"

    @property
    def rate(self) -> float:
        """Networks per second since this process began to train."""
        if self._began is None:
            return 0.0
        return self._began[1] / max(time.perf_counter() - self._began[0], 1e-9)

    def validated(self, step: int, values: Mapping[str, float], *, seconds: float, fraction: float, best: bool) -> None:
        """Show the values of a validation."""
        numbers = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        left = seconds * (1 - fraction) / fraction if fraction > 0 else 0.0
        self.note(
            f"{self.label}  epoch {step / self.epoch_steps:g}  step {step}/{self.total}  {numbers}  "
            f"{self.rate:,.0f} networks/s  {duration(left)} left{'  *' if best else ''}"
        )

    def note(self, text: str) -> None:
        """Show one line."""
        if self._notebook:
            self.console.file.write("\r" + text.ljust(100) + "\n")
            return
        self.console.print(text, markup=False)


def duration(seconds: float) -> str:
    """A length of time for people.

    >>> duration(75), duration(3 * 3600 + 120)
    ('1:15', '3:02:00')
    """
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
