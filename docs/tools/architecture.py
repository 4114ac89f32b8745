"""Draw `docs/figures/architecture.svg`: the parts of the package, and the path of a network through them.

    python docs/tools/architecture.py

`tests/docs/test_architecture.py` checks that the drawing has every part and that the file is the one that this makes.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

FILE = Path(__file__).parents[1] / "figures" / "architecture.svg"
WIDTH, HEIGHT = 1040, 664
COLOURS = {  # fill and border
    "flow": ("#e3ecfd", "#2f6fdf"),
    "learn": ("#e4f3ea", "#2f8f62"),
    "symmetry": ("#fdf1dc", "#c98a1b"),
    "people": ("#f1e8f8", "#8a5bb0"),
    "ground": ("#eef0f3", "#8b95a3"),
    "outside": ("#ffffff", "#3b4351"),
}


@dataclass(frozen=True)
class Box:
    """A rectangle with a title and a few lines; `outside` is what a person brings and takes away."""

    x: int
    y: int
    w: int
    h: int
    colour: str
    text: str

    @property
    def lines(self) -> list[str]:
        """Below the title; a bar begins a new one."""
        return self.text.split("|") if self.text else []

    def at(self, side: str, share: float = 0.5) -> tuple[float, float]:
        """A point on a side: left, right, top or bottom."""
        if side in ("left", "right"):
            return (self.x + self.w * (side == "right"), self.y + self.h * share)
        return (self.x + self.w * share, self.y + self.h * (side == "bottom"))


ROOMS = {
    "convert": Box(196, 96, 170, 104, "flow", "torch.fx finds layers,|activations, additions;|no code in files is run"),
    "core": Box(
        400, 96, 210, 104, "flow", "Architecture: its symmetry|Networks: weights (B, P)|Transform, canonical form"
    ),
    "models": Box(650, 96, 180, 104, "flow", "trunk: ScaleGMN or peer|head: Classifier,|Regressor or Editor"),
    "inference": Box(864, 96, 156, 104, "flow", "a trained model|reads your files;|pictures, hub"),
    "audit": Box(20, 250, 142, 76, "symmetry", "every law|on every model"),
    "testing": Box(214, 250, 152, 76, "symmetry", "is this equivariant,|is that preserved?"),
    "alignment": Box(400, 250, 210, 76, "symmetry", "compare, align, merge,|balance, deduplicate"),
    "nn": Box(650, 250, 180, 76, "flow", "the paper's equations:|message, update, readout"),
    "theorem": Box(864, 250, 156, 76, "symmetry", "the proof,|as a program"),
    "native": Box(650, 376, 370, 76, "ground", "C++ behind one operator, scalegmn::net,|and C++ that fits networks"),
    "zoo": Box(20, 366, 190, 96, "learn", "networks on disk:|built, imported, split;|images"),
    "tasks": Box(244, 366, 152, 96, "learn", "what is learned:|classes, numbers,|edits"),
    "training": Box(430, 366, 180, 96, "learn", "recipes, the loop,|checkpoints, sweeps"),
    "report": Box(20, 508, 190, 60, "people", "the page about runs"),
    "reproduce": Box(244, 508, 152, 60, "people", "the paper's tables"),
    "bench": Box(430, 508, 180, 60, "people", "speed and memory"),
    "cli": Box(650, 508, 370, 60, "people", "one file per command, over all of the above"),
    "errors": Box(20, 596, 320, 48, "ground", ""),
    "files": Box(360, 596, 320, 48, "ground", ""),
    "cluster": Box(700, 596, 320, 48, "ground", ""),
}
GROUND = {
    "errors": "the one error for bad input",
    "files": "written whole or not at all",
    "cluster": "work on Ray",
}
YOURS = Box(20, 96, 150, 104, "outside", "a file, a module|or a state dict")
ANSWER = Box(864, 18, 156, 48, "outside", "label, number, edit")
PLACES = {**ROOMS, "your network": YOURS, "answer": ANSWER}
# From, side and share of it; to, side and share; what goes along.
ARROWS = (
    ("your network", "right", 0.5, "convert", "left", 0.5, "flow"),
    ("convert", "right", 0.5, "core", "left", 0.5, "flow"),
    ("core", "right", 0.5, "models", "left", 0.5, "flow"),
    ("models", "right", 0.5, "inference", "left", 0.5, "flow"),
    ("inference", "top", 0.5, "answer", "bottom", 0.5, "flow"),
    ("nn", "top", 0.5, "models", "bottom", 0.5, "use"),
    ("native", "top", 0.243, "nn", "bottom", 0.5, "use"),
    ("core", "bottom", 0.5, "alignment", "top", 0.5, "use"),
    ("core", "bottom", 0.1, "testing", "top", 0.75, "use"),
    ("testing", "left", 0.5, "audit", "right", 0.5, "use"),
    ("nn", "right", 0.5, "theorem", "left", 0.5, "use"),
    ("convert", "bottom", 0.04, "zoo", "top", 0.94, "use"),
    ("zoo", "right", 0.5, "tasks", "left", 0.5, "learn"),
    ("tasks", "right", 0.5, "training", "left", 0.5, "learn"),
    ("training", "right", 0.3, "models", "bottom", 0.08, "learn"),
    ("training", "bottom", 0.1, "report", "top", 0.8, "use"),
    ("training", "bottom", 0.1, "reproduce", "top", 0.8, "use"),
    ("training", "bottom", 0.5, "bench", "top", 0.5, "use"),
)
STROKES = {"flow": ("#2f6fdf", 3.2), "learn": ("#2f8f62", 2.2), "use": ("#8b95a3", 1.4)}


def drawing() -> str:
    """The picture as SVG."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="12.5" fill="#222a35">',
        "<title>The parts of scalegmn, and the path of a network through them</title>",
        "<defs>",
        *(_head(kind, colour) for kind, (colour, _) in STROKES.items()),
        "</defs>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="#ffffff"/>',
        _note(20, 34, "the path of a network", "flow"),
        _note(20, 50, "training", "learn"),
        _note(20, 66, "used by", "use"),
        *(_arrow(*arrow) for arrow in ARROWS),
        *(_room(name, box) for name, box in ROOMS.items()),
        *(_outside(box) for box in (YOURS, ANSWER)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _head(kind: str, colour: str) -> str:
    return (
        f'<marker id="{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" fill="{colour}"/></marker>'
    )


def _note(x: int, y: int, text: str, kind: str) -> str:
    colour, width = STROKES[kind]
    line = f'<path d="M{x} {y - 4}h34" stroke="{colour}" stroke-width="{width}" marker-end="url(#{kind})"/>'
    return f'{line}<text x="{x + 44}" y="{y}" font-size="12">{escape(text)}</text>'


def _arrow(source: str, out: str, a: float, target: str, into: str, b: float, kind: str) -> str:
    (x, y), (u, v) = PLACES[source].at(out, a), PLACES[target].at(into, b)
    colour, width = STROKES[kind]
    if out == "right" and into == "bottom":
        # Up through the space between two columns.
        lane = (x + PLACES[target].x) / 2
        middle = f"C{lane:g} {y:g} {lane:g} {y:g} {lane:g} {y - 20:g}L{lane:g} {v + 34:g}"
        middle += f"C{lane:g} {v + 14:g} {u:g} {v + 22:g}"
    elif out in ("top", "bottom"):
        middle = f"C{x:g} {(y + v) / 2:g} {u:g} {(y + v) / 2:g}"
    else:
        middle = f"C{(x + u) / 2:g} {y:g} {(x + u) / 2:g} {v:g}"
    return (
        f'<path d="M{x:g} {y:g}{middle} {u:g} {v:g}" fill="none" stroke="{colour}" stroke-width="{width}" '
        f'marker-end="url(#{kind})"/>'
    )


def _room(name: str, box: Box) -> str:
    fill, border = COLOURS[box.colour]
    found = [f'<rect x="{box.x}" y="{box.y}" width="{box.w}" height="{box.h}" rx="7" fill="{fill}" stroke="{border}"/>']
    title = f'<tspan font-weight="700" font-size="15">{name}</tspan>'
    if name in GROUND:
        title += f'<tspan dx="10">{GROUND[name]}</tspan>'
    found.append(f'<text x="{box.x + 12}" y="{box.y + (29 if name in GROUND else 25)}">{title}</text>')
    for i, line in enumerate(box.lines):
        found.append(f'<text x="{box.x + 12}" y="{box.y + 47 + 18 * i}">{escape(line)}</text>')
    return "".join(found)


def _outside(box: Box) -> str:
    fill, border = COLOURS[box.colour]
    found = [
        f'<rect x="{box.x}" y="{box.y}" width="{box.w}" height="{box.h}" rx="22" fill="{fill}" stroke="{border}" '
        'stroke-dasharray="5 4"/>'
    ]
    top = box.y + box.h / 2 + 5 - 9 * (len(box.lines) - 1)
    for i, line in enumerate(box.lines):
        found.append(f'<text x="{box.x + box.w / 2:g}" y="{top + 18 * i:g}" text-anchor="middle">{escape(line)}</text>')
    return "".join(found)


if __name__ == "__main__":
    FILE.write_text(drawing(), encoding="utf-8")
