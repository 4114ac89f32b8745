"""Training without compiled code: torch's convolutions, gradients by autograd, and torch's own optimisers.

The functions are those of `compiled`, with the same steps up to rounding.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from ...core.networks import Networks
from .shape import PAD, Cnn, Noise, Rule, noise_size


def descend(
    shape: Cnn, rule: Rule, parameters: Tensor, images: Tensor, labels: Tensor, chosen: Tensor, noise: Noise | None
) -> Tensor:
    """Train one network; see `compiled.descend`."""
    leaf = parameters.clone().requires_grad_()
    optimiser, decays = _optimiser(rule, leaf), _weights(shape).to(parameters)
    for step, rows in enumerate(chosen):
        uniform = None
        if noise is not None and rule.dropout:
            start = int(noise.starts[step])
            uniform = noise.pool[start : start + noise_size(shape, len(rows))]
        x = images[rows].to(parameters) * (2 / 255) - 1
        loss = F.cross_entropy(_logits(shape, leaf, x, rule.dropout, uniform), labels[rows])
        (gradient,) = torch.autograd.grad(loss + rule.l2 * (decays * leaf).square().sum(), leaf)
        norm = float(gradient.double().norm())
        # An infinite gradient says nothing: the step goes on with zero.
        finite = norm < float("inf")
        leaf.grad = gradient * (rule.clip / max(norm, rule.clip)) if finite else torch.zeros_like(gradient)
        optimiser.step()
    return leaf.detach()


@torch.no_grad()
def evaluate(shape: Cnn, parameters: Tensor, x: Tensor, labels: Tensor, *, batch: int = 256) -> tuple[Tensor, Tensor]:
    """Accuracy and mean cross-entropy of networks; see `compiled.evaluate`."""
    networks = Networks(shape.architecture, parameters)
    correct, loss = parameters.new_zeros(len(parameters)), parameters.new_zeros(len(parameters))
    for images, wanted in zip(x.to(parameters).split(batch), labels.split(batch), strict=True):
        logits = networks.evaluate(images)
        correct += (logits.argmax(2) == wanted).sum(1)
        truth = wanted.expand(len(parameters), -1)
        loss += F.cross_entropy(logits.flatten(0, 1), truth.flatten(), reduction="none").view_as(truth).sum(1)
    return correct / len(x), loss / len(x)


def _optimiser(rule: Rule, leaf: Tensor) -> torch.optim.Optimizer:
    if rule.optimiser == "adam":
        return torch.optim.Adam([leaf], lr=rule.learning_rate, eps=1e-7)
    if rule.optimiser == "rmsprop":
        return torch.optim.RMSprop([leaf], lr=rule.learning_rate, alpha=0.9, eps=1e-7)
    return torch.optim.SGD([leaf], lr=rule.learning_rate)


def _weights(shape: Cnn) -> Tensor:
    """1 for weights, which decay, and 0 for biases, (P,)."""
    found = torch.ones(shape.architecture.parameters)
    for segment in shape.architecture.segments:
        if segment.kind != "weight":
            found[segment.start : segment.start + segment.size] = 0
    return found


def _logits(shape: Cnn, row: Tensor, x: Tensor, dropout: float, uniform: Tensor | None) -> Tensor:
    """The logits (N, classes) of one network (P,); values whose random number is below the rate drop out."""
    parts = [row[s.start : s.start + s.size].view(s.shape) for s in shape.architecture.segments]
    for weight, bias, side in zip(parts[:-2:2], parts[1:-2:2], shape.sides[1:], strict=True):
        x = F.conv2d(x, weight.unflatten(2, (shape.kernel, shape.kernel)), bias, shape.stride)
        x = x.relu() if shape.activation == "relu" else x.tanh()
        if uniform is not None:
            width = -(-len(bias) // PAD) * PAD
            numbers = uniform[: len(x) * side * side * width].view(len(x), side, side, width)
            uniform = uniform[numbers.numel() :]
            x = x * (numbers[..., : len(bias)].movedim(3, 1) >= dropout) / (1 - dropout)
    return F.linear(x.mean((2, 3)), parts[-2].flatten(1), parts[-1])
