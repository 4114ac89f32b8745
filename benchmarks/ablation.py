"""What each optimisation brings: the time of a training step with one of them switched off, in turns with all of them.

    python benchmarks/ablation.py
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from unittest import mock

from torch import Tensor

from scalegmn.bench.scalegmn import Case, siren
from scalegmn.core.networks import Networks
from scalegmn.models.scalegmn import ScaleGMNSpec
from scalegmn.native import library
from scalegmn.native import net as fused
from scalegmn.native.formula import Edge
from scalegmn.native.memory import keep_memory
from scalegmn.nn.body import MessagePassing
from scalegmn.nn.encoding import Init
from scalegmn.nn.layers import Iteration
from scalegmn.nn.states import States
from scalegmn.nn.symmetry import Symmetry


def all_states() -> AbstractContextManager[object]:
    """Every iteration computes every state, also those that nothing reads; without edges in the last one."""
    forward = MessagePassing.forward

    def everything(body: MessagePassing, networks: Networks) -> States:
        last = state = forward(body, networks)
        while isinstance(state, Iteration):
            for i in range(len(networks.architecture.layers)):
                state.x(i)
            for c in range(len(networks.architecture.connections) if state is not last else 0):
                state.e(c)
            state = state.old
        return last

    return mock.patch.object(MessagePassing, "forward", everything)


def dense_edges() -> AbstractContextManager[object]:
    """The first edge state is a tensor."""
    encode = Init.encode_edge

    def encode_edge(init: Init, symmetry: Symmetry, connection: int, w: Tensor) -> Edge:
        return Edge(encode(init, symmetry, connection, w).dense())

    return mock.patch.object(Init, "encode_edge", encode_edge)


@contextmanager
def recompute(limit: int) -> Iterator[None]:
    """Products are computed again in the backward pass up to that width."""
    with mock.patch.object(fused, "RECOMPUTE", limit):
        yield


def switches(width: int) -> dict[str, Callable[[], AbstractContextManager[object]]]:
    """What to measure, all of them first."""
    stored = width > fused.RECOMPUTE
    return {
        "everything": nullcontext,
        "kernels off": library.disabled,
        "all states computed": all_states,
        "first edge state dense": dense_edges,
        "products computed again" if stored else "products stored": lambda: recompute(1024 if stored else 0),
    }


def main(allocator: bool) -> None:
    """Print seconds per step for the forward variant."""
    if allocator:
        keep_memory()
    for width, batch in ((32, 64), (64, 64), (128, 32)):
        case = Case("forward", (siren(),), batch, ScaleGMNSpec(width, readout="output"))
        model, networks = case.build(), case.networks()
        found: dict[str, list[float]] = {}
        for turn in range(6):
            for name, off in switches(width).items():
                with off():
                    start = time.perf_counter()
                    model(networks).square().mean().backward()
                    model.zero_grad(set_to_none=True)
                    if turn:
                        found.setdefault(name, []).append(time.perf_counter() - start)
        for name, times in found.items():
            sys.stdout.write(f"h = {width}, batch {batch}, {name}: {1e3 * statistics.median(times):.0f} ms\n")


if __name__ == "__main__":
    main("--plain-allocator" not in sys.argv)
