"""How fast ScaleGMN is on this machine, in a unit that can be compared between machines.

One GEMM-equivalent is the time of one product (edges of the batch x h)(h x h), measured interleaved with the model in
the same process. The arithmetic of the work is given as a number of such products.
"""

from __future__ import annotations

import ctypes
import gc
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.activations import activation
from ..core.architecture import Architecture
from ..core.networks import Networks
from ..models.heads import Classifier, Editor
from ..models.method import Method
from ..models.scalegmn import ScaleGMN, ScaleGMNSpec
from ..native.arithmetic import operations
from ..native.memory import keep_memory


@dataclass(frozen=True)
class Case:
    """One line of the benchmark.

    Arguments:
        name: What is done.
        architectures: Of the networks, equally many of each.
        batch: Number of networks.
        spec: Of the trunk.
        training: A training step, not inference.
        editing: With an equivariant head.
        method: The method that builds the trunk.
        recipe: The recipe with these settings, if there is one.

    >>> cases()[0].training
    True
    """

    name: str
    architectures: tuple[Architecture, ...]
    batch: int
    spec: ScaleGMNSpec
    training: bool = True
    editing: bool = False
    method: Method = ScaleGMN
    recipe: str | None = None

    @property
    def width(self) -> int:
        """The width of all states."""
        return self.spec.width

    @property
    def edges(self) -> int:
        """Number of edges of the batch."""
        return sum(map(edges, self.architectures)) * (self.batch // len(self.architectures))

    @property
    def megabytes(self) -> float:
        """The size of all edge states of the batch, in single precision."""
        return 4e-6 * self.edges * self.width

    def limited(self, megabytes: float) -> Case:
        """The same case with the batch halved until its edge states take at most this many megabytes.

        >>> [case.limited(24).batch for case in cases()]
        [32, 32, 64, 64, 32, 32, 32, 32]
        """
        half = replace(self, batch=self.batch // 2)
        return self if self.megabytes <= megabytes or not half.edges else half.limited(megabytes)

    def build(self) -> Classifier | Editor:
        """The model, with new parameters."""
        torch.manual_seed(0)
        trunk = self.method.build(self.architectures, self.spec)
        return Editor(trunk) if self.editing else Classifier(trunk, 10)

    def networks(self, batch: int | None = None) -> Networks | list[Networks]:
        """Random networks to read: a batch of the case's own size, or of another."""
        each, random = (batch or self.batch) // len(self.architectures), torch.Generator().manual_seed(0)
        found = [Networks(a, 0.05 * torch.randn(each, a.parameters, generator=random)) for a in self.architectures]
        return found[0] if len(found) == 1 else found

    def arithmetic(self) -> float:
        """The floating-point operations of all products, as a number of products (edges of the batch x h)(h x h)."""
        model, networks = self.build(), self.networks()
        step = step_of(model, networks, training=True) if self.training else lambda: model(networks)
        return operations(step) / (2 * self.edges * self.width**2)


@dataclass(frozen=True)
class Timing:
    """The measurements: medians of interleaved turns; no peak memory if the system does not report it.

    >>> Timing("one", None, 32, 64, 0.5, 14.0, 12.5, None).ratio
    1.12
    """

    name: str
    recipe: str | None
    h: int
    batch: int
    seconds_per_step: float
    gemm_equivalents: float
    arithmetic: float
    peak_mb: float | None

    @property
    def ratio(self) -> float:
        """The time of a step over the time that its matrix products alone would take."""
        return self.gemm_equivalents / self.arithmetic


def siren(width: int = 32, outputs: int = 1) -> Architecture:
    """The INR of the paper's classification experiments."""
    return Architecture.mlp([2, width, width, outputs], activation("sine", 30.0))


def cases() -> list[Case]:
    """Training and inference with settings like those of the paper's experiments."""
    inr, cnn = (siren(),), (Architecture.cnn([1, 16, 16, 16], 10, "relu", stride=2),)
    forward, both = ScaleGMNSpec(128, readout="output"), ScaleGMNSpec(128, backward="shared", readout="input+output")
    dual, deep = replace(forward, backward="dual"), ScaleGMNSpec(128, 10, "shared")
    return [
        Case("forward, training step", inr, 32, forward),
        Case("forward, training step", inr, 128, forward),
        Case("forward, training step", inr, 64, replace(forward, width=32)),
        Case("forward, training step", inr, 64, replace(forward, width=64)),
        Case("bidirectional (sign), training step", inr, 32, both),
        Case("forward, inference", inr, 32, forward, training=False),
        Case("dual stream on CNNs, training step", cnn, 32, dual),
        Case("editing, 10 layers, bidirectional, training step", inr, 64, deep, editing=True),
    ]


def edges(architecture: Architecture) -> int:
    """Number of edges of one network."""
    sizes = [layer.size for layer in architecture.layers]
    return sum(sizes[c.source] * sizes[c.target] for c in architecture.connections)


def measure(case: Case, model: nn.Module, seconds: float = 5.0) -> Timing:
    """Measure one case with a given model."""
    turns = Turns(case, model)
    for _ in in_turns([turns], seconds):
        pass
    return turns.row()


def in_turns(cases: Sequence[Turns], seconds: float) -> Iterator[None]:
    """Measure some cases in turns, so that other work on the machine disturbs all of them alike.

    Arguments:
        cases: What is measured.
        seconds: About how long to spend on each, but at least two steps.
    """
    keep_memory()
    under_way = list(cases)
    while under_way:
        for one in under_way:
            one.take()
            yield
        under_way = [one for one in under_way if one.wants(seconds)]


class Turns:
    """Measures one case: its steps alternate with the unit, the product (edges x h)(h x h).

    Arguments:
        case: The case.
        model: The model to measure; a new one if omitted.

    >>> small = replace(cases()[5], batch=1, spec=ScaleGMNSpec(16, 1))
    >>> turns = Turns(small)
    >>> turns.take()
    >>> turns.row().gemm_equivalents > 0
    True
    """

    def __init__(self, case: Case, model: nn.Module | None = None) -> None:
        self.case = case
        model = model or case.build()
        # What is done only once, such as compiling C++, is done here on one network and not measured.
        step_of(model, case.networks(len(case.architectures)), case.training)()
        self.step = step_of(model, case.networks(), case.training)
        self.matrix = torch.randn(case.width, case.width)
        self.arithmetic = case.arithmetic()
        self.peak: float | None = None
        self.steps: list[float] = []
        self.units: list[float] = []

    def take(self) -> None:
        """Time one step, with a product before and after it; the first turn also measures memory."""
        if not self.steps:
            self.peak = peak_mb(self.step)
        rows = torch.ones(self.case.edges, self.case.width)
        self.units.append(seconds_of(lambda: rows @ self.matrix, 2))
        self.steps.append(seconds_of(self.step))
        self.units.append(seconds_of(lambda: rows @ self.matrix, 2))

    def wants(self, seconds: float) -> bool:
        """Whether more turns should follow, given this many seconds for all of them."""
        return len(self.steps) < 2 or (sum(self.steps) < seconds and len(self.steps) < 50)

    def row(self) -> Timing:
        """The medians of all turns."""
        c, own = self.case, statistics.median(self.steps)
        units = own / statistics.median(self.units)
        return Timing(c.name, c.recipe, c.width, c.batch, own, units, self.arithmetic, self.peak)


def peak_mb(work: Callable[[], object]) -> float | None:
    """Megabytes that `work` needs beyond what the process has, or None if the system does not report it."""
    if platform.system() != "Linux":
        return None
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = _status("VmRSS")
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    work()
    return max(0.0, (_status("VmHWM") - before) / 1024)


def _status(key: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return float(line.split()[1])
    return 0.0


def step_of(
    model: nn.Module, networks: Networks | list[Networks], training: bool, read: Callable[[Any], Any] | None = None
) -> Callable[[], None]:
    """One step of work; `read` is how the model is applied, if not by calling it."""
    read = read or model
    parameters = list(model.parameters())

    model.train(training)

    def infer() -> None:
        with torch.no_grad():
            read(networks)

    def train() -> None:
        y = read(networks)
        values: Tensor = y.parameters if isinstance(y, Networks) else y
        values.square().mean().backward()
        for p in parameters:
            p.grad = None

    return train if training else infer


def seconds_of(work: Callable[[], object], times: int = 1) -> float:
    """The seconds that one call takes, the mean over `times` calls."""
    start = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - start) / times
