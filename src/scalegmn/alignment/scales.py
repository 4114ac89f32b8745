r"""Balanced scales: the member of an orbit of least norm, and the one with the least noise from rounding.

Multipliers \(q\) turn the squared sizes \(M_{ts}\) of weights into \(M_{ts} q_t^2 / \phi(q_s)^2\). Their sum is a
convex function of \(\log q\), and its minimum over the scales of one class is known in closed form; going through the
classes in turn is Osborne's balancing of matrices (Osborne 1960).

Rounding the weights \(W_{ts}\) of a tensor with one step adds noise to the outputs. To first order its square is
proportional to \(\max_{ts} W_{ts}^2 \sum_{ts} G_{ts}\), with \(G\) the squared gradients of the outputs. With
multipliers it becomes

\[ N(q) = \sum_W \max_{ts} \left(\frac{q_t}{\phi(q_s)} W_{ts}\right)^2
    \sum_{ts} \left(\frac{\phi(q_s)}{q_t}\right)^2 G_{ts} \]

which is convex in \(\log q\) too (a geometric program), and does not change when all neurons of a layer have the same
multiplier.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import canonical
from ..core.architecture import Architecture
from ..core.blocks import Block
from ..core.networks import Networks
from ..core.transform import Transform
from .states import squared_gradients
from .structure import Term, split, terms

# The start is the canonical scale of the orbit, so that after any number of rounds all its members are at one place.
_ROUNDS = 60
# Neurons that hear nothing, or that nobody hears, would shrink for ever.
_FURTHEST = 30.0
_NEWTON = 12
# Higher and higher powers of entries, whose mean approaches the largest.
_POWERS = (2.0, 4.0, 8.0, 16.0, 32.0)
# How much of the mean is added to squared gradients.
_DOUBT = 0.3


def equalising(networks: Networks) -> Transform:
    """The transform that makes incoming and outgoing sizes of every neuron with scales equal, and signs canonical.

    Arguments:
        networks: Any.
    """
    start = canonical.scaling(networks)
    levels = Levels(start.apply(networks.to(dtype=torch.float64).detach()))
    levels.settle(_ROUNDS)
    return _further(start, levels)


def least_noise(networks: Networks, inputs: Tensor | None = None) -> Transform:
    """The transform to the member with the least noise from rounding, one step per tensor, and canonical signs.

    Arguments:
        networks: Any.
        inputs: At which outputs may change, as in `Networks.evaluate`; random ones if omitted.
    """
    start = equalising(networks)
    noise = RoundingNoise(start.apply(networks.to(dtype=torch.float64).detach()), inputs)
    for noise.power in _POWERS:
        noise.settle(_ROUNDS // len(_POWERS))
    return _further(start, noise)


def _further(start: Transform, levels: Levels) -> Transform:
    scales = tuple(s * u.exp() for s, u in zip(start.scales, levels.logs, strict=True))
    return Transform(start.architecture, start.permutations, scales)


class Levels:
    """Squared sizes of tensors, and the logarithms of multipliers that make their sum least.

    Arguments:
        networks: In float64.
    """

    def __init__(self, networks: Networks) -> None:
        a = networks.architecture
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
            if term.target is None or not self.counts(term):
                continue
            square = self.over(x.square()) if term.matrix else x.square()[..., None]
            if _loops(a, term):
                square = square - square.diagonal(dim1=1, dim2=2).diag_embed()  # a neuron's own factor cancels
            self.squares.append((term, square))

    def counts(self, term: Term) -> bool:
        """Whether a tensor is part of the sum."""
        return True

    def over(self, squares: Tensor) -> Tensor:
        """The squares of matrices (B, n_t, columns, K), kernels as one number."""
        return squares.sum(3)

    def sizes(self, term: Term, square: Tensor) -> dict[float, Tensor]:
        """What a tensor adds to the sum now (B, n_t, columns), by its exponents in the multiplier of an entry."""
        return {1.0: square * self._factor(term)}

    def settle(self, rounds: int) -> None:
        """Balance one variable after another, with the others fixed, until nothing moves."""
        for _ in range(rounds):
            if max((self._move(v) for v in self.variables), default=0.0) < 1e-13:
                break

    def _move(self, v: int) -> float:
        """Balance one variable; returns the largest step."""
        places, old = self.variables[v], self.values.get(v, 0.0)
        self.values[v] = (old + self._step(places)).clamp(-_FURTHEST, _FURTHEST)
        step = self.values[v] - old
        for layer, block, power in places:
            self.logs[layer][:, block.start : block.stop] += power * step
        return float(step.abs().max())

    def _factor(self, term: Term) -> Tensor:
        """The factor (B, n_t, columns) of a term's squares so far."""
        assert term.target is not None
        rows = (2 * self.logs[term.target][..., None]).exp()
        if term.source is None:
            return rows
        return rows * (-2 * self.powers[term.source] * term.sources(self.logs[term.source])).exp()

    def _step(self, places: list[tuple[int, Block, float]]) -> Tensor:
        """The logarithm (B, n) of the factor that balances a variable.

        Arguments:
            places: Where the variable is: layer, block, exponent.
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
            tied = tied or (len({end for end, _, _ in ends}) == 2 and not term.paired)
            if term.paired:
                ends = [(*ends[0][:2], sum(power for _, _, power in ends))]
            for factor, size in self.sizes(term, square).items():
                for end, block, power in ends:
                    part = term.rows(size[..., None], end).sum(2)[:, block.start : block.stop]
                    if power:
                        found[factor * power] = found.get(factor * power, 0.0) + part
        if not found:  # what nothing here hears or says
            return self.logs[0].new_zeros(len(self.logs[0]), places[0][1].size)
        step = crossing(dict(sorted(found.items())))
        # Inside one class the steps of neighbours add up.
        return step / 2 if tied else step


class RoundingNoise(Levels):
    """The noise of rounding, for networks of least norm; biases and gains are not rounded.

    Arguments:
        networks: In float64, of least norm.
        inputs: At which outputs may change; random ones if omitted.
    """

    power = 1.0

    def __init__(self, networks: Networks, inputs: Tensor | None = None) -> None:
        super().__init__(networks)
        self.gradients: dict[Term, Tensor] = {}
        squares = split(networks.replace(squared_gradients(networks, inputs)))
        for term, square in zip(terms(networks.architecture), squares, strict=True):
            if term.matrix:
                found = square.sum(3)
                # Inputs that leave a neuron silent do not mean that others will.
                self.gradients[term] = found + _DOUBT * found.mean((1, 2), keepdim=True)

    def counts(self, term: Term) -> bool:
        """Whether it is rounded."""
        return term.matrix

    def over(self, squares: Tensor) -> Tensor:
        """The largest entries of kernels."""
        return squares.amax(3)

    def sizes(self, term: Term, square: Tensor) -> dict[float, Tensor]:
        """The noise of a tensor: it grows with the entries near its range, and shrinks with what the step changes."""
        factor = self._factor(term)
        now = square * factor
        largest = now.amax((1, 2), keepdim=True)
        near = (now / torch.where(largest > 0, largest, 1.0)) ** self.power
        total = near.sum((1, 2), keepdim=True)
        noise = largest * total ** (1 / self.power) * self.gradients[term] / factor
        share = noise.sum((1, 2), keepdim=True) / torch.where(total > 0, total, 1.0)
        return {self.power: near * share / self.power, -1.0: noise}


def _loops(architecture: Architecture, term: Term) -> bool:
    """Whether both ends of a matrix are the same neurons."""
    if term.source is None or term.target is None or term.paired or term.groups > 1:
        return False
    return architecture.blocks[term.source] == architecture.blocks[term.target]


def crossing(levels: dict[float, Tensor]) -> Tensor:
    r"""The \(\delta\) at which \(\sum_e M_e \exp(2 e \delta)\) is least; as far as it goes where all rise or all fall.

    Arguments:
        levels: The sizes M (B, n) by their exponents e.

    >>> float(crossing({-1.0: torch.tensor([[16.0]]), 1.0: torch.tensor([[1.0]])}).exp())
    2.0
    """
    step = torch.zeros_like(next(iter(levels.values())))
    highest = torch.full_like(step, -torch.inf)
    # In logarithms the terms are straight lines: the least of their maximum is where the highest two cross.
    for p, q in ((p, q) for p in levels for q in levels if q < 0 < p):
        x, y = p * levels[p], -q * levels[q]
        both = (x > 0) & (y > 0)
        log_x, log_y = (torch.where(both, m, 1.0).log() for m in (x, y))
        cross = (log_y - log_x) / (2 * (p - q))
        height = torch.where(both, log_x + 2 * p * cross, -torch.inf)
        step, highest = torch.where(height > highest, cross, step), torch.maximum(height, highest)
    held = highest > -torch.inf
    for _ in range(_NEWTON if len(levels) > 2 else 0):
        now = [(e, m * (2 * e * step).exp()) for e, m in levels.items()]
        slope = torch.stack([e * x for e, x in now]).sum(0)
        bend = torch.stack([2 * e * e * x for e, x in now]).sum(0)
        step = step - torch.where(held, slope / torch.where(bend > 0, bend, 1.0), 0.0).clamp(-1, 1)
    furthest = torch.full_like(step, torch.inf)
    for e, m in levels.items():
        furthest = torch.where((m > 0) & (abs(_FURTHEST / e) < furthest.abs()), -_FURTHEST / e, furthest)
    return torch.where(held, step, torch.where(furthest.isfinite(), furthest, 0.0))
