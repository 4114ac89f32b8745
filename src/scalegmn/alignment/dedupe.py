"""Finding copies among many networks without comparing all pairs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree
from torch import Tensor

from ..core.networks import Networks
from ..errors import ScaleGMNError
from .align import align, balanced, tolerance
from .fingerprint import Fingerprint, fingerprint
from .match import Search
from .states import signatures

Kind = Literal["identical", "same", "near"]

NEAR = 0.35  # unrelated networks are at 0.7 or more
_RADIUS = 0.12  # of fingerprints of networks that may be near
_NEIGHBOURS = 3
_BATCH = 1000


@dataclass(frozen=True)
class Link:
    """Two networks that belong together.

    Arguments:
        first, second: Their positions.
        kind: How much they agree.
        distance: Of their orbits.
    """

    first: int
    second: int
    kind: Kind
    distance: float


@dataclass(frozen=True)
class Copies:
    """What `find_copies` found.

    Arguments:
        links: Enough of them to connect all networks that belong together.
        compared: How many pairs were aligned or tried.
    """

    links: list[Link]
    compared: int


def find_copies(
    networks: Networks,
    *,
    near: float = NEAR,
    types: Sequence[torch.dtype] = (),
    track: Callable[[Sequence[Tensor]], Iterator[Tensor]] = iter,
) -> Copies:
    """Networks of a batch that are equal up to symmetry, or near each other.

    Each network is compared with the first that shares its digest and with the nearest three by fingerprint.

    Arguments:
        networks: Any number of one architecture.
        near: The largest distance of networks that count as near.
        types: The type in which each network was stored, if not that of the batch; it decides what counts as rounding.
        track: Shows progress over a sequence of batches.
    """
    if not near >= 0:
        raise ScaleGMNError(f"near: expected a distance, 0 or more, got {near}")
    candidates = _candidates(fingerprint(networks))
    rounding = torch.tensor([tolerance(t) for t in types or [networks.dtype] * len(networks)])
    links = []
    for pairs in track(list(candidates.split(_BATCH)) if len(candidates) else []):
        a, b = networks[pairs[:, 0]], networks[pairs[:, 1]]
        # A first match tells most unrelated pairs from the others.
        hopeful = (_first_match(a, b) < 2 * max(near, NEAR)).nonzero()[:, 0]
        if not len(hopeful):
            continue
        found = align(a[hopeful], b[hopeful])
        same = found.residuals.amax(1).cpu() <= rounding[pairs[hopeful]].amax(1)
        rows = zip(pairs[hopeful].tolist(), found.distance.tolist(), same.tolist(), strict=True)
        links += [Link(i, j, "same" if exact else "near", d) for (i, j), d, exact in rows if exact or d <= near]
    return Copies(links, len(candidates))


def _first_match(a: Networks, b: Networks) -> Tensor:
    """The distance (B,) after matching states, not refined."""
    (left, _), (right, _) = balanced(a), balanced(b)
    search = Search(left, right)
    search.start_from_states(signatures(left), signatures(right))
    return search.objective().sqrt()


def _candidates(prints: Fingerprint) -> Tensor:
    """Pairs (N, 2) with similar fingerprints."""
    first: dict[str, int] = {}
    pairs = []
    for i, digest in enumerate(prints.digests):
        if first.setdefault(digest, i) != i:
            pairs.append((first[digest], i))
    keep = torch.tensor(sorted(first.values()))
    if len(keep) > 1:
        points = prints.vectors[keep].cpu().numpy()
        count = min(_NEIGHBOURS + 1, len(keep))
        _, found = cKDTree(points).query(points, k=count, distance_upper_bound=_RADIUS)
        near = {
            (min(i, j), max(i, j)) for i, row in enumerate(found.tolist()) for j in row if j != i and j < len(keep)
        }
        pairs += [(int(keep[i]), int(keep[j])) for i, j in sorted(near)]
    return torch.tensor(pairs, dtype=torch.long).reshape(-1, 2)


def groups(count: int, links: Sequence[Link]) -> list[list[int]]:
    """The positions 0 to count - 1 in groups connected by links, largest group first, each in ascending order.

    >>> groups(4, [Link(0, 2, "same", 0.0), Link(2, 3, "near", 0.1)])
    [[0, 2, 3], [1]]
    """
    ends = [link.first for link in links], [link.second for link in links]
    _, labels = connected_components(coo_array((np.ones(len(links)), ends), (count, count)), directed=False)
    found: dict[int, list[int]] = {}
    for i, label in enumerate(labels.tolist()):
        found.setdefault(label, []).append(i)
    return sorted(found.values(), key=lambda members: -len(members))
