"""Output of the commands: tables and JSON to stdout, notes and progress to stderr."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import ScaleGMNError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

T = TypeVar("T")
Json = Mapping[str, "Json"] | Sequence["Json"] | str | int | float | bool | None

# A pipe or a file has no width; tables written there should not be squeezed into 80 columns.
_PIPE_WIDTH = 120


def stdout() -> Console:
    """The console for a command's answer."""
    from rich.console import Console

    wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=_PIPE_WIDTH if wide else None)


def stderr() -> Console:
    """The console for notes and progress, which are not part of the answer."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def check_out(out: Path, *suffixes: str, option: str = "out") -> None:
    """Refuse a file that cannot be written, before any work is done.

    Arguments:
        out: The file.
        suffixes: How its name may end.
        option: What the command line calls it.
    """
    if out.suffix.lower() not in suffixes:
        raise ScaleGMNError(f"{option}: expected a name that ends in {suffixes[0]}, got {out.name}")
    if not out.parent.is_dir():
        raise ScaleGMNError(f"{option}: expected an existing directory, got {out.parent}; make it first")


def table(*words: str, numbers: Iterable[str] = (), **options: Any) -> Table:
    """An empty table for a command's answer: columns of words, then columns of numbers; without a box."""
    from rich.table import Table

    made = Table(*words, **{"box": None, **options})
    for heading in numbers:
        made.add_column(heading, justify="right")
    return made


def note(message: str) -> None:
    """Write one plain line to stderr."""
    sys.stderr.write(message + "\n")


@contextmanager
def interruptible(say: Callable[[], str]) -> Iterator[None]:
    """If a command is interrupted, say what is kept of its work before it ends.

    Arguments:
        say: Returns the message.
    """
    try:
        yield
    except KeyboardInterrupt:
        note(say())
        raise


def number(value: float | None, form: str = ".4g") -> str:
    """Write a number for people; `-` if there is none.

    >>> number(0.5), number(None), number(float("nan"))
    ('0.5', '-', '-')
    """
    return "-" if value is None or math.isnan(value) else format(value, form)


def print_json(value: Json) -> None:
    """Write `value` to stdout as strict JSON; numbers that JSON lacks (nan, inf) become null.

    >>> print_json({"accuracy": 0.5, "loss": float("nan")})
    {
      "accuracy": 0.5,
      "loss": null
    }
    """
    from ..core.schema import strict

    sys.stdout.write(json.dumps(strict(value), indent=2, allow_nan=False) + "\n")


def track(items: Iterable[T], description: str, *, total: int | None = None) -> Iterator[T]:
    """Yield `items`, with a progress bar on stderr if that is a terminal.

    Arguments:
        items: What to go through.
        description: The words before the bar.
        total: The number of items, if `items` has no length.

    >>> list(track([1, 2, 3], "counting"))
    [1, 2, 3]
    """
    console = stderr()
    if not console.is_terminal:
        yield from items
        return
    from rich.progress import track as bar

    yield from bar(items, description=description, total=total, console=console, transient=True)
