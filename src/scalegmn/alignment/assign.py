"""Linear assignments: of neurons, and of heads with the neurons in them."""

from collections.abc import Sequence

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor


def assign(gains: Sequence[Tensor], heads: int = 1) -> list[Tensor]:
    """The orders (B, n) of largest total gain, one for each of several slots whose heads move together.

    Every neuron of a head goes to the same head; which heads go together is an assignment too, by what their neurons
    gain at best.

    Arguments:
        gains: Per slot (B, n, n), what neuron i of A gains with neuron j of B.
        heads: Into how many heads the neurons of each slot fall.

    >>> gain = torch.tensor([[[0.0, 0, 3, 1], [0, 0, 1, 0], [2, 0, 0, 0], [0, 2, 0, 0]]])
    >>> assign([gain]), assign([gain], heads=2)
    ([tensor([[2, 3, 0, 1]])], [tensor([[2, 3, 0, 1]])])
    """
    if heads == 1:
        return [_assign(gain) for gain in gains]
    inner, total = [], torch.zeros(len(gains[0]), heads, heads, dtype=gains[0].dtype)
    for gain in gains:
        parts = gain.cpu().unflatten(2, (heads, -1)).unflatten(1, (heads, -1)).transpose(2, 3)
        order = _assign(parts.flatten(0, 2)).unflatten(0, parts.shape[:3])
        total = total + parts.gather(4, order[..., None])[..., 0].sum(3)
        inner.append(order)
    chosen = _assign(total)
    found = []
    for order in inner:
        within = torch.take_along_dim(order, chosen[:, :, None, None], 2)[:, :, 0]
        found.append((chosen[:, :, None] * order.shape[3] + within).flatten(1))
    return found


def _assign(gain: Tensor) -> Tensor:
    """Per pair of networks the assignment of largest total gain: (B, n, n) to (B, n)."""
    # Gains that differ by rounding are equal, or else rounding would decide between them.
    size = gain.abs().amax((1, 2), keepdim=True)
    gain = (gain * (2.0**36 / torch.where(size > 0, size, 1.0))).round()
    found = [linear_sum_assignment(g, maximize=True)[1] for g in gain.cpu().numpy()]
    return torch.stack([torch.from_numpy(columns) for columns in found])
