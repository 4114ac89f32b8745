"""How the tracer handles the modules of torch.nn."""

from collections.abc import Callable
from dataclasses import replace

from torch import nn

from ...core.activations import activation, is_activation_module
from ...core.architecture import Normalise
from ..layout import Fold, Source
from ..trace.value import UnsupportedError, Value
from .arrange import flatten
from .attention import Scores
from .call import Call
from .dense import convolution, embedded, linear_module, normalise
from .functions import check_softmax
from .join import enlarge, glu, pad
from .shapes import adaptive, each, window
from .transformers import encoder, encoder_layer, multihead

ModuleHandler = Callable[[Call, nn.Module, str], object]


def call_module(call: Call, module: nn.Module, path: str) -> object:
    """Apply a module of torch.nn."""
    handler = _MODULES.get(type(module))
    if handler is not None:
        return handler(call, module, path)
    if is_activation_module(module):
        return _activation_module(call, module, path)
    raise UnsupportedError(f"the module {type(module).__name__}")


def _linear_module(call: Call, module: nn.Module, path: str) -> Value:
    assert isinstance(module, nn.Linear)
    return linear_module(call, call.value(), module, path)


def _conv_module(call: Call, module: nn.Module, path: str) -> Value:
    assert isinstance(module, nn.Conv1d | nn.Conv2d | nn.ConvTranspose1d | nn.ConvTranspose2d)
    if module.padding_mode != "zeros":
        raise UnsupportedError(f"a convolution with padding_mode = {module.padding_mode!r}")
    conv = convolution(module.kernel_size, module.stride, module.padding, module.dilation, module.groups)
    weight, bias = call.weight_and_bias(module, path)
    assert weight is not None
    if module.transposed:
        conv = replace(conv, transposed=True, extra=each(module.output_padding, len(conv.kernel)))
        weight = replace(weight, groups=module.groups)
    return call.builder.conv(call.value(), module.in_channels, module.out_channels, conv, weight, bias)


def _embedding_module(call: Call, module: nn.Module, path: str) -> object:
    assert isinstance(module, nn.Embedding)
    if module.max_norm is not None:
        raise UnsupportedError("an embedding with max_norm")
    table = replace(call.own(path, "weight"), transposed=True)
    return embedded(call, table, module.num_embeddings, module.embedding_dim)


def _batch_norm(call: Call, module: nn.Module, path: str) -> Value:
    assert isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)
    if module.running_mean is None:
        raise UnsupportedError("BatchNorm without running statistics")
    gain, shift = (None if source is None else source.key for source in call.weight_and_bias(module, path))
    mean, variance = (f"{path}.{name}".removeprefix(".") for name in ("running_mean", "running_var"))

    def make(weight: Source | None, bias: str | None) -> Fold:
        return Fold(weight, bias, gain, shift, mean, variance, module.eps)

    return call.builder.fold(call.value(), module.num_features, make)


def _layer_norm_module(call: Call, module: nn.Module, path: str) -> Value:
    assert isinstance(module, nn.LayerNorm)
    norm = Normalise(module.eps)
    return normalise(call, tuple(module.normalized_shape), norm, *call.weight_and_bias(module, path))


def _rms_norm_module(call: Call, module: nn.Module, path: str) -> Value:
    assert isinstance(module, nn.RMSNorm)
    weight = None if module.weight is None else call.own(path, "weight")
    eps = call.rounding if module.eps is None else module.eps
    return normalise(call, tuple(module.normalized_shape), Normalise(eps, "rms"), weight, None)


def _group_norm_module(call: Call, module: nn.Module, path: str) -> Value:
    assert isinstance(module, nn.GroupNorm | nn.InstanceNorm1d | nn.InstanceNorm2d)
    if isinstance(module, nn.GroupNorm):
        size, groups = module.num_channels, module.num_groups
    elif module.track_running_stats:
        raise UnsupportedError("InstanceNorm with running statistics")
    else:
        size = groups = module.num_features
    norm = Normalise(module.eps, "group", groups)
    return call.builder.normalise(call.value(), size, norm, *call.weight_and_bias(module, path))


def _activation_module(call: Call, module: nn.Module, path: str) -> object:
    act = activation(module)
    if isinstance(call.args[0], Scores) and isinstance(module, nn.Softmax):
        if module.dim not in (-1, 3):
            raise UnsupportedError(f"a softmax of scores over dimension {module.dim}")
        return replace(call.args[0], normalised=True)
    if act.across_neurons:
        assert isinstance(module, nn.Softmax | nn.LogSoftmax)
        check_softmax(call, module.dim)
    slope = call.own(path, "weight") if act.learned_slope else None
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


def _padding_module(call: Call, module: nn.Module, path: str) -> Value:
    assert isinstance(module, nn.ZeroPad1d | nn.ZeroPad2d | nn.ConstantPad1d | nn.ConstantPad2d)
    options = {"pad": tuple(module.padding), "value": module.value}
    return pad(replace(call, args=call.args[:1], kwargs=options))


def _unchanged(call: Call, module: nn.Module, path: str) -> object:
    return call.args[0]


def _glu_module(call: Call, module: nn.Module, path: str) -> Value:
    assert isinstance(module, nn.GLU)
    return glu(replace(call, args=call.args[:1], kwargs={"dim": module.dim}))


def _upsample_module(call: Call, module: nn.Module, path: str) -> Value:
    assert isinstance(module, nn.Upsample)
    names = ("size", "scale_factor", "mode", "align_corners")
    options = {n: getattr(module, n) for n in names}
    return enlarge(replace(call, args=call.args[:1], kwargs=options))


_MODULES: dict[type[nn.Module], ModuleHandler] = {
    nn.Linear: _linear_module,
    nn.Flatten: _flatten_module,
    nn.Embedding: _embedding_module,
    nn.LayerNorm: _layer_norm_module,
    nn.RMSNorm: _rms_norm_module,
    nn.MultiheadAttention: multihead,
    nn.TransformerEncoderLayer: encoder_layer,
    nn.TransformerEncoder: encoder,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, nn.ConvTranspose2d), _conv_module),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d), _batch_norm),
    **dict.fromkeys((nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d), _group_norm_module),
    **dict.fromkeys((nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout), _unchanged),
    **dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d), _pool_module),
    nn.GLU: _glu_module,
    **dict.fromkeys((nn.ZeroPad1d, nn.ZeroPad2d, nn.ConstantPad1d, nn.ConstantPad2d), _padding_module),
    **dict.fromkeys((nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d), _upsample_module),
    **dict.fromkeys(
        (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d), _adaptive_module
    ),
}
