"""Metanetworks that respect the permutation and scaling symmetries of the networks they read."""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from scalegmn.alignment.align import Alignment as Alignment
    from scalegmn.alignment.align import align as align
    from scalegmn.alignment.balance import balance as balance
    from scalegmn.alignment.barrier import barrier as barrier
    from scalegmn.alignment.compare import distance as distance
    from scalegmn.alignment.compare import same as same
    from scalegmn.alignment.fingerprint import fingerprint as fingerprint
    from scalegmn.alignment.merge import merge as merge
    from scalegmn.core.activations import activation as activation
    from scalegmn.core.architecture import Architecture as Architecture
    from scalegmn.core.canonical import canonicalize as canonicalize
    from scalegmn.core.networks import Networks as Networks
    from scalegmn.core.transform import Transform as Transform
    from scalegmn.errors import ScaleGMNError as ScaleGMNError
    from scalegmn.inference.train import train as train
    from scalegmn.inference.trained import Trained as Trained
    from scalegmn.inference.trained import load as load
    from scalegmn.models.heads import Classifier as Classifier
    from scalegmn.models.heads import Editor as Editor
    from scalegmn.models.heads import Regressor as Regressor
    from scalegmn.models.scalegmn import ScaleGMN as ScaleGMN
    from scalegmn.zoo.store.zoo import Zoo as Zoo

# Public name -> module that defines it. Names load on first use, so that the command line answers
# `--help` without loading torch. A test keeps this table and the block above equal.
_EXPORTS = {
    "Alignment": "scalegmn.alignment.align",
    "Architecture": "scalegmn.core.architecture",
    "Classifier": "scalegmn.models.heads",
    "Editor": "scalegmn.models.heads",
    "Networks": "scalegmn.core.networks",
    "Regressor": "scalegmn.models.heads",
    "ScaleGMN": "scalegmn.models.scalegmn",
    "ScaleGMNError": "scalegmn.errors",
    "Trained": "scalegmn.inference.trained",
    "Transform": "scalegmn.core.transform",
    "Zoo": "scalegmn.zoo.store.zoo",
    "activation": "scalegmn.core.activations",
    "align": "scalegmn.alignment.align",
    "balance": "scalegmn.alignment.balance",
    "barrier": "scalegmn.alignment.barrier",
    "canonicalize": "scalegmn.core.canonical",
    "distance": "scalegmn.alignment.compare",
    "fingerprint": "scalegmn.alignment.fingerprint",
    "load": "scalegmn.inference.trained",
    "merge": "scalegmn.alignment.merge",
    "same": "scalegmn.alignment.compare",
    "train": "scalegmn.inference.train",
}

__all__ = ["__version__", *_EXPORTS]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _EXPORTS:
            raise AttributeError(f"module 'scalegmn' has no attribute {name!r}")
        return getattr(import_module(_EXPORTS[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *_EXPORTS})
