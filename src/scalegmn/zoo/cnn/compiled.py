"""Training by compiled code: `cnn.cpp` trains a whole network on one thread, without blocking the others."""

import ctypes

import torch
from torch import Tensor

from ...native import library
from ...native.library import Span, span
from .shape import Cnn, Noise, Rule

SOURCE = "cnn"
# The order of the enumerations in the C++ code.
_ACTIVATIONS = ("sine", "relu", "tanh")
_OPTIMISERS = ("sgd", "adam", "rmsprop")


class _Shape(ctypes.Structure):
    _fields_ = [
        ("channels", Span),
        *((name, ctypes.c_int64) for name in ("side", "kernel", "stride", "classes")),
        ("activation", ctypes.c_int),
    ]


class _Rule(ctypes.Structure):
    _fields_ = [("optimiser", ctypes.c_int), *((name, ctypes.c_double) for name in ("lr", "l2", "dropout", "clip"))]


class _Data(ctypes.Structure):
    _fields_ = [
        *((name, Span) for name in ("images", "labels", "chosen")),
        ("batch", ctypes.c_int64),
        *((name, Span) for name in ("noise", "starts")),
    ]


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
    parameters, channels = parameters.clone(), torch.tensor(shape.channels)
    images, labels, chosen = images.contiguous(), labels.contiguous(), chosen.contiguous()
    pool, starts = (None, None) if noise is None else noise
    data = _Data(
        span(images, torch.uint8),
        span(labels, torch.int64),
        span(chosen, torch.int32),
        chosen.shape[1],
        span(pool, parameters.dtype),
        span(starts, torch.int64),
    )
    how = _Rule(_OPTIMISERS.index(rule.optimiser), *rule[1:])
    row = span(parameters, parameters.dtype)
    library.call("train", parameters.dtype, _structure(shape, channels), how, data, row, source=SOURCE)
    return parameters


def evaluate(shape: Cnn, parameters: Tensor, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Accuracy and mean cross-entropy of networks on the same images.

    Arguments:
        shape: Of every network.
        parameters: Shape (B, P).
        x: Images, (N, channels, side, side).
        labels: Shape (N,).

    Returns:
        Accuracy and loss, (B,) each.
    """
    dtype, channels = parameters.dtype, torch.tensor(shape.channels)
    parameters, x, labels = parameters.contiguous(), x.to(parameters).contiguous(), labels.contiguous()
    sums = torch.empty(len(parameters), 2, dtype=torch.float64)
    given = (_structure(shape, channels), span(x, dtype), span(labels, torch.int64))
    for row, out in zip(parameters, sums, strict=True):
        library.call("evaluate", dtype, *given, span(row, dtype), span(out, torch.float64), source=SOURCE)
    accuracy, loss = (sums / len(x)).to(dtype).unbind(1)
    return accuracy, loss


def _structure(shape: Cnn, channels: Tensor) -> _Shape:
    sizes = (shape.side, shape.kernel, shape.stride, shape.classes)
    return _Shape(span(channels, torch.int64), *sizes, _ACTIVATIONS.index(shape.activation))
