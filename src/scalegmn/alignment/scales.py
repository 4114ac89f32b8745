r"""Scales made equal: the member of an orbit whose neurons receive as much as they send.

Multipliers \(q\) turn the squared sizes \(M_{ts}\) of weights into \(M_{ts} q_t^2 / \phi(q_s)^2\). Their sum is a
convex function of \(\log q\), and its minimum over the scales of one class is known in closed form; going through the
classes in turn is Osborne's balancing of matrices (Osborne 1960) and, with largest entries instead of sums, cross-layer
equalisation (Nagel et al. 2019).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..core import canonical
from ..core.architecture import Architecture
from ..core.networks import Networks
from ..core.transform import Transform
from .structure import Term, split, terms

Size = Literal["sum", "largest"]

# The start is the canonical scale of the orbit, so that after any number of rounds all its members are at one place.
_ROUNDS = 60
# Neurons that hear nothing, or that nobody hears, would shrink for ever.
_FURTHEST = 30.0


def equalising(networks: Networks, size: Size = "sum") -> Transform:
    """The transform to equal incoming and outgoing size of every neuron that scales, and to canonical signs.

    Arguments:
        networks: Any.
        size: Compare sums of squares (biases included), or largest entries (of weights alone).
    """
    a = networks.architecture
    start = canonical.scaling(networks)
    slots = _scaled(a)
    exact = start.apply(networks.to(dtype=torch.float64).detach())
    sizes = _sizes(exact, size)
    u = {slot: exact.parameters.new_zeros(len(networks), a.layers[layers[0]].size) for slot, layers in slots.items()}
    # Ranges are first compared relative to those of their tensors; then those of the tensors are made alike.
    for together in (False, True) if size == "largest" else (False,):
        for _ in range(_ROUNDS):
            moved = 0.0
            for slot, layers in slots.items():
                step = _step(a, sizes, u, slot, layers, size, together=together)
                new = (u[slot] + step).clamp(-_FURTHEST, _FURTHEST)
                moved = max(moved, float((new - u[slot]).abs().max()))
                u[slot] = new
            if moved < 1e-13:
                break
    scales = list(start.scales)
    for slot, layers in slots.items():
        for i in layers:
            scales[i] = scales[i] * u[slot].exp()
    return Transform(a, start.permutations, tuple(scales))


def _scaled(a: Architecture) -> dict[int, list[int]]:
    """The scaling slots that hold positive factors, with their layers."""
    found: dict[int, list[int]] = {}
    for i, slot in enumerate(a.scale_slots):
        if slot is not None and a.groups[i].scales:
            found.setdefault(slot, []).append(i)
    return found


def _sizes(networks: Networks, size: Size) -> list[tuple[Term, Tensor]]:
    """Squared sizes per term: (B, n_t, n_s) for matrices, (B, n) otherwise."""
    a, found = networks.architecture, []
    for term, x in zip(terms(a), split(networks), strict=True):
        if term.target is None or (size == "largest" and term.source is None):
            continue
        square = x.square()
        if term.source is not None:
            square = square.sum(3) if size == "sum" else square.amax(3)
            slot = a.scale_slots[term.source]
            if slot is not None and slot == a.scale_slots[term.target]:
                square = square - square.diagonal(dim1=1, dim2=2).diag_embed()  # a neuron's own factor cancels
        found.append((term, square))
    return found


def _step(
    a: Architecture,
    sizes: list[tuple[Term, Tensor]],
    u: dict[int, Tensor],
    slot: int,
    layers: list[int],
    size: Size,
    *,
    together: bool,
) -> Tensor:
    """The logarithm (B, n) of the factor that makes one class equal, the others as they are.

    Arguments:
        a: The architecture.
        sizes: As `_sizes` gives them.
        u: Logarithms of the factors so far.
        slot, layers: The class.
        size: What is compared.
        together: One factor for all neurons of the class.
    """
    zero = torch.zeros_like(u[slot])
    received, sent, tied = zero, zero, False
    power = float(a.phis[layers[0]].power)
    for term, square in sizes:
        assert term.target is not None
        to, of = a.scale_slots[term.target], None if term.source is None else a.scale_slots[term.source]
        if slot not in (to, of):
            continue
        tied = tied or to == of
        now = square
        if to in u and to is not None:
            now = now * (2 * u[to]).exp().reshape(*u[to].shape, *[1] * (now.dim() - 2))
        if of in u and of is not None and term.source is not None:
            now = now * (-2 * float(a.phis[term.source].power) * u[of]).exp()[:, None]
        if size == "largest" and not together:
            whole = now.amax((1, 2), keepdim=True)
            now = now / torch.where(whole > 0, whole, 1.0)
        if to == slot:
            received = _add(received, now if now.dim() == 2 else _over(now, 2, size), size)
        if of == slot:
            sent = _add(sent, _over(now, 1, size), size)
    if together:
        received, sent = (x.amax(1, keepdim=True).expand_as(x) for x in (received, sent))
    factor = power if size == "sum" else 1.0
    both = (received > 0) & (sent > 0)
    ratio = torch.where(both, factor * sent / torch.where(received > 0, received, 1.0), 1.0).log()
    step = ratio / (2 * (1 + power))
    # Inside one class the steps of neighbours add up.
    step = step / 2 if tied else step
    step = torch.where((received == 0) & (sent > 0), torch.full_like(step, _FURTHEST), step)
    return torch.where((received > 0) & (sent == 0), torch.full_like(step, -_FURTHEST), step)


def _over(x: Tensor, dim: int, size: Size) -> Tensor:
    return x.sum(dim) if size == "sum" else x.amax(dim)


def _add(x: Tensor, y: Tensor, size: Size) -> Tensor:
    return x + y if size == "sum" else torch.maximum(x, y)
