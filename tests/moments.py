"""Faults at chosen moments of real processes: killed, stopped, or without room on the disk at a certain write.

A moment is the n-th call of some kind in a forked process, counted by the interpreter itself (`sys.setprofile`): of
`start-up`, before anything was written, of `work`, or a `write` or `rename`.
"""

from __future__ import annotations

import gc
import io
import mmap
import os
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from scalegmn.cli import app
from scalegmn.cli.application import run

PHASES = ("start-up", "work", "write", "rename")
_RENAMES = (os.rename, os.replace, os.link)
_FILES = (io.BufferedWriter, io.FileIO, io.TextIOWrapper)

Fault = Callable[[], None]


@dataclass(frozen=True)
class Moment:
    """The n-th call of a phase; of writes and renames, 2 n is before the n-th and 2 n + 1 after it."""

    phase: str
    number: int


@dataclass(frozen=True)
class Ended:
    """How a process ended: exit code (negative for a signal), what it said on stderr, and its calls by phase."""

    code: int
    said: str
    calls: dict[str, int]


class Clock:
    """Counts the calls of this process, and lets a fault happen at one of them.

    Arguments:
        moment: When.
        fault: What happens.
        counts: Calls by phase, in memory that the parent sees.
    """

    def __init__(self, moment: Moment | None, fault: Fault, counts: memoryview) -> None:
        self.phase = -1 if moment is None else PHASES.index(moment.phase)
        self.number = -1 if moment is None else moment.number
        self.fault, self.counts = fault, counts
        self.begun = False

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "return":
            return
        phase = self._phase(event, arg)
        if phase == self.phase and self.counts[phase] == self.number:
            self.fault()
        self.counts[phase] += 1

    def _phase(self, event: str, arg: Any) -> int:
        if event in ("c_call", "c_return"):
            if arg in _RENAMES:
                return 3
            if arg.__name__ in ("write",) and isinstance(arg.__self__, _FILES):
                name = getattr(arg.__self__, "name", 0)
                if isinstance(name, str) and not name.startswith("<") and name != os.devnull:
                    self.begun = True
                    return 2
        return int(self.begun)


def _nothing() -> None:
    """No fault."""


def kill() -> None:
    """The end without a word."""
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt() -> None:
    """As when a person presses Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGINT)


def stop() -> None:
    """Stand still until SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


def fill_disk() -> None:
    """From now on no file can grow."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


class Process:
    """A command line in a forked process.

    Arguments:
        words: After `scalegmn`.
        moment, fault: What happens when; nothing where omitted.
        watched: Whether calls are counted at all, which takes time.
    """

    def __init__(
        self, words: list[str], moment: Moment | None = None, fault: Fault = _nothing, *, watched: bool = True
    ) -> None:
        self._counts = memoryview(mmap.mmap(-1, 8 * len(PHASES))).cast("q")
        self._read_end, write_end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._become(words, moment, fault, watched, write_end)
        os.close(write_end)

    def _become(self, words: list[str], moment: Moment | None, fault: Fault, watched: bool, write_end: int) -> None:
        code = 1
        # What the parent holds is not searched for garbage: that would copy all its memory.
        gc.freeze()
        try:
            os.dup2(write_end, 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.stdout, sys.stderr = io.TextIOWrapper(os.fdopen(1, "wb")), io.TextIOWrapper(os.fdopen(2, "wb"))
            if watched:
                sys.setprofile(Clock(moment, fault, self._counts))
            code = run(app, words)
            sys.setprofile(None)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def wait(self) -> Ended:
        """Its end."""
        with os.fdopen(self._read_end, "rb") as pipe:
            said = pipe.read().decode()
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return Ended(code, said, dict(zip(PHASES, self._counts, strict=True)))

    def wait_until_stopped(self) -> None:
        """Until it stands still."""
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), "it ended before its moment"
