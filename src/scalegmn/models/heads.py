"""Heads: from the states of a trunk to one vector per network (invariant heads) or to new networks (editors)."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from ..core.architecture import Architecture
from ..core.doubles import double
from ..core.mixed import each_architecture
from ..core.networks import Networks
from ..core.spec import Count, Number, Range, Spec
from ..errors import ScaleGMNError
from ..nn.correction import Correction
from .trunk import EditingTrunk, Trunk, size, summary


class Metanetwork(nn.Module, ABC):
    """A network that reads networks: a trunk and a head. Several heads may share a trunk.

    Arguments:
        trunk: Of any method.

    >>> from scalegmn import Architecture, ScaleGMN
    >>> model = ScaleGMN([Architecture.mlp([2, 8, 1])], outputs=10, width=8)
    >>> print(model.reads(Architecture.mlp([2, 16, 1])))  # no reason not to read it
    None
    """

    def __init__(self, trunk: Trunk) -> None:
        super().__init__()
        self.trunk = trunk

    @property
    def architectures(self) -> tuple[Architecture, ...]:
        """Every architecture that it was built for."""
        return self.trunk.architectures

    def prepare(self, training: Sequence[Networks]) -> None:
        """Look at (a sample of) the training networks once before training, for input normalisation."""
        self.trunk.prepare(training)

    def reads(self, architecture: Architecture) -> str | None:
        """Why networks of an architecture cannot be read; None if they can, even if it is not in the list."""
        return self.trunk.reads(architecture)

    def accepts(self, networks: Networks) -> Networks:
        """Refuse networks that the model cannot read, or that have another type or device."""
        return self.trunk.accepts(networks)

    def __repr__(self) -> str:
        """One line per part instead of the whole tree."""
        groups = dict.fromkeys(str(g) for a in self.architectures for g in a.groups[1:-1])
        inputs = "; ".join(str(a) for a in self.architectures)
        lines = [f"inputs: {inputs}", f"groups: {', '.join(groups) or 'none'}", f"parameters: {size(self):,}"]
        return summary(self, lines)


class InvariantModel(Metanetwork, ABC):
    """One vector per network: `forward` gives (B, outputs), `embed` the vector before the last map.

    Arguments:
        trunk: Of any method.
        outputs: Width of the result.

    >>> from scalegmn import Architecture, ScaleGMN
    >>> a = Architecture.mlp([2, 8, 1])
    >>> model = ScaleGMN([a], outputs=10, width=8)
    >>> networks = Networks(a, torch.randn(5, a.parameters))
    >>> model(networks).shape, model.embed(networks).shape
    (torch.Size([5, 10]), torch.Size([5, 8]))
    """

    def __init__(self, trunk: Trunk, outputs: int) -> None:
        super().__init__(trunk)
        if outputs < 1:
            raise ScaleGMNError(f"outputs: expected at least 1, got {outputs}")
        self.pool = trunk.pooling()
        self.last = nn.Linear(self.pool.size, outputs)
        self.to(next(trunk.parameters()))

    def embed(self, networks: Networks | Sequence[Networks]) -> Tensor:
        """The invariant embedding (B, d), in the order of the input."""
        front = self.trunk.front
        # A module is a sequence of modules too: `front` complains about it as a whole.
        seen = front(networks) if isinstance(networks, Networks | nn.Module) else [front(batch) for batch in networks]
        found: Tensor = self.pool.finish(each_architecture(lambda batch: self.pool.one(self.trunk(batch)), seen))
        return found

    @abstractmethod
    def read(self, embedding: Tensor) -> Tensor:
        """The outputs (B, outputs) for embeddings (B, d)."""

    def forward(self, networks: Networks | Sequence[Networks]) -> Tensor:
        """One vector per network (B, outputs), in the order of the input."""
        return self.read(self.embed(networks))


class Classifier(InvariantModel):
    """Logits: one number per class and network.

    Arguments:
        trunk: Of any method.
        outputs: Number of classes.

    >>> from scalegmn.models.scalegmn import ScaleGMN
    >>> siren = Architecture.mlp([2, 8, 8, 1], "sine")
    >>> networks = Networks(siren, torch.randn(4, siren.parameters))
    >>> digits = Classifier(ScaleGMN([siren], width=16, layers=2), outputs=10)
    >>> digits(networks).shape, digits.embed(networks).shape
    (torch.Size([4, 10]), torch.Size([4, 16]))
    """

    def read(self, embedding: Tensor) -> Tensor:
        logits: Tensor = self.last(embedding)
        return logits


class Regressor(InvariantModel):
    """Numbers that describe a network, such as its test accuracy.

    Arguments:
        trunk: Of any method.
        outputs: Numbers per network.
        sigmoid: Whether to map them to (0, 1), for accuracies.

    >>> from scalegmn.models.peers.flat import FlatMLP
    >>> cnn = Architecture.cnn([1, 4], 10, "relu")
    >>> accuracy = Regressor(FlatMLP([cnn], width=16), sigmoid=True)
    >>> accuracy(Networks(cnn, torch.randn(4, cnn.parameters))).shape
    torch.Size([4, 1])
    """

    def __init__(self, trunk: Trunk, outputs: int = 1, *, sigmoid: bool = False) -> None:
        super().__init__(trunk, outputs)
        self.sigmoid = sigmoid

    def read(self, embedding: Tensor) -> Tensor:
        y: Tensor = self.last(embedding)
        return torch.sigmoid(y) if self.sigmoid else y


@dataclass(frozen=True, repr=False)
class EditorSpec(Spec):
    """The options of an `Editor`.

    Arguments:
        copies: Number of parameter sets per network, whose outputs are averaged.
        gamma: The initial step size.
        corrections: Number of Gauss-Newton steps before the edit, towards a learned wish for the outputs.
        points: Number of learned inputs for which there are wishes.

    >>> EditorSpec(copies=8)
    EditorSpec(copies=8)
    """

    copies: Count = 1
    gamma: Annotated[float, Range(0)] = 0.01
    corrections: Number = 0
    points: Count = 256


# Networks whose first edits are measured.
_SAMPLE = 32


class Editor(Metanetwork):
    r"""New networks from old: \(\theta' = \theta + \gamma u f(\theta)\), gamma learned per tensor of parameters.

    The constants u, measured on training networks, make the first edits small: a fraction gamma of every tensor's size.
    ScaleGMN in the paper's form has one gamma for all tensors, and u = 1.
    With `copies=k` it predicts k parameter sets for every network; their outputs are averaged (`render`). Paper, A.4.3;
    several copies are the output capacity expansion of later work. With `corrections` the edit is
    added to what Gauss-Newton steps have made of theta (`nn/correction.py`).

    Arguments:
        trunk: Of a method that edits.
        copies: Number of parameter sets per network.
        gamma: The initial value of every gamma.
        corrections: Number of Gauss-Newton steps before the edit.
        points: Number of learned inputs of these steps.

    >>> from scalegmn.models.scalegmn import ScaleGMN
    >>> siren = Architecture.mlp([2, 8, 8, 1], "sine")
    >>> dilate = Editor(ScaleGMN([siren], width=16, layers=2), copies=2)
    >>> len(dilate(Networks(siren, torch.randn(4, siren.parameters))))
    8
    """

    unit: Tensor

    def __init__(
        self, trunk: Trunk, *, copies: int = 1, gamma: float = 0.01, corrections: int = 0, points: int = 256
    ) -> None:
        super().__init__(trunk)
        if not isinstance(trunk, EditingTrunk):
            raise ScaleGMNError(f"model: {trunk.method.name!r} has no equivariant head, so it cannot edit")
        self.spec = EditorSpec(copies, gamma, corrections, points)
        self.measured = trunk.edits_in_units
        segments = max(len(a.segments) for a in self.architectures) if self.measured else 1
        self.gamma = nn.Parameter(torch.full((segments,), self.spec.gamma))
        self.register_buffer("unit", torch.ones(segments))
        self.write = trunk.writing(copies)
        self.correct = Correction(self.architectures, steps=corrections, points=points) if corrections else None
        self.to(next(trunk.parameters()))

    @property
    def copies(self) -> int:
        """Number of parameter sets per network."""
        return self.spec.copies

    def reads(self, architecture: Architecture) -> str | None:
        reason = super().reads(architecture)
        return self.correct.reads(architecture) if reason is None and self.correct is not None else reason

    def extra_repr(self) -> str:
        return f"copies: {self.copies}"

    @torch.no_grad()
    def prepare(self, training: Sequence[Networks]) -> None:
        """Prepare the trunk and measure the units of edits; constants commute with all symmetries."""
        self.trunk.prepare(training)
        if self.correct is not None:
            self.correct.measure(training)
        if not self.measured:
            return
        found: dict[int, list[Tensor]] = {}
        for networks in training:
            sample = networks[:_SAMPLE]
            sizes = [s.size for s in networks.architecture.segments]
            parts = zip(sample.parameters.split(sizes, -1), self.direction(sample).split(sizes, -1), strict=True)
            for i, (theta, change) in enumerate(parts):
                ratio = double(theta).square().mean().sqrt() / double(change).square().mean().sqrt()
                if ratio.isfinite() and ratio > 0:
                    found.setdefault(i, []).append(ratio)
        for i, ratios in found.items():
            self.unit[i] = torch.stack(ratios).log().mean().exp()

    def direction(self, networks: Networks) -> Tensor:
        """f(theta) as (B, copies, P) for a batch of one architecture; it is transformed like the parameters."""
        change: Tensor = self.write(self.trunk(self.trunk.front(networks)))
        return change

    def forward(self, networks: Networks) -> Networks:
        """New networks; with copies > 1, the copies of network i are at i * copies, ..."""
        direction = self.direction(networks)
        sizes = torch.tensor([s.size for s in networks.architecture.segments], device=networks.device)
        steps = self.gamma * self.unit
        gamma = steps[: len(sizes)].repeat_interleave(sizes) if self.measured else steps
        start = networks if self.correct is None else self.correct(networks)
        edited = start.parameters[:, None] + gamma * direction
        return networks.replace(edited.flatten(0, 1))

    def render(self, networks: Networks, x: Tensor) -> Tensor:
        """Outputs (B, N, n_L) of the edited networks on common inputs (N, n_0), averaged over copies."""
        y = self.forward(networks).evaluate(x)
        return y.reshape(len(networks), self.copies, *y.shape[1:]).mean(1)
