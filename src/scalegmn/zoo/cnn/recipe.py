"""What varies between the networks of a CNN zoo: hyperparameters and initial weights, drawn per network.

The ranges follow the Small CNN Zoo (Unterthiner et al., 2020, arXiv:2002.11448), shifted where its 86 epochs are
replaced by some hundred to some thousand steps: larger learning rates for plain gradient descent, less decay, and no
initial weights so small that such short training would not change them.
"""

import math
from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from ...errors import ScaleGMNError
from ...files.arrays import Array
from .shape import Cnn

OPTIMISERS = ("sgd", "adam", "rmsprop")
WEIGHT_INITS = ("glorot_normal", "he_normal", "orthogonal", "normal", "truncated_normal")
BIAS_INITS = ("zeros", "normal")
FRACTIONS = (0.1, 0.25, 0.5, 1.0)
LEARNING_RATES = {"sgd": (1e-2, 0.7), "adam": (5e-4, 2e-2), "rmsprop": (5e-4, 2e-2)}
# Beyond these nobody means what was typed.
MOST_IMAGES, MOST_STEPS = 2**16, 10**7
VARIED_WIDTHS = (8, 12, 16, 20, 24)


@dataclass(frozen=True)
class Budget:
    """How long networks train.

    Arguments:
        batch: Images in a step.
        steps: The number of steps of each network is log-uniform between these two.
        epochs: If given, all networks take this many passes through their training data instead.
    """

    batch: int = 32
    steps: tuple[int, int] = (50, 2000)
    epochs: float | None = None

    def __post_init__(self) -> None:
        low, high = self.steps
        if self.batch > MOST_IMAGES or high > MOST_STEPS:
            raise ScaleGMNError(f"budget: expected batches up to {MOST_IMAGES} and steps up to {MOST_STEPS}, got more")
        if self.batch < 1 or not 1 <= low <= high or (self.epochs is not None and not 0 < self.epochs < math.inf):
            raise ScaleGMNError(
                "budget: expected batch >= 1, 1 <= lowest <= highest steps and epochs > 0, got "
                f"batch {self.batch}, steps {low} to {high}, epochs {self.epochs}"
            )


@dataclass(frozen=True)
class Settings:
    """The hyperparameters of one network; the standard deviations are those of the initial normal distributions."""

    optimiser: str
    learning_rate: float
    l2: float
    dropout: float
    train_fraction: float
    weight_init: str
    weight_std: float
    bias_init: str
    bias_std: float
    steps: int


def generator(seed: int, index: int, purpose: int) -> Generator:
    """A random generator for one network (or one chunk) and one purpose, independent of all others."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, index, purpose))))


def draw_settings(seed: int, index: int, budget: Budget, images: int) -> Settings:
    """The hyperparameters of network `index` of the zoo with this seed.

    Arguments:
        seed, index: What decides them.
        budget: How long networks train.
        images: Number of training images.

    >>> draw_settings(0, 7, Budget(), 50_000) == draw_settings(0, 7, Budget(), 50_000)
    True
    """
    rng = generator(seed, index, 0)
    optimiser = str(rng.choice(OPTIMISERS))
    fraction = float(rng.choice(FRACTIONS))
    steps = round(_log_uniform(rng, *budget.steps))
    if budget.epochs is not None:
        steps = max(1, round(min(budget.epochs * math.ceil(round(fraction * images) / budget.batch), 2.0 * MOST_STEPS)))
        if steps > MOST_STEPS:
            raise ScaleGMNError(f"epochs: expected up to {MOST_STEPS} steps of a network, got more; ask for fewer")
    return Settings(
        optimiser=optimiser,
        learning_rate=_log_uniform(rng, *LEARNING_RATES[optimiser]),
        l2=_log_uniform(rng, 1e-8, 1e-3),
        dropout=float(rng.uniform(0, 0.7)) * float(rng.integers(2)),
        train_fraction=fraction,
        weight_init=str(rng.choice(WEIGHT_INITS)),
        weight_std=_log_uniform(rng, 0.03, 0.5),
        bias_init=str(rng.choice(BIAS_INITS)),
        bias_std=_log_uniform(rng, 1e-3, 0.3),
        steps=steps,
    )


def draw_shape(seed: int, chunk: int, *, side: int, channels: int, classes: int, activation: str, vary: bool) -> Cnn:
    """The shape of the networks of a chunk: the recipe's, or with `vary` any depth, width and kernel that fits.

    Arguments:
        seed, chunk: What decides it.
        side, channels, classes: Of the images and their labels.
        activation: `relu` or `tanh`.
        vary: Whether to vary it.
    """
    if not vary:
        # Small images have room for fewer convolutions than three.
        return Cnn(side, (channels, *[16] * max(1, _deepest(side, 3, 3))), activation=activation, classes=classes)
    rng = generator(seed, chunk, 1)
    kernel = int(rng.choice([k for k in (3, 5) if k <= side] or [3]))
    deepest = max(1, _deepest(side, kernel, 4))
    depth = int(rng.integers(min(2, deepest), deepest + 1))
    widths = (int(n) for n in rng.choice(VARIED_WIDTHS, depth))
    return Cnn(side, (channels, *widths), kernel, activation=activation, classes=classes)


def _deepest(side: int, kernel: int, most: int) -> int:
    """The largest number of convolutions with stride 2 that an image allows.

    >>> _deepest(8, 3, 3), _deepest(32, 3, 3)
    (2, 3)
    """
    depth = 0
    while side >= kernel and depth < most:
        depth, side = depth + 1, (side - kernel) // 2 + 1
    return depth


def initial_parameters(shape: Cnn, settings: Settings, rng: Generator) -> Tensor:
    """Weights and biases before training (P,), float32."""
    row = np.empty(shape.architecture.parameters, np.float32)
    for segment in shape.architecture.segments:
        target = row[segment.start : segment.start + segment.size].reshape(segment.shape)
        if segment.kind == "weight":
            target[:] = _initial_weight(segment.shape, settings, rng)
        else:
            target[:] = settings.bias_std * rng.standard_normal(segment.shape) if settings.bias_init == "normal" else 0
    return torch.from_numpy(row)


def _initial_weight(shape: tuple[int, ...], settings: Settings, rng: Generator) -> Array:
    """A weight (outputs, inputs, kernel)."""
    outputs, inputs, kernel = shape
    match settings.weight_init:
        case "orthogonal":
            tall = rng.standard_normal((max(outputs, inputs * kernel), min(outputs, inputs * kernel)))
            q, r = np.linalg.qr(tall)
            q *= np.sign(np.diag(r))
            return np.asarray(q if outputs > inputs * kernel else q.T).reshape(shape)
        case "glorot_normal":
            return math.sqrt(2 / ((inputs + outputs) * kernel)) * _truncated_normal(rng, shape)
        case "he_normal":
            return math.sqrt(2 / (inputs * kernel)) * _truncated_normal(rng, shape)
        case "truncated_normal":
            return settings.weight_std * _truncated_normal(rng, shape)
        case _:
            return settings.weight_std * rng.standard_normal(shape)


def _truncated_normal(rng: Generator, shape: tuple[int, ...]) -> Array:
    """Normal numbers, drawn again where beyond two standard deviations."""
    z = rng.standard_normal(shape)
    while (far := np.abs(z) > 2).any():
        z[far] = rng.standard_normal(int(far.sum()))
    return z


def _log_uniform(rng: Generator, low: float, high: float) -> float:
    return float(math.exp(rng.uniform(math.log(low), math.log(high))))


def settings_columns(settings: list[Settings]) -> dict[str, Tensor | list[str]]:
    """Columns of a zoo's table, one per hyperparameter.

    >>> columns = settings_columns([draw_settings(0, i, Budget(), 1000) for i in range(3)])
    >>> columns["steps"].dtype, len(columns["optimiser"])
    (torch.int64, 3)
    """
    rows = [asdict(s) for s in settings]
    found: dict[str, Tensor | list[str]] = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        found[name] = values if isinstance(values[0], str) else torch.tensor(values)
    return found
