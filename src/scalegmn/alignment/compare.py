"""Are two networks the same, and how far apart are they?"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.networks import Networks
from .align import Alignment, align, pairs
from .states import default_inputs


def distance(a: Networks, b: Networks, *, inputs: Tensor | None = None) -> Tensor:
    r"""The distance (B,) between the orbits of networks: 0 for the same one, about 1 for unrelated ones.

    Each orbit is represented by its member of least norm, with phases in range. Such members differ by permutations
    and signs, which do not change the norm, so that

    \[ d(a, b)^2 = \min_g \sum_t \frac{P_t}{P} \frac{|A_t - g B_t|^2}{|A_t|^2 + |B_t|^2} \]

    does not depend on which members were given, on the unit of a tensor, or on neurons that have no effect (they vanish
    in the member of least norm). The minimum is the one that `align` finds.

    Arguments:
        a, b: Networks of one architecture: pairs, or one of either for all of the other.
        inputs: As in `align`.

    >>> from scalegmn import Architecture, Transform
    >>> a = Networks(Architecture.mlp([2, 8, 1], "relu"), torch.randn(1, 33, dtype=torch.float64))
    >>> round(float(distance(a, Transform.sample(a.architecture, 1).apply(a))), 9)
    0.0
    """
    return align(a, b, inputs=inputs).distance


@dataclass(frozen=True)
class Same:
    """The answer of `same`, with its evidence; true if all pairs are the same.

    Arguments:
        same: Per pair (B,), whether all tensors agree within rounding after alignment.
        alignment: The alignment: distances, residuals, the symmetry that was found.
        gap: Per pair (B,), the largest difference of the two functions at 64 random inputs, relative to their size.
    """

    same: Tensor
    alignment: Alignment
    gap: Tensor

    def __bool__(self) -> bool:
        return bool(self.same.all())


def same(a: Networks, b: Networks) -> Same:
    """Whether networks are equal up to symmetry, within the rounding of their type.

    Arguments:
        a, b: Networks of one architecture: pairs, or one of either for all of the other.

    >>> from scalegmn import Architecture, Transform
    >>> a = Networks(Architecture.mlp([2, 8, 1], "relu"), torch.randn(2, 33))
    >>> bool(same(a, Transform.sample(a.architecture, 2).apply(a))), bool(same(a[0], a[1]))
    (True, False)
    """
    a, b = pairs(a, b)
    found = align(a, b)
    x = default_inputs(a)
    with torch.no_grad():
        ours, theirs = (n.detach().to(dtype=torch.float64).evaluate(x).flatten(1) for n in (a, b))
    size = torch.maximum(ours.abs().amax(1), theirs.abs().amax(1))
    gap = (ours - theirs).abs().amax(1) / torch.where(size > 0, size, 1.0)
    return Same(found.exact, found, gap)
