"""Metanetworks that respect the permutation and scaling symmetries of the networks they read."""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from scalegmn.errors import ScaleGMNError as ScaleGMNError
    from scalegmn.training.trained import load as load

# Public name -> module that defines it. Names load on first use, so that the command line answers
# `--help` without loading torch. A test keeps this table and the block above equal.
_EXPORTS = {
    "ScaleGMNError": "scalegmn.errors",
    "load": "scalegmn.training.trained",
}

__all__ = ["__version__", *_EXPORTS]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _EXPORTS:
            raise AttributeError(f"module 'scalegmn' has no attribute {name!r}")
        return getattr(import_module(_EXPORTS[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *_EXPORTS})
