"""Change what an INR shows by changing its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.mixed import each_architecture
from ..core.networks import Networks
from ..core.spec import Spec
from ..errors import ScaleGMNError
from ..models.heads import Editor, EditorSpec, Metanetwork
from ..models.trunk import Trunk
from ..zoo.inr.canvas import Canvas
from ..zoo.store.zoo import Zoo
from .base import Head, Task

Target = Literal["dilation", "contrast"]
Images = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


def dilate(images: Images) -> Images:
    """The largest value in the 3x3 square around each pixel.

    Arguments:
        images: Shape (B, H, W, colours).

    >>> image = np.zeros((1, 4, 4, 1), dtype=np.uint8)
    >>> image[0, 0, 0] = 7
    >>> int((dilate(image) == 7).sum())
    4
    """
    from scipy.ndimage import grey_dilation

    found: Images = grey_dilation(images, size=(1, 3, 3, 1), mode="constant", cval=0)
    return found


def contrast(images: Images, factor: float = 2.0) -> Images:
    """Colours pushed away from the image's mean grey by a factor, clipped to 8 bits.

    Arguments:
        images: Shape (B, H, W, colours).
        factor: More than one for more contrast.

    >>> contrast(np.array([100, 120], dtype=np.uint8).reshape(1, 1, 2, 1)).ravel().tolist()
    [90, 130]
    """
    weights = np.array([0.299, 0.587, 0.114]) if images.shape[-1] == 3 else np.full(images.shape[-1], 1.0)
    grey = (images * (weights / weights.sum())).sum(-1).mean((1, 2)).round()[:, None, None, None]
    changed: Images = (grey + factor * (images - grey)).round().clip(0, 255).astype(np.uint8)
    return changed


@dataclass(frozen=True)
class Editing(Task):
    r"""Mean squared error between the picture of the edited INR and the edited image, on the image's grid.

    \(\frac{1}{B d} \sum_i \sum_p (f(p; \theta_i + \gamma g(\theta_i)) - t_i(p))^2\) with the target images t (paper,
    appendix on INR editing). The model sees weights only, never the image.

    Arguments:
        target: `dilation` (3x3 square) or `contrast` (factor 2) of the 8-bit image.
        canvas: The grid and range of colours of the pictures.
    """

    name: ClassVar[str] = "editing"
    head: ClassVar[Head] = "equivariant"
    head_spec: ClassVar[Spec] = EditorSpec()
    metric: ClassVar[str] = "mse"
    maximise: ClassVar[bool] = False

    target: Target
    canvas: Canvas

    @classmethod
    def from_zoo(cls, zoo: Zoo, *, target: Target = "dilation") -> Editing:
        """The zoo must hold INRs together with their images."""
        if zoo.canvas is None or not zoo.has_images:
            raise ScaleGMNError(f"editing: expected a zoo of INRs with their images; {zoo.path} has none")
        return cls(target, zoo.canvas)

    def attach(self, trunk: Trunk, options: Mapping[str, Any]) -> Editor:
        """New networks, or several copies of each."""
        return Editor(trunk, **options)

    def targets(self, zoo: Zoo, indices: Tensor) -> Tensor:
        """The edited images on the scale [0, 1], (B, H, W, C)."""
        if zoo.canvas != self.canvas:
            raise ScaleGMNError(
                f"editing: the model knows pictures of {self.canvas}, but {zoo.path} holds those of {zoo.canvas}"
            )
        change = dilate if self.target == "dilation" else contrast
        return torch.from_numpy(change(zoo.images(indices).numpy())).float() / 255

    def respond(self, model: Metanetwork, networks: Networks | Sequence[Networks]) -> Tensor:
        """The pictures of the edited networks on the scale [0, 1], (B, H, W, C)."""
        assert isinstance(model, Editor)
        grid = self.canvas.grid()
        return each_architecture(
            lambda batch: self.canvas.picture(model.render(batch, grid.to(batch.parameters))), networks
        )

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs.float(), targets)

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        error = self.loss(outputs, targets).item()
        return {"loss": error, "mse": error}
