"""Architectures that people use: each with the shape of its input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from convert.attentions import GPT, Encoder, Gated, Recurrent, SelfAttention, ViT
from convert.convolutions import (
    TCN,
    Autoencoder,
    Basic,
    Blurred,
    Bottleneck,
    ConvNeXt,
    Dense,
    Fire,
    Fourier,
    Inception,
    Inverted,
    MBConv,
    NeRF,
    Normalised,
    PaddedBasic,
    Squeeze,
    UNet,
    conv_bn,
)
from torch import Tensor, nn
from torch.nn.utils import parametrizations


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
