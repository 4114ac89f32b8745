"""Kernels on edges: every kind of connection has one shape, in which smaller kernels are centred."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.architecture import Architecture, Connection, Conv, Linear, Table


def kind(connection: Connection) -> str:
    """The kind of a connection's edges; each kind has its own encoder."""
    return type(connection.map).__name__


def kernel_shape(connection: Connection) -> tuple[int, ...]:
    """The shape of the weights on an edge of a connection."""
    return connection.map.kernel if isinstance(connection.map, Linear | Conv | Table) else ()


def largest_kernels(architectures: Sequence[Architecture]) -> dict[str, tuple[int, ...]]:
    """Per kind, the smallest shape that holds every kernel of that kind."""
    shapes: dict[str, list[tuple[int, ...]]] = {}
    for c in (c for a in architectures for c in a.connections):
        shapes.setdefault(kind(c), []).append(kernel_shape(c))
    return {name: largest(found) for name, found in shapes.items()}


def largest(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The smallest shape that holds kernels of all these shapes.

    >>> largest([(), (5,), (3, 3)])
    (3, 5)
    """
    rank = max(map(len, shapes))
    return tuple(max(sides) for sides in zip(*(_lift(shape, rank) for shape in shapes), strict=True))


def pad_kernel(weight: Tensor, shape: tuple[int, ...], room: tuple[int, ...]) -> Tensor:
    """Centre flat kernels (..., K) of a shape in zeros of a larger shape."""
    if math.prod(shape) == math.prod(room):
        return weight
    sides = [side for low, high in reversed(_margins(shape, room)) for side in (low, high)]
    return F.pad(weight.unflatten(-1, _lift(shape, len(room))), sides).flatten(-len(room))


def crop_kernel(weight: Tensor, shape: tuple[int, ...], room: tuple[int, ...]) -> Tensor:
    """The inverse of `pad_kernel`."""
    if math.prod(shape) == math.prod(room):
        return weight
    weight = weight.unflatten(-1, room)
    for axis, (low, high) in enumerate(_margins(shape, room)):
        dim = weight.dim() - len(room) + axis
        weight = weight.narrow(dim, low, weight.shape[dim] - low - high)
    return weight.flatten(-len(room))


def apart(weight: Tensor, groups: int) -> Tensor:
    """Weights (..., n_t, n_s / groups, K) of a grouped convolution, with zeros between groups (..., n_t, n_s, K).

    Those of depthwise convolutions, whose edges are elementwise, stay unchanged.
    """
    n_t, width = weight.shape[-3:-1]
    if groups == 1 or (n_t == groups and width == 1):
        return weight
    parts = weight.unflatten(-3, (groups, -1)).unsqueeze(-2)
    eye = torch.eye(groups, dtype=weight.dtype, device=weight.device)[:, None, None, :, None]
    found: Tensor = (parts * eye).movedim(-2, -3).flatten(-3, -2)
    return found.flatten(-4, -3)


def together(weight: Tensor, groups: int) -> Tensor:
    """The inverse of `apart`, for (..., n_t, n_s, K)."""
    if groups == 1 or weight.shape[-2] == 1:
        return weight
    parts: Tensor = weight.unflatten(-2, (groups, -1)).unflatten(-4, (groups, -1))
    return parts.diagonal(dim1=-5, dim2=-3).movedim(-1, -4).flatten(-4, -3)


def _lift(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return (1,) * (rank - len(shape)) + shape


def _margins(shape: tuple[int, ...], room: tuple[int, ...]) -> list[tuple[int, int]]:
    pairs = zip(_lift(shape, len(room)), room, strict=True)
    return [((high - low) // 2, high - low - (high - low) // 2) for low, high in pairs]
