r"""Symmetries of networks as data: permutations and scalings of hidden neurons that preserve the function.

A transform acts on the quantities of a network as follows (p is the permutation, s the scale, phi as in `Activation`):

    vertex of layer l           x'[i]    = s_l[i] x[p_l[i]]
    dual vertex of layer l      d'[i]    = d[p_l[i]] / s_l[i]
    edge of layers s to t       e'[i, j] = s_t[i] / phi_s(s_s[j]) e[p_t[i], p_s[j]]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..errors import ScaleGMNError
from .architecture import Architecture, Normalise, Scale
from .blocks import Block
from .groups import PositiveScale, Sign
from .networks import Networks


@dataclass(frozen=True)
class Draw:
    """The free choices of a transform; None leaves that part unchanged.

    Arguments:
        order: Maps the number of heads and of neurons in each to permutations (B, heads, neurons).
        magnitude: Maps a number of neurons to positive factors (B, neurons).
        sign: Maps a number of neurons to signs (B, neurons).

    >>> twice = Draw(magnitude=lambda size: torch.full((1, size), 2.0))
    >>> Transform.assemble(Architecture.mlp([1, 3, 1], "relu"), 1, twice).scales[1].tolist()
    [[2.0, 2.0, 2.0]]
    """

    order: Callable[[int, int], Tensor] | None = None
    magnitude: Callable[[int], Tensor] | None = None
    sign: Callable[[int], Tensor] | None = None


@dataclass(frozen=True)
class Transform:
    """One symmetry element for each network of a batch.

    Arguments:
        architecture: Whose symmetries these are.
        permutations: Per layer (B, n); entry i is the old position of the neuron that is now at position i.
        scales: Per layer (B, n); entry i is the multiplier of the neuron that is now at position i.

    >>> architecture = Architecture.mlp([2, 8, 1], "relu")
    >>> networks = Networks(architecture, torch.randn(5, architecture.parameters, dtype=torch.float64))
    >>> moved = Transform.sample(architecture, 5).apply(networks)
    >>> x = torch.rand(100, 2, dtype=torch.float64)
    >>> torch.allclose(moved.evaluate(x), networks.evaluate(x))
    True
    """

    architecture: Architecture
    permutations: tuple[Tensor, ...]
    scales: tuple[Tensor, ...]

    @staticmethod
    def sample(
        architecture: Architecture,
        count: int,
        generator: torch.Generator | None = None,
        *,
        spread: float = 10.0,
        permute: bool = True,
        scale: bool = True,
        dtype: torch.dtype = torch.float64,
    ) -> Transform:
        """Random symmetries, one per network: uniform permutations, scales as in `Group.sample`.

        Arguments:
            architecture: Whose symmetries.
            count: Number of networks B.
            generator: The source of randomness.
            spread: Scales are log-uniform in [1/spread, spread].
            permute, scale: False leaves out that kind of symmetry.
            dtype: The type of the scales.
        """
        def magnitude(size: int) -> Tensor:
            return PositiveScale.sample(count, size, generator=generator, spread=spread, dtype=dtype)

        def sign(size: int) -> Tensor:
            return Sign.sample(count, size, generator=generator, dtype=dtype)

        def order(heads: int, size: int) -> Tensor:
            return torch.rand(count, heads, size, generator=generator).argsort(2)

        draw = Draw(order if permute else None, magnitude if scale else None, sign if scale else None)
        return Transform.assemble(architecture, count, draw, dtype=dtype)

    @staticmethod
    def assemble(
        architecture: Architecture, count: int, draw: Draw, *, dtype: torch.dtype = torch.float64
    ) -> Transform:
        """The transform with given free choices: one permutation per slot, one value per variable and neuron.

        Arguments:
            architecture: Whose symmetries.
            count: Number of networks B.
            draw: Makes the choices; it is called once for every slot and variable, in the order of the layers.
            dtype: The type of the scales.
        """
        made: dict[tuple[str, int], Tensor] = {}

        def once(kind: str, number: int, make: Callable[[], Tensor]) -> Tensor:
            if (kind, number) not in made:
                made[kind, number] = make()
            return made[kind, number]

        permutations, scales = [], []
        for blocks in architecture.blocks:
            orders, factors = [], []
            for b in blocks:
                orders.append(b.start + _order_of(b, count, draw, once))
                q = torch.ones(count, b.size, dtype=dtype)
                if draw.magnitude is not None:
                    for v, power in b.scales:
                        q = q * once("scale", v, partial(draw.magnitude, b.size)) ** power
                if draw.sign is not None:
                    for v in b.signs:
                        q = q * once("sign", v, partial(draw.sign, b.size))
                factors.append(q)
            permutations.append(torch.cat(orders, dim=1))
            scales.append(torch.cat(factors, dim=1))
        return Transform(architecture, tuple(permutations), tuple(scales))

    @staticmethod
    def identity(architecture: Architecture, count: int, dtype: torch.dtype = torch.float64) -> Transform:
        """The transform that changes nothing."""
        return Transform.sample(architecture, count, permute=False, scale=False, dtype=dtype)

    def __len__(self) -> int:
        return self.permutations[0].shape[0]

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Transform:
        """The same transform on another device, with scales in another type."""
        return Transform(
            self.architecture,
            tuple(p.to(device=device) for p in self.permutations),
            tuple(s.to(device=device, dtype=dtype) for s in self.scales),
        )

    def inverse(self) -> Transform:
        """The transform that undoes this one."""
        inverse = tuple(p.argsort(1) for p in self.permutations)
        scales = tuple(1 / s.gather(1, p) for s, p in zip(self.scales, inverse, strict=True))
        return Transform(self.architecture, inverse, scales)

    def __matmul__(self, first: Transform) -> Transform:
        """`(g @ f).apply(x)` equals `g.apply(f.apply(x))`."""
        if self.architecture != first.architecture:
            raise ScaleGMNError(
                f"transform: cannot compose those of {self.architecture.beside(first.architecture)}"
            )
        pairs = list(zip(first.permutations, first.scales, self.permutations, self.scales, strict=True))
        return Transform(
            self.architecture,
            tuple(p1.gather(1, p2) for p1, _, p2, _ in pairs),
            tuple(s2 * s1.gather(1, p2) for _, s1, p2, s2 in pairs),
        )

    def vertex(self, layer: int, x: Tensor) -> Tensor:
        """Act on a vertex state (B, n, ...) of a layer, such as its bias."""
        return _like(self.scales[layer], x) * _take(x, self.permutations[layer], 1)

    def dual(self, layer: int, d: Tensor) -> Tensor:
        """Act on a dual vertex state (B, n, ...) of a layer, such as the gradient at its pre-activation."""
        return _take(d, self.permutations[layer], 1) / _like(self.scales[layer], d)

    def edge(self, connection: int, e: Tensor) -> Tensor:
        """Act on an edge state (B, n_t, n_s, ...) of a connection, or (B, n, ...) of an elementwise one."""
        c = self.architecture.connections[connection]
        s_t, s_s = self.scales[c.target], self.architecture.phis[c.source](self.scales[c.source])
        moved = _take(e, self.permutations[c.target], 1)
        if not c.has_weights or isinstance(c.map, Normalise | Scale):
            return _like(s_t / s_s, e) * moved
        # Neuron i of the target meets the sources of its group only.
        width = s_s.shape[1] // c.groups
        group = torch.arange(s_t.shape[1], device=s_t.device) // (s_t.shape[1] // c.groups)
        met = (group[:, None] * width + torch.arange(width, device=s_t.device)).flatten()
        old = (self.permutations[c.source] % width)[:, met].unflatten(1, (-1, width)) if c.groups > 1 else None
        if old is None:
            moved = _take(moved, self.permutations[c.source], 2)
            return _like(s_t, e) * moved / _like(s_s[:, None], e)
        moved = torch.take_along_dim(moved, old.reshape(*old.shape, *[1] * (e.dim() - 3)), 2)
        return _like(s_t, e) * moved / _like(s_s[:, met].unflatten(1, (-1, width)), e)

    def apply(self, networks: Networks) -> Networks:
        """The transformed networks, which compute the same functions."""
        a = self.architecture
        if networks.architecture != a or len(networks) != len(self):
            raise ScaleGMNError(
                f"transform: made for {len(self)} x {a}, got {len(networks)} x {networks.architecture}"
            )
        g = self.to(networks.device, networks.dtype)
        learned = {s.index for s in a.segments if s.kind == "weight"}
        weights = [
            g.edge(c, w) if w is not None and c in learned else None for c, w in enumerate(networks.weights)
        ]
        own = {s.index for s in a.segments if s.kind == "bias"}
        biases = [g.vertex(i, b) if b is not None and i in own else None for i, b in enumerate(networks.biases)]
        moved = Networks.from_tensors(a, weights, biases, networks.views.slopes)
        return networks.replace(moved.parameters)


def _order_of(
    block: Block, count: int, draw: Draw, once: Callable[[str, int, Callable[[], Tensor]], Tensor]
) -> Tensor:
    """The permutation (B, size) of a block: of the neurons within each head, then of the heads."""
    width = block.size // block.heads
    if draw.order is None or block.slot is None:
        return torch.arange(block.size).expand(count, -1)
    order = once("slot", block.slot, partial(draw.order, block.heads, width))
    if block.head_slot is None:
        return order[:, 0]
    heads = once("head", block.head_slot, partial(draw.order, 1, block.heads))[:, 0]
    return (heads[:, :, None] * width + torch.take_along_dim(order, heads[:, :, None], 1)).flatten(1)


def _take(x: Tensor, index: Tensor, dim: int) -> Tensor:
    """Reorder dimension `dim` of x by one permutation per network."""
    shape = [1] * x.dim()
    shape[0], shape[dim] = index.shape
    return torch.take_along_dim(x, index.reshape(shape), dim)


def _like(v: Tensor, x: Tensor) -> Tensor:
    """Append dimensions to v until it broadcasts against x."""
    return v.reshape(*v.shape, *[1] * (x.dim() - v.dim()))
