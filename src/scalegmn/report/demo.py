"""The demonstration: a zoo of digits, four models at one small budget, and a report about them.

Every model is trained by `scalegmn train` in a process of its own, so that all cores are busy; the recipes stay
beside the runs and can be changed and run again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from ..errors import ScaleGMNError
from ..nn import kernels
from ..training.recipe import Recipe, make_recipe
from ..training.run import Run
from ..zoo.build import Report, build_inr_zoo
from ..zoo.files import write_atomically
from ..zoo.images import load_images
from ..zoo.store import Zoo
from .build import write_report

EPOCHS = 20
TITLE = "Digits, read from the weights that draw them"

_GRAPH = {"width": 32, "layers": 3, "readout": "output", "edge_updates": False, "dropout": 0.2}
MODELS: dict[str, dict[str, Any]] = {
    "scalegmn": {"name": "scalegmn", **_GRAPH, "probes": 128},
    "scalegmn-no-probes": {"name": "scalegmn", **_GRAPH},
    "gmn": {"name": "gmn", **_GRAPH},
    "mlp": {"name": "mlp", "width": 128},
}


Watch = Callable[[str, Run], None]


def demo_zoo(out: Path, *, networks: int | None = None, report: Report | None = None) -> Zoo:
    """The SIRENs of the digits of scikit-learn, built or continued or only opened.

    Arguments:
        out: Where it is or shall be.
        networks: Their number; all 1,797 if omitted.
        report: As in `build_inr_zoo`.
    """
    return build_inr_zoo(load_images("digits"), out, count=networks, report=report)


def demo_recipes(zoo: Path, epochs: int = EPOCHS) -> dict[str, Recipe]:
    """One recipe per model, which differ in the model alone.

    Arguments:
        zoo: The digits.
        epochs: For all of them.

    >>> {name: recipe.training.epochs for name, recipe in demo_recipes(Path("zoo"), 3).items()}
    {'scalegmn': 3, 'scalegmn-no-probes': 3, 'gmn': 3, 'mlp': 3}
    """
    training = {
        "epochs": epochs,
        "batch": 32,
        "lr": 1e-3,
        "weight_decay": 0.1,
        "schedule": "cosine",
        "warmup": 50,
        "device": "cpu",
    }
    shared = {"zoo": str(zoo), "task": "classification", "training": training}
    return {name: make_recipe({**shared, "model": model}) for name, model in MODELS.items()}


def train_all(recipes: Mapping[str, Recipe], out: Path, *, watch: Watch | None = None, pause: float = 0.2) -> None:
    """Train several recipes at once, one process for each core; what is finished already is left as it is.

    Arguments:
        recipes: By name.
        out: Each run goes to `out / name`, its recipe to `out / name.toml`, what it says to `out / name.log`.
        watch: Called again and again with the name and directory of each run that goes on, and once after its end.
        pause: Seconds between two looks.
    """
    out.mkdir(parents=True, exist_ok=True)
    # Compiled once here, not by all processes at the same time.
    kernels.load()
    cores = torch.get_num_threads()
    lanes = min(cores, len(recipes))
    waiting = [name for name, recipe in recipes.items() if not _done(Run(out / name), recipe)]
    active: dict[str, subprocess.Popen[bytes]] = {}
    try:
        while waiting or active:
            while waiting and len(active) < lanes:
                name = waiting.pop(0)
                active[name] = _start(name, recipes[name], out, cores // lanes)
            time.sleep(pause)
            for name, process in list(active.items()):
                ended = process.poll() is not None
                if watch is not None:
                    watch(name, Run(out / name))
                if ended:
                    _check(active.pop(name).returncode, out / f"{name}.log")
    finally:
        for process in active.values():
            process.terminate()
            process.wait()


def _done(run: Run, recipe: Recipe) -> bool:
    return run.finished and run.recipe() == recipe


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


def _check(code: int, log: Path) -> None:
    if code:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() or ["it said nothing"]
        raise ScaleGMNError(f"demo: training ended with exit code {code} ({lines[-1]}); {log} has the whole story")


def demo_report(recipes: Iterable[str], out: Path, page: Path) -> dict[str, dict[str, float]]:
    """Ask the trained models about the test networks and about transformed copies, and write the page.

    Arguments:
        recipes: Their names.
        out: As in `train_all`.
        page: Where to write.

    Returns:
        By name: `accuracy`, `accuracy_transformed`, `answers_changed` (fractions of the test networks),
        `largest_change` (of a logit), `seconds` (of training) and `parameters`.
    """
    found: dict[str, dict[str, float]] = {}
    (finding,) = write_report([out / name for name in recipes], page, title=TITLE)
    for series, (audit,) in zip(finding.section.series, finding.audits, strict=True):
        (run,) = series.runs
        found[run.path.name] = {
            "accuracy": audit.plain.metrics["accuracy"],
            "accuracy_transformed": audit.moved.metrics["accuracy"],
            "answers_changed": audit.changed or 0.0,
            "largest_change": audit.change.max().item(),
            "seconds": run.results["seconds"],
            "parameters": run.results["parameters"],
        }
    return found
