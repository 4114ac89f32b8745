r"""One representative of every orbit: standard phases, scales and order of hidden neurons.

`phase` removes the periodicity of sine layers (paper, A.4.4, Algorithm 1), `scale` the multipliers, `permutation` the
order of the neurons, and `canonicalize` all three. Each preserves the function, is idempotent, and gives networks
of one orbit the same parameters, except in degenerate cases: a neuron without incoming weights, two neurons with the
same incoming weights, or a neuron whose incoming weights do not change under a sign flip and a permutation of inputs.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal, overload

import torch
from torch import Tensor
from torch.nn import functional as F

from .architecture import Architecture, Sum
from .blocks import Block
from .doubles import double, has_double
from .networks import Networks
from .transform import Transform

# pi in two parts: whole multiples (below 2^26) of the first are exact in float64.
_PI_HIGH = round(math.pi * 2**25) / 2**25
_PI_LOW = (math.pi - _PI_HIGH) + 1.2246467991473532e-16


def phase(networks: Networks) -> Networks:
    r"""Bring the phases of sine neurons into \((-\pi/2, \pi/2]\) (paper, A.4.4, Algorithm 1).

    A neuron sin(f z), z = w x + b, keeps its value when its phase f b shifts by \(2 \pi\), or by \(\pi\) while w and b
    change sign. Only the incoming weights and biases of sine layers change, never another layer. It makes no difference
    whether the frequency multiplies the bias, sin(w0 (W x + b)), or only the weights, sin(w0 W x + b): the phase
    is what the activation's own frequency makes of the bias.

    A layer that a residual connection feeds cannot change the sign of its input; its phases end up in \((-\pi, \pi]\).

    Arguments:
        networks: Any; those without sine layers are returned unchanged.

    >>> siren = Architecture.mlp([1, 3, 1], "sine")
    >>> networks = Networks(siren, torch.tensor([[1.0, 1.0, 1.0, 0.0, 3.0, 7.0, 1.0, 1.0, 1.0, 9.0]]))
    >>> [round(v, 3) for v in phase(networks).parameters[0].tolist()]
    [1.0, -1.0, 1.0, 0.0, 0.142, 0.717, 1.0, 1.0, 1.0, 9.0]
    """
    a = networks.architecture
    weights, biases = list(networks.weights), list(networks.biases)
    for i, layer in enumerate(a.layers):
        bias = biases[i]
        if layer.activation.name != "sine" or bias is None or not owns(a, i):
            continue
        frequency = layer.activation.parameters[0]
        mirrors = all(a.connections[c].has_weights for c in a.incoming[i])
        turns, rest = _half_turns(frequency * double(bias), 1 if mirrors else 2)
        q = 1 - 2 * turns.remainder(2)
        biases[i] = torch.where((turns == 0).to(bias.device), bias, (q * rest / frequency).to(bias))
        for c in a.incoming[i]:
            w = weights[c]
            if w is not None:
                weights[c] = w * q.to(w).reshape(*q.shape, *[1] * (w.dim() - 2))
    return networks.replace(Networks.from_tensors(a, weights, biases, networks.views.slopes).parameters)


def owns(architecture: Architecture, layer: int) -> bool:
    """Whether nothing else uses what enters a layer, and all of it can change its sign."""
    a = architecture
    shared = {(kind, i) for s in a.shared for kind, i in ((s.kind, s.index), (s.kind, s.of))}
    fixed = any(a.connections[c].constant or ("weight", c) in shared for c in a.incoming[layer])
    return not fixed and ("bias", layer) not in shared and isinstance(a.layers[layer].combine, Sum)


def _half_turns(angle: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """Angle = turns * pi + rest, `turns` a multiple of `step`; 0 if the angle is already in its interval."""
    n = step * torch.ceil(angle / (step * math.pi) - 0.5)
    n = torch.where(angle.abs() <= step * math.pi / 2, torch.zeros_like(n), n)
    return n, (angle - n * _PI_HIGH) - n * _PI_LOW


def scaling(networks: Networks) -> Transform:
    """The transform that `scale` applies."""
    a, exact = networks.architecture, _exact(networks)
    scales: list[Tensor] = []
    magnitudes: dict[int, Tensor] = {}
    signs: dict[int, Tensor] = {}
    still = Transform.identity(a, len(networks)).to(exact.device)
    # From the input on, so that a layer's sources are standard when its own multipliers are chosen. A variable first
    # appears in a block of which it is the multiplier.
    for i, blocks in enumerate(a.blocks):
        new = [b for b in blocks if {v for v, _ in b.scales} - magnitudes.keys() or set(b.signs) - signs.keys()]
        if new:
            so_far = Transform(a, still.permutations, (*scales, *still.scales[i:]))
            rows, bias = _incoming(exact, i, so_far)
        for b in new:
            weights, shift = rows[:, b.start : b.stop], bias[:, b.start : b.stop]
            norm = _norm(torch.cat([weights, shift], dim=2))
            dead = norm <= torch.finfo(networks.dtype).tiny
            unit = 1 / torch.where(dead, 1.0, norm)
            magnitudes.update({v: unit for v, _ in b.scales if v not in magnitudes})
            tolerance = torch.finfo(networks.dtype).eps ** 0.5
            for v in b.signs:
                if v not in signs:
                    ends = weights * unit[..., None], shift * unit[..., None]
                    sign = _sign(*ends, _positions(a, i).to(rows), tolerance)
                    signs[v] = torch.where(dead, 1.0, sign)
        scales.append(torch.cat([_multiplier(b, magnitudes, signs, exact) for b in blocks], dim=1))
    return _returned(Transform(a, still.permutations, tuple(scales)), networks)


def _multiplier(block: Block, magnitudes: dict[int, Tensor], signs: dict[int, Tensor], like: Networks) -> Tensor:
    q = like.parameters.new_ones(len(like), block.size)
    for v, power in block.scales:
        q = q * magnitudes[v] ** power
    for v in block.signs:
        q = q * signs[v]
    return q


def scale(networks: Networks) -> Networks:
    """Give every hidden neuron unit incoming norm and a standard sign, as far as its group allows.

    The norm is that of all incoming weights and the bias together. The sign makes the bias positive; if the bias is
    zero, it makes the sum of the incoming weights positive, then their first moment over the positions that no
    symmetry moves, then the sum of their cubes. Among tied layers the first one decides. Neurons whose incoming
    weights are all zero stay as they are.

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
    heads: dict[int, Tensor] = {}
    tolerance = torch.finfo(networks.dtype).eps ** 0.5
    still = Transform.identity(a, len(networks)).to(exact.device)
    for i, blocks in enumerate(a.blocks):
        if any(b.slot is not None and b.slot not in chosen for b in blocks):
            # Groups that a source has put in order take their targets along.
            own = torch.cat([b.start + _with_heads(b, heads, still.permutations[i]) for b in blocks], dim=1)
            so_far = Transform(a, (*permutations, own, *still.permutations[i + 1 :]), still.scales)
            rows = torch.cat(_incoming(exact, i, so_far), dim=2)
            # A projection without special directions: unlike a lexicographic order it does not depend on rounding
            # where neurons agree in some entries.
            projected = rows @ _direction(rows.shape[2]).to(rows)
            keys, seconds = torch.empty_like(projected).scatter(1, own, projected), _outgoing(exact, i)
        orders = []
        for b in blocks:
            if b.slot is None:
                orders.append(still.permutations[i][:, b.start : b.stop])
                continue
            if b.slot not in chosen:
                key, second = (k[:, b.start : b.stop].unflatten(1, (b.heads, -1)) for k in (keys, seconds))
                order = _order(key.flatten(0, 1), second.flatten(0, 1), tolerance).view(key.shape)
                chosen[b.slot] = order
                if b.head_slot is not None and b.head_slot not in heads:
                    along = _direction(key.shape[2]).to(key)
                    inner = [torch.take_along_dim(k, order, 2) @ along for k in (key, second)]
                    heads[b.head_slot] = _order(inner[0], inner[1], tolerance)
            orders.append(b.start + _arranged(b, chosen[b.slot], heads))
        permutations.append(torch.cat(orders, dim=1))
    return _returned(Transform(a, tuple(permutations), still.scales), networks)


def _with_heads(block: Block, heads: dict[int, Tensor], still: Tensor) -> Tensor:
    """The order of a block whose heads may already have one."""
    order = still[:, : block.size]
    if block.head_slot is None or block.head_slot not in heads:
        return order
    return _arranged(block, still[:, : block.size // block.heads, None].mT.expand(-1, block.heads, -1), heads)


def _arranged(block: Block, order: Tensor, heads: dict[int, Tensor]) -> Tensor:
    """The order (B, size) of a block's neurons: of the heads, and of the neurons of each (B, heads, neurons)."""
    if block.head_slot is None:
        return order[:, 0]
    head = heads[block.head_slot][:, :, None]
    return (head * (block.size // block.heads) + torch.take_along_dim(order, head, 1)).flatten(1)


def permutation(networks: Networks) -> Networks:
    """Put hidden neurons in a standard order.

    Layer by layer from the input, neurons are sorted by a fixed generic projection of their incoming weights and bias,
    and ties by a projection of their outgoing weights. Among tied layers the first one decides.

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
    """The same networks in double precision, for the decisions."""
    return Networks(networks.architecture, double(networks.parameters.detach()))


def _returned(transform: Transform, networks: Networks) -> Transform:
    """What was decided, on the networks' device."""
    return transform.to(networks.device, torch.float64 if has_double(networks.device) else networks.dtype)


def _incoming(networks: Networks, layer: int, so_far: Transform) -> tuple[Tensor, Tensor]:
    """What enters a layer: weights (B, n, m), their sources made standard by `so_far`, and bias (B, n, 0 or 1)."""
    a = networks.architecture
    rows = [networks.parameters.new_zeros(len(networks), a.layers[layer].size, 0)]
    for c in a.incoming[layer]:
        w = networks.weights[c]
        if w is not None and not a.connections[c].constant:
            w = so_far.edge(c, w)
            rows.append(w.flatten(2) if w.dim() == 4 else w[..., None])
    bias = networks.biases[layer]
    return torch.cat(rows, dim=2), rows[0] if bias is None else so_far.vertex(layer, bias)[..., None]


def _outgoing(networks: Networks, layer: int) -> Tensor:
    """A number (B, n) for the outgoing weights of each neuron of a layer, independent of the order of their targets."""
    a = networks.architecture
    total = networks.parameters.new_zeros(len(networks), a.layers[layer].size)
    for c in a.outgoing[layer]:
        w = networks.weights[c]
        if w is not None and w.dim() == 4:
            grouped = (w + w.pow(3)).unflatten(1, (a.connections[c].groups, -1))
            order = _fixed(a, a.connections[c].target, 1.0).to(w).reshape(grouped.shape[1:3])
            found = torch.einsum("bgtsk,gt,k->bgs", grouped, order, _direction(w.shape[3]).to(w))
            total = total + found.flatten(1)
    return total


def _fixed(architecture: Architecture, layer: int, free: float) -> Tensor:
    """A number per neuron: its own if it may not be permuted, otherwise the same for all neurons of its block."""
    size = architecture.layers[layer].size
    found, own = torch.full((size,), free, dtype=torch.float64), _direction(size)
    for number, b in enumerate(architecture.blocks[layer]):
        found[b.start : b.stop] = own[b.start : b.stop] if b.slot is None else free + number
    return found


def _direction(size: int) -> Tensor:
    """A fixed vector without symmetries."""
    return torch.arange(1, size + 1, dtype=torch.float64).sin()


def _order(key: Tensor, second: Tensor, tolerance: float) -> Tensor:
    """Sort (B, n) by key; runs of keys that differ only by rounding are sorted by the second key."""
    ranked, first = key.sort(dim=1, stable=True)
    size = tolerance * key.abs().amax(1, keepdim=True)
    run = F.pad((ranked.diff(dim=1) > size).cumsum(1), (1, 0))
    within = second.gather(1, first).argsort(dim=1, stable=True)
    return first.gather(1, within).gather(1, run.gather(1, within).argsort(dim=1, stable=True))


def _positions(architecture: Architecture, layer: int) -> Tensor:
    """For each column of `_incoming`'s weights, a number that no symmetry moves: its kernel entry, its input neuron."""
    found = [torch.zeros(0)]
    for i in architecture.incoming[layer]:
        c = architecture.connections[i]
        if c.has_weights and not c.constant:
            shape = architecture.weight_shape(i)
            source = torch.zeros(shape[1] if len(shape) == 3 else 1)
            blocks = architecture.blocks[c.source]
            if c.dense and all(b.slot is None for b in blocks):
                source = torch.arange(len(source))
            found.append((1 + source[:, None] * c.kernel_size + torch.arange(c.kernel_size)).flatten())
    return torch.cat(found)


def _norm(x: Tensor) -> Tensor:
    """The norm over the last dimension, without under- or overflow of squares."""
    largest = x.abs().amax(-1, keepdim=True)
    relative = x / torch.where(largest > 0, largest, 1.0)
    return relative.square().sum(-1).sqrt() * largest[..., 0]


def _sign(rows: Tensor, bias: Tensor, positions: Tensor, tolerance: float) -> Tensor:
    """The sign (B, n) of the first sum that is not zero: it flips with (rows, bias), whatever the sources' order."""
    moment = rows @ positions / positions.numel()
    sums = torch.stack([bias.sum(2), rows.sum(2), moment, rows.pow(3).sum(2)])
    clear = sums.abs() > tolerance
    first = clear.int().argmax(0, keepdim=True)
    return torch.where(clear.any(0), sums.gather(0, first)[0].sign(), 1.0)


Canonical = Literal["none", "phase", "scale", "permutation", "all"]
_FORMS: dict[Canonical, Callable[[Networks], Networks]] = {
    "none": lambda networks: networks,
    "phase": phase,
    "scale": scale,
    "permutation": permutation,
    "all": canonicalize,
}


@overload
def present(networks: Networks, canonical: Canonical, device: torch.device | None = None) -> Networks: ...
@overload
def present(
    networks: Networks | Sequence[Networks], canonical: Canonical, device: torch.device | None = None
) -> Networks | list[Networks]: ...
def present(
    networks: Networks | Sequence[Networks], canonical: Canonical, device: torch.device | None = None
) -> Networks | list[Networks]:
    """Networks as a model sees them: in their canonical form, on its device.

    Arguments:
        networks: One batch or several.
        canonical: Which canonical form to apply.
        device: Where to move them; they stay where they are if omitted.
    """
    # In this order: canonical forms compute in float64, which not every device has.
    form = _FORMS[canonical]
    if isinstance(networks, Networks):
        return form(networks).to(device)
    return [form(batch).to(device) for batch in networks]
