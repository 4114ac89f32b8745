"""Architectures that people use, written by hand and small: each with the shape of its input."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations


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


class Attention(nn.Module):
    """Self-attention by hand, with one joint projection; causal if it has a mask."""

    def __init__(self, size: int, heads: int, context: int = 0) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(size, 3 * size), nn.Linear(size, size)
        if context:
            self.register_buffer("mask", torch.tril(torch.ones(context, context)).view(1, 1, context, context))
        self.causal = context > 0

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = self.qkv(x).split(C, dim=2)
        k = k.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        q = q.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        v = v.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        if self.causal:
            att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    """A transformer block that normalises first."""

    def __init__(self, size: int, attention: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.ln1, self.ln2, self.attention = nn.LayerNorm(size), nn.LayerNorm(size), attention
        self.mlp = nn.Sequential(nn.Linear(size, 4 * size), activation, nn.Linear(4 * size, size))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    """Tokens in, logits out; the table of tokens is also the last layer."""

    def __init__(
        self, vocabulary: int = 11, context: int = 9, size: int = 8, heads: int = 2, tied: bool = True
    ) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, size), nn.Embedding(context, size)
        self.blocks = nn.ModuleList(Block(size, Attention(size, heads, context), nn.GELU()) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, vocabulary, bias=False)
        if tied:
            self.head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        _, t = tokens.size()
        x = self.wte(tokens) + self.wpe(torch.arange(0, t, dtype=torch.long, device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class PatchAttention(nn.Module):
    """As in ViTs: queries, keys and values by a view, attention by torch."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(B, N, C))


class ViT(nn.Module):
    def __init__(self, size: int = 8, heads: int = 2, patches: int = 9) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, size, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, size))
        self.positions = nn.Parameter(torch.randn(1, patches + 1, size))
        self.blocks = nn.Sequential(*(Block(size, PatchAttention(size, heads), nn.GELU()) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


class Encoder(nn.Module):
    """Vectors of a sequence through torch's own encoder, then the mean."""

    def __init__(self, *, norm_first: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first, activation="relu")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.encoder(self.embed(x)).mean(dim=1))


class SelfAttention(nn.Module):
    """torch's multi-head attention on a residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Linear(3, 8), nn.Linear(8, 2)
        self.attention = nn.MultiheadAttention(8, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        y, _ = self.attention(x, x, x, need_weights=False)
        return self.out(x + y)


class Gated(nn.Module):
    """A gated linear unit (one matrix, two halves) after RMSNorm, as in recent language models."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.out = nn.Linear(4, 6), nn.RMSNorm(6, eps=1e-6), nn.Linear(6, 2)
        self.up, self.down = nn.Linear(6, 20), nn.Linear(10, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        a, b = self.up(self.norm(x)).chunk(2, dim=-1)
        return self.out(x + self.down(F.silu(a) * b))


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


class Recurrent(nn.Module):
    """One layer used three times."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.step, self.out = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for _ in range(3):
            x = torch.tanh(self.step(x))
        return self.out(x)


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


def classifier(*body: nn.Module, size: int, classes: int = 3) -> nn.Sequential:
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(size, classes))


def _vgg() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 4), (4, 6)):
        layers += [*conv_bn(inputs, outputs), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(6 * 9, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 3))


def _decoder() -> nn.Module:
    return nn.Sequential(
        nn.ConvTranspose2d(5, 8, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 4, 4, 2, 1), nn.BatchNorm2d(4),
        nn.ReLU(), nn.ConvTranspose2d(4, 1, 4, 2, 1), nn.Tanh(),
    )  # fmt: skip


def _critic() -> nn.Module:
    norm = nn.utils.parametrizations.spectral_norm
    return nn.Sequential(
        norm(nn.Conv2d(1, 4, 4, 2, 1)), nn.LeakyReLU(0.2), norm(nn.Conv2d(4, 6, 4, 2, 1)), nn.LeakyReLU(0.2),
        nn.Flatten(), parametrizations.weight_norm(nn.Linear(6 * 9, 1)),
    )  # fmt: skip


def _style() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.InstanceNorm2d(4, affine=True), nn.ReLU(), nn.Upsample(scale_factor=2),
        nn.Conv2d(4, 6, 3, padding=1), nn.InstanceNorm2d(6), nn.Tanh(), nn.Conv2d(6, 1, 3, padding=1),
    )  # fmt: skip


def _up() -> nn.Module:
    return nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)


@dataclass(frozen=True)
class Example:
    """A module, what it reads, and whether its channels come last."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    last: bool = False
    tokens: int = 0

    def inputs(self, count: int, generator: torch.Generator) -> Tensor:
        """What the module takes."""
        if self.tokens:
            return torch.randint(self.tokens, (count, *self.shape), generator=generator)
        return torch.randn(count, *self.shape, generator=generator, dtype=torch.float64)

    def moved(self, x: Tensor) -> Tensor:
        """Inputs as `Networks.evaluate` takes them: channels first."""
        return x.movedim(-1, 1) if self.last and not self.tokens else x

    def answers(self, modules: Sequence[nn.Module], x: Tensor) -> Tensor:
        """What the modules say, channels first."""
        with torch.no_grad():
            found = torch.stack([m(x) for m in modules])
        return found.movedim(-1, 2) if self.last and found.dim() > 3 else found


GALLERY = {
    "MLP with dropout": Example(
        lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)),
        (4,),
    ),
    "VGG": Example(_vgg, (1, 12, 12)),
    "ResNet": Example(lambda: classifier(*conv_bn(1, 4), nn.ReLU(), Basic(4, 4, 1), Basic(4, 6, 2), size=6), (1, 8, 8)),
    "ResNet, padded shortcuts": Example(
        lambda: classifier(*conv_bn(1, 4), nn.ReLU(), Basic(4, 4, 1), PaddedBasic(4, 8), Basic(8, 8, 1), size=8),
        (1, 8, 8),
    ),
    "ResNeXt": Example(
        lambda: classifier(*conv_bn(1, 6), nn.ReLU(), Bottleneck(6, 8, 4), Bottleneck(6, 8, 2), size=6),
        (1, 6, 6),
    ),
    "SE-ResNet": Example(
        lambda: classifier(*conv_bn(1, 4), nn.ReLU(), Basic(4, 6, 2), Squeeze(6, 3), size=6),
        (1, 8, 8),
    ),
    "MobileNetV2": Example(
        lambda: classifier(*conv_bn(1, 4), nn.ReLU6(), Inverted(4, 4, 1), Inverted(4, 6, 2), size=6), (1, 8, 8)
    ),
    "EfficientNet": Example(lambda: classifier(*conv_bn(1, 4), nn.SiLU(), MBConv(4), MBConv(4), size=4), (1, 6, 6)),
    "DenseNet": Example(
        lambda: classifier(nn.Conv2d(1, 4, 3, padding=1), Dense(4, 3, 3), nn.BatchNorm2d(13), nn.ReLU(), size=13),
        (1, 6, 6),
    ),
    "SqueezeNet": Example(
        lambda: classifier(nn.Conv2d(1, 4, 3), nn.ReLU(), Fire(4, 2, 3), Fire(6, 2, 3), size=6),
        (1, 8, 8),
    ),
    "Inception": Example(
        lambda: classifier(*conv_bn(1, 4), nn.ReLU(), Inception(4, 3), Inception(9, 2), size=6),
        (1, 6, 6),
    ),
    "ConvNeXt": Example(lambda: classifier(nn.Conv2d(1, 4, 4, 4), ConvNeXt(4), ConvNeXt(4), size=4), (1, 16, 16)),
    "U-Net": Example(lambda: UNet(lambda: nn.ConvTranspose2d(8, 8, 2, 2), nn.BatchNorm2d), (1, 8, 8)),
    "U-Net, bilinear and GroupNorm": Example(lambda: UNet(_up, lambda n: nn.GroupNorm(2, n)), (1, 8, 8)),
    "DCGAN generator": Example(_decoder, (5, 1, 1)),
    "Critic with spectral and weight norm": Example(_critic, (1, 12, 12)),
    "InstanceNorm and upsampling": Example(_style, (1, 5, 5)),
    "NeRF": Example(NeRF, (3,)),
    "Fourier features": Example(Fourier, (2,)),
    "TCN": Example(TCN, (2, 9)),
    "Normalised input": Example(Normalised, (3, 8, 8)),
    "Fixed filter": Example(Blurred, (1, 9, 9)),
    "Recurrent depth": Example(Recurrent, (3,)),
    "Tied autoencoder": Example(Autoencoder, (4,)),
    "Gated MLP with RMSNorm": Example(Gated, (4,)),
    "MultiheadAttention": Example(SelfAttention, (5, 3), last=True),
    "TransformerEncoder": Example(lambda: Encoder(norm_first=False), (5, 3), last=True),
    "TransformerEncoder, norm first": Example(lambda: Encoder(norm_first=True), (5, 3), last=True),
    "ViT": Example(ViT, (1, 12, 12)),
    "GPT": Example(lambda: GPT(tied=False), (7,), last=True, tokens=11),
    "GPT, tied tokens": Example(GPT, (7,), last=True, tokens=11),
}


def randomise(module: nn.Module, generator: torch.Generator) -> nn.Module:
    """Give normalisations something to do, in float64 and evaluation mode."""
    module = module.double().eval()
    for m in module.modules():
        if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d):
            assert m.running_mean is not None
            assert m.running_var is not None
            m.running_mean.normal_(generator=generator)
            m.running_var.uniform_(0.5, 2, generator=generator)
        affine = (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.InstanceNorm2d)
        if isinstance(m, affine) and m.weight is not None:
            for p in m.parameters(recurse=False):
                p.data.normal_(generator=generator)
    return module


def build(example: Example, count: int = 2, seed: int = 0) -> list[nn.Module]:
    """Some modules of one architecture; fixed buffers are those of the first."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    modules = [randomise(example.make(), generator) for _ in range(count)]
    fixed = ("B", "mean", "std", "filter", "mask")
    for module in modules[1:]:
        for (name, mine), (_, first) in zip(module.named_buffers(), modules[0].named_buffers(), strict=True):
            if name.rpartition(".")[2] in fixed:
                mine.copy_(first)
    return modules
