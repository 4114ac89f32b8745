"""Fitting many INRs at once, reproducibly and on all cores.

Two engines do the same work: `compiled` fits one network after the other in C++, `torch` groups of them by autograd.
Every part of the work runs on one thread, so the number of threads affects the speed, never the result.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Literal, TypeVar

import torch
from torch import Tensor

from ...errors import ScaleGMNError
from ...native import library
from .compiled import SOURCE, Problem
from .conventions import Fit, FitResult
from .plain import fit_group, group_size

EngineName = Literal["compiled", "torch"]
Given = TypeVar("Given")
Result = TypeVar("Result")


def fit_inrs(
    targets: Tensor,
    points: Tensor,
    fit: Fit | None = None,
    *,
    seed: int = 0,
    indices: Sequence[int] | None = None,
    threads: int | None = None,
    engine: EngineName | None = None,
) -> FitResult:
    r"""Fit one INR to each image by Adam on its mean squared error over all pixels.

    The same call gives the same bytes with any number of threads. Each network depends only on its image, (seed, index)
    and the options; with the torch engine exactly if the number of pixels and the layer sizes are multiples of 16,
    otherwise up to rounding.

    Arguments:
        targets: Images in [0, 1], (B, N, C), float32 (float64 also works); `nfn` scales them to [-1, 1] itself.
        points: Coordinates of the pixels, (N, 2); see `coordinates`.
        fit: The settings; `Fit()` if omitted.
        seed: Seed of the collection.
        indices: Number of each network in the collection; 0, 1, ... if omitted.
        threads: Networks or groups fitted at the same time; as many as torch uses if omitted.
        engine: `compiled` or `torch`; that of `best_engine` if omitted. Their results differ by rounding.

    >>> from scalegmn.zoo.inr.conventions import coordinates
    >>> image = torch.linspace(0, 1, 16).view(1, 16, 1)
    >>> result = fit_inrs(image, coordinates(4, 4), Fit(hidden=(8,), steps=200))
    >>> result.parameters.shape, bool(result.psnr[0] > 20)
    (torch.Size([1, 33]), True)
    """
    fit = fit or Fit()
    shape = fit.shape(_channels(targets, points))
    numbers = range(len(targets)) if indices is None else indices
    workers = torch.get_num_threads() if threads is None else threads
    if len(numbers) != len(targets):
        raise ScaleGMNError(f"indices: expected one per image, {len(targets)}, got {len(numbers)}")
    if workers < 1:
        raise ScaleGMNError(f"threads: expected threads >= 1, got {workers}")
    engine = engine or best_engine(targets)
    points = points.to(targets)
    if engine == "compiled":
        _expect_compiled(targets)
        work, size = partial(Problem(shape, points).fit, fit), math.ceil(len(targets) / (4 * workers))
    elif engine == "torch":
        work = partial(fit_group, fit, shape, points)
        size = group_size(shape, len(points)) if targets.device.type == "cpu" else len(targets)
    else:
        raise ScaleGMNError(f"engine: expected compiled or torch, got {engine!r}")

    def part(start: int) -> FitResult:
        some = slice(start, start + size)
        return work(shape.wanted(targets[some]), shape.initial(seed, numbers[some]))

    return FitResult.joined(list(on_threads(part, range(0, len(targets), size), workers)))


def best_engine(*tensors: Tensor) -> EngineName:
    """The fastest engine that can work here on these tensors: `compiled` needs the CPU and a C++ compiler.

    >>> best_engine(torch.zeros(1, dtype=torch.bfloat16))
    'torch'
    """
    return "compiled" if library.usable(*tensors, source=SOURCE) else "torch"


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


def _expect_compiled(like: Tensor) -> None:
    if not library.usable(like, source=SOURCE):
        raise ScaleGMNError(
            "engine: compiled fits float32 or float64 on a CPU with a C++ compiler (g++ or what CXX names), unless "
            "SCALEGMN_KERNELS is 0; one of these is missing, so use torch"
        )


def on_threads(work: Callable[[Given], Result], jobs: Iterable[Given], threads: int) -> Iterator[Result]:
    """Results in the order of the jobs. Each job runs on one torch thread, so their number changes no result."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    pending: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    try:
        if threads == 1:
            yield from map(work, jobs)
            return
        for job in jobs:
            pending.append(pool.submit(work, job))
            if len(pending) > 2 * threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(before)
