"""A folder with the inputs of one command, processes inside it, and what may be said against how they ended."""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import signal
import stat
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# Of the processor, and of the clock: a machine that is busy with other things is no hang.
SECONDS = 30
PATIENCE = 120.0
MEMORY = 8 << 30
DISK = 256 << 20
State = dict[str, tuple[int, str]]


@dataclass(frozen=True)
class Outcome:
    """How a process ended: its exit code (negative for a signal), or None after the time limit; what it wrote."""

    code: int | None
    stdout: str
    stderr: str


class Sandbox:
    """The inputs of one command, put back as they were before every try.

    Arguments:
        corpus: All inputs.
        path: Where to work.
        names: What of the corpus the command sees.
    """

    def __init__(self, corpus: Path, path: Path, names: Iterable[str]) -> None:
        self.corpus, self.path, self.names = corpus, path, tuple(names)
        self._clean: State | None = None

    def fresh(self) -> Path:
        """The folder with undamaged inputs and nothing else."""
        if self._clean is None or self.state() != self._clean or self._others():
            shutil.rmtree(self.path, ignore_errors=True)
            self.path.mkdir(parents=True)
            for name in self.names:
                source = self.corpus / name
                (shutil.copytree if source.is_dir() else shutil.copy2)(source, self.path / name)
            self._clean = self.state()
        return self.path

    def state(self) -> State:
        """Size and hash of every regular file."""
        found = {}
        for path in self._all():
            state = path.lstat()
            if stat.S_ISREG(state.st_mode):
                digest = hashlib.sha256(path.read_bytes()).hexdigest() if state.st_size < DISK else "large"
                found[str(path.relative_to(self.path))] = (state.st_size, digest)
        return found

    def _others(self) -> bool:
        """Whether something is here that is neither a file nor a folder of the corpus."""
        known = {str(p.relative_to(self.corpus)) for name in self.names for p in self._below(self.corpus / name)}
        return {str(p.relative_to(self.path)) for p in self._all()} != known

    def _all(self) -> Iterable[Path]:
        return (p for name in sorted(self.path.iterdir()) for p in self._below(name))

    @staticmethod
    def _below(path: Path) -> Iterable[Path]:
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from path.rglob("*")

    def run(self, words: list[str], kick: tuple[signal.Signals, float] | None = None) -> Outcome:
        """Run a command line in a forked process, and perhaps send it a signal after some seconds."""
        out, err = self.path.with_suffix(".stdout"), self.path.with_suffix(".stderr")
        # Signals wait until the program is there to answer them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        child = os.fork()
        if child == 0:
            _become(words, self.path, out, err, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        started, code = time.monotonic(), None
        while time.monotonic() < started + PATIENCE:
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                code = os.waitstatus_to_exitcode(status)
                break
            if kick is not None and time.monotonic() - started > kick[1]:
                os.kill(child, kick[0])
                kick = None
            time.sleep(0.002)
        else:
            # With its helpers.
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
        return Outcome(code, out.read_text(errors="replace"), err.read_text(errors="replace"))


def _become(words: list[str], folder: Path, out: Path, err: Path, unblocked: Iterable[int]) -> None:
    """Turn this process into `scalegmn words`; does not return."""
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        for number, path, flags in ((0, os.devnull, os.O_RDONLY), (1, out, None), (2, err, None)):
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC if flags is None else flags, 0o644)
            os.dup2(opened, number)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_FSIZE, (DISK, DISK))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        sys.argv = ["scalegmn", *words]
        from scalegmn.__main__ import _leave, main

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _leave)
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def complaints(outcome: Outcome, before: State, after: State, updates: tuple[str, ...]) -> list[str]:
    """What is wrong about a command that met damaged input.

    Arguments:
        outcome: How it ended.
        before, after: The files around it.
        updates: Folders that it may change.
    """
    found = _bad_end(outcome)
    if outcome.code == 2 and not last(outcome.stderr).startswith("error: "):
        found.append(f"refused with {last(outcome.stderr)!r}")
    # A run that went on and then met a damaged network keeps the checkpoints that it made until then.
    went_on = "continuing at step" in outcome.stderr
    allowed = (updates if outcome.code != 2 or went_on else ()) or ("\0",)
    refused = " and the command refused" if outcome.code == 2 else ""
    found += [f"{n} was changed{refused}" for n in before if after.get(n) != before[n] and not n.startswith(allowed)]
    if refused:
        new = sorted(after.keys() - before.keys())
        found += [f"refused and left {n} behind" for n in new if not n.startswith(allowed)]
    return found


def interruption(outcome: Outcome, number: signal.Signals) -> list[str]:
    """What is wrong about a command that was sent a signal: it may be done, say that it was interrupted, or be dead."""
    if number == signal.SIGKILL:
        return [] if outcome.code in (0, -number) else _bad_end(outcome)
    if outcome.code != 130:
        return _bad_end(outcome)
    said = outcome.stderr.splitlines()
    found = ["a traceback"] if "Traceback" in outcome.stderr else []
    return found if said[-1:] == ["interrupted"] else [*found, f"interrupted, and said {last(outcome.stderr)!r}"]


def _bad_end(outcome: Outcome) -> list[str]:
    found = []
    if outcome.code is None:
        found.append(f"no end after {PATIENCE:.0f} s")
    elif outcome.code < 0:
        found.append(f"ended by {signal.Signals(-outcome.code).name}")
    elif outcome.code not in (0, 2):
        found.append(f"exit code {outcome.code}: {last(outcome.stderr)}")
    return [*found, "a traceback"] if "Traceback" in outcome.stderr else found


def last(text: str) -> str:
    """The last line of what a process said."""
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else "nothing on stderr"
