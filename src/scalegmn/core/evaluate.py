"""Evaluating a whole batch of networks at once.

Everything here works on the views of one batch: weights (B, n_t, n_s, K), biases (B, n_t). Activations have shape
(B, N, n) for N inputs, or (B, N, n, *spatial) between convolutions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import ScaleGMNError
from .architecture import Architecture, Connection, Layer
from .maps import Attention, Conv, Linear, Normalise, Pool, Product, Scale, Skip, Sum, Table
from .views import Parameters


@dataclass(frozen=True)
class Responses:
    """The pre- and post-activations of every neuron for every input.

    Arguments:
        pre: Per layer, the pre-activations (B, N, n, *spatial). The input layer holds the inputs.
        post: Per layer, the post-activations, of the same shape.

    >>> from scalegmn import Networks
    >>> networks = Networks(Architecture.mlp([2, 3, 1]), torch.randn(5, 13))
    >>> [tuple(z.shape) for z in networks.responses(torch.randn(4, 2)).pre[1:]]
    [(5, 4, 3), (5, 4, 1)]
    """

    pre: tuple[Tensor, ...]
    post: tuple[Tensor, ...]

    def means(self) -> Responses:
        """The same responses with maps averaged over space: (B, N, n) everywhere."""
        return Responses(tuple(map(spatial_mean, self.pre)), tuple(map(spatial_mean, self.post)))


def spatial_mean(x: Tensor) -> Tensor:
    """Average (B, N, n, *spatial) over space."""
    return x if x.dim() == 3 else x.flatten(3).mean(3)


def respond(architecture: Architecture, parameters: Parameters, x: Tensor) -> Responses:
    """Run all networks and keep every layer.

    Arguments:
        architecture: Of the networks.
        parameters: Of the networks.
        x: Inputs common to all networks (1, N, n_0, *spatial), or per network (B, N, n_0, *spatial).
    """
    pre, post = [x], [x]
    for i in range(1, len(architecture.layers)):
        layer = architecture.layers[i]
        terms = [
            (architecture.connections[c], parameters.weights[c], post[architecture.connections[c].source])
            for c in architecture.incoming[i]
        ]
        z = _combine(layer, terms, x)
        bias, slope = parameters.biases[i], parameters.slopes[i]
        if bias is not None:
            z = z + _over_neurons(bias, z)
        pre.append(z)
        x = layer.activation(z, None if slope is None else _over_neurons(slope, z))
        post.append(x if layer.offset == 0 else x + layer.offset)
    return Responses(tuple(pre), tuple(post))


def respond_with_gradients(
    architecture: Architecture, parameters: Parameters, x: Tensor, cotangent: Tensor | None = None
) -> tuple[Responses, tuple[Tensor, ...]]:
    """`respond`, and the gradient of <cotangent, output> at every pre-activation, averaged over space.

    It is multiplied by 1/q when the pre-activations are multiplied by q. Differentiable if gradients are enabled.

    Arguments:
        architecture, parameters, x: As in `respond`.
        cotangent: Broadcasts to the output (B, N, n_L); ones if omitted.

    Returns:
        The responses, and gradients per layer (B, N, n). The input layer holds the gradient with respect to the inputs.
    """
    graph = torch.is_grad_enabled()
    batch = _batch(parameters)
    with torch.inference_mode(False), torch.enable_grad():
        parameters, x = _tracked(parameters), _plain(x)
        if not x.requires_grad:
            x = x.detach().requires_grad_()
        inputs = x.expand(batch, *x.shape[1:])
        r = respond(architecture, parameters, inputs)
        z = [inputs, *r.pre[1:]]
        out = r.post[-1]
        seed = torch.ones_like(out) if cotangent is None else _plain(cotangent).to(out).expand_as(out)
        # What depends on constants alone does not change with the input.
        moving = [i for i, a in enumerate(z) if a.requires_grad]
        found = torch.autograd.grad(out, [z[i] for i in moving], seed, create_graph=graph, allow_unused=True)
    means = [torch.zeros_like(a).expand(batch, inputs.shape[1], *a.shape[2:]) for a in z]
    for i, g in zip(moving, found, strict=True):
        means[i] = means[i] if g is None else g
    if not graph:
        r = Responses(tuple(t.detach() for t in r.pre), tuple(t.detach() for t in r.post))
    return r, tuple(map(spatial_mean, means))


def _tracked(parameters: Parameters) -> Parameters:
    """The same parameters as tensors through which gradients can flow."""
    groups = (parameters.weights, parameters.biases, parameters.slopes)
    return Parameters(*(tuple(None if t is None else _plain(t) for t in group) for group in groups))


def _plain(x: Tensor) -> Tensor:
    """A copy if the tensor was made in inference mode, which blocks gradients; otherwise the tensor itself."""
    return x.clone() if x.is_inference() else x


def _batch(parameters: Parameters) -> int:
    return next(w.shape[0] for w in (*parameters.weights, *parameters.biases) if w is not None)


def _over_neurons(v: Tensor, z: Tensor) -> Tensor:
    """Shape (B, n) so that it broadcasts against (B, N, n, *spatial)."""
    return v.reshape(v.shape[0], 1, v.shape[1], *[1] * (z.dim() - 3))


Term = tuple[Connection, Tensor | None, Tensor]


def _combine(layer: Layer, terms: list[Term], like: Tensor) -> Tensor:
    """The pre-activation of a layer without its bias."""
    match layer.combine:
        case Product():
            values = [_apply(*term) for term in terms]
            space = max(v.dim() for v in values)
            return reduce(torch.mul, (_spread(value, space) for value in values))
        case Attention():
            query, key, value = (_apply(*term) for term in terms)
            return _attend(layer.combine, query, key, value)
        case Sum():
            return _sum(layer, terms, like)


def _sum(layer: Layer, terms: list[Term], like: Tensor) -> Tensor:
    tables = [t for t in terms if isinstance(t[0].map, Table)]
    found: Tensor | None = None
    parts: dict[tuple[int, int], Tensor] = {}
    for term in terms:
        if isinstance(term[0].map, Table):
            continue
        y, map_ = _apply(*term), term[0].map
        if isinstance(map_, Skip) and y.shape[2] != layer.size:
            place = (map_.write, y.shape[2])
            parts[place] = parts[place] + y if place in parts else y
        else:
            found = y if found is None else found + y
    if parts:
        joined = _beside(layer, parts)
        found = joined if found is None else found + joined
    if found is None:
        found = like.new_zeros(1, 1, layer.size)
    for connection, weight, _ in tables:
        assert weight is not None
        found = _look_up(connection, weight, found)
    return found


def _beside(layer: Layer, parts: dict[tuple[int, int], Tensor]) -> Tensor:
    """Ranges of neurons next to each other, with zeros between them."""
    batch = max(y.shape[0] for y in parts.values())
    first = next(iter(parts.values()))
    rows, end = [], 0
    for (start, size), y in sorted(parts.items(), key=lambda part: part[0]):
        if start < end:
            rest = [y.new_zeros(batch, y.shape[1], n, *y.shape[3:]) for n in (start, layer.size - start - size)]
            others = {p: t for p, t in parts.items() if p != (start, size)}
            own = torch.cat([rest[0], y.expand(batch, *y.shape[1:]), rest[1]], 2)
            return _beside(layer, others) + own
        if start > end:
            rows.append(y.new_zeros(batch, y.shape[1], start - end, *y.shape[3:]))
        rows.append(y.expand(batch, *y.shape[1:]))
        end = start + size
    if end < layer.size:
        rows.append(first.new_zeros(batch, first.shape[1], layer.size - end, *first.shape[3:]))
    return torch.cat(rows, 2)


def _look_up(connection: Connection, weight: Tensor, z: Tensor) -> Tensor:
    """Add a table (B, n, 1, K) to the first positions of z, or everywhere."""
    map_ = connection.map
    assert isinstance(map_, Table)
    values: Tensor = connection.gain * weight[:, None, :, 0]
    if not map_.positions:
        return z + values.squeeze(-1).reshape(*values.shape[:3], *[1] * (z.dim() - 3))
    values = values.reshape(*values.shape[:3], *map_.positions)
    if z.dim() == 3:  # nothing else tells the positions
        return z.reshape(*z.shape, *[1] * len(map_.positions)) + values
    if map_.start + values.shape[3] > z.shape[3]:
        values = values.narrow(3, 0, z.shape[3] - map_.start)
    after = z.shape[3] - map_.start - values.shape[3]
    return z + F.pad(values, (*[0, 0] * (len(map_.positions) - 1), map_.start, after))


def _spread(x: Tensor, dim: int) -> Tensor:
    """Append spatial dimensions of size 1."""
    return x.reshape(*x.shape, *[1] * (dim - x.dim()))


def _attend(attention: Attention, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Softmax attention of (B, N, n, *positions), head by head."""
    q, k, v = (x.flatten(3).unflatten(2, (attention.heads, -1)) for x in (query, key, value))
    scores = attention.scale * torch.einsum("...dt,...ds->...ts", q, k)
    if attention.causal:
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(ahead, -torch.inf)
    found: Tensor = torch.einsum("...ts,...ds->...dt", scores.softmax(-1), v)
    return found.flatten(2, 3).reshape(*found.shape[:2], -1, *query.shape[3:])


def _apply(connection: Connection, weight: Tensor | None, x: Tensor) -> Tensor:
    for pool in connection.pools:
        x = _pool(pool, x)
    match connection.map:
        case Skip(read=read, size=size):
            y = x[:, :, read : read + size] if size else x
        case Normalise():
            y = _normalise(connection.map, x)
            y = y if weight is None else y * _over_neurons(weight, x)
        case Scale():
            assert weight is not None
            y = x * _over_neurons(weight, x)
        case Linear() | Conv():
            assert weight is not None
            y = _conv(connection.map, weight, x) if isinstance(connection.map, Conv) else _linear(connection, weight, x)
        case Table():
            raise AssertionError("a table has no sources")
    return y if connection.gain == 1 else connection.gain * y


def _normalise(norm: Normalise, x: Tensor) -> Tensor:
    if norm.kind == "group":
        grouped: Tensor = x.unflatten(2, (norm.groups, -1)).flatten(3)
        centred = grouped - grouped.mean(3, keepdim=True)
        y = centred * torch.rsqrt(centred.square().mean(3, keepdim=True) + norm.eps)
        return y.reshape(x.shape)
    centred = x - x.mean(2, keepdim=True) if norm.kind == "layer" else x
    return centred * torch.rsqrt(centred.square().mean(2, keepdim=True) + norm.eps)


def _linear(connection: Connection, weight: Tensor, x: Tensor) -> Tensor:
    """(B, n_t, n_s, K) applied to (B or 1, N, n_s, *positions)."""
    w = weight.flatten(2)
    last = connection.pools[-1] if connection.pools else None
    pooled_away = last is not None and last.kind == "adaptive_avg" and set(last.size) == {1}
    flat = pooled_away or not isinstance(connection.map, Linear) or bool(connection.map.positions)
    pointwise = not flat and x.dim() > 3 and x.shape[2] == w.shape[2]
    rows = x.movedim(2, -1) if pointwise else x.flatten(2)
    if rows.shape[-1] != w.shape[2]:
        raise ScaleGMNError(
            f"inputs: a linear layer expected {w.shape[2]} values per input, got {rows.shape[-1]}; "
            "check the size of the inputs"
        )
    w = w.transpose(1, 2)
    if not pointwise:
        y: Tensor = rows @ w
        return y
    space = rows.shape[2:-1]
    y = (rows.flatten(1, -2) @ w).unflatten(1, (rows.shape[1], *space))
    return y.movedim(-1, 2)


def _conv(conv: Conv, weight: Tensor, x: Tensor) -> Tensor:
    """(B, n_t, n_s / groups, K) applied to (B or 1, N, n_s, *spatial), as one (grouped) convolution."""
    dims = len(conv.kernel)
    if x.dim() != 3 + dims:
        raise ScaleGMNError(f"inputs: a convolution expected {dims} spatial dimension(s), got {x.dim() - 3}")
    batch, n_t, width, _ = weight.shape
    shared = x.shape[0] == 1 and conv.groups == 1 and not conv.transposed
    if not shared and x.shape[0] == 1:
        x = x.expand(batch, *x.shape[1:])
    maps = x[0] if shared else x.transpose(0, 1).flatten(1, 2)
    groups = 1 if shared else batch * conv.groups
    if conv.transposed:
        kernel = weight.unflatten(1, (conv.groups, -1)).transpose(2, 3)
        kernel = kernel.reshape(batch * conv.groups * width, -1, *conv.kernel)
        transposed = F.conv_transpose1d if dims == 1 else F.conv_transpose2d
        y = transposed(maps, kernel, None, conv.stride, conv.padding, conv.extra or 0, groups, conv.dilation)
    else:
        kernel = weight.reshape(batch * n_t, width, *conv.kernel)
        function = F.conv1d if dims == 1 else F.conv2d
        y = function(maps, kernel, None, conv.stride, conv.padding, conv.dilation, groups)
    return y.reshape(y.shape[0], batch, n_t, *y.shape[2:]).transpose(0, 1)


def _pool(pool: Pool, x: Tensor) -> Tensor:
    spatial = x.dim() - 3
    if spatial == 0:
        raise ScaleGMNError(f"inputs: {pool.kind} pooling needs spatial dimensions, got shape {tuple(x.shape)}")
    match pool.kind:
        case "global_avg":
            return spatial_mean(x)
        case "global_max":
            return x.flatten(3).amax(3)
        case "merge":
            return x.flatten(3)
        case "at":
            return x.flatten(3)[..., pool.size[0]]
        case "pad":
            return F.pad(x, [n for pair in zip(pool.size[::-1], pool.stride[::-1], strict=True) for n in pair])
        case _:
            y = _resize(pool, x.flatten(0, 1), spatial)
            return y.reshape(*x.shape[:2], *y.shape[1:])


def _resize(pool: Pool, maps: Tensor, spatial: int) -> Tensor:
    match pool.kind:
        case "adaptive_avg":
            if spatial == 1:
                return F.adaptive_avg_pool1d(maps, pool.size[0])
            return F.adaptive_avg_pool2d(maps, (pool.size[0], pool.size[1]))
        case "avg":
            average = F.avg_pool1d if spatial == 1 else F.avg_pool2d
            return average(maps, pool.size, pool.stride or pool.size, pool.padding or 0)
        case "max":
            maximum = F.max_pool1d if spatial == 1 else F.max_pool2d
            return maximum(maps, pool.size, pool.stride or pool.size, pool.padding or 0)
        case "nearest":
            return F.interpolate(maps, scale_factor=[float(f) for f in pool.size], mode="nearest")
        case _:
            corners = pool.kind == "bilinear_corners"
            mode = "linear" if spatial == 1 else "bilinear"
            factors = [float(f) for f in pool.size]
            return F.interpolate(maps, scale_factor=factors, mode=mode, align_corners=corners)


def prepare_inputs(architecture: Architecture, x: Tensor, batch: int, like: Tensor) -> Tensor:
    """Bring inputs to shape (1 or B, N, n_0, *spatial), and refuse anything else."""
    n_0 = architecture.layers[0].size
    spatial = input_dimensions(architecture)
    if not x.is_floating_point() and x.dim() == 1 + spatial:
        x = F.one_hot(x.long(), n_0).movedim(-1, 1)  # tokens
    x = x.to(like)
    if x.dim() == 2 + spatial:
        x = x.unsqueeze(0)
    if x.dim() != 3 + spatial or x.shape[2] != n_0 or x.shape[0] not in (1, batch):
        shape = f"(N, {n_0}{', ...' if spatial else ''})"
        raise ScaleGMNError(
            f"inputs: expected shape {shape}, or the same with the {batch} network(s) in front; got {tuple(x.shape)}"
        )
    return x


def input_dimensions(architecture: Architecture) -> int:
    """Number of spatial dimensions of the input: 0, 1 or 2."""
    layers, connections = architecture.layers, architecture.connections
    if any(isinstance(layer.combine, Attention) for layer in layers) and not any(
        isinstance(c.map, Conv) or p.kind == "merge" for c in connections for p in (*c.pools, Pool("pad"))
    ):
        return 1
    found: Sequence[int] = [
        len(c.map.kernel)
        for c in connections
        if isinstance(c.map, Conv | Table) or (isinstance(c.map, Linear) and c.source == 0)
    ]
    # Nothing but a flatten or a global pooling removes dimensions, so any map tells those of the input.
    kinds = ("merge", "at")
    found = [*found, *(len(p.size) for c in connections for p in c.pools if p.kind not in kinds)]
    return max(found, default=0)
