"""The one error that bad input raises, and suggestions for misspelt names."""

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

Thing = TypeVar("Thing")


class ScaleGMNError(ValueError):
    """Bad input: one line that says what was wrong, what was expected, what was given and what to do.

    The command line prints it as a single line and exits with code 2.
    """


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown name.

    >>> nearest("epoch", ["epochs", "batch"])
    "did you mean 'epochs'?"
    >>> nearest("zzz", ["epochs", "batch"])
    'expected one of epochs, batch'
    """
    known = list(known)
    close = difflib.get_close_matches(word, known, 1)
    return f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(known) or 'nothing'}"


def known(kind: str, name: str, things: Mapping[str, Thing]) -> Thing:
    """Look up a name; an unknown one is an error that suggests the nearest.

    >>> known("task", "regresion", {"regression": 1})
    Traceback (most recent call last):
    ...
    scalegmn.errors.ScaleGMNError: task: 'regresion' is not known; did you mean 'regression'?
    """
    if name not in things:
        raise ScaleGMNError(f"{kind}: {name!r} is not known; {nearest(name, things)}")
    return things[name]
