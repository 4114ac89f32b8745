"""From run directories to one page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..core.networks import Networks, each_architecture
from ..errors import ScaleGMNError
from ..files import write_atomically
from ..inference.trained import WEIGHTS, load
from ..tasks import Editing
from ..training.data import open_zoo
from ..zoo.store.zoo import Zoo
from .audit import Audit, audit, sample
from .collect import Section, Series, collect

SHEET = 10


@dataclass(frozen=True)
class Finding:
    """A section with what its models say about the networks of their zoo.

    Arguments:
        section: The runs.
        audits: For each series one audit per run that has weights; nothing where the zoo is gone.
        before: What some INRs show before they are edited (n, H, W, C), for editing.
        note: Why there are no audits; empty where there are.
    """

    section: Section
    audits: tuple[tuple[Audit, ...], ...]
    before: Tensor | None
    note: str


def write_report(
    runs: Iterable[str | Path],
    out: str | Path,
    *,
    title: str = "Report",
    zoo: str | Path | None = None,
    networks: int = 2000,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> list[Finding]:
    """Write one self-contained HTML page about runs.

    Arguments:
        runs: Run directories, or directories that hold some.
        out: Where to write.
        title: Of the page.
        zoo: Where the zoo is now, if not where it was at training.
        networks: At most so many networks are asked about; the results table is about all of the test split.
        seed: Of the random copies.
        progress: Called with the name of each run before its model is asked.

    Returns:
        What stands on the page.
    """
    from .page import page

    tell = progress or (lambda text: None)
    findings = [examine(section, zoo, networks, seed, tell) for section in collect(runs)]
    write_atomically(Path(out), page(title, findings).encode())
    return findings


def examine(section: Section, zoo: str | Path | None, networks: int, seed: int, tell: Callable[[str], None]) -> Finding:
    """Ask the models of a section about networks and about copies of them.

    Arguments:
        section: The runs.
        zoo, networks, seed: As in `write_report`.
        tell: Called with the name of each run.
    """
    try:
        found = open_zoo(Path(zoo) if zoo is not None else section.zoo_path, section.zoo["sha256"])
    except ScaleGMNError as error:
        if zoo is not None:
            raise
        return Finding(section, tuple(() for _ in section.series), None, str(error))
    indices = sample(found, "test" if "test" in found.splits else "val", networks)
    audits = tuple(_audits(series, found, indices, seed, tell) for series in section.series)
    return Finding(section, audits, _before(section, found, indices[:SHEET]), "")


def _audits(series: Series, zoo: Zoo, indices: Tensor, seed: int, tell: Callable[[str], None]) -> tuple[Audit, ...]:
    found = []
    for run in series.runs:
        if (run.path / WEIGHTS).is_file():
            tell(f"{series.label}, seed {run.seed}")
            found.append(audit(load(run.path), zoo, indices, seed=seed))
    return tuple(found)


def _before(section: Section, zoo: Zoo, indices: Tensor) -> Tensor | None:
    task = section.task
    if not isinstance(task, Editing):
        return None

    def render(networks: Networks) -> Tensor:
        return task.canvas.render(networks)

    networks, positions = zoo.batches(indices)
    return each_architecture(render, networks)[positions.argsort()]
