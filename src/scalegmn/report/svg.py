"""Small charts as SVG text: a frame with axes, and what is drawn in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

PALETTE = ("#2f6fdf", "#d9603b", "#2a9d78", "#8a5cd1", "#b8860b", "#1f9bb8", "#c2477f", "#6b7280")
_DASHES = ("", "5 3", "2 3")


def colour(index: int) -> str:
    """The colour of the i-th series.

    >>> colour(0) == colour(len(PALETTE))
    True
    """
    return PALETTE[index % len(PALETTE)]


def dash(index: int) -> str:
    """The dashes of the i-th series, which distinguish series of the same colour."""
    return _DASHES[index // len(PALETTE) % len(_DASHES)]


@dataclass(frozen=True)
class Axis:
    """A map from values to positions.

    Arguments:
        low, high: The values at the ends.
        start, stop: The positions of the ends.
        log: Whether the axis is logarithmic.

    >>> Axis(1, 100, 0, 10, log=True)(10)
    5.0
    """

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The position of a value."""
        f: Callable[[float], float] = math.log10 if self.log else float
        span = f(self.high) - f(self.low)
        part = (f(value) - f(self.low)) / span if span else 0.5
        return self.start + part * (self.stop - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        """Round values from end to end."""
        if not self.log:
            return ticks(self.low, self.high, count)
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        step = max(1, math.ceil((last - first) / count))
        return [10.0**e for e in range(first, last + 1, step)]


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round values between two ends.

    >>> ticks(0.0, 1.0)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    if not high > low:
        return [low]
    rough = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(m * unit for m in (1, 2, 5, 10) if m * unit >= 0.7 * rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def bounds(values: Iterable[float], *, margin: float = 0.04) -> tuple[float, float]:
    """The ends of an axis for some values, a little beyond the outermost.

    >>> bounds([0.0, 1.0], margin=0.1)
    (-0.1, 1.1)
    """
    found = [v for v in values if math.isfinite(v)]
    if not found:
        return 0.0, 1.0
    low, high = min(found), max(found)
    space = margin * (high - low) or 0.5 * abs(low) or 0.5
    return low - space, high + space


@dataclass(frozen=True)
class Frame:
    """The axes of a chart of fixed proportions, which the page scales to its width.

    Arguments:
        x, y: The scales; positions are in units of the drawing.
        x_label, y_label: What the axes show.
        width, height: Of the drawing.
    """

    x: Axis
    y: Axis
    x_label: str
    y_label: str
    width: float = 460
    height: float = 300

    @staticmethod
    def around(xs: Iterable[float], ys: Iterable[float], x_label: str, y_label: str, *, square: bool = False) -> Frame:
        """Axes that hold all values; with `square` both show the same range at the same size."""
        width, height = (330.0, 330.0) if square else (460.0, 300.0)
        x_ends, y_ends = bounds(xs), bounds(ys)
        if square:
            x_ends = y_ends = min(x_ends[0], y_ends[0]), max(x_ends[1], y_ends[1])
        x = Axis(*x_ends, 60, width - 12)
        return Frame(x, Axis(*y_ends, height - 44, 12), x_label, y_label, width, height)

    def draw(self, content: str, name: str) -> str:
        """The chart with its grid, its content and a name for screen readers."""
        x, y = self.x, self.y
        lines = [
            f'<line class="grid" x1="{x.start:g}" x2="{x.stop:g}" y1="{y(v):.1f}" y2="{y(v):.1f}"/>'
            f'<text class="tick" x="{x.start - 7:g}" y="{y(v) + 4:.1f}" text-anchor="end">{axis_number(v)}</text>'
            for v in y.ticks()
        ]
        lines += [
            f'<line class="grid" x1="{x(v):.1f}" x2="{x(v):.1f}" y1="{y.start:g}" y2="{y.stop:g}"/>'
            f'<text class="tick" x="{x(v):.1f}" y="{y.start + 16:g}" text-anchor="middle">{axis_number(v)}</text>'
            for v in x.ticks()
        ]
        middle = (y.start + y.stop) / 2
        labels = (
            f'<text class="axis" x="{(x.start + x.stop) / 2:g}" y="{self.height - 6:g}" text-anchor="middle">'
            f"{escape(self.x_label)}</text>"
            f'<text class="axis" transform="translate(13 {middle:g}) rotate(-90)" text-anchor="middle">'
            f"{escape(self.y_label)}</text>"
        )
        return svg(self.width, self.height, "".join(lines) + content + labels, name)


def svg(width: float, height: float, content: str, name: str) -> str:
    """A drawing that scales with the page."""
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(name)}" '
        f'style="max-width:{1.25 * width:g}px">{content}</svg>'
    )


def axis_number(value: float) -> str:
    """A number on an axis.

    >>> axis_number(0.25), axis_number(1e-6), axis_number(20000.0)
    ('0.25', '1e-06', '20000')
    """
    return f"{value:.0f}" if value == round(value) and abs(value) < 1e5 else f"{value:.3g}"


def line(frame: Frame, points: Sequence[tuple[float, float]], index: int, title: str) -> str:
    """A curve through points; it is interrupted where a value is not finite."""
    pieces: list[str] = []
    pen = "M"
    for px, py in points:
        finite = math.isfinite(px) and math.isfinite(py)
        if finite:
            pieces.append(f"{pen}{frame.x(px):.1f} {frame.y(py):.1f}")
        pen = "L" if finite else "M"
    style = f'stroke="{colour(index)}"' + (f' stroke-dasharray="{dash(index)}"' if dash(index) else "")
    # A path of one point shows as a dot: its ends are round.
    path = "".join(pieces) + ("h0" if len(pieces) == 1 else "")
    style += ' style="stroke-width:7"' if len(pieces) == 1 else ""
    return f'<path class="curve" d="{path}" {style}><title>{escape(title)}</title></path>'


def dots(frame: Frame, points: Iterable[tuple[float, float]], index: int) -> str:
    """A cloud of points."""
    found = [(px, py) for px, py in points if math.isfinite(px) and math.isfinite(py)]
    circles = "".join(f'<circle cx="{frame.x(px):.1f}" cy="{frame.y(py):.1f}" r="2.2"/>' for px, py in found)
    return f'<g fill="{colour(index)}" fill-opacity="0.45">{circles}</g>'
