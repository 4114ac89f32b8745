"""Convolutional networks that people use, and networks of coordinates, written by hand and small."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def conv_bn(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Basic(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.a, self.b = conv_bn(inputs, outputs, 3, stride), conv_bn(outputs, outputs)
        same = stride == 1 and inputs == outputs
        self.short = nn.Identity() if same else conv_bn(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.b(F.relu(self.a(x))) + self.short(x))


class PaddedBasic(nn.Module):
    """The shortcut of the first CIFAR ResNets: every second pixel, and channels of zeros."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.a, self.b, self.more = conv_bn(inputs, outputs, 3, 2), conv_bn(outputs, outputs), (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        short = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.more, self.more), "constant", 0)
        return F.relu(self.b(F.relu(self.a(x))) + short)


class Bottleneck(nn.Module):
    """ResNeXt: a grouped convolution between two of size 1."""

    def __init__(self, size: int, inner: int, groups: int) -> None:
        super().__init__()
        self.a, self.b, self.c = conv_bn(size, inner, 1), conv_bn(inner, inner, 3, 1, groups), conv_bn(inner, size, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.c(F.relu(self.b(F.relu(self.a(x))))))


class Inverted(nn.Module):
    """MobileNetV2: expand, filter each channel, project."""

    def __init__(self, inputs: int, outputs: int, stride: int, expand: int = 3) -> None:
        super().__init__()
        inner = inputs * expand
        self.body = nn.Sequential(
            *conv_bn(inputs, inner, 1), nn.ReLU6(), *conv_bn(inner, inner, 3, stride, inner), nn.ReLU6(),
            *conv_bn(inner, outputs, 1),
        )  # fmt: skip
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.residual else self.body(x)


class Squeeze(nn.Module):
    """Squeeze-and-excitation with linear layers."""

    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(size, inner), nn.ReLU(), nn.Linear(inner, size), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        b, c, _, _ = x.size()
        y = F.adaptive_avg_pool2d(x, 1).view(b, c)
        return x * self.fc(y).view(b, c, 1, 1).expand_as(x)


class MBConv(nn.Module):
    """EfficientNet: inverted bottleneck with an excitation of convolutions of size 1."""

    def __init__(self, size: int) -> None:
        super().__init__()
        inner = 3 * size
        self.expand, self.filter, self.project = (
            conv_bn(size, inner, 1),
            conv_bn(inner, inner, 3, 1, inner),
            conv_bn(inner, size, 1),
        )
        self.squeeze, self.excite = nn.Conv2d(inner, 4, 1), nn.Conv2d(4, inner, 1)

    def forward(self, x: Tensor) -> Tensor:
        z = F.silu(self.filter(F.silu(self.expand(x))))
        s = z.mean((2, 3), keepdim=True)
        z = z * torch.sigmoid(self.excite(F.silu(self.squeeze(s))))
        return x + self.project(z)


class Dense(nn.Module):
    """DenseNet: BatchNorm and ReLU of all that came before."""

    def __init__(self, size: int, growth: int, depth: int) -> None:
        super().__init__()
        sizes = [size + i * growth for i in range(depth)]
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in sizes)
        self.convs = nn.ModuleList(nn.Conv2d(n, growth, 3, padding=1, bias=False) for n in sizes)

    def forward(self, x: Tensor) -> Tensor:
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = torch.cat([x, conv(F.relu(norm(x)))], 1)
        return x


class Fire(nn.Module):
    """SqueezeNet."""

    def __init__(self, inputs: int, inner: int, outputs: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, inner, 1)
        self.small, self.large = nn.Conv2d(inner, outputs, 1), nn.Conv2d(inner, outputs, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.small(x)), F.relu(self.large(x))], 1)


class Inception(nn.Module):
    def __init__(self, inputs: int, each: int) -> None:
        super().__init__()
        self.one, self.three, self.pooled = (
            conv_bn(inputs, each, 1),
            nn.Sequential(*conv_bn(inputs, each, 1), nn.ReLU(), *conv_bn(each, each)),
            conv_bn(inputs, each, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        pooled = F.max_pool2d(x, 3, 1, 1)
        return torch.cat([F.relu(self.one(x)), F.relu(self.three(x)), F.relu(self.pooled(pooled))], dim=1)


class ConvNeXt(nn.Module):
    """A block with channels last inside, LayerNorm and a learned factor per channel."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.filter = nn.Conv2d(size, size, 7, padding=3, groups=size)
        self.norm = nn.LayerNorm(size, eps=1e-6)
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)
        self.gamma = nn.Parameter(torch.rand(size))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.filter(x).permute(0, 2, 3, 1))
        y = self.gamma * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class UNet(nn.Module):
    """Down, up by `up`, and concatenation with what was there before."""

    def __init__(self, up: Callable[[], nn.Module], norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.na, self.nb = norm(4), norm(8)
        self.up = up()
        self.nc = norm(12)
        self.c, self.out = nn.Conv2d(12, 4, 3, padding=1), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.na(self.a(x)))
        b = F.relu(self.nb(self.b(F.max_pool2d(a, 2))))
        return self.out(F.relu(self.c(self.nc(torch.cat([a, self.up(b)], dim=1)))))


class NeRF(nn.Module):
    """Frequencies of the input by hand, and the encoded input once more in the middle."""

    def __init__(self, frequencies: int = 3, width: int = 12) -> None:
        super().__init__()
        size = 3 * (1 + 2 * frequencies)
        self.frequencies = frequencies
        self.a, self.b, self.c = nn.Linear(size, width), nn.Linear(width, width), nn.Linear(width + size, width)
        self.rgb = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        parts = [x]
        for k in range(self.frequencies):
            parts += [torch.sin(2.0**k * math.pi * x), torch.cos(2.0**k * math.pi * x)]
        e = torch.cat(parts, -1)
        h = F.relu(self.b(F.relu(self.a(e))))
        return self.rgb(F.relu(self.c(torch.cat([e, h], -1))))


class Fourier(nn.Module):
    """Gaussian Fourier features (a buffer), then an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("B", torch.randn(2, 8))
        self.net = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3))

    def forward(self, x: Tensor) -> Tensor:
        z = 2 * math.pi * x @ self.B
        return torch.sigmoid(self.net(torch.cat([torch.sin(z), torch.cos(z)], dim=-1)))


class TCN(nn.Module):
    """Causal convolutions of a signal: padded on the left, or cut off on the right."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Conv1d(2, 6, 3), nn.Conv1d(6, 6, 3, padding=4, dilation=2), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(F.pad(x, (2, 0))))
        x = F.relu(self.b(x)[:, :, :-4] + x)
        return self.out(x[:, :, -1])


class Normalised(nn.Module):
    """Statistics of the data as buffers, BatchNorm at the start and after an activation, a shape that is checked."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.randn(1, 3, 1, 1))
        self.register_buffer("std", torch.rand(1, 3, 1, 1) + 0.5)
        self.first, self.later = nn.BatchNorm2d(3), nn.BatchNorm2d(5)
        self.conv, self.conv2, self.fc = nn.Conv2d(3, 5, 3), nn.Conv2d(5, 6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1] == 3, "expected colours"
        x = self.first((x - self.mean) / self.std)
        x = F.relu(self.conv2(self.later(F.relu(self.conv(x)))))
        return self.fc(F.avg_pool2d(x, x.size()[2:]).view(x.size(0), -1))


class Autoencoder(nn.Module):
    """The decoder has the encoder's weights, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.inner = nn.Parameter(torch.randn(6, 4) / 2), nn.Parameter(torch.randn(3, 6) / 2)
        self.a, self.b, self.c = (nn.Parameter(torch.randn(n)) for n in (6, 3, 6))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(F.linear(x, self.weight, self.a))
        x = torch.tanh(F.linear(x, self.inner, self.b))
        x = torch.tanh(F.linear(x, self.inner.t(), self.c))
        return F.linear(x, self.weight.t())


class Blurred(nn.Module):
    """A fixed filter, the same for every channel, before every second pixel is taken."""

    def __init__(self) -> None:
        super().__init__()
        row = torch.tensor([1.0, 2.0, 1.0])
        self.register_buffer("filter", (row[:, None] * row / 16).expand(4, 1, 3, 3).clone())
        self.a, self.b = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv2d(F.relu(self.a(x)), self.filter, stride=2, padding=1, groups=4)
        return F.adaptive_avg_pool2d(self.b(x), 1).flatten(1)
