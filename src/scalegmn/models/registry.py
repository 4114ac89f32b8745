"""Every model by name: who invented it, what it is symmetric to, how to build it."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..core.architecture import Architecture
from ..errors import ScaleGMNError
from .base import Editor, InvariantModel


@dataclass(frozen=True)
class ModelCard:
    """What there is to know about a model before building it.

    Arguments:
        name: As recipes call it.
        title: As people call it.
        paper: Authors, venue.
        year: Of the paper.
        symmetries: Of `permutation` and `scale`, those it respects exactly.
        invariant: Builds the invariant model from (architectures, outputs, *, options), or None.
        equivariant: Builds the editor from (architectures, *, options), or None.
        convolutions: Whether it reads CNNs.
        several: Whether one model reads several architectures.
    """

    name: str
    title: str
    paper: str
    year: int
    symmetries: tuple[str, ...]
    invariant: Callable[..., InvariantModel] | None
    equivariant: Callable[..., Editor] | None
    convolutions: bool = True
    several: bool = True


_CARDS: dict[str, ModelCard] = {}
# What sizes mean is the same in all models.
_LEAST = dict.fromkeys(
    ("width", "gate", "layers", "heads", "queries", "head_width", "embedding", "points", "copies"), 1
)
_LEAST |= dict.fromkeys(("probes", "frequencies", "pretraining", "mixing"), 0)


def register(card: ModelCard) -> ModelCard:
    """Make a model known by its name."""
    _CARDS[card.name] = card
    return card


def cards() -> tuple[ModelCard, ...]:
    """All registered models."""
    return tuple(_CARDS.values())


def card(name: str) -> ModelCard:
    """The card of one model."""
    if name not in _CARDS:
        close = difflib.get_close_matches(name, _CARDS, 1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; expected one of {', '.join(_CARDS)}"
        raise ScaleGMNError(f"model: {name!r} is not known{hint}")
    return _CARDS[name]


def build_invariant(
    name: str, architectures: Sequence[Architecture], outputs: int, options: Mapping[str, object]
) -> InvariantModel:
    """Build an invariant model by name; `options` are keyword arguments of its constructor."""
    builder = card(name).invariant
    if builder is None:
        raise ScaleGMNError(f"model: {name!r} has no invariant head")
    return builder(architectures, outputs, **_checked(name, builder, options))


def build_equivariant(name: str, architectures: Sequence[Architecture], options: Mapping[str, object]) -> Editor:
    """Build an editor by name; `options` are keyword arguments of its constructor."""
    builder = card(name).equivariant
    if builder is None:
        raise ScaleGMNError(f"model: {name!r} has no equivariant head, so it cannot edit")
    return builder(architectures, **_checked(name, builder, options))


def options_of(builder: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """The keyword-only arguments of a builder."""
    found = inspect.signature(builder).parameters
    return {k: p for k, p in found.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


def _checked(name: str, builder: Callable[..., object], options: Mapping[str, object]) -> Mapping[str, object]:
    known = options_of(builder)
    for key in options:
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; expected one of {', '.join(known)}"
            raise ScaleGMNError(f"model {name!r}: unknown option {key!r}{hint}")
        least, value = _LEAST.get(key), options[key]
        if least is not None and isinstance(value, int | float) and value < least:
            raise ScaleGMNError(f"model {name!r}: {key}: expected at least {least}, got {value}")
    dropout = options.get("dropout", 0.0)
    if isinstance(dropout, int | float) and not 0 <= dropout < 1:
        raise ScaleGMNError(f"model {name!r}: dropout: expected at least 0 and less than 1, got {dropout}")
    return options
