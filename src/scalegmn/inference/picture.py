"""INRs as images, before and after an edit."""

import io
from pathlib import Path

import numpy as np

from ..core.networks import Networks
from ..errors import ScaleGMNError
from ..files import write_atomically
from ..tasks import Editing
from .trained import Trained


def before_and_after(trained: Trained, before: Networks, after: Networks, path: Path, *, zoom: int = 8) -> None:
    """Write a PNG with an INR's image on the left and that of the edited INR on the right.

    Arguments:
        trained: The model that edited.
        before, after: One INR as it was, and as it is now.
        path: The PNG; an existing file is replaced only when the new one is complete.
        zoom: Side of a pixel.
    """
    from matplotlib.image import imsave

    if not isinstance(trained.task, Editing):
        raise ScaleGMNError(f"render: expected a model of task editing, got {trained.task.name}")
    canvas = trained.task.canvas
    images = [canvas.render(networks).clamp(0, 1)[0] * 255 for networks in (before, after)]
    both = [image.round().byte().cpu().numpy() for image in images]
    gap = np.full((both[0].shape[0], 1, both[0].shape[2]), 127, np.uint8)
    row = np.concatenate([both[0], gap, both[1]], axis=1).repeat(zoom, 0).repeat(zoom, 1)
    png = io.BytesIO()
    imsave(png, row.repeat(3, 2) if row.shape[2] == 1 else row, format="png")
    write_atomically(path, png.getvalue())
