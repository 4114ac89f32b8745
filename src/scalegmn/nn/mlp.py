"""The multilayer perceptron used everywhere: one hidden layer, LayerNorm, SiLU."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from ..native.formula import NONE, Edge
from ..native.net import Ends, Gate, net
from .edges import laid


class LayerNorm(nn.LayerNorm):
    """LayerNorm with gradients that do not depend on the number of threads, unlike torch's own.

    >>> import torch
    >>> x = torch.randn(5, 8)
    >>> torch.allclose(LayerNorm(8)(x), nn.LayerNorm(8)(x), atol=1e-6)
    True
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        normal: Tensor = F.layer_norm(x, self.normalized_shape, eps=self.eps)
        return normal * self.weight + self.bias


class MLP(nn.Module):
    """Linear, LayerNorm, SiLU, dropout, Linear (paper, A.4.1).

    Arguments:
        inputs: Width of the input.
        outputs: Width of the output.
        hidden: Width of the hidden layer; that of the output if omitted.
        dropout: Probability of dropping a hidden unit.

    >>> import torch
    >>> MLP(3, 8)(torch.randn(5, 3)).shape
    torch.Size([5, 8])
    """

    def __init__(self, inputs: int, outputs: int, *, hidden: int | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        hidden = hidden or outputs
        self.first = nn.Linear(inputs, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(hidden, outputs)

    def hidden(self, x: Tensor) -> Tensor:
        """The hidden units before the last map."""
        h: Tensor = self.dropout(F.silu(self.norm(self.first(x))))
        return h

    def forward(self, x: Tensor) -> Tensor:
        """Apply to the last dimension."""
        y = net(None, self.gate(), Edge(x.reshape(x.shape[:-1].numel(), 1, 1, x.shape[-1])))
        return y.view(*x.shape[:-1], self.last.out_features)

    def on_edges(self, x: Edge, contexts: Sequence[Tensor] = (), *, reduce: int = NONE) -> Tensor:
        """The same for vectors on edges (B, n_t, n_s, k) and contexts that broadcast along them, or the sum at one end.

        The first map is applied to the vertices that contexts belong to, not to every edge.
        """
        if not contexts:
            return net(None, self.gate(), x, reduce=reduce)
        rest = [c.shape[-1] for c in contexts]
        first, *maps = self.first.weight.split([self.first.in_features - sum(rest), *rest], 1)
        along = (F.linear(c, m) for c, m in zip(contexts, maps, strict=True))
        target, source, more = laid(along, x.edges)
        return net(None, self.gate()._replace(first=first), x, Ends(target, source), more, reduce=reduce)

    def gate(self) -> Gate:
        """The net in the form that the operator takes."""
        norm, last = self.norm, self.last
        return Gate(
            *(self.first.weight, self.first.bias, norm.weight, norm.bias, last.weight, last.bias, norm.eps),
            drop=self.dropout.p if self.training else 0.0,
        )
