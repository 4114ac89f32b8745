"""The one error that bad input raises, and the words in which it advises."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ScaleGMNError(ValueError):
    """Bad input: one line that says what was wrong, what was expected, what came and what to do.

    The command line prints it as a single line and exits with code 2.
    """


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a complaint about an unknown name.

    >>> nearest("epoch", ["epochs", "batch"])
    "did you mean 'epochs'?"
    >>> nearest("zzz", ["epochs", "batch"])
    'expected one of epochs, batch'
    """
    known = list(known)
    close = difflib.get_close_matches(word, known, 1)
    return f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(known) or 'nothing'}"
