"""Fitting by compiled code: `fit.cpp` runs the whole optimisation of a network, pixels tile by tile in the cache.

Each network is fitted on its own, so that it depends only on its image, its initial weights and the options.
"""

import ctypes

import torch
from torch import Tensor

from ...native import library
from ...native.library import Span, span
from .conventions import ACTIVATIONS, BETA1, BETA2, EPSILON, LOOK_EVERY, Fit, FitResult, Inr

SOURCE = "fit"


class _Problem(ctypes.Structure):
    _fields_ = [
        ("sizes", Span),
        ("activation", ctypes.c_int),
        ("w0", ctypes.c_double),
        *((name, Span) for name in ("x", "y", "column", "row")),
    ]


class _Schedule(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("steps", "look")] + [
        (name, ctypes.c_double) for name in ("lr", "beta1", "beta2", "epsilon", "psnr", "span")
    ]


class Problem:
    """Networks of one shape on one set of points, in the form that the compiled code reads.

    Arguments:
        shape: The network.
        points: Coordinates, (N, 2), in the precision of the fit.
    """

    def __init__(self, shape: Inr, points: Tensor) -> None:
        self.shape = shape
        self.dtype = points.dtype
        self.sizes = torch.tensor(shape.sizes)
        # Along each axis only the different coordinates are evaluated: a grid has few of them.
        (self.x, column), (self.y, row) = (axis.unique(return_inverse=True) for axis in points.unbind(1))
        self.column, self.row = column.int(), row.int()

    def _structure(self) -> _Problem:
        kind = ACTIVATIONS.index(self.shape.activation)
        axes = (span(axis, self.dtype) for axis in (self.x, self.y))
        places = (span(place, torch.int32) for place in (self.column, self.row))
        return _Problem(span(self.sizes, torch.int64), kind, self.shape.w0, *axes, *places)

    def fit(self, fit: Fit, targets: Tensor, start: Tensor) -> FitResult:
        """Fit networks one after the other on this thread, without blocking other threads.

        Arguments:
            fit: The settings.
            targets: The wanted outputs of the last linear layer, (B, N, channels).
            start: Parameters, (B, P).
        """
        targets, parameters = targets.contiguous(), start.to(self.dtype, copy=True).contiguous()
        psnr, steps = targets.new_empty(len(targets)), torch.zeros(len(targets), dtype=torch.int64)
        look = 0 if fit.psnr is None else LOOK_EVERY
        numbers = (fit.lr, BETA1, BETA2, EPSILON, fit.psnr or 0.0, self.shape.convention.span)
        schedule = _Schedule(fit.limit(len(self.column)), look, *numbers)
        spans = (span(t, self.dtype) for t in (targets, parameters, psnr))
        library.call("fit", self.dtype, self._structure(), schedule, *spans, span(steps, torch.int64), source=SOURCE)
        return FitResult(parameters, psnr, steps)

    def gradient(self, target: Tensor, parameters: Tensor) -> tuple[float, Tensor]:
        """Mean squared error of one network and its gradient (P,), for a target (N, channels) and parameters (P,)."""
        out, error = torch.empty_like(parameters), torch.empty(1, dtype=torch.float64)
        spans = (span(t, self.dtype) for t in (target, parameters, out))
        library.call("gradient", self.dtype, self._structure(), *spans, span(error, torch.float64), source=SOURCE)
        return float(error), out
