"""Views in ONNX graphs, remembered rather than made.

Exporters write attention as chains of reshapes and transpositions, often with the batch in the middle or joined with
heads. Here a chain only renames axes. When an operation needs the tensor, it is brought into one order: the batch
first, the other dimensions as the graph has them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....errors import ScaleGMNError


@dataclass(frozen=True, eq=False)
class Atom:
    """A factor of a dimension that no view has divided; one of them is the batch."""

    size: int
    batch: bool = False


Atoms = tuple[Atom, ...]


@dataclass(frozen=True)
class Laid:
    """A tensor and how the graph sees it.

    Arguments:
        tensor: Whose axes are those in `axes`.
        axes: The atoms of each axis of the tensor.
        dims: The atoms of each dimension as the graph has them.
    """

    tensor: Any
    axes: tuple[Atoms, ...]
    dims: tuple[Atoms, ...]

    @staticmethod
    def start(tensor: Any, shape: Sequence[int]) -> Laid:
        """The input, whose first dimension is the batch."""
        atoms = tuple((Atom(n, batch=i == 0),) for i, n in enumerate(shape))
        return Laid(tensor, atoms, atoms)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions."""
        return tuple(math.prod(a.size for a in d) for d in self.dims)

    def reshape(self, shape: Sequence[int]) -> Laid:
        """Atoms in the same order, divided among other dimensions; an atom may have to be split for it."""
        queue = [a for d in self.dims for a in d]
        dims, splits = [], []
        for n in shape:
            group: list[Atom] = []
            size = 1
            if n == 1 and queue and queue[0].size == 1:
                group.append(queue.pop(0))
            while size < n:
                if not queue:
                    raise ScaleGMNError(f"Reshape: {self.shape} does not fit {tuple(shape)}")
                atom, wanted = queue.pop(0), n // size
                if wanted % atom.size:
                    if atom.size % wanted or atom.batch:
                        raise ScaleGMNError(f"Reshape of {self.shape} to {tuple(shape)} is not supported")
                    parts = Atom(wanted), Atom(atom.size // wanted)
                    splits.append((atom, parts))
                    atom = parts[0]
                    queue.insert(0, parts[1])
                group.append(atom)
                size *= atom.size
            dims.append(group)
        dims[-1] += queue  # of size 1
        axes = self.axes
        for atom, parts in splits:
            axes = tuple(tuple(p for a in axis for p in (parts if a is atom else (a,))) for axis in axes)
        return Laid(self.tensor, axes, tuple(map(tuple, dims)))

    def transpose(self, order: Sequence[int]) -> Laid:
        """Dimensions in another order."""
        return replace(self, dims=tuple(self.dims[i] for i in order))

    def squeeze(self, axes: Sequence[int]) -> Laid:
        """Without dimensions of size 1."""
        gone = {a % len(self.dims) for a in axes} or {i for i, n in enumerate(self.shape) if n == 1 and i}
        return self.reshape([n for i, n in enumerate(self.shape) if i not in gone])

    def unsqueeze(self, axes: Sequence[int]) -> Laid:
        """With further dimensions of size 1."""
        rank = len(self.dims) + len(axes)
        new, old = {a % rank for a in axes}, iter(self.dims)
        return replace(self, dims=tuple(() if i in new else next(old) for i in range(rank)))

    def mapped(self, tensor: Any) -> Laid:
        """The same axes and dimensions for a tensor that was computed entry by entry."""
        return replace(self, tensor=tensor)

    def arranged(self) -> Arranged:
        """The tensor itself: the batch first, then a dimension on each axis."""
        wanted: list[tuple[int, Atoms]] = []
        for i, dim in enumerate(self.dims):
            batch, rest = [a for a in dim if a.batch], tuple(a for a in dim if not a.batch)
            if batch:
                wanted.insert(0, (i, (batch[0],)))
            if rest or not batch:
                wanted.append((i, rest))
        return Arranged(_move(self.tensor, self.axes, [atoms for _, atoms in wanted]), self.dims, tuple(wanted))


@dataclass(frozen=True)
class Arranged:
    """A tensor in the order that operations take.

    Arguments:
        tensor: With the batch first.
        dims: As the graph has them.
        order: For every axis of the tensor the dimension it belongs to, and its atoms.
    """

    tensor: Any
    dims: tuple[Atoms, ...]
    order: tuple[tuple[int, Atoms], ...]

    def axis(self, dim: int) -> int:
        """The axis that holds a dimension of the graph."""
        dim %= len(self.dims)
        found = [i for i, (d, _) in enumerate(self.order) if d == dim]
        if len(found) != 1:
            raise ScaleGMNError("ONNX: an operation along a dimension that the batch is a part of is not supported")
        return found[0]

    def result(self, tensor: Any, shape: Sequence[int], *, without: Sequence[int] = ()) -> Laid:
        """What an operation made: dimensions that kept their size keep their atoms; some may be gone."""
        gone = {d % len(self.dims) for d in without}
        sizes = iter(shape)
        dims = {i: self._kept(d, next(sizes)) for i, d in enumerate(self.dims) if i not in gone}
        whole = [sum(d == i for d, _ in self.order) == 1 for i in range(len(self.dims))]
        axes = tuple(dims[i] if whole[i] else atoms for i, atoms in self.order if i not in gone)
        return Laid(tensor, axes, tuple(dims.values()))

    @staticmethod
    def _kept(dim: Atoms, size: int) -> Atoms:
        return dim if math.prod(a.size for a in dim) == size else (Atom(size),)


def _move(tensor: Any, axes: Sequence[Atoms], wanted: Sequence[Atoms]) -> Any:
    """Split, permute and join axes, as far as it is needed."""
    place = {atom: (i, j) for i, atoms in enumerate(wanted) for j, atom in enumerate(atoms)}
    runs: list[Atoms] = []
    counts = []
    for atoms in axes:
        found: list[list[Atom]] = []
        for atom in atoms:
            i, j = place[atom]
            if found and place[found[-1][-1]] == (i, j - 1):
                found[-1].append(atom)
            else:
                found.append([atom])
        counts.append(len(found))
        runs += map(tuple, found)
    if any(n != 1 for n in counts):
        shape: list[Any] = []
        for i, n in enumerate(counts):
            parts = runs[len(shape) : len(shape) + n]
            shape += [tensor.shape[i]] if n == 1 else [math.prod(a.size for a in run) for run in parts]
        tensor = tensor.reshape(*shape)
    order = sorted(range(len(runs)), key=lambda r: place[runs[r][0]])
    if order != list(range(len(runs))):
        tensor = tensor.permute(*order)
    lengths = [sum(place[run[0]][0] == i for run in runs) for i in range(len(wanted))]
    if any(n != 1 for n in lengths):
        joined, at = [], 0
        several = sum(n > 1 for n in lengths) > 1
        for atoms, n in zip(wanted, lengths, strict=True):
            size = math.prod(a.size for a in atoms)
            joined.append(tensor.shape[at] if n == 1 else 1 if n == 0 else size if several else -1)
            at += n
        tensor = tensor.reshape(*joined)
    return tensor
