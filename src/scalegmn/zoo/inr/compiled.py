"""The compiled engine: `fit.cpp` runs the whole optimisation of a network, pixels tile by tile in the nearest cache.

A network is fitted on its own, so that its numbers depend on nothing but its image, its start and the options.
"""

import ctypes
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ...native import library as kernels
from .conventions import ACTIVATIONS, Inr

SOURCE = Path(__file__).parents[2] / "native" / "fit.cpp"


class _Shape(ctypes.Structure):
    _fields_ = [
        ("sizes", ctypes.c_void_p),
        ("layers", ctypes.c_int64),
        ("activation", ctypes.c_int),
        ("w0", ctypes.c_double),
    ]


class _Points(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("count", "columns", "rows")] + [
        (name, ctypes.c_void_p) for name in ("x", "y", "column", "row")
    ]


class _Schedule(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("steps", "look")] + [
        (name, ctypes.c_double) for name in ("lr", "beta1", "beta2", "epsilon", "psnr", "span")
    ]


@dataclass(frozen=True)
class Schedule:
    """How long and how fast: Adam's numbers, and the PSNR to stop at, looked at every ``look`` steps (0: never)."""

    steps: int
    lr: float
    beta1: float
    beta2: float
    epsilon: float
    look: int = 0
    psnr: float = 0.0


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

    def _structures(self) -> tuple[_Shape, _Points]:
        kind = ACTIVATIONS.index(self.shape.activation)
        shape = _Shape(self.sizes.data_ptr(), len(self.sizes) - 1, kind, self.shape.w0)
        places = (part.data_ptr() for part in (self.x, self.y, self.column, self.row))
        return shape, _Points(len(self.column), len(self.x), len(self.y), *places)

    def fit(self, targets: Tensor, parameters: Tensor, schedule: Schedule) -> tuple[Tensor, Tensor, Tensor]:
        """Fit networks one after the other on this thread, without holding up other threads.

        Arguments:
            targets: What the last linear layer must give, (B, N, channels).
            parameters: Where they start, (B, P).
            schedule: How long and how fast.

        Returns:
            Parameters (B, P), PSNR in dB (B,) and Adam steps (B,).
        """
        targets, parameters = targets.contiguous(), parameters.to(self.dtype, copy=True).contiguous()
        psnr = targets.new_empty(len(targets))
        steps = torch.zeros(len(targets), dtype=torch.int64)
        kind = self.shape.convention
        s = schedule
        plan = _Schedule(s.steps, s.look, s.lr, s.beta1, s.beta2, s.epsilon, s.psnr, kind.high - kind.low)
        count = ctypes.c_int64(len(targets))
        kernels.call(
            "fit", self.dtype, *self._structures(), plan, count, targets, parameters, psnr, steps, source=SOURCE
        )
        return parameters, psnr, steps

    def gradient(self, target: Tensor, parameters: Tensor) -> tuple[float, Tensor]:
        """Mean squared error of one network and its gradient (P,), for a target (N, channels) and parameters (P,)."""
        out = torch.empty_like(parameters)
        error = torch.empty((), dtype=torch.float64)
        kernels.call("gradient", self.dtype, *self._structures(), target, parameters, out, error, source=SOURCE)
        return float(error), out
