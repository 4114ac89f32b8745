"""How symmetries act on the tensors of an architecture: the one place here that reads blocks, slots and signs.

A *term* is a tensor of parameters with the layers that its axes run over. A *slot* consists of the blocks of neurons
that are permuted together, a *family* of the slots whose heads are permuted together (one slot, if there are no heads).
A *piece* is what a term says about the neurons of one slot.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from ..core import canonical
from ..core.architecture import Architecture, Normalise, Scale, Segment
from ..core.blocks import Block, Classes
from ..core.networks import Networks

End = Literal["target", "source"]


@dataclass(frozen=True)
class Term:
    """One tensor of parameters.

    Arguments:
        segment: Its place in the flat vector.
        target: The layer of its first axis (None for a learned slope, which no symmetry changes).
        source: The layer of its second axis or, if `paired`, of its first axis too.
        groups: Number of groups of neurons; each connects only to its counterpart.
        paired: Whether neuron i of the source connects only to neuron i of the target.
    """

    segment: Segment
    target: int | None
    source: int | None = None
    groups: int = 1
    paired: bool = False

    @property
    def name(self) -> str:
        """Such as `weight 0-1` or `bias 1`."""
        ends = [str(end) for end in (self.source, self.target) if end is not None]
        return f"{self.segment.kind} {'-'.join(ends) or self.segment.index}"

    @property
    def matrix(self) -> bool:
        """Whether it has more than one number per neuron: matrices and convolutions, but not biases and gains."""
        return len(self.segment.shape) > 1

    @property
    def ends(self) -> tuple[tuple[End, int], ...]:
        """Its ends, with their layers."""
        ends: tuple[tuple[End, int | None], ...] = (("target", self.target), ("source", self.source))
        return tuple((end, layer) for end, layer in ends if layer is not None)

    def rows(self, x: Tensor, end: End) -> Tensor:
        """What it says about each neuron of one end: (B, n, m)."""
        if x.dim() == 2:
            return x[..., None]
        if end == "target" or self.paired:
            return x.flatten(2)
        grouped = x.reshape(len(x), self.groups, -1, *x.shape[2:]).transpose(2, 3)
        return grouped.flatten(3).flatten(1, 2)

    def sources(self, v: Tensor) -> Tensor:
        """A number per neuron of the source (B, n_s) where the term has it: broadcasts against (B, n_t, columns)."""
        if self.paired:
            return v[..., None]
        n = self.segment.shape[0] // self.groups
        return v.unflatten(1, (self.groups, -1)).repeat_interleave(n, dim=1) if self.groups > 1 else v[:, None]


@dataclass(frozen=True)
class Slot:
    """Blocks of neurons that are permuted together, each with its layer."""

    blocks: tuple[tuple[int, Block], ...]

    @property
    def size(self) -> int:
        """Number of neurons."""
        return self.blocks[0][1].size


@dataclass(frozen=True)
class Family:
    """What is matched in one step.

    Arguments:
        slots: Slots whose heads are permuted together; one, if there are no heads.
        permuted: Whether the order is free; blocks that may only change signs or phases form families of their own.
        heads: Number of heads.
    """

    slots: tuple[Slot, ...]
    permuted: bool
    heads: int = 1

    @property
    def layers(self) -> frozenset[int]:
        """The layers that it involves."""
        return frozenset(layer for slot in self.slots for layer, _ in slot.blocks)

    def places(self) -> Iterator[tuple[int, int]]:
        """Its blocks: layer and first neuron."""
        return ((layer, b.start) for slot in self.slots for layer, b in slot.blocks)


@dataclass(frozen=True)
class Evidence:
    """What one end of a term says about the neurons of a block.

    Arguments:
        term: Position in `terms`.
        end: Which axis.
        layer, block: Whose neurons.
        signs: The sign variables that multiply it.
        others: The layers at the other end.
    """

    term: int
    end: End
    layer: int
    block: Block
    signs: frozenset[int]
    others: tuple[int, ...]


@cache
def terms(architecture: Architecture) -> tuple[Term, ...]:
    """The tensors of an architecture, in the order of its flat vector."""
    found = []
    for s in architecture.segments:
        if s.kind != "weight":
            found.append(Term(s, s.index if s.kind == "bias" else None))
            continue
        c = architecture.connections[s.index]
        n_t, n_s = architecture.layers[c.target].size, architecture.layers[c.source].size
        paired = isinstance(c.map, Normalise | Scale) or (c.groups > 1 and c.groups == n_t == n_s)
        found.append(Term(s, c.target, c.source, 1 if paired else c.groups, paired))
    return tuple(found)


@cache
def families(architecture: Architecture) -> tuple[Family, ...]:
    """The families of an architecture, in the order of their first layers."""
    slots: dict[tuple[str, int, int], list[tuple[int, Block]]] = {}
    linked: Classes[int] = Classes()
    for b in (b for blocks in architecture.blocks for b in blocks if b.signs):
        for v in b.signs:
            linked.join(b.signs[0], v)
    for i, blocks in enumerate(architecture.blocks):
        for b in blocks:
            if b.slot is not None:
                slots.setdefault(("slot", b.slot, 0), []).append((i, b))
            elif b.signs:
                slots.setdefault(("sign", linked.find(b.signs[0]), 0), []).append((i, b))
            elif half_turn(architecture, i) is not None:
                slots.setdefault(("turn", i, b.start), []).append((i, b))
    found: dict[tuple[str, int, int], list[Slot]] = {}
    for key, members in slots.items():
        head = members[0][1].head_slot
        found.setdefault(key if head is None else ("head", head, 0), []).append(Slot(tuple(members)))
    return tuple(
        Family(tuple(f), key[0] in ("slot", "head"), f[0].blocks[0][1].heads if key[0] == "head" else 1)
        for key, f in found.items()
    )


@cache
def pieces(architecture: Architecture, slot: Slot) -> tuple[Evidence, ...]:
    """What the tensors of an architecture say about the neurons of a slot."""
    a, found = architecture, []
    for layer, block in slot.blocks:
        for n, term in enumerate(terms(a)):
            if term.target == layer:
                signs = frozenset(block.signs)
                if term.paired and term.source is not None:
                    signs ^= sent_sign(a, term.source, block.start)
                others = (term.source,) if term.source is not None and not term.paired else ()
                found.append(Evidence(n, "target", layer, block, signs, others))
            if term.source == layer and not term.paired and term.target is not None:
                found.append(Evidence(n, "source", layer, block, sent_sign(a, layer, block.start), (term.target,)))
    return tuple(found)


def sent_sign(architecture: Architecture, layer: int, start: int) -> frozenset[int]:
    """The variables whose product is the sign of a block's output."""
    block = next(b for b in architecture.blocks[layer] if b.start <= start < b.stop)
    return frozenset() if architecture.phis[layer].even else frozenset(block.signs)


@cache
def half_turn(architecture: Architecture, layer: int) -> float | None:
    """Half a turn of a sine layer's bias, pi / frequency; None for layers without a phase of their own."""
    activation = architecture.layers[layer].activation
    own = layer > 0 and architecture.layers[layer].bias and canonical.owns(architecture, layer)
    return torch.pi / activation.parameters[0] if own and activation.name == "sine" else None


@cache
def mirrors(architecture: Architecture, layer: int) -> bool:
    """Whether half a turn is a symmetry: incoming weights change sign, the neuron's output does not."""
    weighted = all(architecture.connections[c].has_weights for c in architecture.incoming[layer])
    return half_turn(architecture, layer) is not None and weighted


def split(networks: Networks) -> list[Tensor]:
    """One tensor (B, ...) per term: (B, n_t, columns, K) for matrices, (B, n) for biases and gains."""
    parts = networks.parameters.split([t.segment.size for t in terms(networks.architecture)], dim=1)
    return [p.unflatten(1, t.segment.shape) for p, t in zip(parts, terms(networks.architecture), strict=True)]


def joined(architecture: Architecture, tensors: list[Tensor]) -> Networks:
    """The networks whose terms these are."""
    return Networks(architecture, torch.cat([t.flatten(1) for t in tensors], dim=1))
