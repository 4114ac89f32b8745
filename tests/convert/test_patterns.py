"""Small forwards that meet every corner of the tracer, in float64: same function, same after a symmetry, and back."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalegmn.core.networks import Networks
from scalegmn.core.transform import Transform


class Parts(nn.Module):
    """Layers to combine: vectors of 4, images of 2 x 6 x 6, signals of 3 x 10."""

    def __init__(self, forward: Callable[[Parts, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.c, self.out = (
            nn.Linear(4, 4),
            nn.Linear(4, 4),
            nn.Linear(4, 4, bias=False),
            nn.Linear(4, 2),
        )
        self.one, self.pixels, self.pair = nn.Linear(4, 1), nn.Linear(72, 4), nn.Linear(2, 4)
        self.conv, self.conv2, self.point = (
            nn.Conv2d(2, 4, 3, 1, 1),
            nn.Conv2d(4, 4, 3, 1, 1, bias=False),
            nn.Conv2d(4, 4, 1),
        )
        self.flat, self.flat9, self.signal = nn.Linear(4 * 36, 3), nn.Linear(4 * 9, 3), nn.Conv1d(3, 4, 3)
        self.bn, self.bn1 = nn.BatchNorm2d(4), nn.BatchNorm1d(4)
        self.norm, self.norm2 = nn.LayerNorm(4), nn.LayerNorm(4, bias=False)
        self.phase, self.maps = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4, 1, 1))
        self.slope, self.drop = nn.Parameter(torch.tensor([0.3])), nn.Dropout()
        self.relu = nn.ReLU(inplace=True)
        self.function = forward
        nn.init.normal_(self.norm2.weight)
        for norm in (self.bn, self.bn1):
            assert norm.running_mean is not None
            assert norm.running_var is not None
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


Forward = Callable[[Parts, Tensor], Tensor]
VECTOR, IMAGE, SIGNAL = (4,), (2, 6, 6), (3, 10)


def doubled(z: Tensor) -> Tensor:
    return z + z


def twice(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda z: z + f(z)


def reshaped(z: Tensor, in_place: nn.Module, last: nn.Module) -> Tensor:
    """The shape is asked before z changes, and used after."""
    count = z.shape[0]
    return cast(Tensor, last(in_place(z).view(count, -1)))


# Forward, shape of the input, groups of the layers (1 trivial, S sign, + positive, * non-zero).
PATTERNS: dict[str, tuple[Forward, tuple[int, ...], str]] = {
    "activation after flatten": (lambda m, x: m.flat(F.relu(m.conv(x).flatten(1))), IMAGE, "1+1"),
    "a sum with itself": (lambda m, x: m.out(doubled(m.a(x)).relu()), VECTOR, "1++1"),
    "factor and sum": (lambda m, x: m.out(F.relu(F.relu(m.a(x)) * 0.5 + m.b(x))), VECTOR, "1++1"),
    "residual to the output": (lambda m, x: x + m.b(m.a(x).relu()), VECTOR, "1+1"),
    "activation of an image": (lambda m, x: m.flat(m.conv(torch.tanh(x)).sigmoid().flatten(1)), IMAGE, "1111"),
    "pooled input": (lambda m, x: m.flat9(m.conv(F.max_pool2d(x, 2)).tanh().flatten(1)), IMAGE, "1S1"),
    "mean of the input": (lambda m, x: m.out(m.pair(x.mean((2, 3))).tanh()), IMAGE, "1S1"),
    "maximum of the input": (lambda m, x: m.out(m.pair(x.amax((2, 3))).tanh()), IMAGE, "1S1"),
    "output that is read": (lambda m, x: twice(m.b)(m.a(x).tanh()), VECTOR, "111"),
    "phase beside a bias": (lambda m, x: m.out(torch.sin(3 * m.a(x) + m.phase)), VECTOR, "1SS1"),
    "phase": (lambda m, x: m.out(torch.sin(m.c(x) * 3 + m.phase)), VECTOR, "1S1"),
    "phase inside": (lambda m, x: m.out(torch.sin(3 * (m.c(x) + m.phase))), VECTOR, "1S1"),
    "one minus": (lambda m, x: 1 - torch.sigmoid(m.out(m.a(x).tanh())), VECTOR, "1S11"),
    "batch norm with a gain": (lambda m, x: m.out(F.relu(m.bn(m.conv(2 * x))).mean([-1, -2])), IMAGE, "1+1"),
    "batch norm after a bias": (
        lambda m, x: m.out(F.relu(m.bn(m.conv2(m.conv(x).tanh()) + m.maps)).mean([-1, -2])),
        IMAGE,
        "1S+1",
    ),
    "batch norm of signals": (lambda m, x: m.out(F.relu(m.bn1(m.signal(x))).mean(-1)), SIGNAL, "1+1"),
    "squeezes": (lambda m, x: m.out(F.adaptive_avg_pool2d(m.conv(x).relu(), 1).squeeze(-1).squeeze(-1)), IMAGE, "1+1"),
    "indices": (lambda m, x: m.out(F.adaptive_avg_pool2d(m.conv(x).relu(), 1)[:, :, 0, 0]), IMAGE, "1+1"),
    "kept dimensions": (
        lambda m, x: m.out(m.point(m.conv(x).relu().mean((2, 3), keepdim=True)).tanh().flatten(1)),
        IMAGE,
        "1+S1",
    ),
    "three branches": (lambda m, x: m.out(m.a(x).relu() + m.b(x).relu() + m.c(x).relu()), VECTOR, "1++++1"),
    "normalised branch": (lambda m, x: m.out(twice(lambda z: m.b(m.norm(z)).relu())(m.a(x))), VECTOR, "11*111"),
    "normalised input": (lambda m, x: m.out(m.norm2(x)), VECTOR, "1*1"),
    "normalised activation": (lambda m, x: m.out(m.norm(m.a(x).relu())), VECTOR, "11*1"),
    "normalised times": (lambda m, x: m.out((2 * m.norm2(m.a(x))).relu()), VECTOR, "11+1"),
    "less the normalised": (lambda m, x: m.out((m.a(x) - m.norm2(x)).relu()), VECTOR, "1+1"),
    "roots without an eps": (lambda m, x: m.out(F.rms_norm(m.a(1e-4 * x), (4,)).relu()), VECTOR, "1111"),
    "normalised affine": (lambda m, x: m.out(m.norm(0.5 * m.a(x) + 1).relu()), VECTOR, "111+1"),
    "softmax of the input": (lambda m, x: m.out(m.a(F.softmax(x, dim=1)).relu()), VECTOR, "11+1"),
    "softmax of channels": (lambda m, x: m.flat(m.conv(x.softmax(1)).relu().flatten(1)), IMAGE, "11+1"),
    "view of neurons": (lambda m, x: m.out(m.a(x).relu().view(-1, 4)), VECTOR, "1+1"),
    "transposition by name": (lambda m, x: m.out((x @ m.c.weight.transpose(dim0=-1, dim1=0)).relu()), VECTOR, "1+1"),
    "softmax inside": (lambda m, x: m.out(m.a(x).softmax(-1)), VECTOR, "111"),
    "dropout before relu": (lambda m, x: m.out(m.drop(m.a(x)).relu()), VECTOR, "1+1"),
    "in place": (lambda m, x: m.out(operator.iadd(m.drop(m.a(x)).relu_(), m.c(x)).relu_()), VECTOR, "1++1"),
    "shape after in place": (lambda m, x: (lambda z: m.out(z.relu_().view(z.size(0), -1)))(m.a(x)), VECTOR, "1+1"),
    "shape before in place": (lambda m, x: reshaped(m.a(x), m.relu, m.out), VECTOR, "1+1"),
    "view without activation": (lambda m, x: m.flat(m.conv(x).view(x.shape[0], -1)), IMAGE, "1*1"),
    "prelu as a function": (lambda m, x: m.out(F.prelu(m.a(x), m.slope)), VECTOR, "1+1"),
    "negative": (lambda m, x: m.out(-m.a(x).relu()), VECTOR, "1+1"),
    "maximum of negatives": (lambda m, x: m.out(F.adaptive_max_pool2d(-m.conv(x).relu(), 1).flatten(1)), IMAGE, "1++1"),
    "pooled pre-activation": (lambda m, x: m.flat9(F.avg_pool2d(m.conv(x), 2).tanh().flatten(1)), IMAGE, "1SS1"),
    "affine input": (lambda m, x: m.flat(m.conv(2 * x - 1).tanh().flatten(1)), IMAGE, "11S1"),
    "even functions": (lambda m, x: m.out(m.b(m.a(x).abs()).pow(2)), VECTOR, "1**1"),
    "cosine": (lambda m, x: m.out(torch.cos(2 * m.a(x))), VECTOR, "1S1"),
    "cube in a residual": (lambda m, x: m.out(x + m.a(x) ** 3), VECTOR, "1111"),
    "pools in a residual": (
        lambda m, x: m.out((lambda z: F.max_pool2d(z, 2) + F.max_pool2d(m.point(z), 2))(m.conv(x).relu()).mean((2, 3))),
        IMAGE,
        "1+++1",
    ),
    "a product with itself": (lambda m, x: m.out((lambda z: z * z)(m.a(x))), VECTOR, "1*1"),
    "clamps": (lambda m, x: torch.clamp(m.out(m.a(x).clamp(min=0)), min=-1, max=1), VECTOR, "1+1"),
    "offset inside": (lambda m, x: m.out(m.b(m.a(x).relu() + 0.3).tanh()), VECTOR, "111S1"),
    "approximate gelu": (lambda m, x: m.out(F.gelu(m.a(x), approximate="tanh")), VECTOR, "111"),
    "quotients": (lambda m, x: m.out((m.a(x) / 2).tanh() / 3), VECTOR, "1SS1"),
}
LETTERS = {"Trivial": "1", "Sign": "S", "PositiveScale": "+", "NonZeroScale": "*"}


@pytest.mark.parametrize(("forward", "shape", "groups"), PATTERNS.values(), ids=PATTERNS)
def test_pattern(forward: Forward, shape: tuple[int, ...], groups: str) -> None:
    torch.manual_seed(0)
    modules = [Parts(forward).eval().double() for _ in range(2)]
    networks = Networks.from_modules(modules)
    assert "".join(LETTERS[g.name] for g in networks.architecture.groups) == groups
    x = torch.randn(3, *shape, dtype=torch.float64)
    expected = torch.stack([m(x) for m in modules]).detach()
    torch.testing.assert_close(networks.evaluate(x), expected, atol=1e-12, rtol=1e-12)
    moved = Transform.sample(networks.architecture, 2, torch.Generator().manual_seed(0)).apply(networks)
    torch.testing.assert_close(moved.evaluate(x), expected, atol=1e-11, rtol=1e-11)
    found = torch.stack([m(x) for m in moved.to_modules()]).detach()
    torch.testing.assert_close(found, expected, atol=1e-11, rtol=1e-11)
    for module, state in zip(modules, networks.to_state_dicts(), strict=True):
        for key, tensor in module.state_dict().items():
            assert torch.equal(tensor, state[key]), key


def test_a_flattened_image_makes_its_pixels_the_inputs() -> None:
    module = Parts(lambda m, x: m.out(m.pixels(x.view(-1, 72)).relu()))
    x = torch.rand(3, 2, 6, 6)
    networks = Networks.from_modules([module])
    assert networks.architecture.layers[0].size == 72
    torch.testing.assert_close(networks.evaluate(x.flatten(1))[0], module(x).detach())


def test_a_squeezed_output_keeps_its_neuron() -> None:
    module = Parts(lambda m, x: m.one(m.a(x).relu()).squeeze(-1))
    x = torch.rand(3, 4)
    found = Networks.from_modules([module]).evaluate(x)
    assert found.shape == (1, 3, 1)
    torch.testing.assert_close(found[0, :, 0], module(x).detach())


def test_positions_after_a_flatten_have_the_shape_that_is_known() -> None:
    def positions(*layers: nn.Module) -> tuple[int, ...]:
        a = Networks.from_modules([nn.Sequential(*layers)]).architecture
        map_ = a.connections[-1].map
        return getattr(map_, "positions", ())

    conv = nn.Conv2d(1, 4, 3)
    assert positions(conv, nn.ReLU(), nn.Flatten(), nn.Linear(36, 2)) == (3, 3)
    assert positions(conv, nn.ReLU(), nn.Flatten(), nn.Linear(24, 2)) == (6,)
    assert positions(conv, nn.AdaptiveAvgPool2d((2, 3)), nn.Flatten(), nn.Linear(24, 2)) == (2, 3)
    assert positions(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2)) == (9,)
    assert positions(conv, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)) == ()


class OneHead(nn.Module):
    """Attention without a view into heads, after an RMSNorm whose eps is that of the precision."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.qkv, self.out = nn.Linear(2, 4), nn.RMSNorm(4), nn.Linear(4, 12), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        return cast(Tensor, self.out(x + torch.softmax(q @ k.mT / 2, dim=-1) @ v))


def test_one_head_without_views() -> None:
    module = OneHead().double()
    networks = Networks.from_modules([module])
    x = torch.randn(5, 7, 2, dtype=torch.float64)
    expected = module(x).detach().movedim(-1, 1)
    torch.testing.assert_close(networks.evaluate(x.movedim(-1, 1))[0], expected, atol=1e-12, rtol=1e-12)
    moved = Transform.sample(networks.architecture, 1, torch.Generator().manual_seed(0)).apply(networks)
    torch.testing.assert_close(moved.evaluate(x.movedim(-1, 1))[0], expected, atol=1e-11, rtol=1e-11)
