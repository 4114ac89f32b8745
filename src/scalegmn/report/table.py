"""Cards and tables of the page."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape


def card(title: str, content: str) -> str:
    """A part of the page with its title."""
    return f'<section class="card"><h3>{escape(title)}</h3>{content}</section>'


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Arguments:
        text: Its content.
        best: Whether it is the best of its column.
        swatch: The colour of a series, in front of its name.
    """

    text: str
    best: bool = False
    swatch: str = ""


def table(headings: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """A table; on a narrow page each row becomes a block with the heading beside each value."""
    head = "".join(f"<th>{escape(h)}</th>" for h in headings)
    body = []
    for row in rows:
        cells = []
        for heading, cell in zip(headings, row, strict=True):
            swatch = f'<span class="swatch" style="background:{cell.swatch}"></span>' if cell.swatch else ""
            style = ' class="best"' if cell.best else ""
            cells.append(f'<td data-heading="{escape(heading)}"{style}>{swatch}{escape(cell.text)}</td>')
        body.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
