"""The symmetry audit: does a model give the same answers about networks that compute the same functions?"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import ScaleGMNError
from ..inference.trained import Trained
from ..tasks import Classification
from ..training.evaluation import Evaluation
from ..zoo.store.zoo import Zoo


@dataclass(frozen=True)
class Audit:
    """Answers about networks and about randomly permuted and rescaled copies of them.

    Arguments:
        indices: Which networks of the zoo (N,).
        plain: The answers about them.
        transformed: The answers about their copies.
        changed: The fraction of networks whose copy gets another class; None if there are no classes.
    """

    indices: Tensor
    plain: Evaluation
    transformed: Evaluation
    changed: float | None

    @property
    def change(self) -> Tensor:
        """The largest change of an output of each network (N,)."""
        return (self.transformed.outputs - self.plain.outputs).abs().reshape(len(self.indices), -1).amax(1)


def ask_copies(trained: Trained, zoo: Zoo, indices: Tensor, *, seed: int = 0) -> Audit:
    """Evaluate a model on networks and on copies of them that compute the same functions.

    Arguments:
        trained: The model.
        zoo: The networks.
        indices: Which of them (N,).
        seed: Decides the copies.
    """
    plain, transformed = (trained.evaluate_on(zoo, indices, transform_seed=which) for which in (None, seed))
    changed = None
    if isinstance(trained.task, Classification):
        changed = (plain.outputs.argmax(1) != transformed.outputs.argmax(1)).double().mean().item()
    return Audit(indices, plain, transformed, changed)


def sample(zoo: Zoo, split: str, limit: int) -> Tensor:
    """At most `limit` networks of a split, drawn at random but always the same ones.

    Arguments:
        zoo: The networks.
        split: `train`, `val` or `test`.
        limit: Their largest number.
    """
    if limit < 1:
        raise ScaleGMNError(f"networks: expected at least 1, got {limit}")
    indices = zoo.split(split)
    if len(indices) <= limit:
        return indices
    chosen = torch.randperm(len(indices), generator=torch.Generator().manual_seed(0))[:limit]
    return indices[chosen.sort().values]
