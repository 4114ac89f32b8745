"""Bringing one network as close as possible to another by symmetries."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import canonical
from ..core.architecture import Architecture
from ..core.mixed import expect_networks
from ..core.networks import Networks
from ..core.transform import Transform
from ..errors import ScaleGMNError
from .match import Search
from .phases import turned, turns_towards
from .scales import equalising
from .states import signatures
from .structure import terms

_CHUNK = 1 << 23  # numbers at a time
_NOTHING = 1e-20  # a sum that no search makes smaller


@dataclass(frozen=True)
class Alignment:
    r"""How b was aligned to a, for each of B pairs.

    Distances are root mean squares over all parameters of the error relative to the tensor they are in,
    \(d^2 = \sum_t \frac{P_t}{P} \frac{|A_t - B_t|^2}{|A_t|^2 + |B_t|^2}\): 0 for equal networks, about 1 for
    unrelated ones.

    Arguments:
        aligned: The networks b after alignment: the same functions, with the same names and type.
        transform: The symmetry that was applied to them, except for phases.
        turns: Per layer (B, n), the half turns of sine neurons after that; None for layers without phases.
        before: The distance (B,) of the parameters as they were.
        distance: The distance (B,) of the balanced networks after alignment.
        residuals: Per tensor (B, T), the relative error after alignment; `names` says which.
        exact: Whether (B,) all residuals are within rounding: the networks are equal up to symmetry.
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
        """Transform other networks in the same way, phases included."""
        return turned(self.transform.apply(networks), self.turns)


def align(
    a: Networks, b: Networks, *, inputs: Tensor | None = None, share: float = 0.5, scale: bool = True
) -> Alignment:
    """Align b to a by permutations, scales, signs and phases of hidden neurons, which do not change the function.

    Both networks are balanced (`scales`), neurons are matched by their responses to a few inputs, and the match is
    refined on the weights, one family of layers after another, until no step makes the distance smaller.

    Arguments:
        a, b: Networks of one architecture: pairs, or one of either for all of the other.
        inputs: Data (N, n_0, *spatial). If given, neurons are also matched by their responses to it.
        share: With inputs, how much responses count: 0 means weights alone, 1 responses alone.
        scale: False uses permutations alone.

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
    """Refuse what cannot be compared; repeat a single network for all of the others."""
    for networks in (a, b):
        expect_networks(networks)
    if a.architecture != b.architecture:
        raise ScaleGMNError(f"networks: expected one architecture, got {a.architecture.beside(b.architecture)}")
    if len(a) == len(b) > 0:
        return a, b
    if 1 not in (len(a), len(b)) or 0 in (len(a), len(b)):
        raise ScaleGMNError(f"networks: expected pairs, or one network and several, got {len(a)} and {len(b)}")
    count = max(len(a), len(b))
    return (a[[0] * count], b) if len(a) == 1 else (a, b[[0] * count])


def balanced(networks: Networks, *, scale: bool = True) -> tuple[Networks, Transform]:
    """One representative of each orbit, in float64: phases in range, least norm, signs and order canonical.

    Arguments:
        networks: Any.
        scale: False changes the order alone.

    Returns:
        The representatives, and the transform that leads to them after `canonical.phase`.
    """
    exact = networks.detach().to(dtype=torch.float64)
    found = Transform.identity(exact.architecture, len(exact)).to(exact.device)
    if scale:
        exact = canonical.phase(exact)
        found = equalising(exact)
        exact = found.apply(exact)
    order = canonical.sorting(exact)
    return order.apply(exact), order @ found


def _align(a: Networks, b: Networks, inputs: Tensor | None, share: float, scale: bool) -> Alignment:
    (left, of_a), (right, of_b) = balanced(a, scale=scale), balanced(b, scale=scale)
    best = _search(left, right, inputs, share, scale)
    matched = Transform(a.architecture, tuple(best.order), tuple(best.sign))
    transform = of_a.inverse() @ matched @ of_b
    moved = transform.apply(b.detach().to(dtype=torch.float64))
    counts = turns_towards(a, moved) if scale else (None,) * len(a.architecture.layers)
    residuals = best.residuals()
    return Alignment(
        b.replace(turned(moved, counts).parameters.to(b.dtype)),
        transform,
        counts,
        _mean(a.architecture, Search(a.to(dtype=torch.float64), b.to(dtype=torch.float64)).residuals()),
        _mean(a.architecture, residuals),
        residuals,
        residuals.amax(1) <= tolerance(a.dtype, b.dtype),
    )


def _search(left: Networks, right: Networks, inputs: Tensor | None, share: float, scale: bool) -> Search:
    """Match balanced networks: the best of three starts for each pair."""
    states = signatures(left, inputs), signatures(right, inputs)
    answers = (states[0].answers, states[1].answers) if share else None
    best = Search(left, right, signs=scale, answers=answers, weight=share)
    start = best.at(torch.arange(len(best)))
    for begin in ("states", "forwards", "backwards"):
        rows = (best.objective() > _NOTHING).nonzero()[:, 0]
        if not len(rows):
            break
        other = start.at(rows)
        if begin == "states":
            other.start_from_states(states[0].at(rows), states[1].at(rows))
        else:
            other.start_from_weights(backwards=begin == "backwards")
        other.refine()
        better = other.objective() < best.objective()[rows] - _NOTHING
        best.put(rows[better], other.at(better.nonzero()[:, 0]))
    return best


def tolerance(*types: torch.dtype) -> float:
    """The largest relative error that counts as rounding, of networks in these types."""
    return max(1e-9, *(16 * torch.finfo(t).eps for t in types))


def _mean(architecture: Architecture, residuals: Tensor) -> Tensor:
    """The distance (B,) of residuals (B, T)."""
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
