"""Train three small models on digits, and make the pictures that README.md and the site show.

    python docs/tools/figures.py [FOLDER]

writes `docs/figures/play.html` (the interactive figure) and `docs/figures/overview.png`. What is trained stays in
FOLDER (`.cache/figures` where omitted), and a second call uses it. It takes a few minutes on two cores.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes

from scalegmn import Networks, Transform, Zoo
from scalegmn.inference.trained import Trained, load
from scalegmn.report.play import playground
from scalegmn.training.loop import train
from scalegmn.training.recipe import make_recipe
from scalegmn.training.run import Run
from scalegmn.zoo.images.collections import load_images
from scalegmn.zoo.inr.build import build_inr_zoo
from scalegmn.zoo.inr.conventions import Fit

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "figures"
GRAPH = {"width": 24, "layers": 3, "readout": "output", "edge_updates": False, "dropout": 0.2}
MODELS = {
    "ScaleGMN": {"name": "scalegmn", **GRAPH},
    "GMN": {"name": "gmn", **GRAPH},
    "MLP": {"name": "mlp", "width": 32},
}


def models(folder: Path) -> tuple[Zoo, dict[str, Trained]]:
    """The zoo and the trained models, made or only opened."""
    zoo = build_inr_zoo(load_images("digits"), folder / "digits", fit=Fit(hidden=(16, 16)))
    found = {}
    for title, model in MODELS.items():
        training = {"epochs": 40, "batch": 32, "lr": 2e-3, "weight_decay": 0.1, "schedule": "cosine", "device": "cpu"}
        recipe = make_recipe({"zoo": str(zoo.path), "task": "classification", "model": model, "training": training})
        out = folder / title.lower()
        results = train(recipe, out, resume=Run(out).exists)
        print(f"{title}: test accuracy {results['test']['accuracy']:.3f}")  # noqa: T201
        found[title] = load(out)
    return zoo, found


def overview(zoo: Zoo, trained: dict[str, Trained], index: int) -> plt.Figure:
    """A network and a moved copy of it, row by row: weights, picture, and what three models say."""
    network = zoo.batch([index])
    moved = Transform.sample(zoo.architecture, 1, torch.Generator().manual_seed(1)).apply(network)
    assert zoo.canvas is not None
    widths = [1.15, 1, 0.12, 1.25, 1.25, 1.25]
    figure, axes = plt.subplots(2, 6, figsize=(11.2, 3.9), width_ratios=widths, layout="constrained")
    rows = (("a network", network), ("its neurons permuted,\nsome signs flipped", moved))
    for row, (name, which) in zip(axes, rows, strict=True):
        _matrix(row[0], which, name)
        row[1].imshow(zoo.canvas.render(which)[0, :, :, 0].clamp(0, 1).numpy(), cmap="gray", vmin=0, vmax=1)
        row[1].set_axis_off()
        row[2].set_axis_off()
        for axis, model in zip(row[3:], trained.values(), strict=True):
            change = 0.0 if which is network else (_shares(model, moved) - _shares(model, network)).abs().max().item()
            _answer(axis, _shares(model, which).tolist(), change, first=which is network)
    titles = ("other weights", "the same picture", "", *(f"{title} says" for title in trained))
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title, fontsize=12, weight="bold", pad=8)
    return figure


def _matrix(axis: Axes, network: Networks, name: str) -> None:
    weights = network.weights[1]
    assert weights is not None
    matrix = weights[0, :, :, 0]
    top = matrix.abs().max().item()
    axis.imshow(matrix.numpy(), cmap="RdBu_r", vmin=-top, vmax=top)
    axis.set_xticks([])
    axis.set_yticks([])
    axis.set_ylabel(name, fontsize=11)


def _shares(model: Trained, network: Networks) -> torch.Tensor:
    with torch.no_grad():
        return model.model(network).softmax(1)[0]


def _answer(axis: Axes, shares: list[float], change: float, *, first: bool) -> None:
    best = shares.index(max(shares))
    axis.bar(range(10), shares, color=["#2f6fdf" if i == best else "#a9b4c4" for i in range(10)])
    axis.set_xticks(range(10))
    axis.set_yticks([])
    axis.set_ylim(0, 1.05)
    axis.tick_params(length=0, labelsize=9)
    axis.spines[["top", "left", "right"]].set_visible(False)
    if not first:
        kept = change < 1e-5
        text = "the same" if kept else f"moved by {100 * change:.0f} points"
        axis.text(9.4, 0.98, text, ha="right", va="top", fontsize=11, color="#1d7a5b" if kept else "#c2452a")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".cache" / "figures"
    zoo, trained = models(folder)
    FIGURES.mkdir(exist_ok=True)
    test = zoo.split("test")
    (FIGURES / "play.html").write_text(playground(trained, zoo, test) + "\n", encoding="utf-8")
    chosen = int(test[zoo.column("label")[test] == 3][0])
    overview(zoo, trained, chosen).savefig(FIGURES / "overview.png", dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    main()
