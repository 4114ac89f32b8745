r"""Activation functions and the symmetry that each gives its neurons.

An activation \(\sigma\) has a group \(D_\sigma\) and a homomorphism \(\phi\) with
\(\sigma(a x) = \phi(a) \sigma(x)\) for all \(a \in D_\sigma\) (Godfrey et al. 2022; paper, section 4).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import ScaleGMNError
from .groups import Group, NonZeroScale, PositiveScale, Sign, Trivial


@dataclass(frozen=True)
class Phi:
    r"""The homomorphism \(\phi(a) = |a|^k\), times \(\operatorname{sign}(a)\) unless even.

    It is applied to multipliers and, since \(\phi(a y) = \phi(a) \phi(y)\), also elementwise to vertex states: this
    turns a state that is multiplied by \(a\) into one that is multiplied by \(\phi(a)\).

    Arguments:
        power: The exponent k: a whole number for every registered activation, any number for others (|x|^1.5).
        even: Whether phi(-1) = 1.

    >>> Phi(3)(torch.tensor(-2.0)), Phi(1, even=True)(torch.tensor(-2.0))
    (tensor(-8.), tensor(2.))
    """

    power: float = 1
    even: bool = False

    @property
    def is_identity(self) -> bool:
        """Whether phi(a) = a."""
        return self.power == 1 and not self.even

    def __call__(self, a: Tensor) -> Tensor:
        if self.is_identity:
            return a
        magnitude = a.abs() if self.power == 1 else a.abs() ** self.power
        return magnitude if self.even else a.sign() * magnitude

    def derivative(self, a: Tensor) -> Tensor:
        r"""\(\phi'(a)\), which is multiplied by \(\phi(q)/q\) when `a` is multiplied by \(q\)."""
        if self.is_identity:
            return torch.ones_like(a)
        if self.power == 1:
            return a.sign()
        if self.power == 0:
            return torch.zeros_like(a)
        factor = self.power * a.abs() ** (self.power - 1)
        odd_derivative = self.even
        return factor * a.sign() if odd_derivative else factor

    @property
    def fixed(self) -> Group:
        """The largest of the four groups on which phi(a) = a."""
        if self.power == 1:
            return PositiveScale if self.even else NonZeroScale
        return Trivial if self.even else Sign


Identity = Phi()


@dataclass(frozen=True)
class Activation:
    """An activation function by name and parameters, with its group and phi.

    Build one with `activation`. It is hashable and part of an `Architecture`.

    Arguments:
        name: Its name in the registry.
        parameters: Slope, frequency, power or bounds, where the function has them.

    >>> tanh = activation("tanh")
    >>> tanh.group, tanh.phi, str(activation("sine", 30.0))
    (Sign, Phi(power=1, even=False), 'sine(30)')
    """

    name: str
    parameters: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.name not in _REGISTRY:
            raise ScaleGMNError(f"activation: expected one of {', '.join(_REGISTRY)}; got {self.name!r}")
        expected = len(_REGISTRY[self.name].defaults)
        if len(self.parameters) != expected:
            raise ScaleGMNError(
                f"activation {self.name!r}: expected {expected} parameter(s), got {len(self.parameters)}"
            )
        first = self.parameters[0] if self.parameters else 1.0
        if self.name == "power" and (first < 1 or first != int(first)):
            raise ScaleGMNError(f"activation 'power': expected a whole exponent of at least 1, got {first:g}")
        if self.name in ("sine", "cos") and (first == 0 or not math.isfinite(first)):
            raise ScaleGMNError(f"activation {self.name!r}: expected a frequency other than 0, got {first:g}")

    def __str__(self) -> str:
        if not self.parameters:
            return self.name
        return f"{self.name}({', '.join(f'{p:g}' for p in self.parameters)})"

    @property
    def group(self) -> Group:
        """The scaling group of a neuron with this activation."""
        return self._symmetry[0]

    @property
    def phi(self) -> Phi:
        """The map from the multiplier of the input to that of the output."""
        return self._symmetry[1]

    @property
    def learned_slope(self) -> bool:
        """Whether every network has its own learned slope (prelu)."""
        return self.name == "prelu"

    @property
    def across_neurons(self) -> bool:
        """Whether the function mixes the neurons of the layer (softmax)."""
        return self.name in ("softmax", "log_softmax")

    @property
    def _symmetry(self) -> tuple[Group, Phi]:
        if self.name == "power":
            k = int(self.parameters[0])
            return NonZeroScale, Phi(k, even=k % 2 == 0)
        if self.name == "hardtanh" and self.parameters[0] != -self.parameters[1]:
            return Trivial, Identity
        entry = _REGISTRY[_SPECIAL_CASES.get((self.name, self.parameters), self.name)]
        return entry.group, entry.phi

    def __call__(self, z: Tensor, slope: Tensor | None = None) -> Tensor:
        """Apply the function elementwise.

        Arguments:
            z: Pre-activations.
            slope: For `prelu`, the slopes, of a shape that broadcasts against z.
        """
        if self.learned_slope:
            assert slope is not None
            return torch.where(z >= 0, z, slope * z)
        return _REGISTRY[self.name].function(z, *self.parameters)


@dataclass(frozen=True)
class _Entry:
    function: Callable[..., Tensor]
    group: Group
    phi: Phi = Identity
    defaults: tuple[float, ...] = ()


_Even = Phi(1, even=True)

_REGISTRY: dict[str, _Entry] = {
    "identity": _Entry(lambda z: z, NonZeroScale),
    "relu": _Entry(torch.relu, PositiveScale),
    "leaky_relu": _Entry(F.leaky_relu, PositiveScale, defaults=(0.01,)),
    "prelu": _Entry(lambda z: z, PositiveScale),
    "tanh": _Entry(torch.tanh, Sign),
    "sine": _Entry(lambda z, f: torch.sin(z if f == 1 else f * z), Sign, defaults=(1.0,)),
    "softsign": _Entry(F.softsign, Sign),
    "arctan": _Entry(torch.atan, Sign),
    "asinh": _Entry(torch.asinh, Sign),
    "erf": _Entry(torch.erf, Sign),
    "hardtanh": _Entry(F.hardtanh, Sign, defaults=(-1.0, 1.0)),
    "tanhshrink": _Entry(F.tanhshrink, Sign),
    "softshrink": _Entry(F.softshrink, Sign, defaults=(0.5,)),
    "hardshrink": _Entry(F.hardshrink, Sign, defaults=(0.5,)),
    "abs": _Entry(torch.abs, NonZeroScale, _Even),
    "power": _Entry(lambda z, k: z ** int(k), NonZeroScale, defaults=(3.0,)),
    "cos": _Entry(lambda z, f: torch.cos(z if f == 1 else f * z), Sign, _Even, defaults=(1.0,)),
    "gelu": _Entry(F.gelu, Trivial),
    "gelu_tanh": _Entry(lambda z: F.gelu(z, approximate="tanh"), Trivial),
    "silu": _Entry(F.silu, Trivial),
    "sigmoid": _Entry(torch.sigmoid, Trivial),
    "softplus": _Entry(F.softplus, Trivial, defaults=(1.0, 20.0)),
    "elu": _Entry(F.elu, Trivial, defaults=(1.0,)),
    "selu": _Entry(F.selu, Trivial),
    "mish": _Entry(F.mish, Trivial),
    "relu6": _Entry(F.relu6, Trivial),
    "hardswish": _Entry(F.hardswish, Trivial),
    "hardsigmoid": _Entry(F.hardsigmoid, Trivial),
    "logsigmoid": _Entry(F.logsigmoid, Trivial),
    "softmax": _Entry(lambda z: torch.softmax(z, dim=2), Trivial),
    "log_softmax": _Entry(lambda z: torch.log_softmax(z, dim=2), Trivial),
}

# Parameters with which a function is another one, whose symmetry it then has.
_SPECIAL_CASES: dict[tuple[str, tuple[float, ...]], str] = {
    ("leaky_relu", (1.0,)): "identity",
    ("leaky_relu", (-1.0,)): "abs",
    ("elu", (0.0,)): "relu",
    ("softshrink", (0.0,)): "identity",
    ("hardshrink", (0.0,)): "identity",
}

_ALIASES = {"sin": "sine", "siren": "sine", "atan": "arctan", "swish": "silu", "linear": "identity", "cosine": "cos"}

_POWERS = {"square": 2.0, "cube": 3.0}

ARGUMENTS = {
    "leaky_relu": ("negative_slope",),
    "hardtanh": ("min_val", "max_val"),
    "softplus": ("beta", "threshold"),
    "elu": ("alpha",),
    "softshrink": ("lambd",),
    "hardshrink": ("lambd",),
}
"""How torch calls the parameters of activations, in modules and in functions."""

_MODULES: dict[type[nn.Module], str] = {
    nn.Identity: "identity", nn.ReLU: "relu", nn.LeakyReLU: "leaky_relu", nn.PReLU: "prelu", nn.Tanh: "tanh",
    nn.Softsign: "softsign", nn.Hardtanh: "hardtanh", nn.Tanhshrink: "tanhshrink", nn.Softshrink: "softshrink",
    nn.Hardshrink: "hardshrink", nn.GELU: "gelu", nn.SiLU: "silu", nn.Sigmoid: "sigmoid", nn.Softplus: "softplus",
    nn.ELU: "elu", nn.SELU: "selu", nn.Mish: "mish", nn.ReLU6: "relu6", nn.Hardswish: "hardswish",
    nn.Hardsigmoid: "hardsigmoid", nn.LogSigmoid: "logsigmoid", nn.Softmax: "softmax", nn.LogSoftmax: "log_softmax",
}  # fmt: skip

_FUNCTIONS: dict[Callable[..., Tensor], str] = {
    torch.relu: "relu", F.relu: "relu", F.leaky_relu: "leaky_relu", torch.tanh: "tanh", F.tanh: "tanh",
    torch.sin: "sine", torch.cos: "cos", torch.atan: "arctan", torch.arctan: "arctan", torch.asinh: "asinh",
    torch.arcsinh: "asinh", torch.erf: "erf", torch.special.erf: "erf", F.softsign: "softsign",
    F.hardtanh: "hardtanh", F.tanhshrink: "tanhshrink", F.softshrink: "softshrink", F.hardshrink: "hardshrink",
    torch.abs: "abs", F.gelu: "gelu", F.silu: "silu", torch.sigmoid: "sigmoid", F.sigmoid: "sigmoid",
    F.softplus: "softplus", F.elu: "elu", F.selu: "selu", torch.selu: "selu", F.mish: "mish", F.relu6: "relu6",
    F.hardswish: "hardswish", F.hardsigmoid: "hardsigmoid", F.logsigmoid: "logsigmoid", F.softmax: "softmax",
    torch.softmax: "softmax", F.log_softmax: "log_softmax", torch.log_softmax: "log_softmax",
    torch.square: "square",
}  # fmt: skip


def _of_module(module: nn.Module) -> Activation:
    name = _MODULES[type(module)]
    if isinstance(module, nn.PReLU) and module.weight.numel() != 1:
        raise ScaleGMNError(f"PReLU: expected one slope, got {module.weight.numel()}; use nn.PReLU(num_parameters=1)")
    if isinstance(module, nn.GELU) and module.approximate != "none":
        name = "gelu_tanh"
    return Activation(name, tuple(float(getattr(module, argument)) for argument in ARGUMENTS.get(name, ())))


def names() -> tuple[str, ...]:
    """All names of the registry."""
    return tuple(_REGISTRY)


def activation(
    which: str | Activation | nn.Module | type[nn.Module] | Callable[..., Tensor], *parameters: float
) -> Activation:
    """Look up an activation by name, module, module class or function.

    Arguments:
        which: For example `"relu"`, `nn.Tanh()`, `nn.ReLU` or `torch.sin`.
        parameters: Slope, frequency, power or bounds; defaults if omitted.

    >>> activation("sine", 30.0).group, activation(nn.ReLU).group, activation(torch.abs).phi
    (Sign, PositiveScale, Phi(power=1, even=True))
    """
    if parameters and (isinstance(which, Activation | nn.Module) or (isinstance(which, str) and which in _POWERS)):
        raise ScaleGMNError(f"activation: {which} has its parameters already; got {parameters} beside it")
    if isinstance(which, Activation):
        return which
    if isinstance(which, str) and which in _POWERS:
        return Activation("power", (_POWERS[which],))
    if isinstance(which, str):
        name = _ALIASES.get(which, which)
        default = _REGISTRY[name].defaults if name in _REGISTRY else ()
        return Activation(name, tuple(float(p) for p in parameters) + default[len(parameters) :])
    if isinstance(which, type) and issubclass(which, nn.Module) and which in _MODULES:
        return activation(which(*parameters))
    if isinstance(which, nn.Module):
        if type(which) in _MODULES:
            return _of_module(which)
    elif which in _FUNCTIONS:
        return activation(_FUNCTIONS[which], *parameters)
    raise ScaleGMNError(
        f"activation: {which!r} is not in the registry; expected one of {', '.join(_REGISTRY)}"
    )


def is_activation_module(module: nn.Module) -> bool:
    """Whether `activation` knows this module."""
    return type(module) in _MODULES


def is_activation_function(function: object) -> bool:
    """Whether `activation` knows this function."""
    try:
        return function in _FUNCTIONS
    except TypeError:
        return False
