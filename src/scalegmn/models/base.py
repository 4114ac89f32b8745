"""What every metanetwork is: invariant models give one vector per network, editors give new networks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..core.architecture import Architecture
from ..core.doubles import double
from ..core.networks import Networks, each_architecture, expect_networks
from ..errors import ScaleGMNError
from .reach import strange


class Metanetwork(nn.Module, ABC):
    """A network that reads networks of known architectures.

    Arguments:
        architectures: Every architecture it will meet; sizes that must be fixed come from this list.
    """

    def __init__(self, architectures: Sequence[Architecture]) -> None:
        super().__init__()
        if isinstance(architectures, Architecture):
            raise ScaleGMNError(f"architectures: expected a list of them, got one, {architectures}; put it in a list")
        if not architectures:
            raise ScaleGMNError("architectures: expected at least one, got none")
        self.architectures = tuple(dict.fromkeys(architectures))

    def prepare(self, training: Sequence[Networks]) -> None:
        """See (a sample of) the training networks once before training, for input normalisation."""

    def reads(self, architecture: Architecture) -> str | None:
        """Why networks of an architecture cannot be read; None where they can, also if it is not in the list."""
        return None if architecture in self.architectures else strange(architecture, self.architectures)

    def accepts(self, networks: Networks) -> Networks:
        """Complain about networks that the model cannot read, and about another type or device."""
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
        groups = dict.fromkeys(str(g) for a in self.architectures for g in a.groups[1:-1])
        inputs = "; ".join(str(a) for a in self.architectures)
        return f"inputs: {inputs}\ngroups: {', '.join(groups) or 'none'}\nparameters: {_parameters(self):,}"

    def __repr__(self) -> str:
        """One line per part instead of the whole tree."""
        lines = self.extra_repr().splitlines()
        for name, part in self.named_children():
            more = f"{len(part)} x {type(part[0]).__name__}" if isinstance(part, nn.ModuleList) else part.extra_repr()
            kind = type(part).__name__
            what = f"{kind}({more})" if more else kind
            lines.append(f"{name}: {what}, {_parameters(part):,} parameters")
        return "\n  ".join([f"{type(self).__name__}(", *lines]) + "\n)"


def _parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


class InvariantModel(Metanetwork, ABC):
    """One vector per network: `forward` gives (B, outputs), `embed` what comes just before the last map."""

    @abstractmethod
    def embed_one(self, networks: Networks) -> Tensor:
        """Vectors (B, d) of a batch of one architecture: the invariant embedding, or what `finish` makes it from."""

    def finish(self, found: Tensor) -> Tensor:
        """The invariant embedding of a whole batch, whatever its architectures: batch statistics belong here."""
        return found

    @abstractmethod
    def read(self, embedding: Tensor) -> Tensor:
        """The outputs (B, outputs) that belong to embeddings (B, d)."""

    def embed(self, networks: Networks | Sequence[Networks]) -> Tensor:
        """The invariant embedding (B, d), in the order of the input."""
        return self.finish(each_architecture(lambda batch: self.embed_one(self.accepts(batch)), networks))

    def forward(self, networks: Networks | Sequence[Networks]) -> Tensor:
        """One vector per network (B, outputs), in the order of the input."""
        return self.read(self.embed(networks))


# Networks whose first edits are measured.
_SAMPLE = 32


class Editor(Metanetwork, ABC):
    r"""New networks from old: \(\theta' = \theta + \gamma u f(\theta)\), gamma learned per tensor of parameters.

    The constants u, taken from training networks, make the first edits small: a share gamma of every tensor's size.
    With `copies=k` it predicts k parameter sets for every network; their outputs are averaged (`render`).

    Arguments:
        architectures: As in `Metanetwork`.
        gamma: The initial value of every gamma.
        copies: Number of parameter sets per network.
    """

    unit: Tensor

    def __init__(self, architectures: Sequence[Architecture], *, gamma: float = 0.01, copies: int = 1) -> None:
        super().__init__(architectures)
        self.copies = copies
        segments = max(len(a.segments) for a in self.architectures)
        self.gamma = nn.Parameter(torch.full((segments,), gamma))
        self.register_buffer("unit", torch.ones(segments))

    @torch.no_grad()
    def prepare(self, training: Sequence[Networks]) -> None:
        """Take the units in which edits are measured; constants commute with all symmetries."""
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

    @abstractmethod
    def direction(self, networks: Networks) -> Tensor:
        """f(theta) as (B, copies, P) for a batch of one architecture, moving as the parameters do."""

    def forward(self, networks: Networks) -> Networks:
        """New networks; with copies > 1, the copies of network i are at i * copies, ..."""
        self.accepts(networks)
        sizes = torch.tensor([s.size for s in networks.architecture.segments], device=networks.device)
        gamma = (self.gamma * self.unit)[: len(sizes)].repeat_interleave(sizes)
        edited = networks.parameters[:, None] + gamma * self.direction(networks)
        if self.copies == 1:
            return networks.replace(edited[:, 0])
        return Networks(networks.architecture, edited.flatten(0, 1))

    def render(self, networks: Networks, x: Tensor) -> Tensor:
        """Outputs (B, N, n_L) of the edited networks on common inputs (N, n_0), averaged over copies."""
        y = self.forward(networks).evaluate(x)
        return y.reshape(len(networks), self.copies, *y.shape[1:]).mean(1)
