"""Fitting many INRs at once, reproducibly and on all cores.

Two engines do the same: `compiled` fits one network after the other in C++, `torch` fits groups of networks that are
small enough for the cache. A job runs on one thread, so the number of threads changes how soon a job is reached and
never what it computes.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from ...errors import ScaleGMNError
from ...native import library as kernels
from .compiled import SOURCE, Problem, Schedule
from .conventions import Inr, coordinates, inr
from .engine import BETA1, BETA2, EPSILON, Engine

__all__ = ["EngineName", "FitResult", "best_engine", "coordinates", "default_steps", "fit_inrs"]

EngineName = Literal["compiled", "torch"]

# Steps between two looks at the PSNR when a target is set.
LOOK_EVERY = 10
GROUP_BYTES = 8 * 2**20


@dataclass(frozen=True)
class FitResult:
    """Fitted networks.

    Arguments:
        parameters: One network per row, (B, P), in the order W1, b1, W2, b2, ..., weights (out, in) row by row.
        psnr: Peak signal-to-noise ratio in dB on the [0, 1] image scale with peak 1, not clipped, (B,).
        steps: Adam steps that each network took, (B,).
    """

    parameters: Tensor
    psnr: Tensor
    steps: Tensor


_Job: TypeAlias = tuple[Tensor, list[int]]
_Work: TypeAlias = Callable[[Tensor, list[int]], "FitResult"]


@dataclass(frozen=True)
class _Plan:
    """What all groups of a call share."""

    shape: Inr
    points: Tensor
    steps: int
    lr: float
    psnr: float | None
    seed: int

    def wanted(self, images: Tensor) -> Tensor:
        """Images (B, N, C) as the last layer must give them: scaled, and without the offset, which is no parameter."""
        kind = self.shape.convention
        return images * (kind.high - kind.low) + (kind.low - kind.offset)


def default_steps(points: int) -> int:
    """Adam steps for an image of so many pixels: 1,000, and fewer for small images, which are learnt sooner.

    >>> default_steps(28 * 28), default_steps(8 * 8)
    (1000, 500)
    """
    return 1000 if points >= 256 else 500


def fit_inrs(
    targets: Tensor,
    points: Tensor,
    *,
    hidden: Sequence[int] = (32, 32),
    activation: str = "sine",
    w0: float | None = None,
    convention: str = "dws",
    steps: int | None = None,
    lr: float = 1e-3,
    psnr: float | None = None,
    seed: int = 0,
    indices: Sequence[int] | None = None,
    threads: int | None = None,
    engine: EngineName | None = None,
) -> FitResult:
    r"""Fits one INR to each image by Adam on its mean squared error over all pixels.

    The same call gives the same bytes, whatever the threads. Each network depends on its image, (seed, index) and the
    options alone: with the torch engine exactly where the pixels and the layer sizes are multiples of 16, else up to
    rounding.

    Arguments:
        targets: Images in [0, 1], (B, N, C), float32 (float64 also works); ``nfn`` scales them to [-1, 1] itself.
        points: Coordinates of the pixels, (N, 2); see :func:`coordinates`.
        hidden: Sizes of the hidden layers.
        activation: ``sine``, ``relu`` or ``tanh``.
        w0: Frequency of sine layers, 30 unless given.
        convention: ``dws`` or ``nfn``: initialisation, image scale and output offset.
        steps: Adam steps; :func:`default_steps` unless given, ten times that as the limit with ``psnr``.
        lr: Learning rate.
        psnr: Stop each network at the first look (every 10 steps) at which it reaches this many dB.
        seed: Seed of the collection.
        indices: Number of each network in the collection, 0, 1, ... unless given.
        threads: Networks or groups fitted at the same time; as many as torch uses unless given.
        engine: ``compiled`` or ``torch``; :func:`best_engine` unless given. Their results differ by rounding.

    >>> image = torch.linspace(0, 1, 16).view(1, 16, 1)
    >>> result = fit_inrs(image, coordinates(4, 4), hidden=(8,), steps=200)
    >>> result.parameters.shape, bool(result.psnr[0] > 20)
    (torch.Size([1, 33]), True)
    """
    shape = inr(_channels(targets, points), hidden=hidden, activation=activation, w0=w0, convention_name=convention)
    numbers = range(len(targets)) if indices is None else indices
    limit = steps if steps is not None else default_steps(len(points)) * (1 if psnr is None else 10)
    workers = torch.get_num_threads() if threads is None else threads
    if len(numbers) != len(targets):
        raise ScaleGMNError(f"indices: expected one per image, {len(targets)}, got {len(numbers)}")
    if limit < 0 or not lr > 0 or workers < 1:
        raise ScaleGMNError(f"fit_inrs: expected steps >= 0, lr > 0 and threads >= 1, got {limit}, {lr} and {workers}")
    if engine not in (None, "compiled", "torch"):
        raise ScaleGMNError(f"engine: expected compiled or torch, got {engine!r}")
    plan = _Plan(shape, points.to(targets), limit, lr, psnr, seed)
    if (engine or best_engine(targets)) == "compiled":
        work, size = _compiled(plan, targets), math.ceil(len(targets) / (4 * workers))
    else:
        work = partial(_fit_group, plan)
        size = group_size(shape, len(points)) if targets.device.type == "cpu" else len(targets)
    jobs = [
        (targets[start : start + size], list(numbers[start : start + size])) for start in range(0, len(targets), size)
    ]
    results = _run(work, jobs, workers)
    return FitResult(
        torch.cat([r.parameters for r in results]),
        torch.cat([r.psnr for r in results]),
        torch.cat([r.steps for r in results]),
    )


def best_engine(*tensors: Tensor) -> EngineName:
    """The fastest engine that can work here on these tensors: `compiled` needs the CPU and a C++ compiler.

    >>> best_engine(torch.zeros(1, dtype=torch.bfloat16))
    'torch'
    """
    return "compiled" if kernels.usable(*tensors, source=SOURCE) else "torch"


def _channels(targets: Tensor, points: Tensor) -> int:
    if targets.ndim != 3 or not len(targets) or not targets.is_floating_point():
        raise ScaleGMNError(
            f"targets: expected floating point images (B, N, C), got {tuple(targets.shape)} in {targets.dtype}"
        )
    if points.shape != (targets.shape[1], 2):
        raise ScaleGMNError(f"points: expected ({targets.shape[1]}, 2) as the targets have, got {tuple(points.shape)}")
    if not bool(torch.isfinite(targets).all()):
        raise ScaleGMNError("targets: expected finite values, got NaN or infinity")
    return targets.shape[2]


def group_size(shape: Inr, points: int) -> int:
    """Networks fitted together on one thread: as many as the cache likes, from 8 to 128; depends on sizes alone.

    >>> group_size(inr(1), 28 * 28), group_size(inr(1), 8 * 8)
    (16, 128)
    """
    bytes_each = 4 * points * (2 * sum(shape.hidden) + max(shape.hidden))
    size = 8
    while size < 128 and 2 * size * bytes_each <= GROUP_BYTES:
        size *= 2
    return size


def _run(work: _Work, jobs: list[_Job], workers: int) -> list[FitResult]:
    """Runs the jobs, each on one torch thread, and leaves the caller's number of threads as it was."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        if workers == 1 or len(jobs) == 1:
            return [work(*job) for job in jobs]
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(work, *zip(*jobs, strict=True)))
    finally:
        torch.set_num_threads(before)


def _compiled(plan: _Plan, like: Tensor) -> _Work:
    """Fits by compiled code."""
    if not kernels.usable(like, source=SOURCE):
        raise ScaleGMNError(
            "engine: compiled fits float32 or float64 on a CPU with a C++ compiler (g++ or what CXX names), unless "
            "SCALEGMN_KERNELS is 0; one of these is missing, so use torch"
        )
    problem = Problem(plan.shape, plan.points)
    look = 0 if plan.psnr is None else LOOK_EVERY
    schedule = Schedule(plan.steps, plan.lr, BETA1, BETA2, EPSILON, look, plan.psnr or 0.0)

    def work(images: Tensor, indices: list[int]) -> FitResult:
        return FitResult(*problem.fit(plan.wanted(images), plan.shape.initial(plan.seed, indices), schedule))

    return work


@torch.no_grad()
def _fit_group(plan: _Plan, images: Tensor, indices: list[int]) -> FitResult:
    kind = plan.shape.convention
    span = kind.high - kind.low
    rows = _at_least_two(torch.arange(len(images)))
    wanted = plan.wanted(images).mT[rows].contiguous()
    engine = Engine(plan.shape, plan.points, wanted, plan.shape.initial(plan.seed, indices)[rows])
    done = FitResult(
        wanted.new_empty(len(images), plan.shape.parameters),
        wanted.new_empty(len(images)),
        torch.zeros(len(images), dtype=torch.int64),
    )
    while True:
        engine.forward()
        look = _look(plan, engine, span)
        if look is not None and bool(look.stop.any()):
            ended = rows[look.stop]
            done.parameters[ended] = engine.theta.read()[look.stop]
            done.psnr[ended] = look.psnr[look.stop]
            done.steps[ended] = engine.step
            if bool(look.stop.all()):
                return done
            left = _at_least_two(torch.nonzero(~look.stop)[:, 0])
            rows, engine = rows[left], engine.keep(left)
            engine.forward()
        engine.backward()
        engine.adam(plan.lr)


def _at_least_two(rows: Tensor) -> Tensor:
    """A lone network twice: products of one matrix round differently from products of several."""
    return rows if len(rows) > 1 else rows.repeat(2)


@dataclass(frozen=True)
class _Look:
    psnr: Tensor
    stop: Tensor


def _look(plan: _Plan, engine: Engine, span: float) -> _Look | None:
    """PSNR and which networks stop here, or None between two looks."""
    at_end = engine.step >= plan.steps
    if not at_end and (plan.psnr is None or engine.step % LOOK_EVERY):
        return None
    psnr = -10 * torch.log10(engine.mean_squared_error() / span**2)
    stop = torch.ones_like(psnr, dtype=torch.bool) if at_end or plan.psnr is None else psnr >= plan.psnr
    return _Look(psnr, stop)
