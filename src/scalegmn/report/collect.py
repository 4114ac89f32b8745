"""Grouping runs for a report: those that differ only in their seed become a series, those of one task a section."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ScaleGMNError
from ..files import believing, real_path
from ..models.registry import method
from ..tasks import Task, task_from_json
from ..training.run import Run


@dataclass(frozen=True)
class RunFiles:
    """The content of one run directory, except weights.

    Arguments:
        path: Of the directory.
        config: The content of `config.json`.
        task: What was learned.
        metrics: The lines of `metrics.jsonl`.
        results: The content of `results.json`; empty while the run is not finished.
    """

    path: Path
    config: Mapping[str, Any]
    task: Task
    metrics: Sequence[Mapping[str, Any]]
    results: Mapping[str, Any]

    @staticmethod
    def read(path: Path) -> RunFiles:
        """Read a run directory."""
        run = Run(path)
        config = run.config()
        with believing(path / "config.json"):
            task = task_from_json(config["task"])
        return RunFiles(path, config, task, run.metrics(), run.results() if run.finished else {})

    @property
    def seed(self) -> int:
        """The seed of everything random."""
        return int(self.config["recipe"]["seed"])

    @property
    def split(self) -> str:
        """The split that its results are about."""
        return "test" if "test" in self.results else "val"


@dataclass(frozen=True)
class Series:
    """Runs that differ in their seed alone.

    Arguments:
        label: The model, with what distinguishes it from the others of its section.
        runs: In the order of their seeds.
    """

    label: str
    runs: tuple[RunFiles, ...]

    @property
    def symmetries(self) -> tuple[str, ...]:
        """The symmetries that the model declares."""
        return method(self.runs[0].config["model"]["name"]).symmetries


@dataclass(frozen=True)
class Section:
    """Series with the same task and zoo, which can be compared.

    Arguments:
        task: What they learned.
        zoo: What `config.json` says about the zoo.
        zoo_path: Where it was.
        series: In the order in which they were given.
    """

    task: Task
    zoo: Mapping[str, Any]
    zoo_path: Path
    series: tuple[Series, ...]


def find_runs(paths: Iterable[str | Path]) -> list[Path]:
    """Run directories: those given, and those inside the others given.

    Arguments:
        paths: Of runs, or of directories that hold runs, such as a sweep's.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            raise ScaleGMNError(f"run: {path} is not a directory; expected one that `scalegmn train` made")
        inside = [path] if Run(path).exists else [recipe.parent for recipe in sorted(path.rglob("recipe.toml"))]
        if not inside:
            raise ScaleGMNError(f"run: {path} holds no run; expected a directory that `scalegmn train` made")
        found += inside
    once: dict[Path, Path] = {}
    for path in found:
        once.setdefault(real_path(path), path)
    return list(once.values())


def collect(paths: Iterable[str | Path]) -> list[Section]:
    """Read runs and group them.

    Arguments:
        paths: As in `find_runs`.
    """
    sections: dict[str, list[RunFiles]] = {}
    for path in find_runs(paths):
        record = RunFiles.read(path)
        sections.setdefault(_key(record.config["task"], record.config["zoo"]["sha256"]), []).append(record)
    return [
        Section(records[0].task, records[0].config["zoo"], Path(records[0].config["recipe"]["zoo"]), _series(records))
        for records in sections.values()
    ]


def _series(records: Sequence[RunFiles]) -> tuple[Series, ...]:
    groups: dict[str, list[RunFiles]] = {}
    for record in records:
        groups.setdefault(_key(_settings(record)), []).append(record)
    labels = _labels([group[0] for group in groups.values()])
    return tuple(
        Series(label, tuple(sorted(group, key=lambda r: r.seed)))
        for label, group in zip(labels, groups.values(), strict=True)
    )


def _labels(records: Sequence[RunFiles]) -> list[str]:
    """Titles of models; where two are equal, with the settings in which they differ."""
    titles = [method(record.config["model"]["name"]).title for record in records]
    found = []
    for record, title in zip(records, titles, strict=True):
        rivals = [_settings(other) for other, name in zip(records, titles, strict=True) if name == title]
        keys = sorted({key for rival in rivals for key in rival if any(r.get(key) != rival[key] for r in rivals)})
        mine = _settings(record)
        parts = [f"{key.rpartition('.')[2].replace('_', ' ')} {mine[key]}" for key in keys if key in mine]
        found.append(", ".join([title, *parts]))
    return found


def _settings(record: RunFiles) -> dict[str, Any]:
    """All settings of a run except its seed and the place of its zoo."""
    recipe: Mapping[str, Any] = record.config["recipe"]
    flat: dict[str, Any] = {}
    for key, value in recipe.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{name}": entry for name, entry in value.items()}
        elif key not in ("seed", "zoo"):
            flat[key] = value
    return flat


def _key(*values: Any) -> str:
    return json.dumps(values, sort_keys=True)
