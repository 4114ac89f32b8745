"""The figures of a report."""

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from html import escape

import numpy as np
import torch
from torch import Tensor

from .collect import Series
from .svg import Axis, Frame, colour, dash, dots, line, svg

# A larger matrix is drawn without its numbers.
NUMBERED_CLASSES = 12
SCATTERED = 1500


def curves(series: Sequence[Series], key: str, name: str) -> str:
    """One curve per run over the epochs.

    Arguments:
        series: Whose runs are drawn.
        key: Of the lines of `metrics.jsonl`.
        name: Of the vertical axis.
    """
    found = [
        (i, f"{s.label}, seed {run.seed}", [(m["epoch"], _value(m.get(key))) for m in run.metrics])
        for i, s in enumerate(series)
        for run in s.runs
        if run.metrics
    ]
    xs = [0.0, *(x for _, _, points in found for x, _ in points)]
    ys = [y for _, _, points in found for _, y in points]
    frame = Frame.around(xs, ys, "epoch", name)
    frame = Frame(Axis(0, max(xs) or 1, frame.x.start, frame.x.stop), frame.y, frame.x_label, frame.y_label)
    return frame.draw("".join(line(frame, points, i, title) for i, title, points in found), f"{name} by epoch")


def _value(value: float | None) -> float:
    return math.nan if value is None else value


def legend(labels: Sequence[str]) -> str:
    """The colours of the series."""
    items = []
    for i, label in enumerate(labels):
        dashes = f' stroke-dasharray="{dash(i)}"' if dash(i) else ""
        stroke = f'<line x1="0" x2="22" y1="5" y2="5" stroke="{colour(i)}" stroke-width="3"{dashes}/>'
        items.append(f'<li><svg class="key" viewBox="0 0 22 10">{stroke}</svg>{escape(label)}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'


def confusion(truths: Tensor, answers: Tensor, names: Sequence[str]) -> str:
    """A confusion matrix: rows are truths, columns are answers, shades are fractions of a row.

    Arguments:
        truths, answers: Positions in `names` (N,).
        names: Of the classes.
    """
    k = len(names)
    counts = torch.bincount(truths * k + answers, minlength=k * k).reshape(k, k)
    rows = counts.sum(1, keepdim=True).clamp(min=1)
    cell, left, top = 280 / k, 46.0, 10.0
    parts = []
    for t in range(k):
        for a in range(k):
            share = (counts[t, a] / rows[t, 0]).item()
            hue = "47,111,223" if t == a else "217,96,59"
            x, y = left + a * cell, top + t * cell
            # A single mistake among many must still be seen.
            shade = 0.12 + 0.88 * share if share else 0.0
            title = f"{names[t]} taken for {names[a]}: {int(counts[t, a])} of {int(rows[t, 0])}"
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{cell - 1:.1f}" height="{cell - 1:.1f}" rx="2" '
                f'fill="{f"rgba({hue},{shade:.2f})" if share else "#f1f3f6"}"><title>{escape(title)}</title></rect>'
            )
            if counts[t, a] and k <= NUMBERED_CLASSES:
                ink = "#fff" if shade > 0.7 else "#1c2430"
                parts.append(
                    f'<text class="cell" x="{x + cell / 2:.1f}" y="{y + cell / 2 + 4:.1f}" style="fill:{ink}">'
                    f"{int(counts[t, a])}</text>"
                )
    if k <= NUMBERED_CLASSES:
        parts += [_class_names(name, i, cell, left, top, k) for i, name in enumerate(names)]
    bottom = top + k * cell
    parts.append(f'<text class="axis" x="{left + 140:g}" y="{bottom + 36:g}" text-anchor="middle">answer</text>')
    parts.append(
        f'<text class="axis" transform="translate(12 {top + 140:g}) rotate(-90)" text-anchor="middle">truth</text>'
    )
    return svg(330, bottom + 42, "".join(parts), "confusion matrix")


def _class_names(name: str, i: int, cell: float, left: float, top: float, k: int) -> str:
    short = escape(name if len(name) <= 6 else name[:5] + "…")
    middle = (i + 0.5) * cell
    return (
        f'<text class="tick" x="{left - 6:g}" y="{top + middle + 4:.1f}" text-anchor="end">{short}</text>'
        f'<text class="tick" x="{left + middle:.1f}" y="{top + k * cell + 16:g}" text-anchor="middle">{short}</text>'
    )


def scatter(truths: Tensor, answers: Tensor, index: int, name: str) -> str:
    """Predicted against true values, with the diagonal.

    Arguments:
        truths, answers: Numbers (N,).
        index: Of the series, for its colour.
        name: What is predicted.
    """
    pairs = list(zip(truths.tolist(), answers.tolist(), strict=True))
    # From all of them, evenly: the answers of several seeds follow each other.
    pairs = pairs[:: -(-len(pairs) // SCATTERED)]
    frame = Frame.around([p[0] for p in pairs], [p[1] for p in pairs], f"true {name}", "predicted", square=True)
    low, high = frame.x.low, frame.x.high
    ends = f'x1="{frame.x(low):.1f}" y1="{frame.y(low):.1f}" x2="{frame.x(high):.1f}" y2="{frame.y(high):.1f}"'
    return frame.draw(f'<line class="diagonal" {ends}/>' + dots(frame, pairs, index), f"predicted against true {name}")


def changes(found: Sequence[tuple[int, str, Tensor]]) -> str:
    """How much answers change under random transforms: range, middle half and median, on a logarithmic axis.

    Arguments:
        found: Of each series its index, its label and the largest change of an output of each network (N,).
    """
    positive = [v for _, _, t in found for v in t[(t > 0) & t.isfinite()].tolist()]
    low = 10.0 ** math.floor(math.log10(min(positive))) if positive else 1e-8
    high = 10.0 ** math.ceil(math.log10(max(positive) * 1.0001)) if positive else 1.0
    row, width, top = 46.0, 460.0, 6.0
    x = Axis(low, high, 28, width - 28, log=True)
    bottom = top + row * len(found)
    parts = [
        f'<line class="grid" x1="{x(v):.1f}" x2="{x(v):.1f}" y1="{top:g}" y2="{bottom:g}"/>'
        f'<text class="tick" x="{x(v):.1f}" y="{bottom + 16:g}" text-anchor="middle">{v:.0e}</text>'
        for v in x.ticks(6)
    ]
    for position, (index, label, values) in enumerate(found):
        y = top + position * row + 30
        # What is infinite or no number stands at the end of the axis.
        within = values.double().nan_to_num(high, high).clamp(low, high)
        parts_of = torch.tensor([0, 0.25, 0.5, 0.75, 1], dtype=torch.float64)
        a, b, c, d, e = map(x, torch.quantile(within, parts_of).tolist())
        ink = colour(index)
        level = f'y1="{y:g}" y2="{y:g}" stroke="{ink}"'
        parts.append(
            f'<text class="strip" x="{x.start:g}" y="{y - 11:g}">{escape(label)}</text>'
            f'<line x1="{a:.1f}" x2="{e:.1f}" {level} stroke-width="2" stroke-opacity="0.5"/>'
            f'<line x1="{b:.1f}" x2="{d:.1f}" {level} stroke-width="8"/>'
            f'<circle cx="{c:.1f}" cy="{y:g}" r="5" fill="#fff" stroke="{ink}" stroke-width="2.5"/>'
        )
    label = "largest change of an output, per network"
    parts.append(f'<text class="axis" x="{width / 2:g}" y="{bottom + 36:g}" text-anchor="middle">{label}</text>')
    return svg(width, bottom + 42, "".join(parts), "change of predictions under random transforms")


def strip(images: Tensor, label: str) -> str:
    """Images side by side as one embedded PNG.

    Arguments:
        images: On the scale [0, 1] (N, H, W, C).
        label: What they are.
    """
    pixels = (images.clamp(0, 1) * 255).round().byte()
    gap = pixels.new_full((len(pixels), pixels.shape[1], 1, pixels.shape[3]), 255)
    row = torch.cat([pixels, gap], 2).transpose(0, 1).flatten(1, 2)[:, :-1]
    data = base64.b64encode(png(row.numpy())).decode()
    return f'<img class="strip" alt="{escape(label)}" src="data:image/png;base64,{data}">'


def png(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    """An 8-bit image (H, W, 1 or 3) as a PNG file.

    >>> png(np.zeros((2, 3, 1), np.uint8))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    height, width, channels = pixels.shape
    # Every row begins with the number of its filter, none.
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], 1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")]
    body = b"".join(struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + body
