"""Figures of a zoo: how its weights are distributed, and INRs next to the images that they were fitted to."""

from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..core.architecture import Segment
from ..errors import ScaleGMNError
from ..files import write_figure
from ..files.arrays import Array
from .store.stats import per_neuron, segment_name
from .store.zoo import Zoo

WEIGHT, BIAS, METRIC = "#3b6ea5", "#c9803f", "#5b8c5a"
# Networks from which histograms are drawn: enough for smooth curves, few enough for any zoo.
SAMPLE = 2000
METRICS = ("psnr", "accuracy", "test_accuracy", "label")


def plot_distributions(zoo: Zoo, path: str | Path, *, architecture: int = 0) -> None:
    """Draw the sign and norm distributions of every layer (paper, appendix on scaling coefficients) and the metric.

    Arguments:
        zoo: The zoo.
        path: The PNG to write.
        architecture: Which of the zoo's architectures.
    """
    a = zoo.architectures[architecture]
    rows = torch.nonzero(zoo.architecture_of() == architecture)[:, 0]
    rows = rows[torch.linspace(0, len(rows) - 1, min(SAMPLE, len(rows))).long()]
    (networks,), _ = zoo.batches(rows)
    weights = networks.parameters.numpy()
    if not np.isfinite(weights).all():
        raise ScaleGMNError(f"zoo: {zoo.path} has NaN or infinite weights; `scalegmn zoo verify` lists what is damaged")
    # Very deep networks: the first layers and the last ones.
    segments = list(a.segments) if len(a.segments) <= 12 else [*a.segments[:6], *a.segments[-6:]]
    figure = Figure(figsize=(2.1 * max(len(segments), 4), 6.6), layout="constrained")
    FigureCanvasAgg(figure)
    halves = figure.add_gridspec(2, 1, height_ratios=[2, 1])
    top, bottom = figure.add_subfigure(halves[0]), figure.add_subfigure(halves[1])
    grid = top.subplots(2, len(segments), squeeze=False)
    for i, segment in enumerate(segments):
        values = per_neuron(weights[:, segment.start : segment.start + segment.size], segment)
        _weights(grid[0, i], values, segment, segment_name(a, segment))
        _norms(grid[1, i], values, segment)
    grid[0, 0].set_ylabel("values", fontsize=9)
    grid[1, 0].set_ylabel("length per neuron", fontsize=9)
    _metric(bottom.subplots(), zoo)
    figure.suptitle(f"{zoo.path.name}: {len(zoo):,} networks, {a}", fontsize=10)
    write_figure(path, figure, dpi=130)


def _weights(ax: Axes, values: Array, segment: Segment, name: str) -> None:
    flat = values.reshape(-1)
    limit = float(np.quantile(np.abs(flat), 0.998)) or 1.0
    colour = WEIGHT if segment.kind == "weight" else BIAS
    ax.hist(flat, bins=60, range=(-limit, limit), color=colour)
    ax.axvline(0, color="black", linewidth=0.6)
    ax.set_title(f"{name}   {np.mean(flat < 0):.0%} negative", fontsize=8)
    _quiet(ax)


def _norms(ax: Axes, values: Array, segment: Segment) -> None:
    norms = np.sqrt(np.square(values, dtype=np.float64).sum(axis=2)).reshape(-1)
    spread = norms.std() / norms.mean() if norms.mean() else 0.0
    colour = WEIGHT if segment.kind == "weight" else BIAS
    ax.hist(norms, bins=60, range=(0, float(np.quantile(norms, 0.998)) or 1.0), color=colour)
    ax.set_title(f"spread {spread:.2f}", fontsize=8)
    _quiet(ax)


def _metric(ax: Axes, zoo: Zoo) -> None:
    name = next((n for n in METRICS if n in zoo.columns), None)
    if name is None:
        ax.set_axis_off()
        return
    values = zoo.column(name).double()
    values = values[torch.isfinite(values)]
    ax.hist(values.numpy(), bins=60, color=METRIC)
    ax.set_xlabel({"psnr": "PSNR (dB)"}.get(name, name.replace("_", " ")), fontsize=9)
    ax.set_ylabel("networks", fontsize=9)
    ax.set_title(f"mean {float(values.mean()):.3g}", fontsize=8)
    _quiet(ax, keep_counts=True)


def plot_sheet(zoo: Zoo, path: str | Path, *, count: int = 24, seed: int = 0) -> None:
    """Draw INRs next to the images that they were fitted to, with label and PSNR.

    Arguments:
        zoo: A zoo of INRs.
        path: The PNG to write.
        count: How many networks, drawn at random.
        seed: Decides the choice.
    """
    if zoo.canvas is None:
        raise ScaleGMNError(f"zoo: {zoo.path} holds {zoo.kind} networks, which have no pictures; use `info --plot`")
    if count < 1:
        raise ScaleGMNError(f"count: expected at least 1, got {count}")
    chosen = np.sort(np.random.default_rng(seed).permutation(len(zoo))[:count])
    rows = torch.from_numpy(chosen)
    with torch.no_grad():
        painted = zoo.canvas.render(zoo.batch(rows)).clamp(0, 1).numpy()
    images = zoo.images(rows).numpy() / 255 if zoo.has_images else None
    across = min(6, len(chosen))
    down = -(-len(chosen) // across)
    figure = Figure(figsize=(2.2 * across, 1.45 * down + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(down, across, squeeze=False).reshape(-1)
    for ax in grid:
        ax.set_axis_off()
    for i, ax in enumerate(grid[: len(chosen)]):
        pair = painted[i] if images is None else _beside(images[i], painted[i])
        ax.imshow(pair.squeeze(-1) if pair.shape[-1] == 1 else pair, cmap="gray", vmin=0, vmax=1)
        ax.set_title(_caption(zoo, int(chosen[i])), fontsize=8)
    what = "image left, INR right" if images is not None else "INRs"
    figure.suptitle(f"{zoo.path.name}: {what}", fontsize=10)
    write_figure(path, figure, dpi=130)


def _beside(image: Array, painted: Array) -> Array:
    """Two pictures with a white line between them."""
    gap = np.ones((image.shape[0], max(1, image.shape[1] // 14), image.shape[2]), np.float32)
    return np.concatenate([image, gap, painted], axis=1)


def _caption(zoo: Zoo, number: int) -> str:
    words = []
    if "label" in zoo.columns:
        label, names = zoo.column("label")[number], zoo.categories("label")
        words.append(names[int(label)] if names else f"{label:g}")
    if "psnr" in zoo.columns:
        words.append(f"{float(zoo.column('psnr')[number]):.1f} dB")
    return "   ".join(words)


def _quiet(ax: Axes, *, keep_counts: bool = False) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=7)
    if not keep_counts:
        ax.set_yticks([])
        ax.spines["left"].set_visible(False)
