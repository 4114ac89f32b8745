"""Metanetworks that respect the permutation and scaling symmetries of the networks they read."""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from scalegmn.core.activations import activation as activation
    from scalegmn.core.architecture import Architecture as Architecture
    from scalegmn.core.canonical import canonicalize as canonicalize
    from scalegmn.core.networks import Networks as Networks
    from scalegmn.core.transform import Transform as Transform
    from scalegmn.errors import ScaleGMNError as ScaleGMNError
    from scalegmn.inference.trained import load as load
    from scalegmn.models.base import Classifier as Classifier
    from scalegmn.models.base import Editor as Editor
    from scalegmn.models.base import Regressor as Regressor
    from scalegmn.models.scalegmn import ScaleGMN as ScaleGMN
    from scalegmn.zoo.store.zoo import Zoo as Zoo

# Public name -> module that defines it. Names load on first use, so that the command line answers
# `--help` without loading torch. A test keeps this table and the block above equal.
_EXPORTS = {
    "Architecture": "scalegmn.core.architecture",
    "Classifier": "scalegmn.models.base",
    "Editor": "scalegmn.models.base",
    "Networks": "scalegmn.core.networks",
    "Regressor": "scalegmn.models.base",
    "ScaleGMN": "scalegmn.models.scalegmn",
    "ScaleGMNError": "scalegmn.errors",
    "Transform": "scalegmn.core.transform",
    "Zoo": "scalegmn.zoo.store.zoo",
    "activation": "scalegmn.core.activations",
    "canonicalize": "scalegmn.core.canonical",
    "load": "scalegmn.inference.trained",
}

__all__ = ["__version__", *_EXPORTS]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _EXPORTS:
            raise AttributeError(f"module 'scalegmn' has no attribute {name!r}")
        return getattr(import_module(_EXPORTS[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *_EXPORTS})
