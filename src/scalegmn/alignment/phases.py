"""Phases of sine neurons: whole turns change nothing; half turns change nothing if the incoming weights flip sign."""

import torch
from torch import Tensor

from ..core.networks import Networks
from .structure import half_turn, mirrors, split, terms


def nearest_parity(count: Tensor, odd: int | Tensor) -> Tensor:
    """The nearest whole numbers that are odd (1) or even (0).

    >>> nearest_parity(torch.tensor([0.9, 2.1, -1.2]), 1).tolist()
    [1.0, 3.0, -1.0]
    """
    return 2 * ((count - odd) / 2).round() + odd


def phase_distance(x: Tensor, y: Tensor, half: float) -> Tensor:
    """How far (B, n, n) phases (B, n) are from whole turns of each other, from 0 to 1 in half turns."""
    count = (x[:, :, None] - y[:, None, :]) / half
    return (count - 2 * (count / 2).round()).abs()


def turned(networks: Networks, counts: tuple[Tensor | None, ...]) -> Networks:
    """Turn the phases of sine neurons by half turns, which does not change the function.

    Arguments:
        networks: Any.
        counts: Per layer (B, n), whole numbers, odd only if no residual connection enters the layer; or None.
    """
    if all(count is None for count in counts):
        return networks
    found = []
    for term, x in zip(terms(networks.architecture), split(networks), strict=True):
        count = None if term.target is None else counts[term.target]
        if count is not None and term.target is not None:
            odd = (1 - 2 * count.remainder(2)).to(x)
            x = x * odd.reshape(*odd.shape, *[1] * (x.dim() - 2))
            if term.segment.kind == "bias":
                x = x + count.to(x) * (half_turn(networks.architecture, term.target) or 0.0)
        found.append(x.flatten(1))
    return networks.replace(torch.cat(found, dim=1))


def turns_towards(a: Networks, b: Networks) -> tuple[Tensor | None, ...]:
    """The half turns that bring the sine neurons of b nearest to those of a, which have the same order and signs."""
    architecture = a.architecture
    return tuple(
        None if half_turn(architecture, i) is None else _layer(a.detach().to(dtype=torch.float64), b, i)
        for i in range(len(architecture.layers))
    )


def _layer(a: Networks, b: Networks, layer: int) -> Tensor:
    architecture, half = a.architecture, half_turn(a.architecture, layer) or 1.0
    both = [
        (term, x, y)
        for term, x, y in zip(terms(architecture), split(a), split(b), strict=True)
        if term.target == layer
    ]
    costs, counts = [], []
    for odd in (0, 1) if mirrors(architecture, layer) else (0,):
        cost = a.parameters.new_zeros(len(a), architecture.layers[layer].size)
        for term, x, y in both:
            apart, size = x - (1 - 2 * odd) * y, x.square() + y.square()
            if term.segment.kind == "bias":
                # Not relative to the bias of b, which may be any number of turns away.
                size = x.square() + half**2
                counts.append(nearest_parity(apart / half, odd))
                apart = apart - counts[-1] * half
            size = size.flatten(1).mean(1, keepdim=True)
            cost = cost + apart.reshape(*cost.shape, -1).square().sum(2) / torch.where(size > 0, size, 1.0)
        costs.append(cost)
    which = torch.stack(costs).argmin(0, keepdim=True)
    return torch.stack(counts).gather(0, which)[0]
