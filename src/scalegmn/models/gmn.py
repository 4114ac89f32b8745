"""GMN: the same message passing with permutation symmetry only, the natural ablation of ScaleGMN."""

from __future__ import annotations

from ..nn.symmetry import Symmetry
from .registry import ModelCard, register
from .scalegmn import ScaleGMN, ScaleGMNEditor


class GMN(ScaleGMN):
    """`ScaleGMN` that treats every hidden neuron's scaling group as trivial.

    A graph metanetwork in the sense of Lim et al. 2024, though not their architecture (docs/baselines.md).
    """

    symmetry = staticmethod(Symmetry.permutations)


class GMNEditor(ScaleGMNEditor):
    """`ScaleGMNEditor` that treats every hidden neuron's scaling group as trivial."""

    symmetry = staticmethod(Symmetry.permutations)


register(
    ModelCard(
        name="gmn",
        title="GMN",
        paper="Lim et al., Graph Metanetworks for Processing Diverse Neural Architectures, ICLR",
        year=2024,
        symmetries=("permutation",),
        invariant=GMN,
        equivariant=GMNEditor,
    )
)
