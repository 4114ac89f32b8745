r"""ScaleGMN: metanetworks that are equivariant to permutations and scalings of neurons.

Kalogeropoulos, Bouritsas and Panagakis, Scale Equivariant Graph Metanetworks, NeurIPS 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ..core.architecture import Architecture
from ..core.networks import Networks
from ..nn.body import MessagePassing
from ..nn.readout import ParameterHead, Readout, ReadoutKind
from ..nn.spec import Aggregate, Backward, PassingSpec, SignRule
from ..nn.symmetry import Symmetry
from .base import Editor, InvariantModel
from .reach import unreadable
from .registry import ModelCard, register


class ScaleGMN(InvariantModel):
    """One vector per network, unchanged by permutations and scalings of its hidden neurons.

    Arguments:
        architectures: Every architecture it will meet.
        outputs: Width of the result.
        width: Of all states.
        layers: Number of iterations of message passing.
        backward: `none` is the forward variant. ScaleGMN-B has `shared` for signs, `dual` (our dual stream) or
            `reciprocal` (as in the paper) for scales; `auto` chooses between the first two.
        readout: Which neurons are read: `all`, `output` or `input+output`.
        edge_positions: Encode edges at the start.
        positions_everywhere: Let positional encodings enter messages and updates too.
        skip: Add the old state to the new in each iteration.
        gate: Width of the hidden layer in the invariant nets on edges, where most of the time goes; `width` where
            omitted.
        sign: How invariant nets remove signs: `symmetrise` or `absolute`.
        aggregate: `sum` or `mean` of messages.
        dropout: In all MLPs.
        edge_updates: Whether edges are updated. Where they are not, messages are faster.
        probes: Number of learned inputs whose responses become features.
        probe_image: Their spatial shape, for convolutional networks.
        sigmoid: Squash the result into (0, 1), for accuracies.
        checkpointing: Recompute activations in the backward pass to save memory.

    >>> siren = Architecture.mlp([2, 8, 8, 1], "sine")
    >>> model = ScaleGMN([siren], 10, width=16, layers=2)
    >>> model(Networks(siren, torch.randn(4, siren.parameters))).shape
    torch.Size([4, 10])
    """

    symmetry = staticmethod(Symmetry.full)

    def __init__(
        self,
        architectures: Sequence[Architecture],
        outputs: int,
        *,
        width: int = 64,
        layers: int = 4,
        backward: Backward = "none",
        readout: ReadoutKind = "all",
        edge_positions: bool = False,
        positions_everywhere: bool = False,
        skip: bool = True,
        gate: int | None = None,
        sign: SignRule = "symmetrise",
        aggregate: Aggregate = "sum",
        dropout: float = 0.0,
        edge_updates: bool = True,
        probes: int = 0,
        probe_image: Sequence[int] = (),
        sigmoid: bool = False,
        checkpointing: bool = False,
    ) -> None:
        super().__init__(architectures)
        self.body = MessagePassing(
            self.architectures,
            PassingSpec(
                width,
                layers,
                backward,
                edge_positions,
                positions_everywhere,
                skip,
                gate,
                sign,
                aggregate,
                dropout,
                edge_updates,
                checkpointing,
            ),
            symmetry=self.symmetry,
            probes=probes,
            probe_image=probe_image,
        )
        self.readout = Readout(
            self.architectures,
            self.body.style,
            outputs,
            kind=readout,
            duals=self.body.backward == "dual",
            probes=probes,
        )
        self.sigmoid = sigmoid

    def prepare(self, training: Sequence[Networks]) -> None:
        """Take constants that bring weights to a common size; constants commute with all scalings."""
        self.body.measure(training)

    def reads(self, architecture: Architecture) -> str | None:
        """Widths, depths and kernels within what was built are read, also if they were never seen."""
        return unreadable(architecture, self.architectures, self.symmetry, probes=self.body.probes is not None)

    def embed_one(self, networks: Networks) -> Tensor:
        y: Tensor = self.readout(*self.body(networks, self.readout.needs))
        return y

    def read(self, embedding: Tensor) -> Tensor:
        y: Tensor = self.readout.mlp.last(embedding)
        return torch.sigmoid(y) if self.sigmoid else y


class ScaleGMNEditor(Editor):
    """New networks that move with permutations and scalings of the old ones.

    Arguments:
        architectures: Every architecture it will meet.
        width, layers, backward, edge_positions, positions_everywhere, skip, gate, sign, aggregate, dropout, probes,
            probe_image, checkpointing: As in `ScaleGMN`.
        edge_updates: Whether edges are updated before the last iteration. Where they are not, messages are faster.
        gamma: The initial step size.
        copies: Number of parameter sets per network, whose outputs are averaged.
    """

    symmetry = staticmethod(Symmetry.full)

    def __init__(
        self,
        architectures: Sequence[Architecture],
        *,
        width: int = 64,
        layers: int = 4,
        backward: Backward = "none",
        edge_positions: bool = False,
        positions_everywhere: bool = False,
        skip: bool = True,
        gate: int | None = None,
        sign: SignRule = "symmetrise",
        aggregate: Aggregate = "sum",
        dropout: float = 0.0,
        edge_updates: bool = True,
        probes: int = 0,
        probe_image: Sequence[int] = (),
        checkpointing: bool = False,
        gamma: float = 0.01,
        copies: int = 1,
    ) -> None:
        super().__init__(architectures, gamma=gamma, copies=copies)
        self.body = MessagePassing(
            self.architectures,
            PassingSpec(
                width,
                layers,
                backward,
                edge_positions,
                positions_everywhere,
                skip,
                gate,
                sign,
                aggregate,
                dropout,
                edge_updates,
                checkpointing,
            ),
            symmetry=self.symmetry,
            last_edges=True,
            probes=probes,
            probe_image=probe_image,
        )
        self.head = ParameterHead(self.body.style, self.body.init.kernels, copies=copies)

    def prepare(self, training: Sequence[Networks]) -> None:
        """As in `ScaleGMN`."""
        self.body.measure(training)
        super().prepare(training)

    def reads(self, architecture: Architecture) -> str | None:
        """As in `ScaleGMN`; step sizes belong to tensors, of which there may not be more."""
        return unreadable(architecture, self.architectures, self.symmetry, probes=self.body.probes is not None)

    def direction(self, networks: Networks) -> Tensor:
        y: Tensor = self.head(networks, *self.body(networks, self.head.needs), self.body.init.kernels)
        return y


_PAPER = "Kalogeropoulos, Bouritsas and Panagakis, Scale Equivariant Graph Metanetworks, NeurIPS"

register(
    ModelCard(
        name="scalegmn",
        title="ScaleGMN",
        paper=_PAPER,
        year=2024,
        symmetries=("permutation", "scale"),
        invariant=ScaleGMN,
        equivariant=ScaleGMNEditor,
    )
)
register(
    ModelCard(
        name="scalegmn-b",
        title="ScaleGMN-B",
        paper=_PAPER,
        year=2024,
        symmetries=("permutation", "scale"),
        invariant=partial(ScaleGMN, backward="auto"),
        equivariant=partial(ScaleGMNEditor, backward="auto"),
    )
)
