"""Evaluating many networks at once equals evaluating hand-written modules one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from strategies import generator, networks_of
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from scalegmn.core.activations import activation
from scalegmn.core.architecture import Architecture, Connection, Conv, Layer, Linear, Normalise, Pool, Skip
from scalegmn.core.networks import Networks
from scalegmn.errors import ScaleGMNError
from scalegmn.models.scalegmn import ScaleGMN

Function = Callable[[Networks, Tensor], Tensor]


def weight(n: Networks, c: int, *kernel: int) -> Tensor:
    """The weight of connection c of a single network, in the shape of torch's modules."""
    w = n.weights[c]
    assert w is not None
    return w[0] if w.dim() == 2 else w[0].reshape(*w.shape[1:3], *kernel) if kernel else w[0].flatten(1)


def bias(n: Networks, layer: int) -> Tensor:
    b = n.biases[layer]
    assert b is not None
    return b[0]


def relu_mlp(n: Networks, x: Tensor) -> Tensor:
    module = nn.Sequential(nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 2))
    state = {f"{2 * i}.weight": weight(n, i) for i in range(3)} | {f"{2 * i}.bias": bias(n, i + 1) for i in range(3)}
    y = functional_call(module, state, x)
    assert isinstance(y, Tensor)
    return y


def siren(n: Networks, x: Tensor) -> Tensor:
    hidden = torch.sin(30.0 * F.linear(x, weight(n, 0), bias(n, 1)))
    return F.linear(hidden, weight(n, 1), bias(n, 2)) + 0.5


def siren_with_gain(n: Networks, x: Tensor) -> Tensor:
    return F.linear(torch.sin(30.0 * F.linear(x, weight(n, 0)) + bias(n, 1)), weight(n, 1), bias(n, 2))


def prelu_softmax(n: Networks, x: Tensor) -> Tensor:
    slope = n.views.slopes[1]
    assert slope is not None
    hidden = F.prelu(F.linear(x, weight(n, 0), bias(n, 1)), slope[0])
    return torch.softmax(F.linear(hidden, weight(n, 1), bias(n, 2)), dim=-1)


def residual(n: Networks, x: Tensor) -> Tensor:
    first = torch.relu(F.linear(x, weight(n, 0), bias(n, 1)))
    norm = F.layer_norm(first, (6,), weight(n, 1), bias(n, 2), 1e-3)
    second = torch.tanh(F.linear(norm, weight(n, 2), bias(n, 3)))
    third = torch.relu(first + 0.5 * F.linear(second, weight(n, 4)) + bias(n, 4))
    return F.linear(third, weight(n, 5), bias(n, 5))


def cnn_flat(n: Networks, x: Tensor) -> Tensor:
    first = F.conv2d(x, weight(n, 0, 3, 2), bias(n, 1), stride=(2, 1), padding=(1, 0), dilation=(1, 2))
    second = F.conv2d(F.max_pool2d(F.gelu(first), 2, 1, 1), weight(n, 1, 2, 2), bias(n, 2))
    return F.linear(torch.tanh(second).flatten(1), weight(n, 2), bias(n, 3))


def cnn_averaged(n: Networks, x: Tensor) -> Tensor:
    first = torch.relu(F.conv2d(x, weight(n, 0, 3, 3), bias(n, 1), padding=1))
    second = first + torch.relu(F.conv2d(first, weight(n, 1, 3, 3), bias(n, 2), padding=1))
    third = F.conv2d(F.avg_pool2d(second, 2), weight(n, 4, 1, 1), bias(n, 4))
    return F.linear(F.adaptive_avg_pool2d(torch.abs(third), (2, 1)).flatten(1), weight(n, 5), bias(n, 5))


def signal(n: Networks, x: Tensor) -> Tensor:
    first = torch.tanh(F.conv1d(x, weight(n, 0, 3), bias(n, 1)))
    second = torch.tanh(F.conv1d(F.avg_pool1d(first, 2), weight(n, 1, 2), bias(n, 2)))
    return F.linear(second.amax(2), weight(n, 2), bias(n, 3))


def conv(kernel: tuple[int, ...], stride: int = 1, padding: int = 0) -> Conv:
    one = (1,) * len(kernel)
    return Conv(kernel, tuple(stride * k for k in one), tuple(padding * k for k in one), one)


RELU, TANH, ABS = activation("relu"), activation("tanh"), activation("abs")
INPUT = Layer(3, bias=False)

CASES: dict[str, tuple[Architecture, Function, tuple[int, ...]]] = {
    "mlp": (Architecture.mlp([3, 7, 5, 2], "relu"), relu_mlp, ()),
    "siren": (
        Architecture(
            (INPUT, Layer(6, activation("sine", 30.0)), Layer(2, offset=0.5)), (Connection(0, 1), Connection(1, 2))
        ),
        siren,
        (),
    ),
    "gain": (
        Architecture((INPUT, Layer(6, activation("sine")), Layer(2)), (Connection(0, 1, gain=30.0), Connection(1, 2))),
        siren_with_gain,
        (),
    ),
    "prelu": (Architecture.mlp([3, 6, 4], "prelu", "softmax"), prelu_softmax, ()),
    "residual": (
        Architecture(
            (INPUT, Layer(6, RELU), Layer(6), Layer(4, TANH), Layer(6, RELU), Layer(2)),
            (
                Connection(0, 1),
                Connection(1, 2, Normalise(1e-3)),
                Connection(2, 3),
                Connection(1, 4, Skip()),
                Connection(3, 4, gain=0.5),
                Connection(4, 5),
            ),
        ),
        residual,
        (),
    ),
    "cnn with flatten": (
        Architecture(
            (INPUT, Layer(4, activation("gelu")), Layer(5, TANH), Layer(2)),
            (
                Connection(0, 1, Conv((3, 2), (2, 1), (1, 0), (1, 2))),
                Connection(1, 2, conv((2, 2)), (Pool("max", (2, 2), (1, 1), (1, 1)),)),
                Connection(2, 3, Linear((4, 6))),
            ),
        ),
        cnn_flat,
        (8, 8),
    ),
    "cnn with averages": (
        Architecture(
            (INPUT, Layer(4, RELU), Layer(4, RELU), Layer(4, bias=False), Layer(3, ABS), Layer(2)),
            (
                Connection(0, 1, conv((3, 3), padding=1)),
                Connection(1, 2, conv((3, 3), padding=1)),
                Connection(1, 3, Skip()),
                Connection(2, 3, Skip()),
                Connection(3, 4, conv((1, 1)), (Pool("avg", (2, 2), (2, 2), (0, 0)),)),
                Connection(4, 5, Linear((2, 1)), (Pool("adaptive_avg", (2, 1)),)),
            ),
        ),
        cnn_averaged,
        (7, 6),
    ),
    "signal": (
        Architecture(
            (INPUT, Layer(4, TANH), Layer(5, TANH), Layer(2)),
            (
                Connection(0, 1, conv((3,))),
                Connection(1, 2, conv((2,)), (Pool("avg", (2,), (2,), (0,)),)),
                Connection(2, 3, Linear(), (Pool("global_max"),)),
            ),
        ),
        signal,
        (11,),
    ),
}


def case(name: str) -> tuple[Networks, Function, Tensor, Tensor]:
    """Four networks, the module they should equal, common inputs and inputs per network."""
    architecture, function, spatial = CASES[name]
    networks = networks_of(architecture, 1, count=4)
    common = torch.randn(5, 3, *spatial, generator=generator(2), dtype=torch.float64)
    own = torch.randn(4, 5, 3, *spatial, generator=generator(3), dtype=torch.float64)
    return networks, function, common, own


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_evaluate_equals_each_module(name: str, dtype: torch.dtype) -> None:
    networks, function, common, own = case(name)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    found = networks.to(dtype=dtype).evaluate(common.to(dtype)), networks.to(dtype=dtype).evaluate(own.to(dtype))
    for i, single in enumerate(networks):
        for y, x in zip(found, (common, own[i]), strict=True):
            assert y.dtype == dtype
            assert torch.allclose(y[i].double(), function(single, x), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_the_networks_of_the_cases_differ(name: str) -> None:
    networks, _, common, _ = case(name)
    y = networks.evaluate(common)
    assert y.shape[:2] == (4, 5)
    assert (y[0] - y[1]).abs().max() > 1e-3


@pytest.mark.parametrize("name", CASES)
def test_responses_hold_every_layer(name: str) -> None:
    networks, _, _, own = case(name)
    r = networks.responses(own)
    assert torch.equal(r.pre[0], own)
    assert torch.equal(r.post[-1], networks.evaluate(own))
    for i, layer in enumerate(networks.architecture.layers[1:], 1):
        assert r.pre[i].shape[:3] == (4, 5, layer.size)
        slope = networks.views.slopes[i]
        y = layer.activation(r.pre[i], None if slope is None else slope[:, None])
        assert torch.equal(r.post[i], y + layer.offset)
    means = r.means()
    for full, mean in zip(r.pre + r.post, means.pre + means.post, strict=True):
        assert mean.shape == full.shape[:3]
        assert torch.allclose(mean, full.flatten(3).mean(3) if full.dim() > 3 else full)


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_autograd_at_the_biases(name: str) -> None:
    """Adding to a neuron's bias adds to its pre-activation: the derivative is the sum of its gradients."""
    networks, function, common, _ = case(name)
    a = networks.architecture
    cotangent = torch.randn(a.layers[-1].size, generator=generator(4), dtype=torch.float64)
    with torch.no_grad():
        found = networks.gradients(common, cotangent)
        pre = networks.responses(common).pre
    for b, single in enumerate(networks):
        parameters = single.parameters.clone().requires_grad_()
        leaf = single.replace(parameters)
        (gradient,) = torch.autograd.grad((function(leaf, common) * cotangent).sum(), parameters)
        expected = single.replace(gradient).biases
        for i in range(1, len(a.layers)):
            pixels = pre[i][0, 0, 0].numel()
            e = expected[i]
            assert e is None or torch.allclose(found[i][b].sum(0) * pixels, e[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_gradients_at_the_inputs_equal_autograd(name: str) -> None:
    networks, function, _, own = case(name)
    with torch.no_grad():
        found = networks.gradients(own)[0]
    for b, single in enumerate(networks):
        x = own[b].clone().requires_grad_()
        (expected,) = torch.autograd.grad(function(single, x).sum(), x)
        mean = expected.flatten(2).mean(2) if expected.dim() > 2 else expected
        assert torch.allclose(found[b], mean, rtol=1e-9, atol=1e-12)


def test_gradients_are_differentiable_where_gradients_are_enabled() -> None:
    architecture = Architecture.mlp([2, 5, 5, 1], "tanh")
    networks = networks_of(architecture, 1)
    x = torch.randn(4, 2, generator=generator(1), dtype=torch.float64)

    def loss(parameters: Tensor) -> Tensor:
        return sum((g**2).sum() for g in networks.replace(parameters).gradients(x))  # type: ignore[return-value]

    p = networks.parameters.clone().requires_grad_()
    assert torch.autograd.gradcheck(loss, (p,))
    with torch.no_grad():
        assert not any(g.requires_grad for g in networks.gradients(x))


@pytest.mark.parametrize("name", ["mlp", "prelu", "residual"])
@pytest.mark.parametrize("made", ["outside", "inside"])
def test_gradients_in_inference_mode(name: str, made: str) -> None:
    networks, _, common, _ = case(name)
    cotangent = torch.ones(networks.architecture.layers[-1].size, dtype=torch.float64)
    expected = networks.detach().gradients(common, cotangent)
    with torch.inference_mode():
        if made == "inside":
            networks, common, cotangent = networks.replace(networks.parameters + 0), common + 0, cotangent + 0
        found = networks.gradients(common, cotangent)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


def test_a_model_with_dual_probes_in_inference_mode() -> None:
    a = Architecture.mlp([2, 5, 1], "tanh")
    networks = networks_of(a, 1)
    model = ScaleGMN([a], 3, width=4, layers=1, probes=4, backward="dual").double().eval()
    with torch.no_grad():
        expected = model(networks)
    with torch.inference_mode():
        assert torch.equal(model(networks), expected)


def test_a_layer_that_the_output_ignores_has_zero_gradient() -> None:
    layers = (Layer(2, bias=False), Layer(3, RELU), Layer(3, RELU), Layer(1))
    a = Architecture(layers, (Connection(0, 1), Connection(0, 2), Connection(2, 3)))
    with torch.no_grad():
        g = networks_of(a, 1).gradients(torch.ones(4, 2))
    assert (g[1] == 0).all()
    assert (g[0] != 0).any()


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("mlp", (5, 4), r"expected shape \(N, 3\).*4 network.*got \(1, 5, 4\)"),
        ("mlp", (2, 5, 3), r"got \(2, 5, 3\)"),
        ("mlp", (3,), r"got \(3,\)"),
        ("cnn with flatten", (5, 3), "got"),
        ("cnn with flatten", (5, 3, 9, 9), "expected 120 values per input"),
    ],
)
def test_wrong_inputs_are_refused_in_one_line(name: str, shape: tuple[int, ...], message: str) -> None:
    networks = case(name)[0]
    with pytest.raises(ScaleGMNError, match=message):
        networks.evaluate(torch.zeros(shape))


def test_pooling_without_maps_is_refused() -> None:
    a = Architecture((Layer(2, bias=False), Layer(1)), (Connection(0, 1, pools=(Pool("global_avg"),)),))
    with pytest.raises(ScaleGMNError, match="global_avg pooling needs spatial dimensions"):
        networks_of(a, 1).evaluate(torch.zeros(4, 2))
