"""The one error that bad input raises."""

from __future__ import annotations


class ScaleGMNError(ValueError):
    """Bad input: one line that says what was wrong, what was expected, what came and what to do.

    The command line prints it as a single line and exits with code 2.
    """
