"""Spreading work over a Ray cluster: the same results in the same order, whatever happens to a worker."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from .errors import ScaleGMNError

Given = TypeVar("Given")
Result = TypeVar("Result")

# A job whose worker dies is done again, at most so many times.
RETRIES = 5


def map_on_ray(work: Callable[[Given], Result], jobs: Iterable[Given], address: str) -> Iterator[Result]:
    """Yield `work(job)` for every job in order, computed by the workers of a cluster.

    Only a few jobs per processor are running at a time, so neither jobs nor results pile up.

    Arguments:
        work: A picklable function; the workers need the same version of this package.
        jobs: What to do.
        address: Of the cluster (`auto`, `ray://host:port`), or `local` to start one on this machine.
    """
    ray = connect(address)

    # Ray takes functions only, and shows this name in its process list.
    def scalegmn_job(job: Given) -> Result:
        return work(job)

    try:
        remote: Any = ray.remote(num_cpus=1, max_retries=RETRIES)(scalegmn_job)
        window = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
        pending: deque[Any] = deque()
        for job in jobs:
            pending.append(remote.remote(job))
            if len(pending) >= window:
                yield result(ray, pending.popleft())
        while pending:
            yield result(ray, pending.popleft())
    finally:
        ray.shutdown()


def connect(address: str) -> Any:
    """The module `ray`, connected to a cluster.

    Arguments:
        address: As in `map_on_ray`.
    """
    try:
        import ray
    except ImportError as error:
        raise ScaleGMNError("ray: not installed; pip install 'scalegmn[distributed]'") from error
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address == "local":
        options["include_dashboard"] = False
    try:
        ray.init(address=address, **options)
    except Exception as error:
        # What it raises where it cannot start, on a machine that is too busy for instance, has no type of its own.
        reason = str(error).partition("\n")[0]
        raise ScaleGMNError(f"ray: no cluster at {address!r} ({reason}); expected local or an address") from error
    return ray


def result(ray: Any, reference: Any) -> Any:
    """The result of a job, or the error that it raised.

    Arguments:
        ray: The result of `connect`.
        reference: Of the job.
    """
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause or error from None
    except ray.exceptions.RayError as error:
        raise ScaleGMNError(f"ray: a job failed again and again ({type(error).__name__})") from error
