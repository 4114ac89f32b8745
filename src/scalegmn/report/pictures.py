"""What networks show, and where models place them: the pictures of a report."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

import torch
from torch import Tensor

from ..core.networks import Networks, each_architecture
from ..inference.trained import Trained
from ..models.base import InvariantModel
from ..training.data import present
from ..training.evaluation import evaluating
from ..zoo.store.zoo import Zoo
from .figures import png
from .svg import Scale, bounds, svg

BATCH = 256


def paint(zoo: Zoo, indices: Tensor) -> Tensor | None:
    """What the networks of an INR zoo show (N, H, W, C), on the scale [0, 1]; None for other zoos.

    Arguments:
        zoo: The networks.
        indices: Which of them (N,).
    """
    canvas = zoo.canvas
    if canvas is None:
        return None

    def render(networks: Networks) -> Tensor:
        return canvas.render(networks)

    parts = []
    with torch.no_grad():
        for part in indices.split(BATCH):
            networks, positions = zoo.batches(part)
            parts.append(each_architecture(render, networks)[positions.argsort()])
    return torch.cat(parts)


def embedding_map(trained: Trained, zoo: Zoo, indices: Tensor) -> Tensor | None:
    """Networks on a plane (N, 2), near each other where their embeddings are (t-SNE); None for editors and few networks.

    Arguments:
        trained: The model that embeds.
        zoo: The networks.
        indices: Which of them (N,).
    """
    from sklearn.manifold import TSNE

    model = trained.model
    if not isinstance(model, InvariantModel) or len(indices) < 10:
        return None
    parts = []
    with evaluating(model):
        for part in indices.split(BATCH):
            networks, positions = zoo.batches(part)
            found = model.embed(present(networks, trained.canonical, trained.device)).cpu()
            parts.append(found[positions.argsort()])
    vectors = torch.cat(parts).double()
    if not vectors.isfinite().all() or float(vectors.std(0).max()) == 0:
        return None
    near = min(30.0, (len(vectors) - 1) / 3)
    plane = TSNE(perplexity=near, init="random", random_state=0, learning_rate="auto").fit_transform(vectors.numpy())
    return torch.from_numpy(plane)


def embeddings(plane: Tensor, classes: Tensor, names: Sequence[str]) -> str:
    """A map of networks, each drawn as the name of its class where names are short, else as a dot.

    Arguments:
        plane: Positions (N, 2).
        classes: Positions in `names` (N,).
        names: Of the classes.
    """
    side = 330.0
    x, y = (Scale(*bounds(plane[:, i].tolist(), margin=0.05), *ends) for i, ends in ((0, (6, side - 6)), (1, (side - 6, 6))))
    short = all(len(name) <= 2 for name in names)
    parts = []
    for (px, py), c in zip(plane.tolist(), classes.tolist(), strict=True):
        at, ink = (x(px), y(py)), hue(c, len(names))
        if short:
            mark = f'<text class="point" x="{at[0]:.1f}" y="{at[1] + 4:.1f}" style="fill:{ink}">{escape(names[c])}</text>'
        else:
            mark = (
                f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="3" fill="{ink}"><title>{escape(names[c])}</title></circle>'
            )
        parts.append(mark)
    return svg(side, side, "".join(parts), "map of embeddings, coloured by class")


def values_map(plane: Tensor, values: Tensor) -> str:
    """A map of networks whose colour goes from blue for the smallest value to red for the largest.

    Arguments:
        plane: Positions (N, 2).
        values: Numbers (N,).
    """
    side = 330.0
    x, y = (Scale(*bounds(plane[:, i].tolist(), margin=0.05), *ends) for i, ends in ((0, (6, side - 6)), (1, (side - 6, 6))))
    low, high = values.min().item(), values.max().item()
    circles = [
        f'<circle cx="{x(px):.1f}" cy="{y(py):.1f}" r="3.2" fill="hsl({220 - 205 * (v - low) / ((high - low) or 1):.0f} 65% 52%)">'
        f"<title>{v:.4g}</title></circle>"
        for (px, py), v in zip(plane.tolist(), values.tolist(), strict=True)
    ]
    return svg(side, side, "".join(circles), "map of embeddings, coloured by value")


def hue(index: int, count: int) -> str:
    """The colour of a class.

    >>> hue(0, 10), hue(5, 10)
    ('hsl(0 65% 42%)', 'hsl(180 65% 36%)')
    """
    return f"hsl({360 * index / max(count, 1):.0f} 65% {42 - 6 * (index % 2)}%)"


def contact_sheet(images: Tensor, captions: Sequence[str], wrong: Sequence[bool]) -> str:
    """Pictures with a line below each; those that are marked have a frame.

    Arguments:
        images: On the scale [0, 1] (N, H, W, C).
        captions: Below each.
        wrong: Which are marked.
    """
    cells = [
        f'<figure{" class=wrong" if bad else ""}>{picture(image, caption)}<figcaption>{escape(caption)}</figcaption></figure>'
        for image, caption, bad in zip(images, captions, wrong, strict=True)
    ]
    return f'<div class="contact">{"".join(cells)}</div>'


def picture(image: Tensor, label: str) -> str:
    """One image (H, W, C) on the scale [0, 1] as an embedded PNG."""
    pixels = (image.clamp(0, 1) * 255).round().byte().numpy()
    data = base64.b64encode(png(pixels)).decode()
    return f'<img alt="{escape(label)}" src="data:image/png;base64,{data}">'
