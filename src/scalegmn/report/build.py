"""From run directories to one page."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..errors import ScaleGMNError
from ..files import write_atomically
from ..inference.places import WEIGHTS
from ..inference.trained import Trained, load
from ..training.data import unchanged_zoo
from .audit import Audit, ask_copies, sample
from .collect import Section, Series, collect
from .pictures import embedding_map, paint
from .play import playground

MAPPED = 400


@dataclass(frozen=True)
class Finding:
    """A section with the answers of its models about the networks of their zoo.

    Arguments:
        section: The runs.
        audits: For each series one audit per run that has weights; nothing if the zoo is gone.
        pictures: The pictures of the audited networks (N, H, W, C), for INRs.
        maps: For each series the positions (n, 2) of the first networks' embeddings on a map; None without embeddings.
        play: The interactive figure; empty if there is none.
        note: Why there are no audits; empty if there are.
        files: The files of the audited networks (N), if the zoo knows them.
    """

    section: Section
    audits: tuple[tuple[Audit, ...], ...]
    pictures: Tensor | None = None
    maps: tuple[Tensor | None, ...] = ()
    play: str = ""
    note: str = ""
    files: tuple[str, ...] = ()


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
        networks: The largest number of networks to evaluate on; the results table covers the whole test split.
        seed: Decides the random copies.
        progress: Called with the name of each run before its model is evaluated.

    Returns:
        The content of the page.
    """
    from .page import page

    tell = progress or (lambda text: None)
    findings = [examine(section, zoo, networks, seed, tell) for section in collect(runs)]
    write_atomically(Path(out), page(title, findings).encode())
    return findings


def examine(section: Section, zoo: str | Path | None, networks: int, seed: int, tell: Callable[[str], None]) -> Finding:
    """Evaluate the models of a section on networks and on copies of them.

    Arguments:
        section: The runs.
        zoo, networks, seed: As in `write_report`.
        tell: Called with the name of each run.
    """
    try:
        found = unchanged_zoo(Path(zoo) if zoo is not None else section.zoo_path, section.zoo["sha256"])
    except ScaleGMNError as error:
        if zoo is not None:
            raise
        return Finding(section, tuple(() for _ in section.series), note=str(error))
    indices = sample(found, "test" if "test" in found.splits else "val", networks)
    audits: list[tuple[Audit, ...]] = []
    maps: list[Tensor | None] = []
    models: dict[str, Trained] = {}
    for series in section.series:
        trained = _trained(series, tell)
        audits.append(tuple(ask_copies(model, found, indices, seed=seed) for model in trained))
        maps.append(embedding_map(trained[0], found, indices[:MAPPED]) if trained else None)
        if trained:
            models[series.label] = trained[0]
    play = playground(models, found, indices) if models else ""
    names = found.names() if "file" in found.columns else []
    files = tuple(names[i] for i in indices.tolist()) if names else ()
    return Finding(section, tuple(audits), paint(found, indices), tuple(maps), play, files=files)


def _trained(series: Series, tell: Callable[[str], None]) -> list[Trained]:
    found = []
    for run in series.runs:
        if (run.path / WEIGHTS).is_file():
            tell(f"{series.label}, seed {run.seed}")
            found.append(load(run.path))
    return found
