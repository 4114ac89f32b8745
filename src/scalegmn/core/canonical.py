r"""One representative of every orbit: phases, scales and order of hidden neurons made standard.

`phase` removes the periodicity of sine layers (paper, A.4.4, Algorithm 1), `scale` the multipliers, `permutation` the
order of the neurons, and `canonicalize` all three. Each preserves the function, is idempotent, and gives networks
of one orbit the same parameters, except where a neuron leaves the choice open: one without incoming weights, two with
the same incoming weights, or one whose incoming weights stay the same under a sign flip and a permutation of inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from .architecture import Architecture, Skip
from .doubles import double, has_double
from .groups import Trivial
from .networks import Networks
from .transform import Transform

# pi in two parts: whole multiples (below 2^26) of the first are exact in float64.
_PI_HIGH = round(math.pi * 2**25) / 2**25
_PI_LOW = (math.pi - _PI_HIGH) + 1.2246467991473532e-16


def phase(networks: Networks) -> Networks:
    r"""Bring the phases of sine neurons into \((-\pi/2, \pi/2]\) (paper, A.4.4, Algorithm 1).

    A neuron sin(f z), z = w x + b, keeps its value when its phase f b moves by \(2 \pi\), or by \(\pi\) while w and b
    change sign. Only the incoming weights and biases of sine layers change, never another layer. It makes no difference
    whether the frequency multiplies the bias, sin(w0 (W x + b)), or only the weights, sin(w0 W x + b): the phase
    is what the activation's own frequency makes of the bias.

    A layer that a residual connection feeds cannot change the sign of its input; its phases end in \((-\pi, \pi]\).

    Arguments:
        networks: Any; without sine layers they come back as they are.

    >>> siren = Architecture.mlp([1, 3, 1], "sine")
    >>> networks = Networks(siren, torch.tensor([[1.0, 1.0, 1.0, 0.0, 3.0, 7.0, 1.0, 1.0, 1.0, 9.0]]))
    >>> [round(v, 3) for v in phase(networks).parameters[0].tolist()]
    [1.0, -1.0, 1.0, 0.0, 0.142, 0.717, 1.0, 1.0, 1.0, 9.0]
    """
    a = networks.architecture
    weights, biases = list(networks.weights), list(networks.biases)
    for i, layer in enumerate(a.layers):
        bias = biases[i]
        if layer.activation.name != "sine" or bias is None:
            continue
        frequency = layer.activation.parameters[0]
        mirrors = not any(isinstance(a.connections[c].map, Skip) for c in a.incoming[i])
        turns, rest = _half_turns(frequency * double(bias), 1 if mirrors else 2)
        q = 1 - 2 * turns.remainder(2)
        biases[i] = torch.where((turns == 0).to(bias.device), bias, (q * rest / frequency).to(bias))
        for c in a.incoming[i]:
            w = weights[c]
            if w is not None:
                weights[c] = w * q.to(w).reshape(*q.shape, *[1] * (w.dim() - 2))
    return networks.replace(Networks.from_tensors(a, weights, biases, networks.views.slopes).parameters)


def _half_turns(angle: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """Angle = turns * pi + rest, `turns` a multiple of `step`; none where the angle is in its interval already."""
    n = step * torch.ceil(angle / (step * math.pi) - 0.5)
    n = torch.where(angle.abs() <= step * math.pi / 2, torch.zeros_like(n), n)
    return n, (angle - n * _PI_HIGH) - n * _PI_LOW


def scaling(networks: Networks) -> Transform:
    """The transform that `scale` applies."""
    a, exact = networks.architecture, _exact(networks)
    scales: list[Tensor] = []
    chosen: dict[int, Tensor] = {}

    def undo(w: Tensor, layer: int) -> Tensor:
        return w / a.phis[layer](scales[layer])[:, None, :, None]

    # From the input on, so that a layer's sources are standard when its own multipliers are chosen.
    for i, layer in enumerate(a.layers):
        slot = a.scale_slots[i]
        if slot is None or a.groups[i] == Trivial:
            scales.append(exact.parameters.new_ones(len(networks), layer.size))
            continue
        if slot not in chosen:
            rows, bias = _incoming(exact, i, undo)
            norm = _norm(torch.cat([rows, bias], dim=2))
            dead = norm <= torch.finfo(networks.dtype).tiny
            unit = 1 / torch.where(dead, 1.0, norm)
            q = unit if a.groups[i].scales else torch.ones_like(norm)
            if a.groups[i].signs:
                tolerance = torch.finfo(networks.dtype).eps ** 0.5
                q = q * _sign(rows * unit[..., None], bias * unit[..., None], _positions(a, i).to(rows), tolerance)
            chosen[slot] = torch.where(dead, 1.0, q)
        scales.append(chosen[slot])
    still = Transform.identity(a, len(networks)).permutations
    return _returned(Transform(a, still, tuple(scales)), networks)


def scale(networks: Networks) -> Networks:
    """Give every hidden neuron unit incoming norm and a standard sign, as far as its group allows.

    The norm is that of all incoming weights and the bias together. The sign makes the bias positive; where the bias
    vanishes the sum of the incoming weights, then their first moment over the positions that no symmetry moves,
    then the sum of their cubes. In a class of tied layers the first one decides. Neurons whose incoming weights
    are all zero stay as they are.

    Arguments:
        networks: Any.

    >>> networks = Networks(Architecture.mlp([1, 1, 1], "relu"), torch.tensor([[3.0, 4.0, 2.0, 1.0]]))
    >>> [round(v, 3) for v in scale(networks).parameters[0].tolist()]
    [0.6, 0.8, 10.0, 1.0]
    """
    return scaling(networks).apply(networks)


def sorting(networks: Networks) -> Transform:
    """The transform that `permutation` applies."""
    a, exact = networks.architecture, _exact(networks)
    permutations: list[Tensor] = []
    chosen: dict[int, Tensor] = {}

    def undo(w: Tensor, layer: int) -> Tensor:
        return torch.take_along_dim(w, permutations[layer][:, None, :, None], 2)

    for i, layer in enumerate(a.layers):
        slot = a.slots[i]
        if slot is None:
            permutations.append(torch.arange(layer.size, device=exact.device).expand(len(networks), -1))
            continue
        if slot not in chosen:
            rows = torch.cat(_incoming(exact, i, undo), dim=2)
            # A projection without special directions: unlike a lexicographic order it does not hang on rounding
            # where neurons agree in some entries.
            key = rows @ _direction(rows.shape[2]).to(rows)
            chosen[slot] = _order(key, _outgoing(exact, i), torch.finfo(networks.dtype).eps ** 0.5)
        permutations.append(chosen[slot])
    still = Transform.identity(a, len(networks)).scales
    return _returned(Transform(a, tuple(permutations), still), networks)


def permutation(networks: Networks) -> Networks:
    """Put hidden neurons in a standard order.

    Layer by layer from the input, neurons are sorted by a fixed generic projection of their incoming weights and bias,
    those that agree in it by one of their outgoing weights. In a class of tied layers the first one decides.

    Arguments:
        networks: Any.

    >>> networks = Networks(Architecture.mlp([1, 2, 1]), torch.tensor([[2.0, 1.0, 0.0, 0.0, 3.0, 4.0, 5.0]]))
    >>> permutation(networks).parameters[0].tolist()
    [1.0, 2.0, 0.0, 0.0, 4.0, 3.0, 5.0]
    """
    return sorting(networks).apply(networks)


def canonicalize(networks: Networks) -> Networks:
    """`phase`, then `scale`, then `permutation`: the same parameters for every network of an orbit.

    Arguments:
        networks: Any.

    >>> architecture = Architecture.mlp([2, 8, 8, 1], "tanh")
    >>> networks = Networks(architecture, torch.randn(5, architecture.parameters, dtype=torch.float64))
    >>> moved = Transform.sample(architecture, 5).apply(networks)
    >>> torch.allclose(canonicalize(moved).parameters, canonicalize(networks).parameters)
    True
    """
    return permutation(scale(phase(networks)))


def _exact(networks: Networks) -> Networks:
    """The same networks in double precision, to decide with."""
    return Networks(networks.architecture, double(networks.parameters.detach()))


def _returned(transform: Transform, networks: Networks) -> Transform:
    """What was decided, on the networks' device."""
    return transform.to(networks.device, torch.float64 if has_double(networks.device) else networks.dtype)


def _incoming(networks: Networks, layer: int, undo: Callable[[Tensor, int], Tensor]) -> tuple[Tensor, Tensor]:
    """What enters a layer: weights (B, n, m), after `undo` has made their sources standard, and bias (B, n, 0 or 1)."""
    a = networks.architecture
    size = a.layers[layer].size
    rows = [networks.parameters.new_zeros(len(networks), size, 0)]
    for c in a.incoming[layer]:
        w = networks.weights[c]
        if w is not None:
            rows.append(undo(w, a.connections[c].source).flatten(2) if w.dim() == 4 else w[..., None])
    bias = networks.biases[layer]
    return torch.cat(rows, dim=2), rows[0] if bias is None else bias[..., None]


def _outgoing(networks: Networks, layer: int) -> Tensor:
    """A number (B, n) for what leaves each neuron of a layer, whatever the order of the neurons it goes to."""
    a = networks.architecture
    total = networks.parameters.new_zeros(len(networks), a.layers[layer].size)
    for c in a.outgoing[layer]:
        w = networks.weights[c]
        if w is not None and w.dim() == 4:
            order = _direction(w.shape[1]) if a.slots[a.connections[c].target] is None else torch.ones(w.shape[1])
            total = total + torch.einsum("btsk,t,k->bs", w + w.pow(3), order.to(w), _direction(w.shape[3]).to(w))
    return total


def _direction(size: int) -> Tensor:
    """A fixed vector without symmetries."""
    return torch.arange(1, size + 1, dtype=torch.float64).sin()


def _order(key: Tensor, second: Tensor, tolerance: float) -> Tensor:
    """Sort (B, n) by key; runs of keys that differ by rounding only, by the second one."""
    ranked, first = key.sort(dim=1, stable=True)
    size = tolerance * key.abs().amax(1, keepdim=True)
    run = F.pad((ranked.diff(dim=1) > size).cumsum(1), (1, 0))
    within = second.gather(1, first).argsort(dim=1, stable=True)
    return first.gather(1, within).gather(1, run.gather(1, within).argsort(dim=1, stable=True))


def _positions(architecture: Architecture, layer: int) -> Tensor:
    """For each column of `_incoming`'s weights, a number that no symmetry moves: its kernel entry, its input neuron."""
    found = [torch.zeros(0)]
    for c in (architecture.connections[i] for i in architecture.incoming[layer]):
        if not isinstance(c.map, Skip):
            sources = architecture.layers[c.source].size if c.dense else 1
            fixed = architecture.slots[c.source] is None
            source = torch.arange(sources) if fixed else torch.zeros(sources)
            found.append((1 + source[:, None] * c.kernel_size + torch.arange(c.kernel_size)).flatten())
    return torch.cat(found)


def _norm(x: Tensor) -> Tensor:
    """The norm over the last dimension, without under- or overflow of squares."""
    largest = x.abs().amax(-1, keepdim=True)
    relative = x / torch.where(largest > 0, largest, 1.0)
    return relative.square().sum(-1).sqrt() * largest[..., 0]


def _sign(rows: Tensor, bias: Tensor, positions: Tensor, tolerance: float) -> Tensor:
    """The sign (B, n) of the first sum that is not zero: it turns with (rows, bias), whatever the sources' order."""
    moment = rows @ positions / positions.numel()
    sums = torch.stack([bias.sum(2), rows.sum(2), moment, rows.pow(3).sum(2)])
    clear = sums.abs() > tolerance
    first = clear.int().argmax(0, keepdim=True)
    return torch.where(clear.any(0), sums.gather(0, first)[0].sign(), 1.0)
