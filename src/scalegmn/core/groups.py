r"""The one-dimensional scaling groups \(D_\sigma\) of activation functions (paper, section 4).

Each group is a subgroup of the non-zero reals. Four of them matter in practice, and two properties tell them apart:
does the group contain \(-1\), and does it contain every positive number?
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Group:
    """A scaling group: the multipliers that a neuron's pre-activation may take.

    Use the four instances `Trivial`, `Sign`, `PositiveScale` and `NonZeroScale`.

    Arguments:
        name: Its name.
        signs: Whether it contains -1.
        scales: Whether it contains every positive number.

    >>> Sign & NonZeroScale
    Sign
    >>> Sign.contains(torch.tensor([1.0, -1.0, 2.0])).tolist()
    [True, True, False]
    """

    name: str
    signs: bool
    scales: bool

    def __repr__(self) -> str:
        return self.name

    def __and__(self, other: Group) -> Group:
        """The intersection of two groups."""
        return group(signs=self.signs and other.signs, scales=self.scales and other.scales)

    def __le__(self, other: Group) -> bool:
        """Whether this is a subgroup of `other`."""
        return (self & other) == self

    def contains(self, a: Tensor) -> Tensor:
        """Which entries of `a` are elements of the group."""
        magnitude = torch.isfinite(a) & (a != 0) if self.scales else a.abs() == 1
        return magnitude if self.signs else magnitude & (a > 0)

    def sample(
        self,
        *shape: int,
        generator: torch.Generator | None = None,
        spread: float = 10.0,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Random elements: signs with probability 1/2, magnitudes log-uniform in [1/spread, spread].

        Arguments:
            shape: The shape of the result.
            generator: The source of randomness (on the CPU).
            spread: The largest magnitude.
            dtype: The type of the result.
        """
        a = torch.ones(shape, dtype=dtype)
        if self.scales:
            exponent = 2 * torch.rand(shape, generator=generator, dtype=a.dtype) - 1
            a = torch.as_tensor(spread, dtype=a.dtype) ** exponent
        if self.signs:
            a = a * (2 * torch.randint(2, shape, generator=generator) - 1).to(a.dtype)
        return a


Trivial = Group("Trivial", signs=False, scales=False)
Sign = Group("Sign", signs=True, scales=False)
PositiveScale = Group("PositiveScale", signs=False, scales=True)
NonZeroScale = Group("NonZeroScale", signs=True, scales=True)

GROUPS: tuple[Group, ...] = (Trivial, Sign, PositiveScale, NonZeroScale)


def group(*, signs: bool, scales: bool) -> Group:
    """The group that contains -1 if `signs`, and every positive number if `scales`."""
    return next(g for g in GROUPS if (g.signs, g.scales) == (signs, scales))
