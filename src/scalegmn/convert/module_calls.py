"""What the tracer makes of the modules of torch.nn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import nn

from ..core.activations import activation, is_activation_module
from .call import Call
from .function_calls import check_softmax, convolution, normalise
from .graph import UnsupportedError, Value
from .layout import Fold, Source
from .shape_calls import adaptive, flatten, window

ModuleHandler = Callable[[Call, nn.Module, str], Value]


def call_module(call: Call, module: nn.Module, path: str) -> object:
    """Apply a module of torch.nn."""
    handler = _MODULES.get(type(module))
    if handler is not None:
        return handler(call, module, path)
    if is_activation_module(module):
        return _activation_module(call, module, path)
    hint = "remove its parametrisation first" if nn.utils.parametrize.is_parametrized(module) else ""
    raise UnsupportedError(f"the module {type(module).__name__}", hint)


def _own(call: Call, module: nn.Module, path: str, name: str) -> Source | None:
    """A module's parameter by name, None where it has none."""
    return None if getattr(module, name) is None else call.use(Source(f"{path}.{name}"))


def _linear_module(call: Call, module: nn.Module, path: str) -> Value:
    assert isinstance(module, nn.Linear)
    weight, bias = _own(call, module, path, "weight"), _own(call, module, path, "bias")
    assert weight is not None
    return call.builder.linear(call.value(), module.in_features, module.out_features, weight, bias)


def _conv_module(call: Call, module: nn.Module, path: str) -> Value:
    assert isinstance(module, nn.Conv1d | nn.Conv2d)
    if module.groups != 1:
        raise UnsupportedError(f"a convolution with groups = {module.groups}")
    if module.padding_mode != "zeros":
        raise UnsupportedError(f"a convolution with padding_mode = {module.padding_mode!r}")
    conv = convolution(module.kernel_size, module.stride, module.padding, module.dilation)
    weight, bias = _own(call, module, path, "weight"), _own(call, module, path, "bias")
    assert weight is not None
    return call.builder.conv(call.value(), module.in_channels, module.out_channels, conv, weight, bias)


def _batch_norm(call: Call, module: nn.Module, path: str) -> Value:
    assert isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)
    if module.running_mean is None:
        raise UnsupportedError("BatchNorm without running statistics")
    gain, shift = _own(call, module, path, "weight"), _own(call, module, path, "bias")

    def make(weight: Source, bias: str | None) -> Fold:
        return Fold(
            weight,
            bias,
            None if gain is None else gain.key,
            None if shift is None else shift.key,
            f"{path}.running_mean",
            f"{path}.running_var",
            module.eps,
        )

    return call.builder.fold(call.value(), module.num_features, make)


def _layer_norm_module(call: Call, module: nn.Module, path: str) -> Value:
    assert isinstance(module, nn.LayerNorm)
    weight, bias = _own(call, module, path, "weight"), _own(call, module, path, "bias")
    return normalise(call, tuple(module.normalized_shape), weight, bias, module.eps)


def _activation_module(call: Call, module: nn.Module, path: str) -> Value:
    act = activation(module)
    if act.across_neurons:
        assert isinstance(module, nn.Softmax | nn.LogSoftmax)
        check_softmax(call, module.dim)
    slope = call.use(Source(f"{path}.weight")) if act.learned_slope else None
    return call.builder.activate(call.value(), act, slope)


def _pool_module(call: Call, module: nn.Module, path: str) -> Value:
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "count_include_pad", "divisor_override")
    options = {n: getattr(module, n) for n in names if n in module.__dict__}
    if isinstance(module, nn.MaxPool1d | nn.MaxPool2d):
        options["return_indices"] = module.return_indices
        return window(replace(call, kwargs=options), "max", 1 if isinstance(module, nn.MaxPool1d) else 2)
    return window(replace(call, kwargs=options), "avg", 1 if isinstance(module, nn.AvgPool1d) else 2)


def _adaptive_module(call: Call, module: nn.Module, path: str) -> Value:
    options = {"output_size": module.output_size}
    maximum = isinstance(module, nn.AdaptiveMaxPool1d | nn.AdaptiveMaxPool2d)
    dims = 1 if isinstance(module, nn.AdaptiveMaxPool1d | nn.AdaptiveAvgPool1d) else 2
    return adaptive(replace(call, kwargs=options), "max" if maximum else "avg", dims)


def _flatten_module(call: Call, module: nn.Module, path: str) -> Value:
    assert isinstance(module, nn.Flatten)
    return flatten(replace(call, kwargs={"start_dim": module.start_dim, "end_dim": module.end_dim}))


_MODULES: dict[type[nn.Module], ModuleHandler] = {
    nn.Linear: _linear_module,
    nn.Conv1d: _conv_module,
    nn.Conv2d: _conv_module,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.LayerNorm: _layer_norm_module,
    nn.Flatten: _flatten_module,
    **dict.fromkeys((nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d), lambda call, module, path: call.value()),
    **dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d), _pool_module),
    **dict.fromkeys(
        (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d), _adaptive_module
    ),
}
