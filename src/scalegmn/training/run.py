"""The directory of one training run: the recipe, the metrics, and the trained model.

recipe.toml          the recipe with all defaults filled in
config.json          what is needed to use the model: its name and options, architectures, task; versions, zoo
metrics.jsonl        one line per validation
checkpoints/         the state to continue from
model.safetensors    the weights at the best validation
results.json         written at the end: metrics on the validation and test splits, time, parameters
lock                 held by the process that trains here
"""

import importlib.metadata
import json
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from .. import __version__
from ..core.architecture import Architecture
from ..core.schema import architecture_to_json, strict
from ..errors import ScaleGMNError
from ..files import (
    alone,
    append_line,
    believing,
    make_directory,
    read_lines,
    read_object,
    read_toml,
    write_atomically,
    write_json,
    write_lines,
)
from ..files.tensors import write_tensors
from ..tasks import Task
from ..zoo.store.zoo import Zoo
from .documents import Line, Results, checked, read_config
from .recipe import Recipe, flat, make_recipe
from .state import latest

_PACKAGES = ("torch", "numpy", "scipy", "safetensors")
# What a run has before its first checkpoint, besides its lock.
_NAMES = ("config.json", "recipe.toml", "metrics.jsonl", "model.safetensors")
_FILES = (*_NAMES, *(f".{name}.tmp" for name in _NAMES))


@dataclass(frozen=True)
class Run:
    """A run directory.

    Arguments:
        path: The directory.
    """

    path: Path

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are kept."""
        return self.path / "checkpoints"

    @property
    def exists(self) -> bool:
        """Whether training has begun here."""
        return (self.path / "recipe.toml").is_file()

    @property
    def finished(self) -> bool:
        """Whether training has finished here."""
        return (self.path / "results.json").is_file()

    @property
    def trained(self) -> bool:
        """Whether there is something to continue or to lose: a checkpoint, or a finished run."""
        return self.finished or latest(self.checkpoints) is not None

    @property
    def busy(self) -> bool:
        """Whether another process is training here."""
        if not (self.path / "lock").is_file():
            return False
        try:
            with alone(self.path / "lock", ""):
                return False
        except ScaleGMNError:
            return True

    def check(self, recipe: Recipe, zoo: Zoo, *, resume: bool) -> None:
        """Check that the experiment may be trained here; nothing is written.

        If nothing was trained yet, another recipe may replace the old one.

        Arguments:
            recipe, zoo: The experiment.
            resume: Whether it may already have begun.
        """
        if self.trained:
            if not resume:
                raise ScaleGMNError(
                    f"out: {self.path} already holds a run; use --resume to continue it, or another --out"
                )
            self._same(recipe, zoo)
        elif not self._vacant():
            raise ScaleGMNError(f"out: {self.path} exists and is not a run; use another --out")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes from training here at the same time; a run that is refused leaves nothing behind."""
        make_directory(self.checkpoints)
        complaint = f"out: another process is training in {self.path}; wait, or use another --out"
        with alone(self.path / "lock", complaint):
            try:
                yield
            except Exception:
                if not self.trained:
                    self._clear()
                    (self.path / "lock").unlink()
                    with suppress(OSError):
                        self.checkpoints.rmdir()
                        self.path.rmdir()
                raise

    def begin(self, recipe: Recipe, task: Task, zoo: Zoo) -> None:
        """Record what is trained here, unless that was done before."""
        if self.trained:
            return
        self._clear()
        write_json(self.path / "config.json", make_config(recipe, task, zoo.architectures, zoo))
        # Last, because it makes the directory a run.
        write_atomically(self.path / "recipe.toml", recipe.to_toml().encode())

    def _clear(self) -> None:
        """Remove the files of a run before its first checkpoint; the empty folder for checkpoints identifies a run."""
        for folder in (*self.checkpoints.iterdir(), self.path / "tensorboard"):
            shutil.rmtree(folder, ignore_errors=True)
        for name in _FILES:
            (self.path / name).unlink(missing_ok=True)

    def _vacant(self) -> bool:
        """Whether there are only the files of a run before its first checkpoint."""
        if not self.path.is_dir():
            return not self.path.exists()
        names = {path.name for path in self.path.iterdir()}
        if self.checkpoints.is_dir():
            names -= {"checkpoints", "tensorboard", "lock", *_FILES}
        return not names

    def saved_step(self) -> int:
        """The step of the last checkpoint; 0 if there is none."""
        saved = latest(self.checkpoints)
        if saved is None:
            return 0
        with believing(saved / "state.json"):
            return int(read_object(saved / "state.json")["counters"]["step"])

    def _same(self, recipe: Recipe, zoo: Zoo) -> None:
        old, new = flat(self.recipe().to_dict()), flat(recipe.to_dict())
        for key in {**old, **new}:
            if old.get(key) != new.get(key):
                raise ScaleGMNError(
                    f"resume: {key} is {new.get(key)!r} now but was {old.get(key)!r} in {self.path}; "
                    "continue with the same recipe, or choose another --out"
                )
        if self.config()["zoo"]["sha256"] != zoo.header["sha256"]:
            raise ScaleGMNError(
                f"resume: {zoo.path} is not the zoo that {self.path} was begun with; "
                "build that one again, or choose another --out"
            )

    def recipe(self) -> Recipe:
        """The recipe of the run."""
        path = self.path / "recipe.toml"
        if not path.is_file():
            raise ScaleGMNError(f"run: {self.path} holds no recipe.toml; expected a directory that `train` made")
        return make_recipe(read_toml(path), str(path))

    def config(self) -> dict[str, Any]:
        """What is needed to use the model."""
        return read_config(self.path / "config.json")

    def log(self, record: Mapping[str, Any]) -> None:
        """Add a line to metrics.jsonl."""
        append_line(self.path / "metrics.jsonl", json.dumps(strict(record)))

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        path = self.path / "metrics.jsonl"
        return [checked(Line, line, path) for line in read_lines(path)]

    def forget_after(self, step: int) -> None:
        """Drop the metrics that a killed process wrote after its last checkpoint."""
        write_lines(self.path / "metrics.jsonl", [line for line in self.metrics() if line["step"] <= step])

    def tensorboard(self, step: int, values: Mapping[str, float]) -> None:
        """Add values to the TensorBoard files in the directory."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ScaleGMNError("tensorboard: not installed; pip install 'scalegmn[tensorboard]'") from None
        with SummaryWriter(str(self.path / "tensorboard"), purge_step=step) as writer:
            for name, value in values.items():
                writer.add_scalar(name, value, step)

    def write_model(self, weights: Mapping[str, Tensor]) -> None:
        """Write the best weights."""
        write_tensors(self.path / "model.safetensors", weights)

    def write_results(self, results: Mapping[str, Any]) -> None:
        """Write the final result."""
        write_json(self.path / "results.json", strict(results))

    def results(self) -> dict[str, Any]:
        """The final result."""
        if not self.finished:
            raise ScaleGMNError(f"run: {self.path} is not finished; continue it with `scalegmn train --resume`")
        path = self.path / "results.json"
        found: dict[str, Any] = checked(Results, read_object(path), path)
        return found


def make_config(recipe: Recipe, task: Task, architectures: Sequence[Architecture], zoo: Zoo) -> dict[str, Any]:
    """All that is needed to build the model again, and its origin."""
    return {
        "format": "scalegmn model",
        "version": 1,
        "task": task.to_json(),
        "model": recipe.to_dict()["model"],
        "canonical": recipe.canonical,
        "architectures": [architecture_to_json(a) for a in architectures],
        "layouts": zoo.layouts,
        "recipe": recipe.to_dict(),
        "zoo": {"networks": len(zoo), "kind": zoo.kind, "sha256": zoo.header["sha256"]},
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """The versions of the software that the numbers of a run depend on."""
    found = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {"scalegmn": __version__, "python": platform.python_version(), "machine": platform.machine(), **found}
