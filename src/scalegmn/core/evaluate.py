"""Evaluating a whole batch of networks at once.

Everything here works on the views of one batch: weights (B, n_t, n_s, K), biases (B, n_t). Activations have shape
(B, N, n) for N inputs, or (B, N, n, *spatial) between convolutions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import ScaleGMNError
from .architecture import Architecture, Connection, Conv, Linear, Normalise, Pool, Skip


@dataclass(frozen=True)
class Parameters:
    """Views of a batch's parameters, one entry per connection or layer (None where there is none).

    Arguments:
        weights: Per connection (B, n_t, n_s, K); (B, n) for a normalisation's gains; None for a skip.
        biases: Per layer (B, n).
        slopes: Per layer (B, 1), for learned slopes.
    """

    weights: tuple[Tensor | None, ...]
    biases: tuple[Tensor | None, ...]
    slopes: tuple[Tensor | None, ...]


@dataclass(frozen=True)
class Responses:
    """What every neuron says to every input.

    Arguments:
        pre: Per layer, the pre-activations (B, N, n, *spatial). The input layer holds the inputs.
        post: Per layer, the post-activations, of the same shape.
    """

    pre: tuple[Tensor, ...]
    post: tuple[Tensor, ...]

    def means(self) -> Responses:
        """The same with maps averaged over space: (B, N, n) everywhere."""
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
            _apply(architecture.connections[c], parameters.weights[c], post[architecture.connections[c].source])
            for c in architecture.incoming[i]
        ]
        z = terms[0]
        for term in terms[1:]:
            z = z + term
        bias, slope = parameters.biases[i], parameters.slopes[i]
        if bias is not None:
            z = z + _over_neurons(bias, z)
        pre.append(z)
        x = layer.activation(z, None if slope is None else _over_neurons(slope, z))
        post.append(x if layer.offset == 0 else x + layer.offset)
    return Responses(tuple(pre), tuple(post))


def gradients(
    architecture: Architecture, parameters: Parameters, x: Tensor, cotangent: Tensor | None = None
) -> tuple[Tensor, ...]:
    """The gradient of <cotangent, output> at every pre-activation, averaged over space.

    It moves as 1/q when the pre-activations move as q. Differentiable where gradients are enabled.

    Arguments:
        architecture, parameters, x: As in `respond`.
        cotangent: Broadcasts to the output (B, N, n_L); ones where omitted.

    Returns:
        Per layer (B, N, n). The input layer holds the gradient with respect to the inputs.
    """
    return respond_with_gradients(architecture, parameters, x, cotangent)[1]


def respond_with_gradients(
    architecture: Architecture, parameters: Parameters, x: Tensor, cotangent: Tensor | None = None
) -> tuple[Responses, tuple[Tensor, ...]]:
    """`respond` and `gradients` in one pass."""
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
        found = torch.autograd.grad(out, z, seed, create_graph=graph, allow_unused=True)
    means = [torch.zeros_like(a) if g is None else g for a, g in zip(z, found, strict=True)]
    if not graph:
        r = Responses(tuple(t.detach() for t in r.pre), tuple(t.detach() for t in r.post))
    return r, tuple(map(spatial_mean, means))


def _tracked(parameters: Parameters) -> Parameters:
    """The same parameters as tensors that gradients can pass."""
    groups = (parameters.weights, parameters.biases, parameters.slopes)
    return Parameters(*(tuple(None if t is None else _plain(t) for t in group) for group in groups))


def _plain(x: Tensor) -> Tensor:
    """A copy of a tensor that was made in inference mode, which gradients cannot pass; others as they are."""
    return x.clone() if x.is_inference() else x


def _batch(parameters: Parameters) -> int:
    return next(w.shape[0] for w in (*parameters.weights, *parameters.biases) if w is not None)


def _over_neurons(v: Tensor, z: Tensor) -> Tensor:
    """Shape (B, n) so that it broadcasts against (B, N, n, *spatial)."""
    return v.reshape(v.shape[0], 1, v.shape[1], *[1] * (z.dim() - 3))


def _apply(connection: Connection, weight: Tensor | None, x: Tensor) -> Tensor:
    for pool in connection.pools:
        x = _pool(pool, x)
    match connection.map:
        case Skip():
            y = x
        case Normalise(eps=eps):
            assert weight is not None
            centred = x - x.mean(2, keepdim=True)
            y = centred * torch.rsqrt(centred.square().mean(2, keepdim=True) + eps) * _over_neurons(weight, x)
        case Linear():
            assert weight is not None
            y = _linear(weight, x)
        case Conv():
            assert weight is not None
            y = _conv(connection.map, weight, x)
    return y if connection.gain == 1 else connection.gain * y


def _linear(weight: Tensor, x: Tensor) -> Tensor:
    """(B, n_t, n_s, K) applied to (B or 1, N, n_s, *positions)."""
    w = weight.flatten(2)
    x = x.flatten(2)
    if x.shape[2] != w.shape[2]:
        raise ScaleGMNError(
            f"inputs: a linear layer expected {w.shape[2]} values per input, got {x.shape[2]}; "
            "check the size of the inputs"
        )
    return x @ w.transpose(1, 2)


def _conv(conv: Conv, weight: Tensor, x: Tensor) -> Tensor:
    """(B, n_t, n_s, K) applied to (B or 1, N, n_s, *spatial), as one (grouped) convolution."""
    batch, n_t, n_s, _ = weight.shape
    kernel = weight.reshape(batch * n_t, n_s, *conv.kernel)
    function = F.conv1d if len(conv.kernel) == 1 else F.conv2d
    if x.dim() != 3 + len(conv.kernel):
        raise ScaleGMNError(
            f"inputs: a convolution expected {len(conv.kernel)} spatial dimension(s), got {x.dim() - 3}"
        )
    shared = x.shape[0] == 1
    maps = x[0] if shared else x.transpose(0, 1).flatten(1, 2)
    y = function(
        maps, kernel, None, conv.stride, conv.padding, conv.dilation, groups=1 if shared else batch
    )
    return y.reshape(y.shape[0], batch, n_t, *y.shape[2:]).transpose(0, 1)


def _pool(pool: Pool, x: Tensor) -> Tensor:
    spatial = x.dim() - 3
    if spatial == 0:
        raise ScaleGMNError(f"inputs: {pool.kind} pooling needs spatial dimensions, got shape {tuple(x.shape)}")
    if pool.kind == "global_avg":
        return spatial_mean(x)
    if pool.kind == "global_max":
        return x.flatten(3).amax(3)
    maps = x.flatten(0, 1)
    if pool.kind == "adaptive_avg":
        if spatial == 1:
            y = F.adaptive_avg_pool1d(maps, pool.size[0])
        else:
            y = F.adaptive_avg_pool2d(maps, (pool.size[0], pool.size[1]))
    elif pool.kind == "avg":
        average = F.avg_pool1d if spatial == 1 else F.avg_pool2d
        y = average(maps, pool.size, pool.stride or pool.size, pool.padding or 0)
    else:
        maximum = F.max_pool1d if spatial == 1 else F.max_pool2d
        y = maximum(maps, pool.size, pool.stride or pool.size, pool.padding or 0)
    return y.reshape(*x.shape[:2], *y.shape[1:])


def prepare_inputs(architecture: Architecture, x: Tensor, batch: int, like: Tensor) -> Tensor:
    """Bring inputs to shape (1 or B, N, n_0, *spatial) and complain about anything else."""
    n_0 = architecture.layers[0].size
    spatial = input_dimensions(architecture)
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
    found: Sequence[int] = [
        len(c.map.kernel)
        for c in architecture.connections
        if isinstance(c.map, Conv) or (isinstance(c.map, Linear) and c.source == 0)
    ]
    # Nothing but a flatten or a global pooling removes dimensions, so any map tells those of the input.
    found = [*found, *(len(p.size) for c in architecture.connections for p in c.pools)]
    return max(found, default=0)
