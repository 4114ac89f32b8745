"""What has no place in an architecture is refused in one line that says what, where and what is supported."""

from __future__ import annotations

import operator
import threading
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalegmn.convert.trace.fx import trace
from scalegmn.core.networks import Networks
from scalegmn.errors import ScaleGMNError


class Lambda(nn.Module):
    """A forward of the test's choice over a few layers."""

    def __init__(self, function: Callable[[Lambda, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.conv = nn.Linear(4, 4), nn.Linear(4, 4), nn.Conv2d(1, 4, 3)
        self.norm, self.bn, self.prelu = nn.LayerNorm(4), nn.BatchNorm1d(4), nn.PReLU(4)
        self.identity, self.dropout, self.relu = nn.Identity(), nn.Dropout(), nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(4, 4, 1)
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("mask", torch.ones(4))
        self.register_buffer("zeros", torch.tensor([1.0, 0.0, 1.0, 0.0]))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def named_before(m: Lambda, z: Tensor, view: Callable[[Tensor], Tensor]) -> Tensor:
    """A second name of z is read after z was changed in place."""
    second = view(z)
    return m.b(m.relu(z)) + second


FORWARDS: dict[str, tuple[Callable[[Lambda, Tensor], Tensor], str]] = {
    "concatenated rows": (lambda m, x: torch.cat([m.a(x), m.b(x)], 0), "a concatenation along anything but channels"),
    "mask with zeros": (lambda m, x: m.a(x) * m.zeros, "inner.zeros .4,. as a factor, which has zeros"),
    "every second": (lambda m, x: m.a(x)[:, ::2], "taking every second channel"),
    "one channel": (lambda m, x: m.a(x)[:, 1], "taking one channel"),
    "shared batch norm": (lambda m, x: m.bn(torch.relu(m.bn(x))), "inner.bn.weight is used twice in different ways"),
    "quotient of values": (lambda m, x: m.a(x) / m.b(x), "div with other = the values of the network"),
    "learned factor": (lambda m, x: m.scale * m.a(x), "the parameter inner.scale .1,. as a factor"),
    "computed parameter": (lambda m, x: F.linear(x, m.a.weight * 2), "mul of the parameter inner.a.weight"),
    "several slopes": (lambda m, x: m.b(m.prelu(m.a(x))), "PReLU: expected one slope, got 4"),
    "unknown function": (lambda m, x: torch.exp(m.a(x)), "the function exp is not supported"),
    "unknown method": (lambda m, x: m.a(x).cumsum(1), "the method cumsum is not supported"),
    "layer norm of maps": (lambda m, x: m.norm(m.conv(x)), "LayerNorm over maps is not supported"),
    "linear on maps": (lambda m, x: m.a(m.conv(x)), "a linear layer on maps .* .flatten or pool them first."),
    "flattened output": (lambda m, x: m.conv(x).flatten(1), "a flatten at the output"),
    "part of a parameter": (lambda m, x: F.linear(x, m.b.weight[:, :3]), "indexing the parameter inner.b.weight"),
    "softmax over inputs": (lambda m, x: m.a(x).softmax(0), "softmax over dimension 0 "),
    "softmax over width": (lambda m, x: m.conv(F.softmax(x, dim=-1)), "softmax over dimension -1 of an input whose"),
    "softmax over maps": (lambda m, x: m.conv2(m.conv(x).softmax(-1)), "softmax over dimension -1 is not supported"),
    "softmax before flatten": (lambda m, x: m.a(x.softmax(1).flatten(1)), "a flatten after a softmax of the input"),
    "view to pairs": (lambda m, x: m.b(m.a(x)).view(-1, 2), r"view of 4 neurons to \(batch, 2\) is not supported"),
    "no transposition": (lambda m, x: x @ m.a.weight.transpose(dim0=0, dim1=0), "transpose of anything but"),
    "transposition": (lambda m, x: m.a(x.t()), "t of the values of the network"),
    "other flatten": (lambda m, x: m.a(x).flatten(), "a flatten of the batch"),
    "other view": (lambda m, x: m.a(x).view(-1), "view to anything but"),
    "partial mean": (lambda m, x: m.conv(x).mean(2), "mean over dimensions"),
    "division by zero": (lambda m, x: m.b(m.a(x) / 0), "a division by zero is not supported"),
    "half a power": (lambda m, x: m.a(x) ** 0.5, "the power 0.5 is not supported"),
    "dilated pooling": (lambda m, x: F.max_pool2d(m.conv(x), 2, dilation=2), "pooling with other options"),
    "ceiling": (lambda m, x: F.avg_pool2d(m.conv(x), 2, ceil_mode=True), "ceil_mode = True"),
    "in place": (lambda m, x: (lambda z: z.relu_() + z)(m.a(x)), "works in place on a tensor that is read again"),
    "in place by position": (lambda m, x: (lambda z: F.relu(z, True) + z)(m.a(x)), "works in place"),
    "in place by name": (lambda m, x: (lambda z: F.relu(input=z, inplace=True) + z)(m.a(x)), "works in place"),
    "output given": (lambda m, x: (lambda z: torch.mul(z, 2, out=z) + z)(m.a(x)), "works in place"),
    "added in place": (lambda m, x: (lambda z: m.b(operator.iadd(z, x)) + z)(m.a(x)), "works in place"),
    "multiplied in place": (lambda m, x: (lambda z: m.b(operator.imul(z, 2)) + z)(m.a(x)), "works in place"),
    "in place under a new name": (lambda m, x: named_before(m, m.a(x), m.identity), "works in place"),
    "in place after dropout": (lambda m, x: named_before(m, m.a(x), m.dropout), "works in place"),
    "in place after a flatten": (lambda m, x: named_before(m, m.a(x), lambda z: z.flatten(1)), "works in place"),
    "in place after a view": (lambda m, x: (lambda z: m.b(m.relu(m.identity(z))) + z)(m.a(x)), "works in place"),
    "in place of an in place": (lambda m, x: (lambda z: m.b(m.relu(m.relu(z))) + z)(m.a(x)), "works in place"),
    "buffer in place": (lambda m, x: (m.mask.mul_(x), m.a(x))[1], "works in place"),
    "forgotten result": (lambda m, x: (lambda z: (z.relu_(), z)[1])(m.a(x)), "works in place"),
    "control flow": (lambda m, x: m.a(x) if x.sum() > 0 else m.b(x), "torch.fx cannot trace its forward"),
    "two outputs": (lambda m, x: (m.a(x), m.b(x)), "expected forward to return one tensor"),  # type: ignore[dict-item, return-value]
    "no layer": (lambda m, x: torch.relu(x), "expected at least one linear layer or convolution"),
}


@pytest.mark.parametrize(("forward", "message"), FORWARDS.values(), ids=FORWARDS)
def test_unsupported_forward(forward: Callable[[Lambda, Tensor], Tensor], message: str) -> None:
    outer = nn.Sequential()
    outer.add_module("inner", Lambda(forward))
    with pytest.raises(ScaleGMNError, match=message) as caught:
        trace(outer)
    assert "\n" not in str(caught.value)


def circular() -> nn.Module:
    return nn.Conv2d(1, 4, 3, padding=1, padding_mode="circular")


def locked() -> nn.Module:
    module = nn.Linear(2, 3)
    module.lock = threading.Lock()  # type: ignore[assignment]
    return module


def no_signature() -> nn.Module:
    module = nn.Sequential()
    module.forward = min  # type: ignore[method-assign]
    return module


MODULES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "unknown module": (lambda: nn.LSTM(1, 2), "the module LSTM is not supported; supported"),
    "positions first": (lambda: nn.TransformerEncoderLayer(4, 2), r"batch_first = False .* \(batch_first=True is\)"),
    "bare batch norm": (lambda: nn.BatchNorm1d(3, affine=False), "BatchNorm without gains that does not stand"),
    "cross padding": (lambda: nn.ReflectionPad2d(1), "the module ReflectionPad2d"),
    "circular": (circular, "padding_mode = 'circular'"),
    "even same": (lambda: nn.Conv2d(1, 4, 2, padding="same"), "padding 'same'"),
    "no statistics": (
        lambda: nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, track_running_stats=False)),
        "without running statistics",
    ),
    "scripted": (lambda: torch.jit.script(nn.Linear(2, 3)), "^0: a scripted module is not supported; give the module"),
    "lazy": (lambda: nn.LazyLinear(4), "^0: expected a weight with values, got a lazy or meta one"),
    "meta": (lambda: nn.Linear(2, 3, device="meta"), "^0: expected a weight with values, got a lazy or meta one"),
    "locked": (locked, "^Sequential: cannot be copied .cannot pickle '_thread.lock' object"),
    "no signature": (no_signature, "cannot trace its forward"),
    "wrong sizes": (lambda: nn.Sequential(nn.Linear(2, 3), nn.Linear(4, 1)), "a layer of 4 inputs on 3 neurons"),
}


@pytest.mark.parametrize(("make", "message"), MODULES.values(), ids=MODULES)
def test_unsupported_module(make: Callable[[], nn.Module], message: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of these ways are on their way out
        module = nn.Sequential(make())
    with pytest.raises(ScaleGMNError, match=message) as caught:
        Networks.from_modules([module])
    assert "\n" not in str(caught.value)


def test_hooks_are_refused() -> None:
    module = nn.Sequential(nn.Linear(2, 3))
    module[0].register_forward_hook(lambda m, args, out: 2 * out)
    with pytest.raises(ScaleGMNError, match=r"^0: forward hooks"):
        trace(module)


class Hidden(nn.Module):
    """A frequency in a buffer that is not in the state dict."""

    def __init__(self, w0: float) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 4), nn.Linear(4, 1)
        self.register_buffer("w0", torch.tensor(w0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.sin(self.w0 * self.a(x)))


def test_buffers_outside_the_state_dict_are_told_apart() -> None:
    assert str(Networks.from_modules([Hidden(30.0), Hidden(30.0)]).architecture) == "2-4-1 [sine(30)]"
    with pytest.raises(ScaleGMNError, match=r"expected the architecture of module 0, 2-4-1 \[sine\(30\)\]"):
        Networks.from_modules([Hidden(30.0), Hidden(5.0)])


def test_modules_of_different_configuration_are_told_apart() -> None:
    small, large = (nn.Sequential(nn.Linear(2, 3), nn.LeakyReLU(s), nn.Linear(3, 1)) for s in (0.1, 0.2))
    with pytest.raises(ScaleGMNError, match="module 1: expected the architecture of module 0"):
        Networks.from_modules([small, large])
    with pytest.raises(ScaleGMNError, match="expected at least one"):
        Networks.from_modules([])
