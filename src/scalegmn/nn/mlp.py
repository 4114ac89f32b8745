"""The multilayer perceptron used everywhere: one hidden layer, LayerNorm, SiLU."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from ..native import net as fused


class MLP(nn.Module):
    """Linear, LayerNorm, SiLU, dropout, Linear (paper, A.4.1).

    Arguments:
        inputs: Width of the input.
        outputs: Width of the output.
        hidden: Width of the hidden layer; that of the output where omitted.
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
        """What comes just before the last map."""
        h: Tensor = self.dropout(F.silu(self.norm(self.first(x))))
        return h

    def forward(self, x: Tensor) -> Tensor:
        """Apply to the last dimension."""
        if fused.usable(x):
            drop, seed = fused.dropout_seed(self.dropout.p, self.training)
            norm = self.norm.weight, self.norm.bias
            last = self.last.weight, self.last.bias
            gate = fused.Gate(self.first.weight, self.first.bias, *norm, *last, self.norm.eps, drop=drop, seed=seed)
            rows = fused.Rows(x.reshape(x.shape[:-1].numel(), 1, 1, x.shape[-1]))
            return fused.net(None, gate, rows).view(*x.shape[:-1], self.last.out_features)
        y: Tensor = self.last(self.hidden(x))
        return y
