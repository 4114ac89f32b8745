"""How the tensors of an architecture hang on its symmetries: the one place here that reads slots and groups.

A *term* is a tensor of parameters with the layers that its axes run over. A *family* is the layers whose neurons are
permuted together; its *classes* share signs and scales.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from ..core.architecture import Architecture, Segment, Skip
from ..core.networks import Networks
from ..errors import ScaleGMNError


@dataclass(frozen=True)
class Term:
    """One tensor of parameters.

    Arguments:
        segment: Where it lies in the flat vector.
        target: The layer of its first axis (None for a learned slope, which no symmetry moves).
        source: The layer of its second axis, of a matrix or a convolution.
    """

    segment: Segment
    target: int | None
    source: int | None = None

    @property
    def name(self) -> str:
        """Such as `weight 0-1` or `bias 1`."""
        ends = [str(end) for end in (self.source, self.target) if end is not None]
        return f"{self.segment.kind} {'-'.join(ends) or self.segment.index}"

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers whose neurons move it."""
        return tuple(end for end in (self.target, self.source) if end is not None)


@dataclass(frozen=True)
class Family:
    """Layers whose neurons move together.

    Arguments:
        layers: Their positions.
        classes: The same in parts that share signs and scales.
        permuted: Whether the order is free; layers that may only turn their phases form families of their own.
    """

    layers: tuple[int, ...]
    classes: tuple[tuple[int, ...], ...]
    permuted: bool


@cache
def terms(architecture: Architecture) -> tuple[Term, ...]:
    """The tensors of an architecture, in the order of its flat vector."""
    if not architecture.plain or not architecture.separable:
        raise ScaleGMNError(
            f"align: expected layers that are complete, residual or normalised and scale alike, got {architecture}, "
            "which has concatenation, groups, products, attention, shared weights, or residual powers"
        )
    found = []
    for s in architecture.segments:
        if s.kind == "weight":
            c = architecture.connections[s.index]
            found.append(Term(s, c.target, c.source if c.dense else None))
        else:
            found.append(Term(s, s.index if s.kind == "bias" else None))
    return tuple(found)


@cache
def families(architecture: Architecture) -> tuple[Family, ...]:
    """The families of an architecture, in the order of their first layers."""
    layers: dict[tuple[bool, int], list[int]] = {}
    for i, slot in enumerate(architecture.slots):
        if slot is not None:
            layers.setdefault((True, slot), []).append(i)
        elif turns(architecture, i) is not None:
            layers.setdefault((False, i), []).append(i)
    found = []
    for (permuted, _), members in layers.items():
        classes: dict[tuple[bool, int], list[int]] = {}
        for i in members:
            tie = architecture.scale_slots[i]
            classes.setdefault((False, i) if tie is None else (True, tie), []).append(i)
        found.append(Family(tuple(members), tuple(map(tuple, classes.values())), permuted))
    return tuple(found)


def turns(architecture: Architecture, layer: int) -> float | None:
    """Half a turn of a sine layer's bias, pi / frequency; None for layers without a phase."""
    activation = architecture.layers[layer].activation
    if layer == 0 or activation.name != "sine" or not architecture.layers[layer].bias:
        return None
    return torch.pi / activation.parameters[0]


def mirrors(architecture: Architecture, layer: int) -> bool:
    """Whether half a turn is a symmetry: incoming weights change sign, the neuron's output does not."""
    incoming = (architecture.connections[c] for c in architecture.incoming[layer])
    return turns(architecture, layer) is not None and not any(isinstance(c.map, Skip) for c in incoming)


def split(networks: Networks) -> list[Tensor]:
    """One tensor (B, ...) per term: (B, n_t, n_s, K) for matrices, (B, n) for biases and gains."""
    parts = networks.parameters.split([t.segment.size for t in terms(networks.architecture)], dim=1)
    return [p.unflatten(1, t.segment.shape) for p, t in zip(parts, terms(networks.architecture), strict=True)]


def joined(architecture: Architecture, tensors: list[Tensor]) -> Networks:
    """The networks whose terms these are."""
    return Networks(architecture, torch.cat([t.flatten(1) for t in tensors], dim=1))
