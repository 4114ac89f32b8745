r"""ScaleGMN: metanetworks that are equivariant to permutations and scalings of neurons.

Kalogeropoulos, Bouritsas and Panagakis, Scale Equivariant Graph Metanetworks, NeurIPS 2024.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import nn

from ..core.architecture import Architecture
from ..core.networks import Networks
from ..core.spec import Number
from ..nn.body import MessagePassing
from ..nn.readout import ParameterReadout, Readout, ReadoutKind
from ..nn.spec import PassingSpec
from ..nn.states import States
from ..nn.symmetry import Symmetry
from .method import Method
from .reach import unreadable
from .trunk import EditingTrunk, Pooling


@dataclass(frozen=True, repr=False)
class ScaleGMNSpec(PassingSpec):
    """The options of ScaleGMN: those of message passing and a few more.

    Arguments:
        readout: Which neurons an invariant head reads.
        probes: Number of learned inputs whose responses become features.
        probe_image: Their spatial shape, for convolutional networks.
        symmetry: Which symmetries are respected: `full`, or `permutations` as in GMN.

    >>> ScaleGMNSpec(width=32, backward="auto")
    ScaleGMNSpec(width=32, backward='auto')
    """

    readout: ReadoutKind = "all"
    probes: Number = 0
    probe_image: tuple[int, ...] = ()
    symmetry: Literal["full", "permutations"] = "full"


class ScaleGMNTrunk(EditingTrunk):
    """Message passing whose states are permuted and scaled with the neurons of the networks that it reads.

    >>> import torch
    >>> siren = Architecture.mlp([2, 8, 8, 1], "sine")
    >>> model = ScaleGMN([siren], outputs=10, width=16, layers=2)
    >>> model(Networks(siren, torch.randn(4, siren.parameters))).shape
    torch.Size([4, 10])
    """

    spec: ScaleGMNSpec
    reads_blocks = True

    def build(self) -> None:
        spec = self.spec
        self.edits_in_units = spec.form == "ours"
        self.body = self._passing(last_edges=False)
        self.writes = False

    @property
    def _symmetry(self) -> Callable[[Architecture], Symmetry]:
        return Symmetry.full if self.spec.symmetry == "full" else Symmetry.permutations

    def _passing(self, *, last_edges: bool) -> MessagePassing:
        return MessagePassing(
            self.architectures,
            self.spec,
            symmetry=self._symmetry,
            last_edges=last_edges,
            probes=self.spec.probes,
            probe_image=self.spec.probe_image,
        )

    def measure(self, training: Sequence[Networks]) -> None:
        """Measure constants that bring weights to a common size; constants commute with all scalings."""
        self.body.measure(training)

    def reads(self, architecture: Architecture) -> str | None:
        """Any width is read, and depths and kernels up to the largest that it was built for."""
        reason = unreadable(architecture, self.architectures, self._symmetry, probes=self.spec.probes > 0)
        return reason or self.body.form.complaint(self._symmetry(architecture))

    def forward(self, networks: Networks) -> States:
        """States that are computed when they are needed."""
        states: States = self.body(networks)
        return states

    def pooling(self) -> Pooling:
        readout = Readout(
            self.architectures,
            self.body.style,
            kind=self.spec.readout,
            duals=self.body.backward == "dual",
            probes=self.spec.probes,
        )
        return Pooling(readout, nn.Identity(), readout.outputs)

    def writing(self, copies: int) -> nn.Module:
        """As in `EditingTrunk`. The first editor adds the last update of the edges to the trunk."""
        if not self.writes:
            fuller = self._passing(last_edges=True).to(next(self.parameters()))
            # The same parameters, not copies of them: somebody may be training them already.
            fuller.load_state_dict(self.body.state_dict(keep_vars=True), strict=False, assign=True)
            self.body, self.writes = fuller, True
        return ParameterReadout(self.body.style, self.body.init.kernels.shape, copies=copies)


_PAPER = "Kalogeropoulos, Bouritsas and Panagakis, Scale Equivariant Graph Metanetworks, NeurIPS 2024"
_BOTH = ("permutation", "scale")
ScaleGMN = Method("scalegmn", "ScaleGMN", _PAPER, _BOTH, ScaleGMNTrunk, ScaleGMNSpec())
"""The method of the paper (`scalegmn`); options as in `ScaleGMNSpec`.

`ScaleGMN([architecture], outputs=10)` is a classifier; without `outputs` it is the trunk.
"""
ScaleGMNB = replace(ScaleGMN, name="scalegmn-b", title="ScaleGMN-B", spec=ScaleGMNSpec(backward="auto"))
"""The same with messages both ways (`scalegmn-b`)."""
# The natural ablation: a graph metanetwork in the sense of Lim et al., though not theirs (docs/baselines.md).
GMN = replace(
    ScaleGMN,
    name="gmn",
    title="GMN",
    paper="Lim et al., Graph Metanetworks for Processing Diverse Neural Architectures, ICLR 2024",
    symmetries=("permutation",),
    spec=ScaleGMNSpec(symmetry="permutations"),
)
"""The same without scales (`gmn`): it respects permutations only."""
