"""Is the symmetry exact? All factors of hidden neurons that leave the function alone are found, and no other.

Positive factors: for small changes of the logarithms of all multipliers, layer by layer and unrestricted, forward
differentiation gives the change of the parameters (a matrix D) and of the outputs (J). The factors that preserve the
function are those in the kernel of J; what they do to the parameters is measured by D. The free variables of the
architecture must span the same. Signs: in tiny networks all of them are tried.
"""

from __future__ import annotations

import pytest
import torch
from convert.gallery import GALLERY, Example, build
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F

from scalegmn.core.architecture import Architecture
from scalegmn.core.evaluate import input_dimensions
from scalegmn.core.networks import Networks
from scalegmn.core.transform import Transform
from scalegmn.testing import random_networks

# Singular values relative to the largest are rounding below the first number, and there must be none between the two.
SMALL, LARGE = 1e-13, 1e-9


def responses(networks: Networks, x: Tensor) -> tuple[Tensor, Tensor]:
    """What each hidden neuron's multiplier changes in the parameters (neurons, P) and in the outputs (neurons, M)."""
    a = networks.architecture
    sizes = [layer.size for layer in a.layers[1:-1]]
    count = sum(sizes)
    copies = Networks(a, networks.parameters[:1].expand(count, -1))
    still = Transform.identity(a, count)
    with forward_ad.dual_level():
        logs = forward_ad.make_dual(torch.zeros(count, count).double(), torch.eye(count).double())
        hidden = [s.exp() for s in logs.split(sizes, dim=1)]
        g = Transform(a, still.permutations, (still.scales[0], *hidden, still.scales[-1]))
        moved = g.apply(copies)
        d = forward_ad.unpack_dual(moved.parameters).tangent
        j = forward_ad.unpack_dual(moved.evaluate(x)).tangent
    return d.flatten(1), j.flatten(1)


def variables(a: Architecture) -> Tensor:
    """Per free variable and neuron of it, the exponents of all hidden neurons (variables, neurons)."""
    found: dict[tuple[int, int], dict[int, float]] = {}
    start = 0
    for layer, blocks in list(zip(a.layers, a.blocks, strict=True))[1:-1]:
        for b in blocks:
            for v, power in b.scales:
                for i in range(b.size):
                    found.setdefault((v, i), {})[start + b.start + i] = power
        start += layer.size
    rows = torch.zeros(len(found), start, dtype=torch.float64)
    for row, powers in zip(rows, found.values(), strict=True):
        for neuron, power in powers.items():
            row[neuron] = power
    return rows


def rank(matrix: Tensor) -> int:
    """The number of singular values that are not zero."""
    return int((torch.linalg.svdvals(matrix) > 1e-9).sum()) if len(matrix) else 0


def kernel(matrix: Tensor) -> Tensor:
    """The rows v with v @ matrix = 0, as an orthonormal basis."""
    u, s, _ = torch.linalg.svd(matrix, full_matrices=True)
    size = s / s[0] if s[0] > LARGE else torch.zeros_like(s)
    assert not bool(((size > SMALL) & (size < LARGE)).any()), "the count depends on what counts as zero"
    return u[:, int((size > SMALL).sum()) :].T


def lively(a: Architecture, x: Tensor, generator: torch.Generator) -> Networks:
    """A random network in which every neuron is negative on about half of the inputs, and every relu6 full on some.

    Elsewhere chance gives factors that the function has not: a relu that never speaks may have any, and so may a relu6
    that never reaches 6, since it is a relu then.
    """
    networks = random_networks(a, 1, generator=generator)

    def before(i: int) -> Tensor:
        return networks.responses(x).pre[i][0].movedim(1, 0).flatten(1)

    for i, bias in enumerate(networks.biases[:-1]):
        if bias is None:
            continue
        width, middle = (6.0, 3.0) if a.layers[i].activation.name == "relu6" else (1.0, 0.0)
        size = width / before(i).std(1)
        for weight in (networks.weights[c] for c in a.incoming[i]):
            if weight is not None:
                weight.mul_(size.view(1, -1, *[1] * (weight.dim() - 2)))
        bias.add_(middle - before(i).median(1).values)
    return networks


@pytest.mark.parametrize("example", GALLERY.values(), ids=GALLERY)
def test_free_factors_are_all_that_preserve_the_function(example: Example) -> None:
    a = Networks.from_modules(build(example, 1)).architecture
    generator = torch.Generator().manual_seed(3)
    one = example.moved(example.inputs(1, generator))
    answers = random_networks(a, 1, generator=generator).evaluate(one).numel()
    neurons = sum(layer.size for layer in a.layers[1:-1])
    x = example.moved(example.inputs(max(24, 2 * neurons // answers), generator))
    free = variables(a)
    d, j = responses(lively(a, x, generator), x)
    if len(free):
        assert (free @ j).abs().max() < 1e-11 * j.abs().max().clamp(min=1)
        assert rank(free[1:] @ d) < rank(free @ d)  # a negative control: one of them held fixed
    assert rank(kernel(j) @ d) == rank(free @ d)


class Attended(nn.Module):
    """One head of two channels on one residual stream of two."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.out = nn.Linear(2, 2), nn.Linear(2, 6), nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        q, k, v = self.qkv(x).split(2, dim=-1)
        return self.out(x + F.scaled_dot_product_attention(q, k, v))


class Gate(nn.Module):
    """The product of two linear maps, behind a tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(2, 3), nn.Linear(2, 3), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.tanh(self.a(x) * self.b(x)))


class Cosine(nn.Module):
    """An even function: the sign of what it reads is free, what it gives has none."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cos(x)


TINY: dict[str, tuple[nn.Module, int]] = {
    "tanh": (nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1)), 0),
    "relu": (nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1)), 0),
    "cosine": (nn.Sequential(nn.Linear(2, 3), Cosine(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1)), 0),
    "product": (Gate(), 0),
    "attention": (Attended(), 0),
    "RMSNorm": (nn.Sequential(nn.Linear(2, 3), nn.RMSNorm(3), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1)), 0),
    # What is left out: all signs of a group at once.
    "LayerNorm": (nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1)), 1),
    "GroupNorm": (nn.Sequential(nn.Conv1d(2, 4, 1), nn.GroupNorm(2, 4), nn.Tanh(), nn.Conv1d(4, 1, 1)), 2),
}


@pytest.mark.parametrize(("module", "left_out"), TINY.values(), ids=TINY)
def test_signs_are_all_that_preserve_the_function(module: nn.Module, left_out: int) -> None:
    a = Networks.from_modules([module.double()]).architecture
    generator = torch.Generator().manual_seed(0)
    sizes = [layer.size for layer in a.layers[1:-1]]
    count = sum(sizes)
    signs = 1.0 - 2.0 * torch.cartesian_prod(*[torch.tensor([0.0, 1.0]).double()] * count)
    networks = random_networks(a, 1, generator=generator)
    x = torch.randn(10, 2, *[3] * input_dimensions(a), generator=generator, dtype=torch.float64)
    still = Transform.identity(a, len(signs))
    moved = Transform(a, still.permutations, (still.scales[0], *signs.split(sizes, dim=1), still.scales[-1])).apply(
        Networks(a, networks.parameters.expand(len(signs), -1))
    )
    same = (moved.evaluate(x) - networks.evaluate(x)).abs().flatten(1).amax(1) < 1e-9
    # Signs that change no parameter are not counted.
    different = len(moved.parameters[same].unique(dim=0))
    free = {(v, i) for layer in a.blocks for b in layer for v in b.signs for i in range(b.size)}
    assert different == 2 ** (len(free) + left_out)
