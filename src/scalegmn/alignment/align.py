"""Bringing one network onto another along their symmetry."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import canonical
from ..core.architecture import Architecture
from ..core.networks import Networks
from ..core.transform import Transform
from ..errors import ScaleGMNError
from .match import Search, nearest
from .scales import equalising
from .states import signatures
from .structure import mirrors, split, terms, turns

_CHUNK = 1 << 23  # numbers at a time


@dataclass(frozen=True)
class Alignment:
    r"""How b was brought onto a, for each of B pairs.

    Distances are root mean squares over all parameters of the error relative to the tensor they are in,
    \(d^2 = \sum_t \frac{P_t}{P} \frac{|A_t - B_t|^2}{|A_t|^2 + |B_t|^2}\): 0 for equal networks, about 1 for unrelated ones.

    Arguments:
        aligned: The networks b, moved: the same functions, in the names and the type they came in.
        transform: The symmetry that moved them, phases aside.
        turns: Per layer (B, n), the half turns of sine neurons after that; None for layers without phases.
        before: The distance (B,) of the parameters as they were.
        distance: The distance (B,) of the balanced networks after alignment.
        residuals: Per tensor (B, T), the relative error after alignment; `names` says which.
        exact: Whether (B,) all residuals are within rounding: the networks are the same but for symmetry.
    """

    aligned: Networks
    transform: Transform
    turns: tuple[Tensor | None, ...]
    before: Tensor
    distance: Tensor
    residuals: Tensor
    exact: Tensor

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors of `residuals`, such as `weight 0-1` and `bias 1`."""
        return tuple(t.name for t in terms(self.aligned.architecture))

    def apply(self, networks: Networks) -> Networks:
        """Move other networks in the same way, phases included."""
        return turned(self.transform.apply(networks), self.turns)


def align(
    a: Networks, b: Networks, *, inputs: Tensor | None = None, share: float = 0.5, scale: bool = True
) -> Alignment:
    """Bring b onto a: permutations, scales, signs and phases of hidden neurons, which change no function.

    Both networks are balanced (`scales`), neurons are matched by their answers to a few inputs, and the match is
    refined on the weights, one family of layers after another, until no step makes the distance smaller.

    Arguments:
        a, b: Networks of one architecture: pairs, or one of either for all of the other.
        inputs: Data (N, n_0, *spatial). If given, neurons are also matched by their answers to it.
        share: With inputs, the share of answers in what is made small: 0 weights alone, 1 answers alone.
        scale: Without it, permutations alone.

    >>> a = Networks(Architecture.mlp([2, 8, 1], "tanh"), torch.randn(1, 33, dtype=torch.float64))
    >>> found = align(a, Transform.sample(a.architecture, 1).apply(a))
    >>> bool(found.exact), torch.allclose(found.aligned.parameters, a.parameters)
    (True, True)
    """
    a, b = pairs(a, b)
    if not 0 <= share <= 1:
        raise ScaleGMNError(f"share: expected a number from 0 to 1, got {share}")
    widest = max(layer.size for layer in a.architecture.layers)
    step = max(1, _CHUNK // max(a.architecture.parameters, widest**2))
    parts = [
        _align(a[i : i + step], b[i : i + step], inputs, share if inputs is not None else 0.0, scale)
        for i in range(0, len(a), step)
    ]
    return _cat(parts)


def pairs(a: Networks, b: Networks) -> tuple[Networks, Networks]:
    """Complain about what cannot be compared; repeat a single network for all of the others."""
    if a.architecture != b.architecture:
        raise ScaleGMNError(f"networks: expected one architecture, got {a.architecture.beside(b.architecture)}")
    if len(a) == len(b):
        return a, b
    if not (len(a) and len(b)) or 1 not in (len(a), len(b)):
        raise ScaleGMNError(f"networks: expected pairs, or one network and several, got {len(a)} and {len(b)}")
    count = max(len(a), len(b))
    return (a[[0] * count], b) if len(a) == 1 else (a, b[[0] * count])


def balanced(networks: Networks, *, scale: bool = True) -> tuple[Networks, Transform]:
    """Networks in float64 with phases in range and least norm, and the transform that made it least."""
    exact = networks.detach().to(dtype=torch.float64)
    if not scale:
        return exact, Transform.identity(exact.architecture, len(exact)).to(exact.device)
    exact = canonical.phase(exact)
    equal = equalising(exact)
    return equal.apply(exact), equal


def _align(a: Networks, b: Networks, inputs: Tensor | None, share: float, scale: bool) -> Alignment:
    (left, of_a), (right, of_b) = balanced(a, scale=scale), balanced(b, scale=scale)
    states = signatures(left, inputs), signatures(right, inputs)
    answers = (states[0].answers, states[1].answers) if share else None
    start = Search(left, right, signs=scale, answers=answers, weight=share)
    best = start.at(torch.arange(len(a)))
    best.start_from_states(*states)
    best.refine()
    rows = (best.objective() > 1e-20).nonzero()[:, 0]
    if len(rows):
        for backwards in (False, True):
            other = start.at(rows)
            other.start_from_weights(backwards=backwards)
            other.refine()
            better = other.objective() < best.at(rows).objective() - 1e-12
            best.put(rows[better], other.at(better.nonzero()[:, 0]))
    # Where neurons are tied nothing need move.
    still = (start.objective() <= best.objective() + 1e-18).nonzero()[:, 0]
    best.put(still, start.at(still))
    matched = Transform(a.architecture, tuple(best.order), tuple(best.sign))
    transform = of_a.inverse() @ matched @ of_b
    moved = transform.apply(b.detach().to(dtype=torch.float64))
    counts = _turns_towards(a, moved) if scale else (None,) * len(a.architecture.layers)
    residuals = best.residuals()
    return Alignment(
        b.replace(turned(moved, counts).parameters.to(b.dtype)),
        transform,
        counts,
        _mean(a.architecture, Search(a.to(dtype=torch.float64), b.to(dtype=torch.float64)).residuals()),
        _mean(a.architecture, residuals),
        residuals,
        residuals.amax(1) <= tolerance(a, b),
    )


def tolerance(a: Networks, b: Networks) -> float:
    """What rounding may leave of a relative error."""
    return max(1e-10, 16 * max(torch.finfo(a.dtype).eps, torch.finfo(b.dtype).eps))


def turned(networks: Networks, counts: tuple[Tensor | None, ...]) -> Networks:
    """Turn the phases of sine neurons by half turns, which changes no function.

    Arguments:
        networks: Any.
        counts: Per layer (B, n), whole numbers, odd ones only where no residual connection enters; or None.
    """
    found = []
    for term, x in zip(terms(networks.architecture), split(networks), strict=True):
        count = None if term.target is None else counts[term.target]
        if count is not None and term.target is not None:
            odd = (1 - 2 * count.remainder(2)).to(x)
            x = x * odd.reshape(*odd.shape, *[1] * (x.dim() - 2))
            if term.segment.kind == "bias":
                x = x + count.to(x) * (turns(networks.architecture, term.target) or 0.0)
        found.append(x.flatten(1))
    return networks.replace(torch.cat(found, dim=1)) if found else networks


def _turns_towards(a: Networks, b: Networks) -> tuple[Tensor | None, ...]:
    """The half turns that bring the sine neurons of b nearest to those of a, which are in place already."""
    architecture = a.architecture
    exact = a.detach().to(dtype=torch.float64)
    found: list[Tensor | None] = []
    for i in range(len(architecture.layers)):
        half = turns(architecture, i)
        if half is None:
            found.append(None)
            continue
        costs, counts = [], []
        for odd in (0, 1) if mirrors(architecture, i) else (0,):
            factor, cost = (-1.0 if odd else 1.0), torch.zeros(())
            for term, x, y in zip(terms(architecture), split(exact), split(b), strict=True):
                if term.target != i:
                    continue
                apart = x - factor * y
                if term.segment.kind == "bias":
                    count = nearest(apart / half, odd)
                    counts.append(count)
                    apart = apart - count * half
                size = (x.square().flatten(1).mean(1) + y.square().flatten(1).mean(1)).clamp_min(1e-300)
                cost = cost + apart.square().flatten(2).sum(2) / size[:, None] if apart.dim() > 2 else (
                    cost + apart.square() / size[:, None]
                )
            costs.append(cost)
        which = torch.stack(costs).argmin(0, keepdim=True)
        found.append(torch.stack(counts).gather(0, which)[0])
    return tuple(found)


def _mean(architecture: Architecture, residuals: Tensor) -> Tensor:
    """The distance (B,) that residuals (B, T) amount to."""
    sizes = [t.segment.size / architecture.parameters for t in terms(architecture)]
    return (residuals.square() @ residuals.new_tensor(sizes)).sqrt()


def _cat(parts: list[Alignment]) -> Alignment:
    first = parts[0]
    if len(parts) == 1:
        return first
    layers = range(len(first.turns))
    transform = Transform(
        first.transform.architecture,
        tuple(torch.cat([p.transform.permutations[i] for p in parts]) for i in layers),
        tuple(torch.cat([p.transform.scales[i] for p in parts]) for i in layers),
    )
    counts = tuple(
        None if first.turns[i] is None else torch.cat([t for p in parts if (t := p.turns[i]) is not None])
        for i in layers
    )
    vectors = (torch.cat([getattr(p, name) for p in parts]) for name in ("before", "distance", "residuals", "exact"))
    return Alignment(Networks.cat([p.aligned for p in parts]), transform, counts, *vectors)
