"""Several recipes at once: each is trained by `scalegmn train` in a process of its own, so that all cores are used."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from ..errors import ScaleGMNError
from ..files import write_atomically
from ..native import library
from .recipe import Recipe
from .run import Run

Watch = Callable[[str, Run], None]


def train_all(
    recipes: Mapping[str, Recipe],
    out: Path,
    *,
    lanes: int | None = None,
    threads: int | None = None,
    watch: Watch | None = None,
    pause: float = 0.2,
) -> None:
    """Train several recipes; finished runs are kept, unfinished ones continue.

    If another process is training a run, perhaps because it outlived the command that started it, this waits for it.

    Arguments:
        recipes: By name.
        out: Each run goes to `out / name`, its recipe to `out / name.toml`, its messages to `out / name.log`.
        lanes: How many at the same time; one for each core if omitted.
        threads: Of each process; the cores shared equally if omitted.
        watch: Called repeatedly with the name and directory of each running run, and once after its end.
        pause: Seconds between two calls.
    """
    out.mkdir(parents=True, exist_ok=True)
    # Compiled once here, not by all processes at the same time.
    library.load()
    cores = torch.get_num_threads()
    lanes = min(lanes or cores, len(recipes))
    runs = {name: Run(out / name) for name in recipes}
    waiting = [name for name, run in runs.items() if not (run.finished and run.recipe() == recipes[name])]
    active: dict[str, subprocess.Popen[bytes]] = {}
    try:
        while waiting or active:
            free = [name for name in waiting if not Run(out / name).busy]
            for name in free[: max(0, lanes - len(active) - (len(waiting) - len(free)))]:
                waiting.remove(name)
                active[name] = _start(name, recipes[name], out, threads or max(1, cores // lanes))
            time.sleep(pause)
            for name, process in list(active.items()):
                ended = process.poll() is not None
                if watch is not None:
                    watch(name, runs[name])
                if ended:
                    _check(name, active.pop(name).returncode, out / f"{name}.log")
    finally:
        for process in active.values():
            process.terminate()
            process.wait()


def _start(name: str, recipe: Recipe, out: Path, threads: int) -> subprocess.Popen[bytes]:
    path = out / f"{name}.toml"
    write_atomically(path, recipe.to_toml().encode())
    command = [sys.executable, "-m", "scalegmn", "train", str(path), "--out", str(out / name), "--resume"]
    with (out / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )


def _check(name: str, code: int, log: Path) -> None:
    if code:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() or ["it said nothing"]
        raise ScaleGMNError(f"{name}: training ended with exit code {code} ({lines[-1]}); see {log}")
