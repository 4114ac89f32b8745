"""Preparing networks for few bits: moved along the scaling symmetry to where rounding changes the outputs least."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.mixed import expect_networks
from ..core.networks import Networks
from ..core.transform import Transform
from .scales import least_noise
from .states import default_inputs
from .structure import joined, split, terms


@dataclass(frozen=True)
class Balance:
    """Balanced networks, and the effect, for each of B networks.

    Arguments:
        networks: The same functions, with the same names and type.
        transform: The symmetry that was applied; only scales.
        imbalance: Before and after (B,): the bits that a neuron's weights waste on average, because the step of a
            tensor is set by its largest entry.
        int8: Before and after (B,): the relative error of the outputs when each weight tensor is rounded to 8 bits;
            None unless requested.
    """

    networks: Networks
    transform: Transform
    imbalance: tuple[Tensor, Tensor]
    int8: tuple[Tensor, Tensor] | None


def balance(networks: Networks, *, int8: bool = False, inputs: Tensor | None = None) -> Balance:
    """The member of the orbit whose outputs change least when each weight tensor is rounded with one step.

    Cross-layer equalisation (Nagel et al. 2019) makes the largest weights into and out of every neuron equal, and so
    gives neurons that hardly matter as many bits as the others. Here a model of the rounding noise is minimised
    (`scales.least_noise`). Neither needs data, though the model is better with them. Layers without positive scales
    stay as they are.

    Arguments:
        networks: Any.
        int8: Also measure how rounding to 8 bits per weight, one step per tensor, changes the outputs.
        inputs: At which the outputs may change, as in `Networks.evaluate`; random ones if omitted.

    >>> from scalegmn import Architecture
    >>> a = Networks(Architecture.mlp([1, 2, 1], "relu", bias=False), torch.tensor([[8.0, 0.125, 0.5, 32.0]]))
    >>> balance(a).networks.parameters
    tensor([[2., 2., 2., 2.]])
    """
    expect_networks(networks)
    exact = networks.detach().to(dtype=torch.float64)
    x = default_inputs(exact) if inputs is None else inputs
    found = least_noise(exact, x)
    transform = Transform(found.architecture, found.permutations, tuple(s.abs() for s in found.scales))
    moved = transform.apply(exact)
    after = networks.replace(moved.parameters.to(networks.dtype))
    errors = None
    if int8:
        errors = rounding_error(exact, x), rounding_error(moved, x)
    return Balance(after, transform, (imbalance(exact), imbalance(moved)), errors)


def quantised(networks: Networks, bits: int = 8) -> Networks:
    """Networks whose weight tensors are rounded to a few bits, symmetric, one step per tensor.

    Tensors with one number per neuron (biases, gains) stay unchanged.

    Arguments:
        networks: Any.
        bits: Per weight.
    """
    rounded = []
    for term, x in zip(terms(networks.architecture), split(networks), strict=True):
        if term.matrix:
            step = x.abs().flatten(1).amax(1) / (2 ** (bits - 1) - 1)
            step = torch.where(step > 0, step, 1.0).reshape(-1, *[1] * (x.dim() - 1))
            x = (x / step).round() * step
        rounded.append(x)
    return networks.replace(joined(networks.architecture, rounded).parameters)


def rounding_error(networks: Networks, inputs: Tensor, bits: int = 8) -> Tensor:
    """How much rounding changes the outputs (B,), relative to their size.

    Arguments:
        networks: Any.
        inputs: As in `Networks.evaluate`.
        bits: Per weight.
    """
    with torch.no_grad():
        right, wrong = (n.evaluate(inputs).flatten(1) for n in (networks, quantised(networks, bits)))
    size = right.norm(dim=1)
    error: Tensor = (wrong - right).norm(dim=1) / torch.where(size > 0, size, 1.0)
    return error


def imbalance(networks: Networks) -> Tensor:
    """The mean of log2(range of tensor / range of the neuron's part of it), over hidden neurons and their tensors."""
    a = networks.architecture
    found = []
    for term, x in zip(terms(a), split(networks), strict=True):
        if not term.matrix:
            continue
        for end, layer in term.ends:
            if a.roles[layer] == "hidden":
                part = term.rows(x, end).abs().amax(2)
                lost = part.amax(1, keepdim=True).log2() - part.log2()
                found.append(torch.where(part > 0, lost, 0.0))
    nothing = networks.parameters.new_zeros(len(networks), 1)
    return torch.cat(found or [nothing], dim=1).mean(1)
