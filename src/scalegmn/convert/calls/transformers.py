"""How the tracer handles torch's modules of attention."""

import math
from dataclasses import replace

from torch import nn

from ...core.activations import activation, is_activation_function, is_activation_module
from ...core.architecture import Attention, Normalise
from ..trace.value import UnsupportedError, Value
from .arrange import narrowed
from .attention import channels_last, hides_the_future
from .call import Call
from .dense import linear_module


def multihead(call: Call, module: nn.Module, path: str) -> tuple[Value, None]:
    """`nn.MultiheadAttention` of a sequence with itself."""
    assert isinstance(module, nn.MultiheadAttention)
    query, key, value = (call.get(i, name) for i, name in enumerate(("query", "key", "value")))
    if not isinstance(query, Value) or query is not key or query is not value:
        raise UnsupportedError("attention of one sequence to another", "self-attention is")
    if call.get(3, "key_padding_mask") is not None:
        raise UnsupportedError("attention with a mask of padding")
    causal = hides_the_future(call.get(5, "attn_mask"))
    return _self_attention(call, query, module, path, causal), None


def _self_attention(call: Call, value: Value, module: nn.MultiheadAttention, path: str, causal: bool) -> Value:
    if not module.batch_first:
        raise UnsupportedError("attention with batch_first = False", "batch_first=True is")
    if module.in_proj_weight is None or module.bias_k is not None or module.add_zero_attn:
        raise UnsupportedError("attention with kdim, vdim, add_bias_kv or add_zero_attn")
    value = channels_last(call, value)
    size, builder = module.embed_dim, call.builder
    weight = call.own(path, "in_proj_weight")
    bias = None if module.in_proj_bias is None else call.own(path, "in_proj_bias")
    joint = builder.linear(value, size, 3 * size, weight, bias)
    parts = [narrowed(builder, joint, i * size, size) for i in range(3)]
    scale = 1 / math.sqrt(size // module.num_heads)
    out = builder.attention(parts, Attention(module.num_heads, scale, causal))
    return linear_module(call, replace(out, axes=value.axes, dims=1), module.out_proj, f"{path}.out_proj")


def encoder_layer(call: Call, module: nn.Module, path: str) -> Value:
    """`nn.TransformerEncoderLayer`."""
    assert isinstance(module, nn.TransformerEncoderLayer)
    if call.get(2, "src_key_padding_mask") is not None:
        raise UnsupportedError("a transformer with a mask of padding")
    causal = hides_the_future(call.get(1, "src_mask"))
    if call.get(3, "is_causal", False) and not causal:
        raise UnsupportedError("is_causal without a causal mask")
    return _encoder_layer(call, call.value(0, "src"), module, path, causal)


def _encoder_layer(call: Call, x: Value, module: nn.TransformerEncoderLayer, path: str, causal: bool) -> Value:
    def attend(value: Value) -> Value:
        return _self_attention(call, value, module.self_attn, f"{path}.self_attn", causal)

    def feed_forward(value: Value) -> Value:
        hidden = linear_module(call, value, module.linear1, f"{path}.linear1")
        return linear_module(call, _activated(call, hidden, module.activation), module.linear2, f"{path}.linear2")

    def norm(value: Value, number: int) -> Value:
        found = (module.norm1, module.norm2)[number - 1]
        return _norm(call, value, found, f"{path}.norm{number}")

    # The stream is read twice, by the block and by its shortcut.
    builder = call.builder
    x = builder.closed(channels_last(call, x))
    if module.norm_first:
        x = builder.closed(builder.add(x, attend(norm(x, 1))))
        return builder.add(x, feed_forward(norm(x, 2)))
    x = builder.closed(norm(builder.add(x, attend(x)), 1))
    return norm(builder.add(x, feed_forward(x)), 2)


def encoder(call: Call, module: nn.Module, path: str) -> Value:
    """`nn.TransformerEncoder`: its layers, then its normalisation."""
    assert isinstance(module, nn.TransformerEncoder)
    if call.get(2, "src_key_padding_mask") is not None:
        raise UnsupportedError("a transformer with a mask of padding")
    causal = hides_the_future(call.get(1, "mask"))
    x = call.value(0, "src")
    for i, layer in enumerate(module.layers):
        assert isinstance(layer, nn.TransformerEncoderLayer)
        x = _encoder_layer(call, x, layer, f"{path}.layers.{i}" if path else f"layers.{i}", causal)
    return x if module.norm is None else _norm(call, x, module.norm, f"{path}.norm" if path else "norm")


def _norm(call: Call, value: Value, module: nn.Module, path: str) -> Value:
    if not isinstance(module, nn.LayerNorm) or len(module.normalized_shape) != 1:
        raise UnsupportedError(f"a transformer with {type(module).__name__}")
    size, norm = module.normalized_shape[0], Normalise(module.eps)
    return call.builder.normalise(value, size, norm, *call.weight_and_bias(module, path))


def _activated(call: Call, value: Value, function: object) -> Value:
    if isinstance(function, nn.Module) and is_activation_module(function):
        return call.builder.activate(value, activation(function))
    if is_activation_function(function):
        return call.builder.activate(value, activation(function))  # type: ignore[arg-type]
    raise UnsupportedError(f"a transformer with the activation {function}")
