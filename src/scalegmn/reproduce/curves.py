"""Learning curves from records: validation results over the time of one core."""

import io
from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..files import write_atomically
from .experiments import DATASETS, METHODS
from .records import Record


def draw_curves(records: Sequence[Record], path: Path) -> bool:
    """Draw the curves of all records that have one, a picture per dataset; returns whether there were any.

    Arguments:
        records: Those of one scale.
        path: The PNG to write.
    """
    known = [r for r in records if len(r.curve) > 1 and r.seed == 0]
    names = [name for name in DATASETS if any(r.dataset == name for r in known)]
    if not names:
        return False
    figure = Figure(figsize=(9, 3.4 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, name in zip(figure.subplots(len(names), 1, squeeze=False)[:, 0], names, strict=True):
        dataset = DATASETS[name]
        for record in (r for r in known if r.dataset == name):
            points = [(s / 60, dataset.unit * v) for _, s, v in record.curve if s is not None and v is not None]
            axes.plot(*zip(*points, strict=True), label=METHODS[record.method].title, linewidth=1.2)
        axes.set(title=dataset.title, xlabel="minutes of one core", ylabel=f"validation {dataset.metric}")
        axes.set_xscale("log")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110, metadata={"Software": None})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, picture.getvalue())
    return True
