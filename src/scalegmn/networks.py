"""A batch of networks of one architecture as dense tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import overload

import torch
from torch import Tensor

from . import evaluate as _evaluate
from .architecture import Architecture
from .errors import ScaleGMNError
from .evaluate import Parameters, Responses

Index = int | slice | Sequence[int] | Tensor


class Networks:
    """A batch of B networks that share an architecture.

    All parameters of a network lie in one row of `parameters`, in the order of `architecture.segments`; `weights`
    and `biases` are views of it.

    Arguments:
        architecture: Of every network.
        parameters: Shape (B, P).

    >>> architecture = Architecture.mlp([2, 8, 1], "tanh")
    >>> networks = Networks(architecture, torch.randn(5, architecture.parameters))
    >>> networks.evaluate(torch.rand(100, 2)).shape
    torch.Size([5, 100, 1])
    """

    def __init__(self, architecture: Architecture, parameters: Tensor) -> None:
        if parameters.dim() != 2 or parameters.shape[1] != architecture.parameters:
            raise ScaleGMNError(
                f"parameters: expected shape (networks, {architecture.parameters}) for {architecture}, "
                f"got {tuple(parameters.shape)}"
            )
        self.architecture = architecture
        self.parameters = parameters

    @classmethod
    def from_tensors(
        cls,
        architecture: Architecture,
        weights: Sequence[Tensor | None],
        biases: Sequence[Tensor | None],
        slopes: Sequence[Tensor | None] = (),
    ) -> Networks:
        """Assemble networks from one tensor per connection and layer, as in `weights`, `biases`, `slopes`."""
        tensors = {"weight": weights, "bias": biases, "slope": slopes}
        parts = []
        for s in architecture.segments:
            tensor = tensors[s.kind][s.index]
            assert tensor is not None
            parts.append(tensor.reshape(tensor.shape[0], s.size))
        return cls(architecture, torch.cat(parts, dim=1))

    def replace(self, parameters: Tensor) -> Networks:
        """The same networks with other parameters (B, P)."""
        return Networks(self.architecture, parameters)

    # -- views -------------------------------------------------------------------------------------------------

    @cached_property
    def views(self) -> Parameters:
        """Weights, biases and slopes as views of `parameters`."""
        a = self.architecture
        weights: list[Tensor | None] = [None] * len(a.connections)
        biases: list[Tensor | None] = [None] * len(a.layers)
        slopes: list[Tensor | None] = [None] * len(a.layers)
        target = {"weight": weights, "bias": biases, "slope": slopes}
        parts = self.parameters.split([s.size for s in a.segments], dim=1)
        for s, part in zip(a.segments, parts, strict=True):
            target[s.kind][s.index] = part.unflatten(1, s.shape)
        return Parameters(tuple(weights), tuple(biases), tuple(slopes))

    @property
    def weights(self) -> tuple[Tensor | None, ...]:
        """Per connection (B, n_t, n_s, K), (B, n) for a normalisation, None for a skip."""
        return self.views.weights

    @property
    def biases(self) -> tuple[Tensor | None, ...]:
        """Per layer (B, n), None where it has none."""
        return self.views.biases

    @property
    def dtype(self) -> torch.dtype:
        """Type of the parameters."""
        return self.parameters.dtype

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return self.parameters.device

    # -- batch -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.parameters.shape[0]

    def __iter__(self) -> Iterator[Networks]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Index) -> Networks:
        """A batch with some of the networks; an integer gives a batch of one."""
        if isinstance(index, int):
            if not -len(self) <= index < len(self):
                raise IndexError(f"network {index} of {len(self)}")
            index = [index % len(self)]
        return self.replace(self.parameters[index])

    @staticmethod
    def cat(batches: Sequence[Networks]) -> Networks:
        """Concatenate batches of the same architecture."""
        if not batches:
            raise ScaleGMNError("cat: expected at least one batch of networks, got none")
        first = batches[0]
        for other in batches[1:]:
            if other.architecture != first.architecture:
                raise ScaleGMNError(
                    f"cat: expected one architecture, got {first.architecture} and {other.architecture}"
                )
        return first.replace(torch.cat([b.parameters for b in batches]))

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Networks:
        """The same networks on another device or in another type."""
        return self.replace(self.parameters.to(device=device, dtype=dtype))

    def detach(self) -> Networks:
        """The same networks, cut off from the graph of gradients."""
        return self.replace(self.parameters.detach())

    def __repr__(self) -> str:
        return f"Networks({len(self)} x {self.architecture}, {self.dtype}, {self.device})"

    # -- evaluation --------------------------------------------------------------------------------------------

    def evaluate(self, x: Tensor) -> Tensor:
        """All networks at once.

        Arguments:
            x: Inputs common to all networks (N, n_0, *spatial), or one set per network (B, N, n_0, *spatial).

        Returns:
            Outputs (B, N, n_L, *spatial).
        """
        return self.responses(x).post[-1]

    def responses(self, x: Tensor) -> Responses:
        """Every neuron's pre- and post-activation: vertex features that move as q."""
        x = _evaluate.prepare_inputs(self.architecture, x, len(self), self.parameters)
        return _evaluate.respond(self.architecture, self.views, x)

    def gradients(self, x: Tensor, cotangent: Tensor | None = None) -> tuple[Tensor, ...]:
        """The gradient of <cotangent, output> at every pre-activation (channel means): dual features, as 1/q.

        Arguments:
            x: As in `evaluate`.
            cotangent: Broadcasts to the output; ones where omitted.

        Returns:
            Per layer (B, N, n).
        """
        x = _evaluate.prepare_inputs(self.architecture, x, len(self), self.parameters)
        return _evaluate.gradients(self.architecture, self.views, x, cotangent)


@overload
def group_by_architecture(networks: Networks) -> list[tuple[Networks, None]]: ...
@overload
def group_by_architecture(networks: Sequence[Networks]) -> list[tuple[Networks, Tensor]]: ...
def group_by_architecture(
    networks: Networks | Sequence[Networks],
) -> list[tuple[Networks, None]] | list[tuple[Networks, Tensor]]:
    """Join batches of one architecture and remember where each network came from.

    Arguments:
        networks: One batch, or several of any architectures.

    Returns:
        Pairs of a batch and the positions of its networks in the input (None for a single batch).
    """
    if isinstance(networks, Networks):
        return [(networks, None)]
    groups: dict[Architecture, list[tuple[Networks, Tensor]]] = {}
    start = 0
    for batch in networks:
        positions = torch.arange(start, start + len(batch))
        groups.setdefault(batch.architecture, []).append((batch, positions))
        start += len(batch)
    return [(Networks.cat([b for b, _ in g]), torch.cat([p for _, p in g])) for g in groups.values()]
