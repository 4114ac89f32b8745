"""What a person hands to a trained model, read as networks: modules, state dicts, files or networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from ..convert import files
from ..convert.chain import match
from ..core.architecture import Architecture
from ..core.networks import Networks
from ..errors import ScaleGMNError

One = nn.Module | Mapping[str, Tensor] | str | Path | Networks
Source = One | Sequence[One]


@dataclass(frozen=True)
class Read:
    """Networks, and how to hand them back.

    Arguments:
        networks: One batch per thing that was given.
        given: The things, each a module, a state dict, a path or networks.
        single: Whether one thing was given rather than a list.
    """

    networks: list[Networks]
    given: list[One]
    single: bool

    def hand_back(self, networks: Sequence[Networks]) -> Any:
        """Other networks in the form of those that were given; for a path, its state dict."""
        results = [_like(one, batch) for one, batch in zip(self.given, networks, strict=True)]
        return results[0] if self.single else results


def _like(one: One, networks: Networks) -> object:
    if isinstance(one, Networks):
        return networks
    return networks.to_modules()[0] if isinstance(one, nn.Module) else networks.to_state_dicts()[0]


def read(source: Source, architectures: Sequence[Architecture], *, activation: str | None = None) -> Read:
    """Read anything that holds networks.

    Arguments:
        source: A module, a state dict, the path of a file, networks, or a list of those.
        architectures: What the model was built for: a state dict alone does not tell its activations.
        activation: Decides between architectures of equal shapes, such as `relu`.
    """
    single = isinstance(source, nn.Module | Mapping | str | Path | Networks)
    given = cast(list[One], [source] if single else list(cast(Sequence[One], source)))
    if not given:
        raise ScaleGMNError("networks: expected at least one, got none")
    return Read([_one(one, i, architectures, activation) for i, one in enumerate(given)], given, single)


def _one(one: One, position: int, architectures: Sequence[Architecture], activation: str | None) -> Networks:
    if isinstance(one, Networks):
        return one
    if isinstance(one, nn.Module):
        return Networks.from_modules([one])
    if isinstance(one, str | Path):
        return _state(files.read(one), str(one), architectures, activation)
    return _state(one, f"state dict {position}", architectures, activation)


def _state(
    state: Mapping[str, Tensor], name: str, architectures: Sequence[Architecture], activation: str | None
) -> Networks:
    candidates = [a for a in architectures if activation is None or activation in _activations(a)]
    if not candidates:
        known = sorted({act for a in architectures for act in _activations(a)})
        raise ScaleGMNError(f"activation: this model was built for {', '.join(known)}; got {activation!r}")
    fits = [a for a in candidates if _fits(state, a)]
    if len(fits) == 1:
        return Networks.from_state_dicts([state], like=fits[0], names=[name])
    if fits:
        several = "; ".join(map(str, fits))
        raise ScaleGMNError(
            f"{name}: fits several architectures of this model ({several}); say which activation it has"
        )
    built = "; ".join(map(str, architectures))
    raise ScaleGMNError(f"{name}: this model was built for {built}; got {_describe(state, architectures[0])}")


def _fits(state: Mapping[str, Tensor], architecture: Architecture) -> bool:
    try:
        match(state, architecture)
    except ScaleGMNError:
        return False
    return True


def _activations(architecture: Architecture) -> set[str]:
    return {layer.activation.name for layer in architecture.layers[1:-1]}


def _describe(state: Mapping[str, Tensor], like: Architecture) -> str:
    """The architecture of a strange state dict as far as its shapes tell."""
    hidden = like.layers[1].activation if len(like.layers) > 2 else None
    try:
        return str(Networks.from_state_dicts([state], activation=hidden).architecture)
    except ScaleGMNError:
        shapes = [f"{k} {tuple(t.shape)}" for k, t in state.items()]
        return "tensors " + ", ".join(shapes[:6]) + (", ..." if len(shapes) > 6 else "")
