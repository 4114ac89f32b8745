"""Fitting without compiled code: groups of networks, gradients by autograd, and torch's own Adam."""

import torch
from torch import Tensor

from .conventions import BETA1, BETA2, EPSILON, LOOK_EVERY, Fit, FitResult, Inr

GROUP_BYTES = 8 * 2**20


def fit_group(fit: Fit, shape: Inr, points: Tensor, targets: Tensor, start: Tensor) -> FitResult:
    """Fit networks together, independently of each other.

    Arguments:
        fit: The settings.
        shape: Of the networks.
        points: Coordinates, (N, 2).
        targets: The wanted outputs of the last linear layer, (B, N, channels).
        start: Parameters, (B, P).
    """
    # A lone network goes twice: products of one matrix round differently from products of several.
    rows = torch.arange(len(targets)) if len(targets) > 1 else torch.zeros(2, dtype=torch.int64)
    targets, limit = targets[rows], fit.limit(len(points))
    leaves = [part.contiguous().requires_grad_() for part in shape.split(start.to(targets)[rows])]
    optimiser = torch.optim.Adam(leaves, lr=fit.lr, betas=(BETA1, BETA2), eps=EPSILON)
    done = FitResult(start.to(targets, copy=True), targets.new_empty(len(start)), torch.zeros(len(start)).long())
    going = torch.ones(len(rows), dtype=torch.bool)
    for step in range(limit + 1):
        error = (shape.evaluate(leaves, points) - targets).square().mean(dim=(1, 2))
        if step == limit or (fit.psnr is not None and step % LOOK_EVERY == 0):
            psnr = -10 * torch.log10(error.detach() / shape.convention.span**2)
            stops = going & ((psnr >= (fit.psnr or 0.0)) | (step == limit))
            done.parameters[rows[stops]] = torch.cat([leaf.detach().flatten(1) for leaf in leaves], dim=1)[stops]
            done.psnr[rows[stops]], done.steps[rows[stops]] = psnr[stops], step
            going &= ~stops
            if not going.any():
                break
        optimiser.zero_grad()
        # The mean over pixels and the sum over networks: each network gets the gradient of its own mean.
        error.sum().backward()
        optimiser.step()
    return done


def group_size(shape: Inr, points: int) -> int:
    """Networks fitted together on one thread: as many as fit the cache, from 8 to 128; it depends on sizes alone.

    >>> from scalegmn.zoo.inr.conventions import inr
    >>> group_size(inr(1), 28 * 28), group_size(inr(1), 8 * 8)
    (16, 128)
    """
    bytes_each = 4 * points * (2 * sum(shape.hidden) + max(shape.hidden))
    size = 8
    while size < 128 and 2 * size * bytes_each <= GROUP_BYTES:
        size *= 2
    return size
