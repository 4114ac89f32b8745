"""A picture of an architecture: layers from left to right, their blocks coloured by permutation slot."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.architecture import Architecture, Attention, Connection, Conv, Normalise, Product, Scale, Skip, Table
from ..core.blocks import Block
from ..files import write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FIXED = "#bbbbbb"


def describe_map(c: Connection) -> str:
    """What a connection does, in a word or two.

    >>> describe_map(Connection(0, 1, Conv((3, 3), (2, 2), (1, 1), (1, 1))))
    'conv 3x3 stride 2'
    """
    match c.map:
        case Conv(kernel=kernel, stride=stride, groups=groups, transposed=transposed):
            what = f"{'transposed ' if transposed else ''}conv {'x'.join(map(str, kernel))}"
            what += f" stride {stride[0]}" if set(stride) != {1} else ""
            return what + (f" in {groups} groups" if groups > 1 else "")
        case Skip(size=size):
            return "some channels" if size else "residual"
        case Normalise(kind=kind, groups=groups):
            return {"layer": "layer norm", "rms": "RMS norm"}.get(kind, f"norm of {groups} groups")
        case Scale():
            return "factors"
        case Table(positions=positions):
            return f"table {'x'.join(map(str, positions))}" if positions else "shift"
        case linear:
            return f"flatten {'x'.join(map(str, linear.positions))}" if linear.positions else "linear"


def describe_block(block: Block) -> str:
    """What may happen to the neurons of a block.

    >>> describe_block(Block(0, 8, 3, scales=((1, 1.0), (2, -1.0)), signs=(1,)))
    '8: order 3, a1 a2^-1, sign b1'
    """
    order = "fixed" if block.slot is None else f"order {block.slot}"
    heads = f" in {block.heads} heads ({block.head_slot})" if block.heads > 1 else ""
    scales = " ".join(f"a{v}" if p == 1 else f"a{v}^{p:g}" for v, p in block.scales)
    signs = " ".join(f"b{v}" for v in block.signs)
    rest = [part for part in (scales, f"sign {signs}" if signs else "") if part]
    return f"{block.size}: {', '.join([order + heads, *rest])}"


def columns(architecture: Architecture) -> list[int]:
    """How far each layer is from the input."""
    depth = [0] * len(architecture.layers)
    for c in architecture.connections:
        depth[c.target] = max(depth[c.target], depth[c.source] + 1)
    depth[-1] = max(depth)
    return depth


def draw(architecture: Architecture, path: str | Path) -> None:
    """Write the picture; the suffix decides the format.

    Arguments:
        architecture: What to draw.
        path: A name that ends in .png, .svg or .pdf.
    """
    import matplotlib.pyplot as plt

    places = _places(architecture)
    width = 1.5 + 1.1 * (1 + max(x for x, _ in places))
    height = 1.5 + 1.4 * max(1.0, max(y for _, y in places) - min(y for _, y in places))
    figure, axes = plt.subplots(figsize=(min(width, 60), min(height, 20)))
    for c in architecture.connections:
        _line(axes, c, places[c.source], places[c.target])
    for i, (x, y) in enumerate(places):
        _layer(axes, architecture, i, x, y)
    axes.set_axis_off()
    axes.autoscale_view()
    plt.close(figure)
    write_figure(path, figure, dpi=120, tight=True)


def _places(architecture: Architecture) -> list[tuple[float, float]]:
    """Place the layers of one column below each other."""
    column = columns(architecture)
    found = []
    for i, x in enumerate(column):
        beside = [j for j, other in enumerate(column) if other == x]
        found.append((float(x), (len(beside) - 1) / 2 - beside.index(i)))
    return found


def _line(axes: Axes, c: Connection, source: tuple[float, float], target: tuple[float, float]) -> None:
    wire = isinstance(c.map, Skip)
    bend = 0.35 if target[0] - source[0] > 1 else 0.0
    style = {"arrowstyle": "-|>", "color": "#888888", "linestyle": "dashed" if wire else "solid", "shrinkA": 12,
             "shrinkB": 12, "connectionstyle": f"arc3,rad={bend}"}  # fmt: skip
    axes.annotate("", xy=target, xytext=source, arrowprops=style)
    if not wire:
        middle = (source[0] + target[0]) / 2, (source[1] + target[1]) / 2 - 0.12 - bend / 2
        axes.text(*middle, describe_map(c), ha="center", va="top", fontsize=6, color="#555555")


def _layer(axes: Axes, architecture: Architecture, index: int, x: float, y: float) -> None:
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    layer, blocks = architecture.layers[index], architecture.blocks[index]
    tall = 0.3 + 0.1 * math.log2(layer.size)
    bottom = y - tall / 2
    for b in blocks:
        share = tall * b.size / layer.size
        colour = _FIXED if b.slot is None else plt.get_cmap("tab20")(b.slot % 20)
        axes.add_patch(Rectangle((x - 0.12, bottom), 0.24, share, facecolor=colour, edgecolor="black", linewidth=0.6))
        bottom += share
    kind = {Product: " product", Attention: " attention"}.get(type(layer.combine), "")
    name = "" if layer.activation.name == "identity" else f" {layer.activation}"
    axes.text(x, y + tall / 2 + 0.04, f"{layer.size}{kind}{name}", ha="center", va="bottom", fontsize=7)
