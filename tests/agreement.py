"""Whether a model and another way to compute it agree: values, and gradients at every parameter."""

from __future__ import annotations

import torch
from strategies import generator
from torch import Tensor, nn


def scramble(model: nn.Module) -> None:
    """Leave the initial parameters, whose zeros and ones could hide a mistake."""
    for i, p in enumerate(model.parameters()):
        p.data += 0.3 * torch.randn(p.shape, generator=generator(i), dtype=p.dtype)


def with_gradients(y: Tensor, model: nn.Module) -> list[Tensor]:
    """The answer, and the gradient of a random projection of it at every parameter."""
    model.zero_grad()
    (y * torch.randn(y.shape, generator=generator(3), dtype=torch.float64).to(y.dtype)).sum().backward()
    parameters = [p for p in model.parameters() if p.numel()]
    return [y.detach(), *(torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters)]


def disagreement(model: nn.Module, found: Tensor, expected: Tensor) -> float:
    """The largest relative error of values and of gradients."""
    ours, theirs = with_gradients(found, model), with_gradients(expected, model)
    largest = max(float(g.abs().max()) for g in theirs[1:])
    errors = [float((ours[0] - theirs[0]).abs().max() / theirs[0].abs().max())]
    # Gradients that cancel to rounding are measured by the largest gradient.
    errors += [
        float((a - b).abs().max()) / max(float(b.abs().max()), 1e-5 * largest)
        for a, b in zip(ours[1:], theirs[1:], strict=True)
    ]
    return max(errors)
