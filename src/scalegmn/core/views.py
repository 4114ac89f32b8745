"""The tensors of networks as views of their flat parameters."""

from dataclasses import dataclass

from torch import Tensor

from .architecture import Architecture


@dataclass(frozen=True)
class Parameters:
    """Views of a batch's parameters, one entry per connection or layer (None if there is none).

    Arguments:
        weights: Per connection (B, n_t, n_s / groups, K); (B, n) for one per neuron; None for a skip.
        biases: Per layer (B, n).
        slopes: Per layer (B, 1), for learned slopes.

    >>> import torch
    >>> from scalegmn import Networks
    >>> networks = Networks(Architecture.mlp([2, 3, 1]), torch.randn(5, 13))
    >>> [None if w is None else tuple(w.shape) for w in networks.views.weights]
    [(5, 3, 2, 1), (5, 1, 3, 1)]
    """

    weights: tuple[Tensor | None, ...]
    biases: tuple[Tensor | None, ...]
    slopes: tuple[Tensor | None, ...]


def views(architecture: Architecture, rows: Tensor) -> Parameters:
    """Weights, biases and slopes of networks; shared and constant ones too.

    Arguments:
        architecture: Of the networks.
        rows: Their parameters (B, P).
    """
    a = architecture
    weights: list[Tensor | None] = [None] * len(a.connections)
    biases: list[Tensor | None] = [None] * len(a.layers)
    slopes: list[Tensor | None] = [None] * len(a.layers)
    target = {"weight": weights, "bias": biases, "slope": slopes}
    for s, part in zip(a.segments, rows.split([s.size for s in a.segments], dim=1), strict=True):
        target[s.kind][s.index] = part.unflatten(1, s.shape)
    for i, c in enumerate(a.connections):
        if c.constant:
            fixed = rows.new_tensor(c.constant).reshape(1, *a.weight_shape(i))
            weights[i] = fixed.expand(len(rows), *fixed.shape[1:])
    for again in a.shared:
        found = target[again.kind][again.of]
        assert found is not None
        target[again.kind][again.index] = found.transpose(1, 2) if again.transposed else found
    return Parameters(tuple(weights), tuple(biases), tuple(slopes))
