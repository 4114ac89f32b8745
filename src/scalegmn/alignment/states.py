"""Signatures of neurons that do not depend on their order: responses to fixed random inputs, and gradients.

The forward and backward pass of a network respect every symmetry: the post-activations of a neuron for some inputs
are multiplied by phi(q), the gradients at its pre-activation by 1 / q. At unit length only a sign remains of q.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.networks import Networks
from ..testing import random_inputs
from .structure import split, terms

_PROBES = 64
_PLACES = 16  # of each map
_FUNCTIONS = 4


@dataclass(frozen=True)
class Signatures:
    """Unit vectors of neurons; zero if a neuron's output never varies.

    Arguments:
        answers: Per layer (B, n, h), centred post-activations; multiplied by the sign of phi(q).
        gradients: Per layer (B, n, h), of random functions of the output; multiplied by the sign of q.
        sizes: Per layer (B, n, h), the sizes of incoming and outgoing weights; signs do not change them. They tell
            apart neurons whose output is constant.
    """

    answers: tuple[Tensor, ...]
    gradients: tuple[Tensor, ...]
    sizes: tuple[Tensor, ...]

    def at(self, rows: Tensor) -> Signatures:
        """Those of some of the networks."""
        return Signatures(*(tuple(x[rows] for x in part) for part in (self.answers, self.gradients, self.sizes)))


def default_inputs(networks: Networks, count: int = _PROBES) -> Tensor:
    """The same inputs in every run."""
    generator = torch.Generator().manual_seed(20240604)
    return random_inputs(networks.architecture, count, generator=generator).to(networks.device) / 2


def squared_gradients(networks: Networks, inputs: Tensor | None = None) -> Tensor:
    """How strongly each parameter (B, P) acts on the outputs: squared gradients of a few random functions of them.

    Arguments:
        networks: In float64.
        inputs: As in `Networks.evaluate`; random ones if omitted.
    """
    x = default_inputs(networks) if inputs is None else inputs
    draw = torch.Generator().manual_seed(7)
    parameters = networks.parameters.detach().clone().requires_grad_()
    found = torch.zeros_like(parameters)
    for _ in range(_FUNCTIONS):
        with torch.enable_grad():
            outputs = networks.replace(parameters).evaluate(x)
            direction = torch.randn(outputs.shape[1:], generator=draw, dtype=torch.float64).to(outputs)
            (slope,) = torch.autograd.grad((outputs * direction).sum(), parameters)
        found += slope.square()
    return found


def signatures(networks: Networks, inputs: Tensor | None = None) -> Signatures:
    """The states of all neurons.

    Arguments:
        networks: Balanced, in float64.
        inputs: As in `Networks.evaluate`; random ones if omitted.
    """
    x = default_inputs(networks) if inputs is None else inputs
    with torch.no_grad():
        posts = networks.responses(x).post
        answers = tuple(unit(centred_answers(p.expand(len(networks), *p.shape[1:]))) for p in posts)
        draw = torch.Generator().manual_seed(7)
        outputs = networks.architecture.layers[-1].size
        direction = torch.randn(1, posts[-1].shape[1], outputs, generator=draw, dtype=torch.float64)
        direction = direction.reshape(*direction.shape, *[1] * (posts[-1].dim() - 3)).to(posts[-1])
        gradients = tuple(unit(g.transpose(1, 2)) for g in networks.gradients(x, direction))
    return Signatures(answers, gradients, _sizes(networks))


def _sizes(networks: Networks) -> tuple[Tensor, ...]:
    """Per layer (B, n, h), the norms of each neuron's part of every tensor, relative to the layer's mean."""
    found: list[list[Tensor]] = [[torch.ones_like(networks.parameters[:, :1])] for _ in networks.architecture.layers]
    for term, x in zip(terms(networks.architecture), split(networks), strict=True):
        for end, layer in term.ends:
            rows = term.rows(x, end).norm(dim=2)
            found[layer].append(rows / rows.mean(1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny))
    return tuple(torch.stack([f.expand_as(rows[-1]) for f in rows], dim=2) for rows in found)


def centred_answers(post: Tensor) -> Tensor:
    """Centred post-activations (B, N, n, *spatial) as vectors (B, n, h), at some places of each map."""
    maps = post.flatten(3) if post.dim() > 3 else post[..., None]
    if maps.shape[3] > _PLACES:
        maps = maps[..., torch.linspace(0, maps.shape[3] - 1, _PLACES, device=post.device).long()]
    rows = maps.permute(0, 2, 1, 3).flatten(2)
    centred = rows - rows.mean(2, keepdim=True)
    # What is left of a neuron that always says the same is rounding.
    silent = centred.norm(dim=2, keepdim=True) <= 1e-9 * rows.norm(dim=2, keepdim=True)
    return torch.where(silent, 0.0, centred)


def unit(x: Tensor) -> Tensor:
    """Rows of length one; zero if there is nothing."""
    length = x.norm(dim=2, keepdim=True)
    return torch.where(length > 0, x / torch.where(length > 0, length, 1.0), 0.0)
