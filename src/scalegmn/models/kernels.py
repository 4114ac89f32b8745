"""Kernels on edges: every kind of connection has one shape, into which smaller kernels are centred."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional as F

from ..architecture import Architecture, Connection, Conv, Linear


def kind(connection: Connection) -> str:
    """What its edges are; each kind has an encoder of its own."""
    return type(connection.map).__name__


def kernel_shape(connection: Connection) -> tuple[int, ...]:
    """The shape of the weights on an edge of a connection."""
    return connection.map.kernel if isinstance(connection.map, Linear | Conv) else ()


def largest_kernels(architectures: Sequence[Architecture]) -> dict[str, tuple[int, ...]]:
    """Per kind, the smallest shape that holds every kernel of that kind."""
    found: dict[str, tuple[int, ...]] = {}
    for c in (c for a in architectures for c in a.connections):
        old, new = found.get(kind(c), ()), kernel_shape(c)
        rank = max(len(old), len(new))
        pairs = zip(_lift(old, rank), _lift(new, rank), strict=True)
        found[kind(c)] = tuple(max(pair) for pair in pairs)
    return found


def pad_kernel(weight: Tensor, shape: tuple[int, ...], largest: tuple[int, ...]) -> Tensor:
    """Centre flat kernels (..., K) of a shape in zeros of the largest shape."""
    if math.prod(shape) == math.prod(largest):
        return weight
    sides = [side for low, high in reversed(_margins(shape, largest)) for side in (low, high)]
    return F.pad(weight.unflatten(-1, _lift(shape, len(largest))), sides).flatten(-len(largest))


def crop_kernel(weight: Tensor, shape: tuple[int, ...], largest: tuple[int, ...]) -> Tensor:
    """The inverse of `pad_kernel`."""
    if math.prod(shape) == math.prod(largest):
        return weight
    weight = weight.unflatten(-1, largest)
    for axis, (low, high) in enumerate(_margins(shape, largest)):
        dim = weight.dim() - len(largest) + axis
        weight = weight.narrow(dim, low, weight.shape[dim] - low - high)
    return weight.flatten(-len(largest))


def _lift(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return (1,) * (rank - len(shape)) + shape


def _margins(shape: tuple[int, ...], largest: tuple[int, ...]) -> list[tuple[int, int]]:
    pairs = zip(_lift(shape, len(largest)), largest, strict=True)
    return [((high - low) // 2, high - low - (high - low) // 2) for low, high in pairs]
