"""Networks as linear functions of their parameters, near where they are: products with the Jacobian, its kernel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.architecture import Architecture, Attention, Linear, Product, Segment, Table
from ..core.evaluate import input_dimensions, respond, respond_with_gradients
from ..core.networks import Networks


def moves(architecture: Architecture, segment: Segment) -> bool:
    """Whether a part of the parameters is changed: the weights of linear connections, and biases."""
    if segment.kind == "weight":
        return isinstance(architecture.connections[segment.index].map, Linear)
    return segment.kind == "bias"


def curved(architecture: Architecture) -> str | None:
    """Why there is no `Tangent` for networks of an architecture; None if there is."""
    a = architecture
    if input_dimensions(a) or a.spatial or any(c.kernel_size > 1 for c in a.connections):
        return "layers with space"
    if any(isinstance(layer.combine, Product | Attention) for layer in a.layers):
        return "products or attention"
    if any(isinstance(c.map, Table) for c in a.connections):
        return "tables"
    return "shared parameters" if a.shared else None


@dataclass(frozen=True)
class OutputRows:
    """Every output at every point: rows (output, point), the points repeated for each output.

    Arguments:
        points: Inputs (P, n_0).
        outputs: Number of outputs c.

    >>> rows = OutputRows(torch.rand(5, 2), 3)
    >>> rows.inputs.shape, rows.cotangent.shape
    (torch.Size([1, 15, 2]), torch.Size([1, 15, 3]))
    """

    points: Tensor
    outputs: int

    @property
    def inputs(self) -> Tensor:
        """The input of every row (1, P c, n_0)."""
        return self.points.repeat(self.outputs, 1)[None]

    @property
    def cotangent(self) -> Tensor:
        """Which output a row is (1, P c, c)."""
        one = torch.eye(self.outputs, dtype=self.points.dtype, device=self.points.device)
        return one.repeat_interleave(len(self.points), 0)[None]

    def of(self, networks: Networks) -> Tensor:
        """The outputs of networks in rows (B, P c)."""
        post = respond(networks.architecture, networks.views, self.points[None]).post[-1]
        return post.expand(len(networks), -1, -1).transpose(1, 2).flatten(1)


@dataclass(frozen=True)
class Tangent:
    r"""How rows of outputs change with the weights and biases: \(dy = J d\theta\), J never written down.

    With gradients \(\delta\) at pre-activations and the sources' post-activations a, a row of J is
    \(\delta_t \otimes g a_s\) for weights with gain g, and \(\delta_t\) for biases. So
    \(J M J^\top = \sum_t \delta_t \delta_t^\top \odot (\sum_s m_s g^2 a_s a_s^\top + m_t)\) with one number m for every
    tensor of parameters (Jacot et al., Neural Tangent Kernel, NeurIPS 2018).

    Arguments:
        architecture: Of the networks.
        outputs: Rows y of the networks (B, R).
        sources: Per layer, post-activations (B, R, n).
        gradients: Per layer, gradients at pre-activations (B, R, n).

    >>> a = Architecture.mlp([2, 8, 1], "tanh")
    >>> networks = Networks(a, torch.randn(3, a.parameters, dtype=torch.float64))
    >>> tangent = Tangent.at(networks, OutputRows(torch.rand(5, 2, dtype=torch.float64), 1))
    >>> ones = torch.ones(len(a.segments), dtype=torch.float64)
    >>> row = torch.ones(3, 5, dtype=torch.float64)
    >>> torch.allclose(tangent.push(tangent.pull(row)), (tangent.kernel(ones) @ row[..., None])[..., 0])
    True
    """

    architecture: Architecture
    outputs: Tensor
    sources: tuple[Tensor, ...]
    gradients: tuple[Tensor, ...]

    @staticmethod
    def at(networks: Networks, rows: OutputRows) -> Tangent:
        """Linearise networks where they are."""
        a, cotangent = networks.architecture, rows.cotangent
        r, gradients = respond_with_gradients(a, networks.views, rows.inputs, cotangent)
        y = (r.post[-1] * cotangent).sum(-1)
        # A layer without incoming connections is the same for all networks.
        sources = tuple(x.expand(len(networks), cotangent.shape[1], -1) for x in r.post)
        return Tangent(a, y, sources, gradients)

    def pull(self, alpha: Tensor) -> Tensor:
        """From rows (B, R) to parameters (B, P): the product of J transposed with alpha, 0 where none move."""
        a = self.architecture
        alpha = alpha[..., None]
        deltas = {t: alpha * self.gradients[t] for t in {a.owner(s) for s in a.segments if moves(a, s)}}
        parts = []
        for s in a.segments:
            if not moves(a, s):
                parts.append(alpha.new_zeros(len(alpha), s.size))
            elif s.kind == "bias":
                parts.append(deltas[s.index].sum(1))
            else:
                c = a.connections[s.index]
                parts.append(c.gain * (deltas[c.target].mT @ self.sources[c.source]).flatten(1))
        return torch.cat(parts, 1)

    def push(self, change: Tensor) -> Tensor:
        """From a change of parameters (B, P) to that of rows (B, R): its product with J."""
        a, moved = self.architecture, Networks(self.architecture, change)
        total = torch.zeros_like(self.outputs)
        for t in range(1, len(a.layers)):
            pre: Tensor | None = None
            for s in (s for s in a.segments if a.owner(s) == t and moves(a, s)):
                given = (moved.biases if s.kind == "bias" else moved.weights)[s.index]
                assert given is not None
                term = given[:, None] if s.kind == "bias" else self._term(s.index, given.flatten(2))
                pre = term if pre is None else pre + term
            if pre is not None:
                total = total + (pre * self.gradients[t]).sum(-1)
        return total

    def _term(self, connection: int, change: Tensor) -> Tensor:
        c = self.architecture.connections[connection]
        found: Tensor = c.gain * (self.sources[c.source] @ change.mT)
        return found

    def diagonal(self, metric: Tensor) -> Tensor:
        """The diagonal (B, R) of the kernel, differentiable."""
        total = torch.zeros_like(self.outputs)
        for t in range(1, len(self.architecture.layers)):
            weights = [(m, x.square().sum(-1)) for m, x in self._entering(t, metric)]
            if weights:
                size = sum((m * x for m, x in weights), start=torch.zeros_like(weights[0][1]))
                total = total + self.gradients[t].square().sum(-1) * size
        return total

    @torch.no_grad()
    def kernel(self, metric: Tensor) -> Tensor:
        """The product of J, the diagonal matrix of the metric (segments,), and J transposed, (B, R, R)."""
        batch, rows = self.outputs.shape
        found = self.outputs.new_zeros(batch, rows, rows)
        for t in range(1, len(self.architecture.layers)):
            entering = [m.sqrt() * x for m, x in self._entering(t, metric)]
            if entering:
                self._add(found, self.gradients[t], torch.cat(entering, -1))
        return found

    def _add(self, found: Tensor, delta: Tensor, features: Tensor) -> None:
        """Add the kernel of one layer, network by network: a few matrices (R, R) at a time stay in the cache."""
        thin = delta.shape[-1] * features.shape[-1] <= delta.shape[-1] + features.shape[-1]
        for into, d, f in zip(found, delta, features, strict=True):
            if thin:
                row = (d[:, :, None] * f[:, None]).flatten(1)
                into.addmm_(row, row.mT)
            else:
                into.addcmul_(d @ d.mT, f @ f.mT)

    def _entering(self, layer: int, metric: Tensor) -> list[tuple[Tensor, Tensor]]:
        """What the moving parameters of a layer multiply, each with its number of the metric."""
        a, found = self.architecture, []
        for i, s in enumerate(a.segments):
            if a.owner(s) == layer and moves(a, s):
                if s.kind == "bias":
                    found.append((metric[i], torch.ones_like(self.gradients[layer][..., :1])))
                else:
                    c = a.connections[s.index]
                    found.append((metric[i], c.gain * self.sources[c.source]))
        return found
