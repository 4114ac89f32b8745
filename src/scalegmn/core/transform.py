r"""Symmetries of networks as data: permutations and scalings of hidden neurons that preserve the function.

A transform moves the quantities of a network as follows (p is the permutation, s the scale, phi as in `Activation`):

    vertex of layer l           x'[i]    = s_l[i] x[p_l[i]]
    dual vertex of layer l      d'[i]    = d[p_l[i]] / s_l[i]
    edge of layers s to t       e'[i, j] = s_t[i] / phi_s(s_s[j]) e[p_t[i], p_s[j]]
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import ScaleGMNError
from .architecture import Architecture, Skip
from .networks import Networks


@dataclass(frozen=True)
class Transform:
    """One symmetry element for each network of a batch.

    Arguments:
        architecture: Whose symmetries these are.
        permutations: Per layer (B, n), the old position of the neuron that is now at position i.
        scales: Per layer (B, n), the multiplier of the neuron that is now at position i.

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
            permute, scale: Leave out one of the two.
            dtype: The type of the scales.
        """
        slots: dict[int, Tensor] = {}
        factors: dict[int, Tensor] = {}
        permutations, scales = [], []
        for i, layer in enumerate(architecture.layers):
            identity = torch.arange(layer.size).expand(count, -1)
            slot, scale_slot = architecture.slots[i], architecture.scale_slots[i]
            if permute and slot is not None and slot not in slots:
                slots[slot] = torch.rand(count, layer.size, generator=generator).argsort(1)
            if scale and scale_slot is not None and scale_slot not in factors:
                factors[scale_slot] = architecture.groups[i].sample(
                    count, layer.size, generator=generator, spread=spread, dtype=dtype
                )
            ones = torch.ones(count, layer.size, dtype=dtype)
            permutations.append(identity if slot is None else slots.get(slot, identity))
            scales.append(ones if scale_slot is None else factors.get(scale_slot, ones))
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

    # -- actions -----------------------------------------------------------------------------------------------

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
        if not c.dense:
            return _like(s_t / s_s, e) * moved
        moved = _take(moved, self.permutations[c.source], 2)
        return _like(s_t, e) * moved / _like(s_s[:, None], e)

    def apply(self, networks: Networks) -> Networks:
        """The transformed networks, which compute the same functions."""
        a = self.architecture
        if networks.architecture != a or len(networks) != len(self):
            raise ScaleGMNError(
                f"transform: made for {len(self)} x {a}, got {len(networks)} x {networks.architecture}"
            )
        g = self.to(networks.device, networks.dtype)
        weights = [
            None if w is None or isinstance(a.connections[c].map, Skip) else g.edge(c, w)
            for c, w in enumerate(networks.weights)
        ]
        biases = [None if b is None else g.vertex(i, b) for i, b in enumerate(networks.biases)]
        moved = Networks.from_tensors(a, weights, biases, networks.views.slopes)
        return networks.replace(moved.parameters)


def _take(x: Tensor, index: Tensor, dim: int) -> Tensor:
    """Reorder dimension `dim` of x by one permutation per network."""
    shape = [1] * x.dim()
    shape[0], shape[dim] = index.shape
    return torch.take_along_dim(x, index.reshape(shape), dim)


def _like(v: Tensor, x: Tensor) -> Tensor:
    """Append dimensions to v until it broadcasts against x."""
    return v.reshape(*v.shape, *[1] * (x.dim() - v.dim()))
