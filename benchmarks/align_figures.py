"""The pictures of docs/align.md: one for each question."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from align_networks import Data, families, trained
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from scalegmn.alignment.align import align
from scalegmn.alignment.balance import balance
from scalegmn.alignment.barrier import barrier
from scalegmn.core.networks import Networks
from scalegmn.core.transform import Transform

BLUE, ORANGE, GREEN = "#3b6ea5", "#c9803f", "#5b8c5a"
DPI = 80


def draw_all(folder: Path, data: Data, copies: list[dict[str, Any]]) -> None:
    """Draw into a folder; the picture of distances only where they were measured."""
    folder.mkdir(parents=True, exist_ok=True)
    if copies:
        draw_distances([row for row in copies if "distances" in row], folder / "align_distances.png")
    draw_matrices(data, folder / "align_matrices.png")
    draw_barrier(data, folder / "align_barrier.png")
    draw_ranges(data, folder / "align_ranges.png")


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw_distances(rows: list[dict[str, Any]], path: Path) -> None:
    """Mean distances of derived and of independent pairs, one line per family."""
    figure = _figure(7.2, 3.6)
    ax = figure.subplots()
    marks = {"symmetry": "o", "fine-tuned": "s", "pruned 30 %": "v", "int8": "^", "independent": "D"}
    for y, row in enumerate(rows):
        for kind, value in ((kind, row["distances"][kind]) for kind in marks):
            colour = ORANGE if kind == "independent" else BLUE
            ax.plot(max(value, 1e-8), y, marks[kind], color=colour, label=kind if y == 0 else None)
    ax.axvline(0.35, color="#8a8a8a", linewidth=0.8, linestyle=":")
    ax.set_xscale("log")
    ax.set_yticks(range(len(rows)), [row["family"] for row in rows], fontsize=8)
    ax.invert_yaxis()
    ax.set_xlabel("distance after alignment (mean), all pairs disguised")
    ax.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.4, 1.16), ncols=len(marks))
    figure.savefig(path, dpi=DPI)


def _relu(data: Data, seed: int, width: int = 32) -> Networks:
    (family,) = [f for f in families(data) if f.name == "relu MLP"]
    return Networks.from_modules([trained(family, data, seed, width)])


def draw_matrices(data: Data, path: Path) -> None:
    """The second weight matrix of A, of B as stored and of B aligned, and what is left."""
    a = _relu(data, 0)
    b = Transform.sample(a.architecture, 1, torch.Generator().manual_seed(1)).apply(a)
    moved = align(a, b).aligned
    weights = [n.weights[1][0, :, :, 0] for n in (a, b, moved)]  # type: ignore[index]
    left = weights[0] - weights[2]
    names = ("A", "B as stored", "B aligned", f"A - B aligned (largest {float(left.abs().max()):.0e})")
    figure = _figure(9.6, 2.6)
    limit = float(weights[0].abs().max())
    for ax, w, name in zip(figure.subplots(1, 4), (*weights, left), names, strict=True):
        ax.imshow(w.numpy(), cmap="RdBu", vmin=-limit, vmax=limit, interpolation="nearest")
        ax.set_title(name, fontsize=9)
        ax.set_xticks([])
        ax.set_yticks([])
    figure.savefig(path, dpi=DPI)


def draw_barrier(data: Data, path: Path) -> None:
    """The test error between two networks of different seeds."""
    a, b = (_relu(data, seed, 128) for seed in (0, 1))
    x = data.test_x.flatten(1)

    def error(networks: Networks) -> Tensor:
        return (networks.evaluate(x).argmax(2) != data.test_y).double().mean(1)

    barrier(a, b, error, points=15, inputs=data.x[:512].flatten(1)).plot(path, "test error")


def draw_ranges(data: Data, path: Path) -> None:
    """The largest weight into each neuron of the first hidden layer, relative to the tensor's."""
    a = _relu(data, 0)
    scaled = Transform.sample(a.architecture, 1, torch.Generator().manual_seed(1), permute=False).apply(a)
    found = balance(scaled, int8=True, inputs=data.test_x.flatten(1))
    assert found.int8 is not None
    figure = _figure(7.2, 2.6)
    errors = (float(found.int8[0]), float(found.int8[1]))
    for ax, n, name, error, colour in zip(
        figure.subplots(1, 2, sharey=True), (scaled, found.networks), ("rescaled at random", "balanced"), errors,
        (ORANGE, GREEN), strict=True,
    ):  # fmt: skip
        weight = n.weights[0]
        assert weight is not None
        ranges = weight[0].abs().flatten(1).amax(1)
        ax.bar(range(len(ranges)), (ranges / ranges.max()).tolist(), color=colour)
        ax.set_title(f"{name}: int8 changes outputs by {100 * error:.1f} %", fontsize=9)
        ax.set_xlabel("neuron of the first hidden layer")
    figure.axes[0].set_ylabel("range / range of tensor")
    figure.savefig(path, dpi=DPI)
