r"""The symmetry of an arbitrary activation function, found numerically.

For \(\sigma: \mathbb{R} \to \mathbb{R}\) the group \(D_\sigma\) holds the multipliers \(a\) for which some \(b\) gives
\(\sigma(a x) = b \sigma(x)\) for all x, and \(\phi(a) = b\). If moreover \(\sigma(I_d)\) is invertible and sigma is
non-constant, non-linear and differentiable except at finitely many points, permutations and these multipliers are
*all* the linear symmetries of a layer (Godfrey et al. 2022, Lemma 3.1 and Theorem E.14; paper, section 4 and A.6.1).
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import ScaleGMNError
from .activations import Identity, Phi
from .groups import Group, NonZeroScale, group

_TOLERANCE = 1e-9
# No power of one of these is a power of another, so that no discrete group of scales holds them all.
_FACTORS = (0.3, 1.7, 2.0, math.pi, 11.0)


@dataclass(frozen=True)
class Intertwiner:
    r"""What `intertwiner` found about a function.

    Arguments:
        group: The largest of the four groups that lies in \(D_\sigma\).
        phi: The multiplier of the output, on that group.
        constant: Whether the function is constant.
        linear: Whether it is linear (or affine).
        singular: The smallest d for which \(\sigma(I_d)\) is not invertible, or None.
        kinks: Where it is not differentiable, in [-16, 16] and to about 1e-5.
        rough: Whether there seem to be infinitely many kinks.

    >>> intertwiner(torch.tanh).group
    Sign
    """

    group: Group
    phi: Phi
    constant: bool
    linear: bool
    singular: int | None
    kinks: tuple[float, ...]
    rough: bool

    @property
    def problems(self) -> tuple[str, ...]:
        """The conditions that fail, one sentence each."""
        found = []
        if self.singular is not None:
            found.append(f"sigma(I_d) is not invertible for d = {self.singular}")
        if self.constant:
            found.append("the function is constant")
        if self.linear and not self.constant:
            found.append("the function is linear: layers have more symmetries than permutations and scales")
        if self.rough:
            found.append("the function is not differentiable at infinitely many points")
        return tuple(found)

    @property
    def complete(self) -> bool:
        """Whether all conditions hold, so that permutations and `group` are all the symmetries of a layer."""
        return not self.problems


def intertwiner(fn: Callable[[Tensor], Tensor]) -> Intertwiner:
    r"""Find the group and phi of a function on the real line, and check the conditions of the theory.

    Everything is measured in float64 on a grid in [-1000, 1000]. A function whose \(D_\sigma\) is none of the four
    groups (for example only powers of 2) is given the largest of them that fits.

    Arguments:
        fn: Maps a float64 tensor to a tensor of the same shape, entry by entry. A module is copied to float64.

    >>> found = intertwiner(torch.relu)
    >>> found.group, found.phi, found.kinks, found.complete
    (PositiveScale, Phi(power=1, even=False), (0.0,), True)
    >>> intertwiner(lambda x: torch.sin(math.pi * x)).problems
    ('sigma(I_d) is not invertible for d = 1',)
    """
    sigma = _scalar(fn)
    grid = _grid()
    values = sigma(grid)
    _check(sigma, grid, values)
    moderate = grid.abs() <= 10
    s0, s1 = sigma(torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist()
    scale = float(values[moderate].abs().mean())
    tolerance = _TOLERANCE * scale
    constant = bool((values[moderate] - s0).abs().max() <= tolerance)
    rest = values - s0 - (s1 - s0) * grid
    linear = bool((rest[moderate].abs() <= tolerance + _TOLERANCE * values[moderate].abs()).all())
    kinks, rough = _all_kinks(sigma, scale)
    found, phi = (NonZeroScale, Identity) if scale == 0 else _symmetry(sigma, grid, values)
    return Intertwiner(found, phi, constant, linear, _singular(s0, s1, tolerance), kinks, rough)


def _scalar(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Call fn on (n,) points; a module is copied to float64 and evaluation mode."""
    function = copy.deepcopy(fn).to("cpu", torch.float64).eval() if isinstance(fn, nn.Module) else fn

    def sigma(x: Tensor) -> Tensor:
        with torch.no_grad():
            # The shape is (networks, inputs, neurons), which softmax expects; the copy is for functions in place.
            y = function(x.clone().reshape(1, 1, -1))
        if y.shape != (1, 1, x.numel()) or y.dtype != torch.float64:
            raise ScaleGMNError(
                f"fn: expected {x.numel()} float64 values, one per entry, got {y.dtype} of shape {tuple(y.shape)}"
            )
        return y.reshape(-1)

    return sigma


def _grid() -> Tensor:
    """Zero, and points of both signs: many of ordinary size, some from 0.001 to 1000."""
    wide = torch.logspace(-3, 3, 97, dtype=torch.float64)
    dense = 0.0731 * torch.arange(1, 137, dtype=torch.float64)
    positive = torch.cat([wide, dense]).sort().values
    return torch.cat([-positive.flip(0), torch.zeros(1, dtype=torch.float64), positive])


def _check(sigma: Callable[[Tensor], Tensor], grid: Tensor, values: Tensor) -> None:
    bad = ~values.isfinite() & (grid.abs() <= 10)
    if bad.any():
        x, y = float(grid[bad][0]), float(values[bad][0])
        raise ScaleGMNError(f"fn: expected finite values on [-10, 10], got {y:g} at {x:g}")
    few = sigma(grid[::3])
    if not torch.allclose(few, values[::3], rtol=_TOLERANCE, atol=0, equal_nan=True):
        raise ScaleGMNError("fn: expected a function of each entry alone; its value depends on other entries")


def _symmetry(sigma: Callable[[Tensor], Tensor], grid: Tensor, values: Tensor) -> tuple[Group, Phi]:
    mirrored = _multiplier(sigma, grid, values, -1.0)
    found = [_multiplier(sigma, grid, values, a) for a in _FACTORS]
    # phi(a) = a^p for positive a, the only measurable homomorphisms.
    known = [(a, b) for a, b in zip(_FACTORS, found, strict=True) if b is not None and b > 0]
    power = 1.0
    if len(known) == len(_FACTORS):
        power = math.log(known[-1][1]) / math.log(known[-1][0])
        power = round(power) if abs(power - round(power)) < 1e-7 else round(power, 9)
    scales = len(known) == len(_FACTORS) and all(math.isclose(a**power, b, rel_tol=1e-7) for a, b in known)
    even = mirrored > 0 if mirrored is not None else scales and power % 2 == 0
    return group(signs=mirrored is not None, scales=scales), Phi(power if scales else 1, even)


def _multiplier(sigma: Callable[[Tensor], Tensor], grid: Tensor, values: Tensor, a: float) -> float | None:
    """The b with sigma(a x) = b sigma(x) on the whole grid, or None."""
    moved = sigma(a * grid)
    size = values.abs().where(grid.abs() <= 10, torch.zeros(()))
    largest = int(size.argmax())
    b = float(moved[largest] / values[largest])
    if b == 0 or not math.isfinite(b):
        return None
    expected = b * values
    allowed = _TOLERANCE * (moved.abs() + expected.abs()) + 1e-12 * min(1.0, float(size.mean()))
    overflow = ~(moved.isfinite() & expected.isfinite())
    return b if bool(((moved - expected).abs() <= allowed).logical_or(overflow).all()) else None


def _singular(s0: float, s1: float, tolerance: float) -> int | None:
    r"""The smallest d with det sigma(I_d) = (s1 - s0)^(d-1) (s1 + (d-1) s0) = 0 (Godfrey et al. 2022, Lemma E.7)."""
    if abs(s1) <= tolerance:
        return 1
    if abs(s1 - s0) <= tolerance:
        return 2
    d = 1 - s1 / s0 if abs(s0) > tolerance else 0.0
    return round(d) if d > 1.5 and abs(d - round(d)) <= _TOLERANCE * d else None


def _all_kinks(sigma: Callable[[Tensor], Tensor], scale: float) -> tuple[tuple[float, ...], bool]:
    """The kinks in [-16, 16], and whether they accumulate or become more as the window grows."""
    kinks = _kinks(sigma, 16, scale)
    if kinks is None:
        return (), True
    near, far = (sum(r < abs(x) <= 2 * r for x in kinks) for r in (4, 8))
    return tuple(kinks), far > near > 0


def _kinks(sigma: Callable[[Tensor], Tensor], window: int, scale: float, most: int = 4096) -> list[float] | None:
    """Zoom in where second differences, divided by the step, do not shrink with the step; None if they never do."""
    h = 2.0**-9
    x = _first_look(sigma, window, h, scale)
    offsets = torch.arange(-8, 9, dtype=torch.float64) / 16
    for _ in range(2):
        h = h / 8
        if x.numel() > most:
            return None
        before = torch.stack([_bend(sigma, x + d * h / 2, h) for d in (-1, 0, 1)]).amax(0)
        x = x[:, None] + offsets * h
        bend = _bend(sigma, x.flatten(), h / 8).reshape(x.shape)
        x = x[_persists(bend, before[:, None], scale)].unique()
    return None if x.numel() > most else _clusters(x, _bend(sigma, x, h / 8), h / 2)


def _first_look(sigma: Callable[[Tensor], Tensor], window: int, h: float, scale: float) -> Tensor:
    """Points of a regular grid whose bend is as large at step h / 8 as nearby at step h."""
    # The grid is dyadic, so that its points carry no rounding; 24 more on either side for the differences.
    count = round(16 * window / h)
    x = torch.arange(-count - 24, count + 25, dtype=torch.float64) * (h / 16)
    y = sigma(x)
    coarse = _second_difference(y[:-32], y[16:-16], y[32:]) / h
    fine = _second_difference(y[22:-26], y[24:-24], y[26:-22]) / (h / 8)
    before = F.max_pool1d(coarse[None], 17, stride=1)[0]
    return x[24:-24][_persists(fine, before, scale)]


def _persists(bend: Tensor, before: Tensor, scale: float) -> Tensor:
    """Whether a bend is as large at a fine step as it was before; a smooth function's is an eighth."""
    return (bend > 0.5 * before) & (bend > 1e-6 * scale)


def _bend(sigma: Callable[[Tensor], Tensor], x: Tensor, h: float) -> Tensor:
    """The size of the second difference at x, divided by the step h."""
    return _second_difference(*(sigma(x + d * h) for d in (-1, 0, 1))) / h


def _second_difference(left: Tensor, middle: Tensor, right: Tensor) -> Tensor:
    """|left - 2 middle + right|, zero where that is rounding (or overflow)."""
    rounding = 32 * torch.finfo(torch.float64).eps * (left.abs() + 2 * middle.abs() + right.abs())
    difference = (left - 2 * middle + right).abs()
    return torch.where(difference > rounding, difference, 0.0).nan_to_num(0.0, 0.0, 0.0)


def _clusters(x: Tensor, weight: Tensor, gap: float) -> list[float]:
    """One point, the heaviest, for each run of points that lie closer than `gap`."""
    if x.numel() == 0:
        return []
    label = torch.cat([torch.zeros(1, dtype=torch.long), (x.diff() > gap).long()]).cumsum(0)
    return [
        round(float(x[label == i][weight[label == i].argmax()]), 5) + 0.0 for i in range(int(label[-1]) + 1)
    ]
