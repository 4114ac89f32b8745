"""Layouts: where the parameters of an architecture are in a user's state dict.

Everything works on a whole batch at once: a *stacked* state dict has one tensor per key with the networks in front.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor, nn

from ..core.architecture import Architecture, Segment
from ..core.doubles import double
from ..errors import ScaleGMNError

State = Mapping[str, Tensor]
T = TypeVar("T")


@dataclass(frozen=True)
class Source:
    """A segment that is one tensor of the state dict.

    Arguments:
        key: Its name.
        transposed: Whether its last two dimensions are swapped, like those of a matrix in x @ W.
        groups: Of a transposed convolution, whose weights have the sources first; 0 otherwise.
    """

    key: str
    transposed: bool = False
    groups: int = 0

    def read(self, state: State) -> Tensor:
        """The tensor (B, ...) with the target's neurons first."""
        tensor = state[self.key]
        if self.groups:
            swapped: Tensor = tensor.unflatten(1, (self.groups, -1)).transpose(2, 3)
            return swapped.flatten(1, 2)
        return tensor.mT if self.transposed else tensor

    def write(self, value: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The tensor (B, *shape) under the original name."""
        batch = value.shape[0]
        if self.groups:
            grouped = value.reshape(batch, self.groups, shape[1], shape[0] // self.groups, *shape[2:])
            return grouped.transpose(2, 3).reshape(batch, *shape).contiguous()
        if self.transposed:
            return value.reshape(batch, *shape[:-2], shape[-1], shape[-2]).mT.contiguous()
        return value.reshape(batch, *shape)


@dataclass(frozen=True)
class Fixed:
    """Weights that are fixed numbers of the architecture, not parameters."""

    values: tuple[float, ...]


@dataclass(frozen=True)
class Fold:
    r"""A BatchNorm in evaluation mode, folded into the layer before it, or a layer of its own.

    With s = gain / sqrt(variance + eps) the layer has weights s W and biases s (b - mean) + shift
    (Ioffe and Szegedy, ICML 2015). Without a layer before it the weights are s, one per neuron.

    Arguments:
        weight: The layer's weights, if there is one.
        bias: The layer's biases, if it has them.
        gain, shift: The BatchNorm's, if it has them.
        mean, variance: Its running statistics.
        eps: Its epsilon.
    """

    weight: Source | None
    bias: str | None
    gain: str | None
    shift: str | None
    mean: str
    variance: str
    eps: float

    @property
    def keys(self) -> tuple[str, ...]:
        """The entries of the state dict that it uses."""
        weight = None if self.weight is None else self.weight.key
        found = (weight, self.bias, self.gain, self.shift, self.mean, self.variance)
        return tuple(k for k in found if k is not None)

    def read(self, state: State) -> tuple[Tensor, Tensor]:
        """The folded weights (B, n, ...) and biases (B, n)."""
        # The fold is made in double precision, so that it costs no more than one rounding.
        mean, scale = double(state[self.mean]), (double(state[self.variance]) + self.eps).rsqrt()
        if self.gain is not None:
            scale = scale * double(state[self.gain])
        bias = -mean if self.bias is None else double(state[self.bias]).flatten(1) - mean
        bias = bias * scale
        if self.shift is not None:
            bias = bias + double(state[self.shift])
        if self.weight is None:
            return scale.to(state[self.mean]), bias.to(state[self.mean])
        weight = self.weight.read(state)
        folded = double(weight) * scale.reshape(*scale.shape, *[1] * (weight.dim() - 2))
        return folded.to(weight), bias.to(weight)

    def write(self, weight: Tensor, bias: Tensor, originals: State) -> dict[str, Tensor]:
        """The layer with the folded weights and a neutral BatchNorm, or the originals if nothing was changed.

        Arguments:
            weight, bias: Folded, flat (B, ...).
            originals: The layer and its BatchNorm as they were.
        """
        w, b = (t.to(weight).flatten(1) for t in self.read(originals))
        same = (w == weight).all(1) & (b == bias).all(1)
        neutral = {k: torch.zeros_like(originals[k]) for k in self.keys}
        neutral[self.variance] = torch.full_like(originals[self.variance], 1 - self.eps)
        if self.gain is not None:
            neutral[self.gain] = torch.ones_like(originals[self.gain])
        if self.weight is None:
            assert self.gain is not None
            neutral[self.gain] = weight.reshape(originals[self.gain].shape)
        else:
            neutral[self.weight.key] = self.weight.write(weight, tuple(originals[self.weight.key].shape[1:]))
        # The first of these that exists takes the bias; a mean is subtracted.
        place = self.bias or self.shift or self.mean
        neutral[place] = (-bias if place == self.mean else bias).reshape(originals[place].shape)
        result = {}
        for key, new in neutral.items():
            rows = same.reshape(-1, *[1] * (new.dim() - 1))
            result[key] = torch.where(rows, originals[key].to(weight), new.to(weight))
        return result


@dataclass(frozen=True)
class Layout:
    """How networks of one architecture are stored under a user's names.

    Arguments:
        architecture: Of the networks.
        entries: For each of `architecture.segments`, where it comes from.
        shapes: Every entry of the state dict with its shape, in order.
        aliases: Pairs (second name, first name) of tensors that have two names.
        constants: Buffers that the architecture treats as fixed numbers, with their values.
        template: A module to copy, if there is one.
        prefix: What precedes these names in the files; entries without it are kept for export.
    """

    architecture: Architecture
    entries: tuple[Source | Fold, ...]
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    aliases: tuple[tuple[str, str], ...] = ()
    constants: tuple[tuple[str, tuple[float, ...]], ...] = ()
    template: nn.Module | None = field(default=None, compare=False, repr=False)
    prefix: str = ""

    @cached_property
    def used(self) -> frozenset[str]:
        """The entries of the state dict that the network uses, under all their names."""
        keys = [(e.key,) if isinstance(e, Source) else e.keys for e in self.entries]
        return frozenset(k for found in keys for k in found) | {k for k, _ in (*self.constants, *self.aliases)}

    @cached_property
    def home(self) -> str:
        """The module that contains all entries; other entries in a file belong to other networks.

        >>> matrix = Source("actor.0.weight")
        >>> Layout(Architecture.mlp([2, 1], bias=False), (matrix,), ((matrix.key, (1, 2)),)).home
        'actor.'
        """
        paths = [key.split(".")[:-2] for key, _ in self.shapes]
        shared = itertools.takewhile(lambda names: len(set(names)) == 1, zip(*paths, strict=False))
        return self.prefix + "".join(f"{names[0]}." for names in shared)

    def part(self, state: Mapping[str, T]) -> tuple[dict[str, T], dict[str, T]]:
        """The entries under the prefix, by their names without it, and all others."""
        own = {k.removeprefix(self.prefix): t for k, t in state.items() if k.startswith(self.prefix)}
        return own, {k: t for k, t in state.items() if not k.startswith(self.prefix)}

    def pack(self, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        """Parameters (B, P), and the passengers: entries that do not correspond to single parameters.

        Arguments:
            state: A stacked state dict, one tensor (B, ...) per key.
        """
        state, rest = self.part(state)
        self._check(state)
        parts, direct = [], {alias for alias, _ in self.aliases}
        for segment, entry in zip(self.architecture.segments, self.entries, strict=True):
            if isinstance(entry, Source):
                parts.append(entry.read(state).flatten(1))
                direct.add(entry.key)
            else:
                parts.append(entry.read(state)[segment.kind == "bias"].flatten(1))
        passengers = {self.prefix + k: t for k, t in state.items() if k not in direct}
        return torch.cat(parts, dim=1), passengers | rest

    def unpack(self, parameters: Tensor, passengers: State) -> dict[str, Tensor]:
        """The stacked state dict of parameters (B, P): the inverse of `pack`."""
        passengers, rest = self.part(passengers)
        parts = parameters.split([s.size for s in self.architecture.segments], dim=1)
        shapes = dict(self.shapes)
        cast = {k for k in self.used & passengers.keys() if passengers[k].is_floating_point()}
        found = {k: t.to(parameters.dtype) if k in cast else t for k, t in passengers.items()}
        folds: dict[Fold, dict[str, Tensor]] = {}
        for segment, entry, part in zip(self.architecture.segments, self.entries, parts, strict=True):
            if isinstance(entry, Source):
                found[entry.key] = entry.write(part, shapes[entry.key])
            else:
                folds.setdefault(entry, {})[segment.kind] = part
        for fold, part in folds.items():
            found.update(fold.write(part["weight"], part["bias"], passengers))
        found.update({alias: found[key] for alias, key in self.aliases})
        ordered = {key: found[key] for key in shapes if key in found}
        ordered |= {key: found[key] for key in found if key not in ordered}
        return {self.prefix + key: value for key, value in ordered.items()} | rest

    def locate(self, segment: Segment) -> str:
        """The name of a segment, for messages."""
        entry = self.entries[self.architecture.segments.index(segment)]
        return self.prefix + (entry.key if isinstance(entry, Source) else entry.keys[0])

    def complain(self, signature: Mapping[str, tuple[int, ...]]) -> str | None:
        """What is wrong with a state dict of these names and shapes, or None."""
        expected = {self.prefix + k: shape for k, shape in self.shapes}
        missing = [k for k in expected if k not in signature]
        if missing:
            return f"the state dict lacks {_some(missing)}; it has {_some(list(signature))}"
        for key, shape in expected.items():
            if signature[key] != shape:
                return f"{key}: expected shape {shape}, got {signature[key]}"
        return None

    def _check(self, state: State) -> None:
        dtypes = {k: state[k].dtype for k, _ in self.shapes if k in self.used and state[k].is_floating_point()}
        if len(set(dtypes.values())) > 1:
            raise ScaleGMNError(
                f"state dict: expected one floating-point type, got {_some([f'{k} {t}' for k, t in dtypes.items()])}"
            )
        for alias, key in self.aliases:
            if not torch.equal(state[alias], state[key]):
                raise ScaleGMNError(f"{alias}: shares its tensor with {key} in the module, but they differ here")
        for key, values in self.constants:
            found = state[key].reshape(len(state[key]), -1)
            expected = found.new_tensor(values)
            wrong = (found != expected).nonzero()
            if len(wrong):
                row, column = wrong[0].tolist()
                raise ScaleGMNError(
                    f"{key}: expected {float(expected[column]):g} as in the module it was traced from, got "
                    f"{float(found[row, column]):g}; networks with different constants are different architectures"
                )


def _some(words: list[str], count: int = 4) -> str:
    shown = ", ".join(words[:count]) or "nothing"
    return shown if len(words) <= count else f"{shown} and {len(words) - count} more"
