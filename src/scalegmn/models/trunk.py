"""Trunks: what a method computes from networks, before a head turns it into an answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from ..core.architecture import Architecture
from ..core.mixed import expect_networks
from ..core.networks import Networks
from ..core.spec import Spec
from ..errors import ScaleGMNError
from .normalise import NormalisedSpec, normaliser
from .reach import strange

if TYPE_CHECKING:
    from .method import Method


class Pooling(nn.Module):
    """From the states of a trunk to one vector per network, the embedding.

    Arguments:
        one: Maps the states of networks of one architecture to vectors (B, k).
        finish: Maps those of a whole batch of any architectures to embeddings (B, size), with batch statistics if
            needed.
        size: Of the embedding.

    >>> import torch
    >>> pooling = Pooling(nn.Flatten(), nn.Linear(6, 4), 4)
    >>> pooling.finish(pooling.one(torch.randn(5, 2, 3))).shape
    torch.Size([5, 4])
    """

    def __init__(self, one: nn.Module, finish: nn.Module, size: int) -> None:
        super().__init__()
        self.one, self.finish, self.size = one, finish, size

    def extra_repr(self) -> str:
        return f"embedding: {self.size}"


class Trunk(nn.Module, ABC):
    """Networks in, states out. Heads (`Classifier`, `Regressor`, `Editor`) read the states.

    If its specification names a normalisation, that comes first (`normalise`), and `prepare` fits it. A trunk is built
    by its `Method`, which declares its symmetries.

    Arguments:
        method: Whose trunk it is.
        architectures: Every architecture that it will read; sizes that must be fixed come from this list.
        spec: The options.

    >>> import torch
    >>> from scalegmn import ScaleGMN
    >>> trunk = ScaleGMN([Architecture.mlp([2, 8, 1])], width=8)
    >>> trunk(Networks(trunk.architectures[0], torch.randn(5, 33))).x(2).shape
    torch.Size([5, 1, 8])
    """

    # Whether it reads layers of several blocks: concatenation, groups, products, attention, shared weights.
    reads_blocks = False

    def __init__(self, method: Method, architectures: Sequence[Architecture], spec: Spec) -> None:
        super().__init__()
        if isinstance(architectures, Architecture):
            raise ScaleGMNError(f"architectures: expected a list of them, got one, {architectures}; put it in a list")
        given = architectures if isinstance(architectures, Iterable) else [architectures]
        other = next((a for a in given if not isinstance(a, Architecture)), None)
        if other is not None:
            raise ScaleGMNError(
                f"architectures: expected a list of Architecture, got {type(other).__name__}; "
                "Networks.from_modules([module]).architecture makes one of a module"
            )
        if not architectures:
            raise ScaleGMNError("architectures: expected at least one, got none")
        strange = None if self.reads_blocks else next((a for a in architectures if not a.plain), None)
        if strange is not None:
            raise ScaleGMNError(
                f"{method.name}: expected layers that are complete, residual or normalised, without concatenation, "
                f"groups, products or attention, got {strange}; use gmn or scalegmn"
            )
        self.method, self.architectures, self.spec = method, tuple(dict.fromkeys(architectures)), spec
        if not method.several:
            same_shapes(self.architectures, method.name)
        kind = spec.normalisation if isinstance(spec, NormalisedSpec) else "none"
        self.normalise = normaliser(kind, self.architectures)
        self.build()

    @abstractmethod
    def build(self) -> None:
        """Make the parts, for `self.architectures` and with the options in `self.spec`."""

    @abstractmethod
    def forward(self, networks: Networks) -> Any:
        """The states of networks of one architecture that have come through `front`."""

    @abstractmethod
    def pooling(self) -> Pooling:
        """A new map from the states to an embedding, for an invariant head."""

    def front(self, networks: Networks) -> Networks:
        """Check and normalise networks.

        If all architectures have parameters of one shape, all networks get the first one, so that they are one batch.
        """
        self.accepts(networks)
        return networks if self.method.several else Networks(self.architectures[0], networks.parameters)

    def prepare(self, training: Sequence[Networks]) -> None:
        """Look at (a sample of) the training networks once before training."""
        self.normalise.fit(training)
        self.measure(training)

    def measure(self, training: Sequence[Networks]) -> None:
        """Measure what else the trunk needs to know about training networks; most need nothing."""

    def reads(self, architecture: Architecture) -> str | None:
        """Why networks of an architecture cannot be read; None if they can, even if it is not in the list."""
        return None if architecture in self.architectures else strange(architecture, self.architectures)

    def accepts(self, networks: Networks) -> Networks:
        """Refuse networks that the trunk cannot read, or that have another type or device."""
        expect_networks(networks)
        reason = None if networks.architecture in self.architectures else self.reads(networks.architecture)
        if reason is not None:
            raise ScaleGMNError(f"architecture: {reason}")
        mine = next(self.parameters())
        if (networks.dtype, networks.device) != (mine.dtype, mine.device):
            raise ScaleGMNError(
                f"networks: expected {mine.dtype} on {mine.device} as the model's weights are, "
                f"got {networks.dtype} on {networks.device}; use networks.to(device, dtype) or model.to(...)"
            )
        return networks

    def extra_repr(self) -> str:
        return f"{self.method.name}: {self.spec}"

    def __repr__(self) -> str:
        return summary(self, [])


class EditingTrunk(Trunk, ABC):
    """A trunk whose states can become a value for every parameter, for an `Editor`.

    >>> import torch
    >>> from scalegmn import ScaleGMN
    >>> trunk = ScaleGMN([Architecture.mlp([2, 8, 1])], width=8)
    >>> write = trunk.writing(copies=2)
    >>> write(trunk(Networks(trunk.architectures[0], torch.randn(5, 33)))).shape
    torch.Size([5, 2, 33])
    """

    # Whether edits have a step size for every tensor of parameters, in units of typical values.
    edits_in_units = True

    @abstractmethod
    def writing(self, copies: int) -> nn.Module:
        """A new map from the states to values (B, copies, P) that are transformed like the parameters."""


def same_shapes(architectures: Sequence[Architecture], who: str) -> Architecture:
    """The first architecture, if all have parameters of the same shapes (they may differ in activations).

    Arguments:
        architectures: That one model shall read.
        who: The model that asks, for the message.
    """
    first = architectures[0]
    for other in architectures[1:]:
        if other.segments != first.segments:
            raise ScaleGMNError(
                f"{who}: expected architectures with parameters of the same shapes, got {first} and {other}; "
                "train one model for each, or use gmn or scalegmn"
            )
    return first


def chain(architectures: Sequence[Architecture], who: str, *, convolutions: bool = True) -> Architecture:
    """The first architecture, if all are chains.

    Arguments:
        architectures: That one model shall read.
        who: The model that asks, for the message.
        convolutions: Whether it reads them.
    """
    for a in architectures:
        steps = [(c.source, c.target) for c in a.connections if c.dense]
        if steps != [(i, i + 1) for i in range(len(a.layers) - 1)] or len(steps) != len(a.connections):
            raise ScaleGMNError(
                f"{who}: expected a chain of layers without residual, parallel or normalising connections, got {a}; "
                "use gmn or scalegmn"
            )
        if not convolutions and a.spatial:
            raise ScaleGMNError(f"{who}: reads networks without convolutions, got {a}; use nfn-np or scalegmn")
    return architectures[0]


def summary(module: nn.Module, lines: Sequence[str]) -> str:
    """A module in a few lines: those given, then one per part instead of the whole tree."""
    found = [*lines, *module.extra_repr().splitlines()]
    for name, part in module.named_children():
        more = f"{len(part)} x {type(part[0]).__name__}" if isinstance(part, nn.ModuleList) else part.extra_repr()
        kind = f"{type(part).__name__}({more})" if more else type(part).__name__
        found.append(f"{name}: {kind}, {size(part):,} parameters")
    return "\n  ".join([f"{type(module).__name__}(", *found]) + "\n)"


def size(module: nn.Module) -> int:
    """Number of parameters."""
    return sum(p.numel() for p in module.parameters())
