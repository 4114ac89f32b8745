"""INRs as images, before and after an edit."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch import Tensor

from ..errors import ScaleGMNError
from ..files import write_atomically
from ..tasks import Editing
from ..zoo.inr.canvas import Canvas
from .sources import Source, read
from .trained import Trained


def pixels(
    canvas: Canvas, networks: Trained, source: Source, *, activation: str | None = None
) -> list[np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]:
    """What INRs show as 8-bit images, each (H, W, C).

    Arguments:
        canvas: What they paint on.
        networks: The model that knows their architecture.
        source, activation: The INRs, as in `Trained.predict`.
    """
    found = read(source, networks.model.architectures, activation=activation).networks
    pictures = [canvas.render(batch).clamp(0, 1) * 255 for batch in found]
    return [p.round().byte().numpy() for picture in pictures for p in picture]


def before_and_after(
    trained: Trained,
    before: Source,
    after: Mapping[str, Tensor],
    path: Path,
    *,
    activation: str | None = None,
    zoom: int = 8,
) -> None:
    """Write a PNG with an INR's image on the left and that of the edited INR on the right.

    Arguments:
        trained: The model that edited.
        before: The INR as it was.
        after: The state dict as it is now.
        path: Of the PNG.
        activation: As in `Trained.predict`.
        zoom: Side of a pixel.
    """
    from matplotlib.image import imsave

    if not isinstance(trained.task, Editing):
        raise ScaleGMNError(f"render: expected a model of task editing, got {trained.task.name}")
    canvas = trained.task.canvas
    both = [pixels(canvas, trained, source, activation=activation)[0] for source in (before, after)]
    gap = np.full((both[0].shape[0], 1, both[0].shape[2]), 127, np.uint8)
    row = np.concatenate([both[0], gap, both[1]], axis=1).repeat(zoom, 0).repeat(zoom, 1)
    buffer = io.BytesIO()
    imsave(buffer, row.repeat(3, 2) if row.shape[2] == 1 else row, format="png")
    write_atomically(Path(path), buffer.getvalue())
