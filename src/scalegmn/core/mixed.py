"""Networks of several architectures: joined by architecture, and one function applied to all."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..errors import ScaleGMNError
from .architecture import Architecture
from .networks import Networks


def expect_networks(value: object) -> None:
    """Refuse a module, a tensor or anything else in place of networks."""
    if not isinstance(value, Networks):
        raise ScaleGMNError(
            f"networks: expected Networks, got {type(value).__name__}; Networks.from_modules makes them of modules"
        )


def each_architecture(f: Callable[[Networks], Tensor], networks: Networks | Sequence[Networks]) -> Tensor:
    """Apply f to the networks of one architecture at a time and return the results in the order of the input.

    >>> small, large = (Architecture.mlp([1, n, 1]) for n in (2, 3))
    >>> mixed = [Networks(a, torch.full((1, a.parameters), v)) for a, v in [(small, 1.0), (large, 2.0), (small, 3.0)]]
    >>> each_architecture(lambda n: n.parameters[:, 0], mixed)
    tensor([1., 2., 3.])
    """
    if isinstance(networks, Networks):
        return f(networks)
    groups: dict[Architecture, list[tuple[Networks, Tensor]]] = {}
    start = 0
    for batch in networks if isinstance(networks, Sequence) else [networks]:
        expect_networks(batch)
        groups.setdefault(batch.architecture, []).append((batch, torch.arange(start, start + len(batch))))
        start += len(batch)
    if not groups:
        raise ScaleGMNError("networks: expected at least one batch, got none")
    found = torch.cat([f(Networks.cat([batch for batch, _ in group])) for group in groups.values()])
    order = torch.cat([positions for group in groups.values() for _, positions in group]).argsort()
    return found[order.to(found.device)]
