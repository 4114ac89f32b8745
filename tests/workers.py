"""The workers of a Ray cluster that are busy, found in the table of processes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """All processes below one, from the table of the system."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
    found = [pid]
    for p in found:
        found += [child for child, parent in parents.items() if parent == p]
    return found[1:]


def busy_workers(pid: int, job: str) -> list[int]:
    """Workers below a process that do a job of this name."""
    found = []
    for p in descendants(pid):
        try:
            if job in Path(f"/proc/{p}/cmdline").read_text():
                found.append(p)
        except OSError:
            continue
    return found


def kill_a_worker(process: subprocess.Popen[str], job: str) -> None:
    """Wait until a worker of a process is busy, and kill it."""
    deadline = time.monotonic() + 200
    while not (victims := busy_workers(process.pid, job)):
        assert process.poll() is None, "it ended before a worker could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(victims[0], signal.SIGKILL)
