"""How objects look in notebooks: a small table of their properties."""

from collections.abc import Mapping
from html import escape


def html_table(title: str, rows: Mapping[str, object]) -> str:
    """A title and a table of names and values as HTML; all of them are escaped.

    >>> html_table("Zoo", {"networks": "<3>"})
    '<table><caption>Zoo</caption><tr><th>networks</th><td>&lt;3&gt;</td></tr></table>'
    """
    cells = "".join(f"<tr><th>{escape(k)}</th><td>{escape(str(v))}</td></tr>" for k, v in rows.items())
    return f"<table><caption>{escape(title)}</caption>{cells}</table>"
