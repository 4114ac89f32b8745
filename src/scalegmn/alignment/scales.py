r"""Scales made equal: the member of an orbit whose neurons receive as much as they send.

Multipliers \(q\) turn the squared sizes \(M_{ts}\) of weights into \(M_{ts} q_t^2 / \phi(q_s)^2\). Their sum is a
convex function of \(\log q\), and its minimum over the scales of one class is known in closed form; going through the
classes in turn is Osborne's balancing of matrices (Osborne 1960) and, with largest entries instead of sums, cross-layer
equalisation (Nagel et al. 2019).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from ..core import canonical
from ..core.architecture import Architecture
from ..core.blocks import Block
from ..core.networks import Networks
from ..core.transform import Transform
from .structure import Term, split, terms

Size = Literal["sum", "largest"]

# The start is the canonical scale of the orbit, so that after any number of rounds all its members are at one place.
_ROUNDS = 60
# Neurons that hear nothing, or that nobody hears, would shrink for ever.
_FURTHEST = 30.0
_NEWTON = 12


def equalising(networks: Networks, size: Size = "sum") -> Transform:
    """The transform to equal incoming and outgoing size of every neuron that scales, and to canonical signs.

    Arguments:
        networks: Any.
        size: Compare sums of squares (biases included), or largest entries (of matrices and convolutions alone).
    """
    start = canonical.scaling(networks)
    levels = Levels(start.apply(networks.to(dtype=torch.float64).detach()), size)
    # Ranges are first compared relative to those of their tensors; then those of the tensors are made alike.
    for together in (False, True) if size == "largest" else (False,):
        for _ in range(_ROUNDS):
            if levels.sweep(together=together) < 1e-13:
                break
    scales = tuple(s * u.exp() for s, u in zip(start.scales, levels.logs, strict=True))
    return Transform(networks.architecture, start.permutations, scales)


class Levels:
    """Squared sizes of tensors, and the logarithms of multipliers that make them equal.

    Arguments:
        networks: In float64.
        size: What is compared.
    """

    def __init__(self, networks: Networks, size: Size) -> None:
        a = networks.architecture
        self.size: Size = size
        self.powers = [float(phi.power) for phi in a.phis]
        self.variables: dict[int, list[tuple[int, Block, float]]] = {}
        for i, blocks in enumerate(a.blocks):
            for block in blocks:
                for v, power in block.scales:
                    self.variables.setdefault(v, []).append((i, block, power))
        self.values: dict[int, Tensor] = {}
        self.logs = [networks.parameters.new_zeros(len(networks), layer.size) for layer in a.layers]
        self.squares: list[tuple[Term, Tensor]] = []
        for term, x in zip(terms(a), split(networks), strict=True):
            if term.target is None or (size == "largest" and not term.matrix):
                continue
            square = x.square()
            if term.matrix:
                square = square.sum(3) if size == "sum" else square.amax(3)
                if _loops(a, term):
                    square = square - square.diagonal(dim1=1, dim2=2).diag_embed()  # a neuron's own factor cancels
            self.squares.append((term, square if term.matrix else square[..., None]))

    def sweep(self, *, together: bool) -> float:
        """Make one variable after another equal, the others as they are; the largest step."""
        moved = 0.0
        for v, places in self.variables.items():
            step = self._step(places, together=together)
            new = (self.values.get(v, 0.0) + step).clamp(-_FURTHEST, _FURTHEST)
            step = new - self.values.get(v, 0.0)
            self.values[v] = new
            moved = max(moved, float(step.abs().max()))
            for layer, block, power in places:
                self.logs[layer][:, block.start : block.stop] += power * step
        return moved

    def _now(self, term: Term, square: Tensor) -> Tensor:
        """The squared sizes (B, n_t, columns) of a term under the multipliers so far."""
        assert term.target is not None
        log = self.logs[term.target][..., None]
        if term.source is not None:
            log = log - self.powers[term.source] * term.sources(self.logs[term.source])
        return square * (2 * log).exp()

    def _step(self, places: list[tuple[int, Block, float]], *, together: bool) -> Tensor:
        """The logarithm (B, n) of the factor that makes a variable equal.

        Arguments:
            places: Where the variable is: layer, block, exponent.
            together: One factor for all neurons.
        """
        found: dict[float, Tensor] = {}
        tied = False
        for term, square in self.squares:
            ends = [
                (end, block, power if end == "target" else -self.powers[layer] * power)
                for layer, block, power in places
                for end, at in term.ends
                if at == layer
            ]
            if not ends:
                continue
            now = self._now(term, square)
            if self.size == "largest" and not together:
                whole = now.amax((1, 2), keepdim=True)
                now = now / torch.where(whole > 0, whole, 1.0)
            if term.paired:
                block = ends[0][1]
                parts = [(now[:, block.start : block.stop, 0], sum(power for _, _, power in ends))]
            else:
                tied = tied or len({end for end, _, _ in ends}) == 2
                rows = {end: self._over(term.rows(now[..., None], end)) for end, _, _ in ends}
                parts = [(rows[end][:, block.start : block.stop], power) for end, block, power in ends]
            for part, power in parts:
                if power:
                    found[power] = self._add(found[power], part) if power in found else part
        levels = {
            power: x.amax(1, keepdim=True).expand_as(x) if together else x for power, x in sorted(found.items())
        }
        if not levels:  # what nothing here hears or says
            return self.logs[0].new_zeros(len(self.logs[0]), places[0][1].size)
        step, held = crossing(levels, self.size)
        # Inside one class the steps of neighbours add up.
        step = step / 2 if tied else step
        return torch.where(held, step, torch.zeros_like(step) if together else _alone(levels, self.size))

    def _over(self, x: Tensor) -> Tensor:
        return x.sum(2) if self.size == "sum" else x.amax(2)

    def _add(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y if self.size == "sum" else torch.maximum(x, y)


def _loops(architecture: Architecture, term: Term) -> bool:
    """Whether both ends of a matrix are the same neurons."""
    if term.source is None or term.target is None or term.paired or term.groups > 1:
        return False
    return architecture.blocks[term.source] == architecture.blocks[term.target]


def crossing(levels: dict[float, Tensor], size: Size) -> tuple[Tensor, Tensor]:
    r"""The \(\delta\) at which \(\sum_e M_e \exp(2 e \delta)\), or the largest of its terms, is least.

    Arguments:
        levels: The sizes (B, n) by their exponents e.
        size: Sum or largest.

    Returns:
        The step, and whether there is one: whether some terms rise and others fall.

    >>> sizes = {-1.0: torch.tensor([[16.0]]), 1.0: torch.tensor([[1.0]])}
    >>> float(crossing(sizes, "sum")[0].exp())
    2.0
    """
    step = torch.zeros_like(next(iter(levels.values())))
    highest = torch.full_like(step, -torch.inf)
    # In logarithms the terms are straight lines: the least of their maximum is where the highest two cross.
    for p, q in ((p, q) for p in levels for q in levels if q < 0 < p):
        x, y = levels[p], levels[q]
        both = (x > 0) & (y > 0)
        log_x, log_y = (torch.where(both, m, 1.0).log() for m in (x, y))
        if size == "sum":
            log_x, log_y = log_x + math.log(p), log_y + math.log(-q)
        cross = (log_y - log_x) / (2 * (p - q))
        height = torch.where(both, log_x + 2 * p * cross, -torch.inf)
        step, highest = torch.where(height > highest, cross, step), torch.maximum(height, highest)
    held = highest > -torch.inf
    for _ in range(_NEWTON if size == "sum" and len(levels) > 2 else 0):
        now = [(e, m * (2 * e * step).exp()) for e, m in levels.items()]
        slope = torch.stack([e * x for e, x in now]).sum(0)
        bend = torch.stack([2 * e * e * x for e, x in now]).sum(0)
        step = step - torch.where(held, slope / torch.where(bend > 0, bend, 1.0), 0.0).clamp(-1, 1)
    return step, held


def _alone(levels: dict[float, Tensor], size: Size) -> Tensor:
    """The step where all terms rise or all fall: to nothing, or to where the first reaches its tensor's range."""
    step = torch.full_like(next(iter(levels.values())), torch.inf)
    for e, m in levels.items():
        own = torch.full_like(m, -_FURTHEST / e) if size == "sum" else -torch.where(m > 0, m, 1.0).log() / (2 * e)
        step = torch.where((m > 0) & (own.abs() < step.abs()), own, step)
    return torch.where(step.isfinite(), step, 0.0)
