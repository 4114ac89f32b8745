"""Modules as people write them, each with the shape of its input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Sine(nn.Module):
    def __init__(self, w0: float) -> None:
        super().__init__()
        self.w0 = w0

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.w0 * x)


class SirenLayer(nn.Module):
    """sin(w0 (W x + b)), with w0 a buffer."""

    def __init__(self, inputs: int, outputs: int, w0: float = 30.0) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        nn.init.uniform_(self.linear.weight, -((6 / inputs) ** 0.5) / w0, (6 / inputs) ** 0.5 / w0)
        self.register_buffer("w0", torch.tensor(w0))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.w0 * self.linear(x))


class PhaseLayer(nn.Module):
    """sin(w0 W x + b)."""

    def __init__(self, inputs: int, outputs: int, w0: float = 7.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / 5)
        self.bias = nn.Parameter(torch.randn(outputs))
        self.w0 = w0

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.w0 * F.linear(x, self.weight) + self.bias)


class DWSINR(nn.Module):
    """A SIREN with +0.5 on the output."""

    def __init__(self) -> None:
        super().__init__()
        self.seq = nn.Sequential(SirenLayer(2, 8), SirenLayer(8, 8), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.seq(x) + 0.5


class FunctionalMLP(nn.Module):
    """Functions and methods, a default argument, and a shape in a reshape."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(3, 6), nn.Linear(6, 5), nn.Linear(5, 4, bias=False)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor, flag: bool = True) -> Tensor:
        x = F.leaky_relu(self.fc1(x), 0.2, inplace=True)
        x = self.dropout(x.contiguous()).reshape(x.size(0), -1)
        if flag:
            x = F.dropout(self.fc2(x).tanh(), training=self.training)
        return F.log_softmax(self.fc3(x), dim=-1)


class Matrices(nn.Module):
    """Products with raw parameters from the right, and biases added by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.b1 = nn.Parameter(torch.randn(3, 7)), nn.Parameter(torch.randn(7))
        self.w2, self.b2 = nn.Parameter(torch.randn(2, 7)), nn.Parameter(torch.randn(1, 2))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(x @ self.w1 + self.b1)
        return self.b2 + torch.matmul(hidden, self.w2.t())


class ResidualMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(3, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 8)) for _ in range(2))
        self.out = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inp(x)
        for block in self.blocks:
            x = x + block(x)
        return self.out(F.relu(x))


class ScaledResidual(nn.Module):
    """Factors before additions, a subtraction, and an affine output."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 5, bias=False)
        self.out = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(2 * x).tanh()
        x = torch.tanh(x - 0.3 * self.b(x))
        x = torch.add(x, self.c(x), alpha=0.5)
        return 2 * torch.sigmoid(self.out(x)) - 1


class ResBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding="same", bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
        self.layers = nn.Sequential(ResBlock(4, 4, 1), ResBlock(4, 6, 2))
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(self.stem(x))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class PreActivation(nn.Module):
    """The pre-activation has two readers, and pooling comes before an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(2, 4, 3)
        self.b = nn.Conv2d(4, 4, 3, padding=1)
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        x = F.max_pool2d(x + self.b(F.relu(x)), 2, stride=1, padding=1).tanh()
        return self.out(x.mean((2, 3)))


class Aliased(nn.Module):
    """Layers with two names, as a list and inside a Sequential; and a layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 4), nn.Linear(4, 1)])
        self.net = nn.Sequential(self.layers[0], nn.ReLU(), self.layers[1])
        self.unused = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class InputActivation(nn.Module):
    """An activation on the input, a power, and an absolute value."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(torch.sin(2.0 * x)) ** 3
        return self.c(torch.abs(self.b(x)).square()).clamp(0, 1)


class LayerNormMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(3, 8), nn.LayerNorm(8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.norm(self.a(x))))


class ScaledLayerNorm(nn.Module):
    """LayerNorms without biases, one with a factor and one that is subtracted."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.norm, self.second = nn.LayerNorm(8, bias=False), nn.LayerNorm(8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(0.5 * self.norm(self.a(x)))
        return self.c(F.relu(self.b(x) - self.second(x)))


class NamedOps(nn.Module):
    """Convolution by function, pooling to a few positions, a view by size."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(4, 1, 3, 3))
        self.bias = nn.Parameter(torch.randn(4))
        self.fc = nn.Linear(4 * 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv2d(x, self.kernel, self.bias, stride=2, padding=1)
        x = F.adaptive_avg_pool2d(F.gelu(x), (2, 3))
        return self.fc(x.view(x.shape[0], -1))


@dataclass(frozen=True)
class Example:
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    sizes: str


def _tanh_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(4, 5, 3, dilation=2), nn.Tanh(), nn.Flatten(),
        nn.Linear(5 * 9, 6), nn.Tanh(), nn.Linear(6, 3),
    )  # fmt: skip


EXAMPLES = {
    "relu mlp": Example(
        lambda: nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)), (2,), "2-8-8-1"
    ),
    "prelu": Example(lambda: nn.Sequential(nn.Linear(2, 8), nn.PReLU(), nn.Linear(8, 1)), (2,), "2-8-1"),
    "one layer": Example(lambda: nn.Linear(3, 2), (3,), "3-2"),
    "softmax": Example(
        lambda: nn.Sequential(nn.Linear(2, 8), nn.ELU(0.7), nn.Linear(8, 4), nn.Softmax(dim=1)), (2,), "2-8-4"
    ),
    "sine module": Example(
        lambda: nn.Sequential(nn.Linear(2, 8), Sine(30), nn.Linear(8, 8), Sine(5), nn.Linear(8, 1)), (2,), "2-8-8-1"
    ),
    "dws siren": Example(DWSINR, (2,), "2-8-8-1"),
    "phase siren": Example(lambda: nn.Sequential(PhaseLayer(2, 8), PhaseLayer(8, 8), nn.Linear(8, 3)), (2,), "2-8-8-3"),
    "functions": Example(FunctionalMLP, (3,), "3-6-5-4"),
    "matrices": Example(Matrices, (3,), "3-7-2"),
    "batch norm mlp": Example(
        lambda: nn.Sequential(
            nn.Linear(3, 6),
            nn.BatchNorm1d(6),
            nn.ReLU(),
            nn.Linear(6, 6, bias=False),
            nn.BatchNorm1d(6, affine=False),
            nn.Tanh(),
            nn.Linear(6, 2),
        ),
        (3,),
        "3-6-6-2",
    ),
    "layer norm": Example(LayerNormMLP, (3,), "3-8-8-2"),
    "scaled layer norm": Example(ScaledLayerNorm, (3,), "3-8-8-8-2"),
    "residual mlp": Example(ResidualMLP, (3,), "3-8-6-8-6-8-2"),
    "scaled residual": Example(ScaledResidual, (3,), "3-5-5-5-5-2-2"),
    "input activation": Example(InputActivation, (3,), "3-3-4-4-4-2"),
    "aliased": Example(Aliased, (2,), "2-4-1"),
    "tanh cnn": Example(_tanh_cnn, (1, 16, 16), "1-4-5-6-3"),
    "conv1d": Example(
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 3, 2),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(4, 4, 3, padding=1),
            nn.LeakyReLU(),
            nn.AdaptiveMaxPool1d(1),
            nn.Flatten(),
            nn.Linear(4, 3),
        ),
        (2, 20),
        "2-4-4-3",
    ),
    "resnet": Example(ResNet, (1, 12, 12), "1-4-4-4-6-6-6-3"),
    "pre-activation": Example(PreActivation, (2, 8, 8), "2-4-4-4-4-3"),
    "all convolutions": Example(
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.SiLU(), nn.Conv2d(4, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        (1, 7, 9),
        "1-4-3-3",
    ),
    "maps to maps": Example(
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Softplus(), nn.Conv2d(4, 1, 3, padding=1)),
        (1, 6, 7),
        "1-4-1",
    ),
    "named ops": Example(NamedOps, (1, 9, 9), "1-4-3"),
}


def randomise(module: nn.Module, generator: torch.Generator) -> nn.Module:
    """Give BatchNorm and LayerNorm something to do; networks are compared in evaluation mode."""
    for name, tensor in module.state_dict().items():
        if name.endswith(("running_mean", "norm.weight", "second.weight", "norm.bias", "bn1.weight", "bn2.bias")):
            tensor.normal_(generator=generator)
        if name.endswith("running_var"):
            tensor.uniform_(0.5, 2, generator=generator)
    return module.eval()
