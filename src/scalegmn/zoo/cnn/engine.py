r"""Many small convolutional networks of one shape, trained at once with a hand-derived backward pass.

Samples are the last, contiguous axis: maps are (B, channels, height, width, N). Cutting out the patches of a strided
convolution is then a copy of whole runs, and each convolution of each network is one matrix product

    z = W (patches of x) + b,        dW = dz (patches)^T,        d(patches) = W^T dz.

A product per network serves 16 channels far better than the grouped convolution that all networks together would be.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ...core.architecture import Architecture
from ...core.networks import Networks
from ...errors import ScaleGMNError


@dataclass(frozen=True)
class Cnn:
    """Convolutions without padding, global average pooling and a linear layer.

    Arguments:
        side: Height and width of the input.
        channels: Channels of each layer, input included.
        kernel, stride: Of every convolution.
        activation: `relu` or `tanh`.
        classes: Outputs.

    >>> Cnn(32).architecture.parameters
    4970
    >>> Cnn(32).sides
    (32, 15, 7, 3)
    """

    side: int
    channels: tuple[int, ...] = (1, 16, 16, 16)
    kernel: int = 3
    stride: int = 2
    activation: str = "relu"
    classes: int = 10

    def __post_init__(self) -> None:
        if self.activation not in ("relu", "tanh"):
            raise ScaleGMNError(f"activation: expected relu or tanh, got {self.activation!r}")
        if self.sides[-1] < 1:
            raise ScaleGMNError(
                f"images: {self.side}x{self.side} is too small for {len(self.channels) - 1} convolutions with kernel "
                f"{self.kernel} and stride {self.stride}; use larger images"
            )

    @cached_property
    def sides(self) -> tuple[int, ...]:
        """Height and width of the maps of each layer, input included."""
        found = [self.side]
        for _ in self.channels[1:]:
            found.append((found[-1] - self.kernel) // self.stride + 1 if found[-1] >= self.kernel else 0)
        return tuple(found)

    @cached_property
    def architecture(self) -> Architecture:
        """The networks as an architecture."""
        return Architecture.cnn(self.channels, self.classes, self.activation, kernel=self.kernel, stride=self.stride)


class Engine:
    """Forward and backward passes of up to B networks on N samples each, in buffers allocated once.

    Arguments:
        shape: Of every network.
        networks: B.
        samples: N.
        like: A tensor whose type and device the buffers get.
    """

    def __init__(self, shape: Cnn, networks: int, samples: int, like: Tensor) -> None:
        self.shape = shape
        self.samples = samples
        k, sides, channels = shape.kernel, shape.sides, shape.channels
        self.layers = len(channels) - 1
        self._patches = [
            like.new_empty(networks, channels[i], k, k, sides[i + 1], sides[i + 1], samples) for i in range(self.layers)
        ]
        self._upstream_patches = [torch.empty_like(p) for p in self._patches[1:]]
        self._maps = [like.new_empty(networks, n, s, s, samples) for n, s in self._hidden]
        self._fed = [torch.empty_like(m) for m in self._maps]
        self._masks = [torch.empty_like(m) for m in self._maps]
        self._upstream = [torch.empty_like(m) for m in self._maps]

    @property
    def _hidden(self) -> list[tuple[int, int]]:
        return list(zip(self.shape.channels[1:], self.shape.sides[1:], strict=True))

    @property
    def noise_size(self) -> int:
        """Number of random numbers that one step with dropout needs."""
        return sum(n * s * s for n, s in self._hidden) * self.samples

    def gradient(
        self, networks: Networks, x: Tensor, labels: Tensor, dropout: Tensor, noise: Tensor, out: Networks
    ) -> None:
        """The gradient of each network's mean cross-entropy.

        Arguments:
            networks: At most B of them, b.
            x: One batch per network, (b, channels, side, side, N).
            labels: Shape (b, N).
            dropout: Rate of each network, (b,).
            noise: Uniform numbers (noise_size,) that decide which values drop out. Networks share them, each with its
                own threshold: one draw serves all.
            out: Where the gradient goes, laid out like the networks.
        """
        b = len(networks)
        scales = (1 / (1 - dropout))[:, None, None]
        threshold = dropout[:, None, None, None, None] if bool(dropout.any()) else None
        matrices, targets = _matrices(networks), _matrices(out)
        # Dropout's factor 1 / (1 - rate) sits on the weights that read the layer: far fewer numbers.
        scaled = [matrices[0], *(m * scales for m in matrices[1:])]
        uniform = noise.split([n * s * s * self.samples for n, s in self._hidden]) if threshold is not None else ()
        for i in range(self.layers):
            patches = self._patches[i][:b]
            _cut(x, self.shape, patches)
            maps = self._maps[i][:b]
            bias = networks.biases[i + 1]
            assert bias is not None
            torch.baddbmm(bias[:, :, None], scaled[i], patches.flatten(4).flatten(1, 3), out=maps.flatten(2))
            x = _activate(self.shape, maps)
            if threshold is not None:
                torch.ge(uniform[i].view(self._maps[i].shape[1:]), threshold, out=self._masks[i][:b])
                x = torch.mul(x, self._masks[i][:b], out=self._fed[i][:b])
        error, pooled = self._head(networks, out, scaled[-1], x, labels)
        torch.mul(error @ pooled.mT, scales, out=targets[-1])
        self._backward(out, scaled, targets, scales, error, masked=threshold is not None)

    def _head(
        self, networks: Networks, gradients: Networks, weight: Tensor, x: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The gradient at the logits (b, classes, N), and the pooled features (b, channels, N)."""
        bias, target = networks.biases[-1], gradients.biases[-1]
        assert bias is not None
        assert target is not None
        pooled = x.flatten(2, 3).mean(2)
        error = torch.baddbmm(bias[:, :, None], weight, pooled).softmax(1)
        error.scatter_add_(1, labels[:, None], torch.full_like(labels[:, None], -1, dtype=error.dtype))
        error /= self.samples
        torch.sum(error, 2, out=target)
        return error, pooled

    def _backward(
        self,
        gradients: Networks,
        weights: list[Tensor],
        targets: list[Tensor],
        scales: Tensor,
        error: Tensor,
        *,
        masked: bool,
    ) -> None:
        """From the logits down; `targets` are the matrices of `gradients`."""
        b = len(error)
        side = self.shape.sides[-1]
        pooled = torch.bmm(weights[-1].mT, error).div_(side * side)
        self._upstream[-1][:b] = pooled[:, :, None, None]
        for i in reversed(range(self.layers)):
            delta = self._upstream[i][:b]
            if masked:
                delta.mul_(self._masks[i][:b])
            _activation_backward(self.shape, delta, self._maps[i][:b])
            flat = delta.flatten(2)
            bias = gradients.biases[i + 1]
            assert bias is not None
            torch.sum(flat, 2, out=bias)
            columns = self._patches[i][:b].flatten(4).flatten(1, 3)
            product = torch.bmm(flat, columns.mT)
            torch.mul(product, scales, out=targets[i]) if i else targets[i].copy_(product)
            if i:
                upstream = self._upstream_patches[i - 1][:b]
                torch.bmm(weights[i].mT, flat, out=upstream.flatten(4).flatten(1, 3))
                _paste(upstream, self.shape, self._upstream[i - 1][:b])


def _matrices(networks: Networks) -> list[Tensor]:
    """Per connection (b, outputs, inputs * kernel)."""
    return [w.flatten(2) for w in networks.weights if w is not None]


def _cut(x: Tensor, shape: Cnn, out: Tensor) -> None:
    """Copy the patches of maps x (b, n, side, side, N) into out (b, n, k, k, o, o, N)."""
    b, n, height, width, samples = x.stride()
    out.copy_(x.as_strided(out.shape, (b, n, height, width, shape.stride * height, shape.stride * width, samples)))


def _paste(patches: Tensor, shape: Cnn, out: Tensor) -> None:
    """The adjoint of `_cut`: add every patch where it was cut out."""
    out.zero_()
    reach = shape.stride * (patches.shape[4] - 1) + 1
    for i in range(shape.kernel):
        for j in range(shape.kernel):
            window = out[:, :, i : i + reach : shape.stride, j : j + reach : shape.stride]
            window.add_(patches[:, :, i, j])


def _activate(shape: Cnn, maps: Tensor) -> Tensor:
    """The activation, in place; tanh(z) = 2 sigmoid(2z) - 1, because torch's sigmoid is three times as fast."""
    return maps.clamp_(min=0) if shape.activation == "relu" else maps.mul_(2).sigmoid_().mul_(2).sub_(1)


def _activation_backward(shape: Cnn, delta: Tensor, maps: Tensor) -> None:
    if shape.activation == "relu":
        torch.ops.aten.threshold_backward.grad_input(delta, maps, 0, grad_input=delta)
    else:
        torch.ops.aten.tanh_backward.grad_input(delta, maps, grad_input=delta)


@torch.no_grad()
def evaluate(shape: Cnn, parameters: Tensor, x: Tensor, labels: Tensor, *, batch: int = 64) -> tuple[Tensor, Tensor]:
    """Accuracy and mean cross-entropy of networks on the same images.

    Arguments:
        shape: Of every network.
        parameters: Shape (B, P).
        x: Images, (N, channels, side, side).
        labels: Shape (N,).
        batch: Images at once.

    Returns:
        Accuracy and loss, (B,) each.
    """
    networks = Networks(shape.architecture, parameters)
    matrices = _matrices(networks)
    correct = parameters.new_zeros(len(parameters))
    loss = parameters.new_zeros(len(parameters))
    for start in range(0, len(x), batch):
        maps = x[start : start + batch].permute(1, 2, 3, 0).contiguous()[None]
        for i in range(len(shape.channels) - 1):
            side, bias = shape.sides[i + 1], networks.biases[i + 1]
            assert bias is not None
            patches = maps.new_empty(*maps.shape[:2], shape.kernel, shape.kernel, side, side, maps.shape[4])
            _cut(maps, shape, patches)
            columns = patches.flatten(4).flatten(1, 3).expand(len(parameters), -1, -1)
            z = torch.baddbmm(bias[:, :, None], matrices[i], columns)
            maps = _activate(shape, z.unflatten(2, (side, side, -1)))
        bias = networks.biases[-1]
        assert bias is not None
        logits = torch.baddbmm(bias[:, :, None], matrices[-1], maps.flatten(2, 3).mean(2))
        truth = labels[start : start + batch].expand(len(parameters), 1, -1)
        loss -= logits.log_softmax(1).gather(1, truth).sum((1, 2))
        correct += (logits.argmax(1) == truth[:, 0]).sum(1)
    return correct / len(x), loss / len(x)
