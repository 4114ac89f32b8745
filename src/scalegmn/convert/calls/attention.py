"""How the tracer handles attention: scores of queries and keys, their softmax, and the weighted values."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...core.architecture import Attention
from ..trace.value import UnsupportedError, Value
from .arrange import arranged
from .call import Call, Constant


@dataclass(frozen=True, eq=False)
class Scores:
    """Products of queries and keys, head by head.

    Arguments:
        query, key: The two factors.
        heads: Number of heads.
        scale: The factor before the softmax.
        causal: Whether later positions are hidden.
        normalised: Whether the softmax has been taken.
    """

    query: Value
    key: Value
    heads: int
    scale: float = 1.0
    causal: bool = False
    normalised: bool = False


_PER_HEAD = ("b", "c0", "s0", "c1")
_SINGLE = ("b", "s0", "c")


def scores(call: Call, query: Value, key: Value) -> Scores:
    """Queries times transposed keys."""
    q, k = call.builder.axes(query, 3), call.builder.axes(key, 3)
    if q == _PER_HEAD and k == ("b", "c0", "c1", "s0") and query.split == key.split:
        return Scores(query, key, query.split[0])
    if q == _SINGLE and k == ("b", "c", "s0"):
        return Scores(query, key, 1)
    raise UnsupportedError("a product of two values of the network over other axes than those of attention")


def weighted(call: Call, found: Scores, value: Value) -> Value:
    """Attention: the softmax of scores times values."""
    axes = call.builder.axes(value)
    per_head = axes == _PER_HEAD and value.split[0] == found.heads
    if not found.normalised or not (per_head or (axes == _SINGLE and found.heads == 1)):
        raise UnsupportedError("a product of scores and values without a softmax, or of other axes")
    return _attended(call, (found.query, found.key, value), Attention(found.heads, found.scale, found.causal))


def _attended(call: Call, parts: tuple[Value, Value, Value], attention: Attention) -> Value:
    value = parts[2]
    out = call.builder.attention(parts, attention)
    return replace(out, axes=call.builder.axes(value), split=value.split, dims=1)


def attend(call: Call) -> Value:
    """`F.scaled_dot_product_attention`."""
    query, key, value = (call.value(i, name) for i, name in enumerate(("query", "key", "value")))
    mask = call.get(3, "attn_mask")
    causal = bool(call.get(5, "is_causal", False)) or hides_the_future(mask)
    axes = [call.builder.axes(v, 3) for v in (query, key, value)]
    if any(a not in (_PER_HEAD, _SINGLE) or a != axes[0] for a in axes) or call.kwargs.get("enable_gqa"):
        raise UnsupportedError("attention over other axes than (batch, heads, positions, channels)")
    heads, width = query.split if query.split else (1, call.builder.known_size(query))
    scale = call.get(6, "scale")
    factor = float(scale) if isinstance(scale, int | float) else 1 / math.sqrt(width)
    return _attended(call, (query, key, value), Attention(heads, factor, causal))


def hides_the_future(mask: object) -> bool:
    """Whether a mask is the causal one; others are refused."""
    if mask is None:
        return False
    if isinstance(mask, Constant) and causal_mask(mask.tensor):
        return True
    raise UnsupportedError("an attention mask that is not causal")


def causal_mask(tensor: Tensor) -> bool:
    """Whether a mask hides all later positions and no others: added (0, -inf), or kept (True)."""
    while tensor.dim() > 2 and tensor.shape[0] == 1:
        tensor = tensor[0]
    if tensor.dim() != 2 or tensor.shape[0] != tensor.shape[1]:
        return False
    ahead = torch.ones(tensor.shape, dtype=torch.bool).triu(1)
    if tensor.dtype == torch.bool:
        return bool((tensor == ~ahead).all())
    return bool((tensor[ahead] == -torch.inf).all()) and not bool(tensor[~ahead].any())


def masked(call: Call) -> Scores:
    """Scores of later positions set to minus infinity."""
    found, mask, fill = call.args[0], call.get(1, "mask"), call.get(2, "value")
    ahead = isinstance(mask, Constant) and mask.tensor.dtype == torch.bool and causal_mask(~mask.tensor)
    if isinstance(found, Scores) and ahead and isinstance(fill, int | float) and fill < -1e8:
        return replace(found, causal=True)
    raise UnsupportedError("masked_fill of anything but the scores ahead of a position")


def channels_last(call: Call, value: Value) -> Value:
    """A value with axes (batch, positions, channels), as modules of attention take it."""
    if not call.builder.ranked(value):
        call.builder.last(value)
    axes = call.builder.axes(value, 3)
    if axes != _SINGLE:
        raise UnsupportedError(f"attention on a tensor with the axes {axes}", "batch_first=True is")
    return arranged(call.builder, value, axes)
