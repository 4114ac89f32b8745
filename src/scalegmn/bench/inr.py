"""How fast INRs are fitted: one at a time, batched with autograd, and by the engine, all in one process."""

import time
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from ..errors import ScaleGMNError
from ..zoo.inr.conventions import Fit, Inr, coordinates, inr
from ..zoo.inr.fit import fit_inrs

_SIDE = 28
_STEPS = 20
# Networks per call, as suits each way: autograd is slower with more, the engine wants several groups.
_ONE, _AUTOGRAD, _ENGINE = 1, 32, 64


class _Sine(nn.Module):
    def __init__(self, w0: float) -> None:
        super().__init__()
        self.w0 = w0

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.w0 * x)


def fit_one_at_a_time(shape: Inr, points: Tensor, targets: Tensor, steps: int, lr: float = 1e-3) -> Tensor:
    """The plain way: an `nn.Sequential` and `torch.optim.Adam` for each image in turn, default dws networks.

    Arguments:
        shape: The network.
        points: Coordinates, (N, 2).
        targets: Images in [0, 1], (B, N, C).
        steps: Adam steps.
        lr: Learning rate.

    Returns:
        Parameters, (B, P).
    """
    rows = []
    for row, target in zip(shape.initial(0, range(len(targets))), targets, strict=True):
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(shape.sizes):
            layers += [nn.Linear(fan_in, fan_out), _Sine(shape.w0)]
        network = nn.Sequential(*layers[:-1])
        nn.utils.vector_to_parameters(row, network.parameters())
        optimiser = torch.optim.Adam(network.parameters(), lr=lr)
        for _ in range(steps):
            optimiser.zero_grad()
            loss = nn.functional.mse_loss(network(points) + shape.convention.offset, target)
            loss.backward()
            optimiser.step()
        rows.append(nn.utils.parameters_to_vector(network.parameters()).detach())
    return torch.stack(rows)


def bench_zoo(seconds_budget: float = 20.0, *, batches_per_second: float | None = None) -> dict[str, float]:
    """Milliseconds per network and step of the three ways, for 28 x 28 images and 2-32-32-1 sine networks.

    The ways take turns until the time is used up, and each reports its best turn: on a busy machine a median says more
    about the other programs than about the code. All of them may use as many threads as torch does. If other programs
    keep the cores busy, the threads of the two plain ways wait for each other at every operation, and both ratios come
    out many times too large: measure on a quiet machine, or per core with `OMP_NUM_THREADS=1`.

    Arguments:
        seconds_budget: How long to measure.
        batches_per_second: Passed through to the result, measured elsewhere.

    Returns:
        `one_at_a_time_ms`, `batched_autograd_ms`, `ours_ms`, `ratio_one`, `ratio_batched`, and
        `batches_per_second` if given.
    """
    if not seconds_budget > 0:
        raise ScaleGMNError(f"seconds_budget: expected a positive number, got {seconds_budget}")
    shape, points, fit = inr(1), coordinates(_SIDE, _SIDE), Fit(steps=_STEPS)
    targets = torch.rand(_ENGINE, _SIDE * _SIDE, 1, generator=torch.Generator().manual_seed(0))
    ways: dict[str, tuple[Callable[[Tensor], object], int]] = {
        "one_at_a_time_ms": (lambda images: fit_one_at_a_time(shape, points, images, _STEPS), _ONE),
        "batched_autograd_ms": (lambda images: fit_inrs(images, points, fit, engine="torch"), _AUTOGRAD),
        "ours_ms": (lambda images: fit_inrs(images, points, fit), _ENGINE),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for run, _ in ways.values():
        run(targets[:1])
    end = time.perf_counter() + seconds_budget
    while not times["ours_ms"] or time.perf_counter() < end:
        for name, (run, networks) in ways.items():
            start = time.perf_counter()
            run(targets[:networks])
            times[name].append((time.perf_counter() - start) * 1e3 / networks / _STEPS)
    result = {name: min(values) for name, values in times.items()}
    result["ratio_one"] = result["one_at_a_time_ms"] / result["ours_ms"]
    result["ratio_batched"] = result["batched_autograd_ms"] / result["ours_ms"]
    if batches_per_second is not None:
        result["batches_per_second"] = batches_per_second
    return result
