"""Is the symmetry exact? All scalings of hidden neurons that leave the function alone are found, and no other.

For small changes of the logarithms of all multipliers, layer by layer and unrestricted, forward differentiation gives
the change of the parameters (a matrix D) and of the outputs (J). The scalings that preserve the function are those in
the kernel of J; what they do to the parameters is measured by D. The free variables of the architecture must span the
same.
"""

from __future__ import annotations

import pytest
import torch
from convert.gallery import GALLERY, Example, build
from torch import Tensor
from torch.autograd import forward_ad

from scalegmn.core.architecture import Architecture
from scalegmn.core.networks import Networks
from scalegmn.core.transform import Transform
from scalegmn.testing import random_networks

SMALL = 1e-12
# Left out: a relu6 that stays below 6 on all inputs is a relu, and the few relus of an excitation are often silent or
# fill its sigmoids; both then have factors that the function has not.
EXAMPLES = {name: example for name, example in GALLERY.items() if name not in ("MobileNetV2", "SE-ResNet")}


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
    return u[:, int((s > SMALL * s[0]).sum()) :].T


def drawn(a: Architecture, generator: torch.Generator, *, positive: bool) -> Networks:
    """A random network; where `positive`, whatever enters a relu is, so that all of them speak."""
    networks = random_networks(a, 1, generator=generator)
    for i, layer in enumerate(a.layers):
        if positive and layer.activation.name == "relu":
            for tensor in (networks.biases[i], *(networks.weights[c] for c in a.incoming[i])):
                if tensor is not None:
                    tensor.abs_()
    return networks


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_free_factors_are_all_that_preserve_the_function(example: Example) -> None:
    a = Networks.from_modules(build(example, 1)).architecture
    generator = torch.Generator().manual_seed(3)
    x = example.moved(example.inputs(80, generator))
    free = variables(a)
    # A neuron that never speaks, and a sigmoid that is full, may have any factor: chance adds, and never takes away.
    for positive in (False, True):
        d, j = responses(drawn(a, generator, positive=positive), x)
        found = rank(kernel(j) @ d)
        if len(free):
            assert (free @ j).abs().max() < 1e-11 * j.abs().max().clamp(min=1)
            assert rank(free[1:] @ d) < found  # a negative control: one of them held fixed
        if found == rank(free @ d):
            return
    raise AssertionError(f"{found} factors preserve the function, {rank(free @ d)} are known")
