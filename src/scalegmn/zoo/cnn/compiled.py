"""The compiled engine of CNN zoos: `cnn.cpp` trains a whole network on one thread, without holding up the others."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ...native import library as kernels
from .engine import Cnn

SOURCE = Path(__file__).parents[2] / "native" / "cnn.cpp"
# The order of the enumerations in the C++ code.
_ACTIVATIONS = ("sine", "relu", "tanh")
_OPTIMISERS = ("sgd", "adam", "rmsprop")
# Hidden layers are padded to a multiple of this.
_PAD = 8


class _Shape(ctypes.Structure):
    _fields_ = [
        ("channels", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("convolutions", "side", "kernel", "stride", "classes")),
        ("activation", ctypes.c_int),
    ]


class _Rule(ctypes.Structure):
    _fields_ = [
        ("optimiser", ctypes.c_int),
        *((name, ctypes.c_double) for name in ("lr", "l2", "dropout", "clip")),
    ]


class _Data(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("images", "labels", "chosen")),
        *((name, ctypes.c_int64) for name in ("steps", "batch")),
        *((name, ctypes.c_void_p) for name in ("noise", "starts")),
    ]


class Rule(NamedTuple):
    """How a network learns: sgd, adam or rmsprop, learning rate, factor of the squared weights in the loss, rate of
    dropout, and the length to which longer gradients are shortened."""

    optimiser: str
    learning_rate: float
    l2: float
    dropout: float
    clip: float


class Noise(NamedTuple):
    """Uniform numbers for dropout: every step reads `noise_size` of `pool` (n,) from its entry of `starts` (steps,) on.

    They belong to the layers one after the other, (batch, height, width, channels padded to a multiple of 8) each.
    """

    pool: Tensor
    starts: Tensor


def noise_size(shape: Cnn, batch: int) -> int:
    """Random numbers that a step with dropout reads.

    >>> noise_size(Cnn(16, (1, 12)), 2) == 2 * 7 * 7 * 16
    True
    """
    widths = (-(-n // _PAD) * _PAD for n in shape.channels[1:])
    return batch * sum(n * s * s for n, s in zip(widths, shape.sides[1:], strict=True))


def descend(
    shape: Cnn, rule: Rule, parameters: Tensor, images: Tensor, labels: Tensor, chosen: Tensor, noise: Noise | None
) -> Tensor:
    """Train one network.

    Arguments:
        shape: Of the network.
        rule: How it learns.
        parameters: Where it starts, (P,), float32 or float64.
        images, labels: Training images (N, channels, side, side), uint8, and classes (N,), int64.
        chosen: The images of every step's batch, (steps, batch), int32.
        noise: For dropout, in the type of the parameters; needed if its rate is not 0.

    Returns:
        Its parameters after the last step, (P,).
    """
    assert noise is not None or rule.dropout == 0
    parameters = parameters.clone()
    channels = torch.tensor(shape.channels)
    images, labels, chosen = images.contiguous(), labels.contiguous(), chosen.contiguous()
    pointers = (None, None) if noise is None else (noise.pool.data_ptr(), noise.starts.data_ptr())
    data = _Data(images.data_ptr(), labels.data_ptr(), chosen.data_ptr(), *chosen.shape, *pointers)
    how = _Rule(_OPTIMISERS.index(rule.optimiser), *rule[1:])
    kernels.call("train", parameters.dtype, _structure(shape, channels), how, data, parameters, source=SOURCE)
    return parameters


def evaluate(shape: Cnn, parameters: Tensor, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Accuracy and mean cross-entropy of networks on the same images, as :func:`cnn_engine.evaluate` gives them.

    Arguments:
        shape: Of every network.
        parameters: Shape (B, P).
        x: Images, (N, channels, side, side).
        labels: Shape (N,).

    Returns:
        Accuracy and loss, (B,) each.
    """
    parameters, x, labels = parameters.contiguous(), x.to(parameters).contiguous(), labels.contiguous()
    channels = torch.tensor(shape.channels)
    sums = torch.empty(len(parameters), 2, dtype=torch.float64)
    count = ctypes.c_int64(len(x))
    for row, out in zip(parameters, sums, strict=True):
        kernels.call("evaluate", row.dtype, _structure(shape, channels), count, x, labels, row, out, source=SOURCE)
    accuracy, loss = (sums / len(x)).to(parameters.dtype).unbind(1)
    return accuracy, loss


def _structure(shape: Cnn, channels: Tensor) -> _Shape:
    sizes = (len(channels) - 1, shape.side, shape.kernel, shape.stride, shape.classes)
    return _Shape(channels.data_ptr(), *sizes, _ACTIVATIONS.index(shape.activation))
