"""The pictures of a report: what networks show, and maps of their embeddings."""

import base64
from collections.abc import Callable, Sequence
from html import escape

import torch
from torch import Tensor

from ..core.canonical import present
from ..core.mixed import each_architecture
from ..core.networks import Networks
from ..inference.trained import Trained
from ..models.heads import InvariantModel
from ..training.evaluation import evaluating
from ..zoo.store.zoo import Zoo
from .figures import png
from .svg import Axis, bounds, svg

BATCH = 256
SIDE = 330.0


def paint(zoo: Zoo, indices: Tensor) -> Tensor | None:
    """The pictures of the networks of an INR zoo (N, H, W, C), on the scale [0, 1]; None for other zoos.

    Arguments:
        zoo: The networks.
        indices: Which of them (N,).
    """
    canvas = zoo.canvas
    if canvas is None:
        return None
    with torch.no_grad():
        return _in_batches(zoo, indices, lambda networks: each_architecture(canvas.render, networks))


def _in_batches(zoo: Zoo, indices: Tensor, function: Callable[[list[Networks]], Tensor]) -> Tensor:
    """The rows that a function computes for some networks, in their order."""
    parts = []
    for part in indices.split(BATCH):
        networks, positions = zoo.batches(part)
        parts.append(function(networks)[positions.argsort()])
    return torch.cat(parts)


def embedding_map(trained: Trained, zoo: Zoo, indices: Tensor) -> Tensor | None:
    """Networks as points in a plane (N, 2), near each other if their embeddings are (t-SNE).

    None for editors, which have no embeddings, and for less than ten networks.

    Arguments:
        trained: The model that embeds.
        zoo: The networks.
        indices: Which of them (N,).
    """
    from sklearn.manifold import TSNE

    model = trained.model
    if not isinstance(model, InvariantModel) or len(indices) < 10:
        return None
    with evaluating(model):
        vectors = _in_batches(
            zoo, indices, lambda networks: model.embed(present(networks, trained.canonical, trained.device)).cpu()
        ).double()
    if not vectors.isfinite().all() or float(vectors.std(0).max()) == 0:
        return None
    near = min(30.0, (len(vectors) - 1) / 3)
    plane = TSNE(perplexity=near, init="random", random_state=0, learning_rate="auto").fit_transform(vectors.numpy())
    return torch.from_numpy(plane)


def embeddings(plane: Tensor, classes: Tensor, names: Sequence[str]) -> str:
    """A map of networks, each drawn as the name of its class if names are short, otherwise as a dot.

    Arguments:
        plane: Positions (N, 2).
        classes: Positions in `names` (N,).
        names: Of the classes.
    """
    x, y = _axes(plane)
    short = all(len(name) <= 2 for name in names)
    parts = []
    for (px, py), c in zip(plane.tolist(), classes.tolist(), strict=True):
        ink, name = hue(c, len(names)), escape(names[c])
        if short:
            parts.append(f'<text class="point" x="{x(px):.1f}" y="{y(py) + 4:.1f}" style="fill:{ink}">{name}</text>')
        else:
            parts.append(_dot(x(px), y(py), ink, name))
    return svg(SIDE, SIDE, "".join(parts), "map of embeddings, coloured by class")


def values_map(plane: Tensor, values: Tensor) -> str:
    """A map of networks, coloured from blue for the smallest value to red for the largest.

    Arguments:
        plane: Positions (N, 2).
        values: Numbers (N,).
    """
    x, y = _axes(plane)
    low, high = values.min().item(), values.max().item()
    parts = []
    for (px, py), v in zip(plane.tolist(), values.tolist(), strict=True):
        share = (v - low) / ((high - low) or 1)
        parts.append(_dot(x(px), y(py), f"hsl({220 - 205 * share:.0f} 65% 52%)", f"{v:.4g}"))
    return svg(SIDE, SIDE, "".join(parts), "map of embeddings, coloured by value")


def _axes(plane: Tensor) -> tuple[Axis, Axis]:
    across, up = (bounds(plane[:, i].tolist(), margin=0.05) for i in (0, 1))
    return Axis(*across, 6, SIDE - 6), Axis(*up, SIDE - 6, 6)


def _dot(x: float, y: float, ink: str, title: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="{ink}"><title>{title}</title></circle>'


def hue(index: int, count: int) -> str:
    """The colour of a class.

    >>> hue(0, 10), hue(5, 10)
    ('hsl(0 65% 42%)', 'hsl(180 65% 36%)')
    """
    return f"hsl({360 * index / max(count, 1):.0f} 65% {42 - 6 * (index % 2)}%)"


def contact_sheet(images: Tensor, captions: Sequence[str], wrong: Sequence[bool]) -> str:
    """Pictures with a caption below each; marked ones have a frame.

    Arguments:
        images: On the scale [0, 1] (N, H, W, C).
        captions: Below each.
        wrong: Which are marked.
    """
    cells = [
        f"<figure{' class=wrong' if bad else ''}>{picture(image, caption)}"
        f"<figcaption>{escape(caption)}</figcaption></figure>"
        for image, caption, bad in zip(images, captions, wrong, strict=True)
    ]
    return f'<div class="contact">{"".join(cells)}</div>'


def picture(image: Tensor, label: str) -> str:
    """One image (H, W, C) on the scale [0, 1] as an embedded PNG."""
    pixels = (image.clamp(0, 1) * 255).round().byte().numpy()
    data = base64.b64encode(png(pixels)).decode()
    return f'<img alt="{escape(label)}" src="data:image/png;base64,{data}">'
