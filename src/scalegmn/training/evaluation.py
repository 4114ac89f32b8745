"""Evaluating a model on the networks of a zoo, also after random symmetries were applied to them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.canonical import Canonical, present
from ..core.networks import Networks
from ..core.transform import Transform
from ..models.heads import Metanetwork
from ..tasks import Task
from ..zoo.store.zoo import Zoo
from .data import TRANSFORM, seed_for
from .distributed import World


@dataclass(frozen=True)
class Evaluation:
    """Answers and truths, in the order of the indices.

    Arguments:
        outputs: The outputs of the model (B, ...), on the CPU.
        targets: The wanted outputs (B, ...).
        metrics: Computed from the two.
    """

    outputs: Tensor
    targets: Tensor
    metrics: dict[str, float]


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; the previous mode is restored afterwards."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def evaluate(
    model: Metanetwork,
    task: Task,
    zoo: Zoo,
    indices: Tensor,
    *,
    world: World,
    canonical: Canonical = "none",
    batch: int = 256,
    transform_seed: int | None = None,
) -> Evaluation:
    """Evaluate the model on some networks of a zoo; several processes share the work.

    Arguments:
        model: On the world's device.
        task: What it was trained for.
        zoo: The networks.
        indices: Which of them (N,).
        world: The processes that share the work.
        canonical: The form in which the model sees its networks.
        batch: Networks at a time.
        transform_seed: If given, evaluate on randomly permuted and rescaled copies instead.
    """
    mine = world.part(indices)
    outputs, targets = [], []
    with evaluating(model):
        # A process without a share still needs the shape of an answer.
        for start in range(0, max(len(mine), 1), batch):
            part = mine[start : start + batch] if len(mine) else indices[:1]
            networks, positions = zoo.batches(part)
            if transform_seed is not None:
                # The copies depend on the first index of their batch, which is the same for every model.
                generator = torch.Generator().manual_seed(seed_for(transform_seed, TRANSFORM, int(part[0])))
                networks = [transformed(batch, generator) for batch in networks]
            answer = task.respond(model, present(networks, canonical, world.device)).float().cpu()
            # Networks come grouped by architecture; the answers go in the order of the question.
            answer = answer[positions.argsort()]
            outputs.append(answer[: len(mine)])
            targets.append(task.targets(zoo, part)[: len(mine)])
    found = world.join(torch.cat(outputs), len(indices)), world.join(torch.cat(targets), len(indices))
    return Evaluation(*found, task.metrics(*found))


@dataclass(frozen=True)
class Difference:
    """The difference of a metric between two models, with a 95 % interval.

    Arguments:
        value: One minus the other.
        low, high: Ends of the interval.
    """

    value: float
    low: float
    high: float


def compare(task: Task, one: Evaluation, other: Evaluation, *, resamples: int = 1000) -> dict[str, Difference]:
    """How much two models differ on the same networks, with an interval for the choice of networks.

    The interval is that of a paired bootstrap: the networks are drawn repeatedly with replacement.

    Arguments:
        task: Of both.
        one, other: Their answers.
        resamples: How often networks are drawn.
    """
    generator = torch.Generator().manual_seed(0)
    drawn: dict[str, list[float]] = {name: [] for name in one.metrics}
    for _ in range(resamples):
        rows = torch.randint(len(one.targets), (len(one.targets),), generator=generator)
        a, b = (task.metrics(e.outputs[rows], e.targets[rows]) for e in (one, other))
        for name, values in drawn.items():
            values.append(a[name] - b[name])
    ends = torch.tensor([0.025, 0.975], dtype=torch.float64)
    found = {}
    for name, values in drawn.items():
        low, high = torch.tensor(values, dtype=torch.float64).quantile(ends).tolist()
        found[name] = Difference(one.metrics[name] - other.metrics[name], low, high)
    return found


def transformed(networks: Networks, generator: torch.Generator) -> Networks:
    """Randomly permuted and rescaled copies, which compute the same functions."""
    return Transform.sample(networks.architecture, len(networks), generator).apply(networks)
