"""What a task is: what it reads from a zoo, its loss, its metrics and the head that it needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from ..core.networks import Networks
from ..core.schema import to_json
from ..core.spec import Spec
from ..models.heads import Metanetwork
from ..models.trunk import Trunk
from ..zoo.store.zoo import Zoo

Head = Literal["invariant", "equivariant"]


@dataclass(frozen=True, repr=False)
class NoOptions(Spec):
    """The options of a head that has none."""


@dataclass(frozen=True)
class Task(ABC):
    """Something to learn from a zoo. Its fields are all that must be stored to use a trained model.

    Attributes:
        name: As recipes call it.
        head: What kind of head it needs.
        head_spec: The options of that head.
        metric: The metric that picks the best epoch.
        maximise: Whether larger values are better.
    """

    name: ClassVar[str]
    head: ClassVar[Head]
    head_spec: ClassVar[Spec] = NoOptions()
    metric: ClassVar[str]
    maximise: ClassVar[bool]

    @classmethod
    @abstractmethod
    def from_zoo(cls, zoo: Zoo) -> Task:
        """The task for this zoo; further keyword-only arguments are the options of a recipe."""

    @abstractmethod
    def attach(self, trunk: Trunk, options: Mapping[str, Any]) -> Metanetwork:
        """A model for this task: the trunk with a new head.

        Arguments:
            trunk: Of any method that has such a head.
            options: Fields of `head_spec`.
        """

    @abstractmethod
    def targets(self, zoo: Zoo, indices: Tensor) -> Tensor:
        """The targets of some networks of the zoo, (B, ...)."""

    @abstractmethod
    def respond(self, model: Metanetwork, networks: Networks | Sequence[Networks]) -> Tensor:
        """The output of the model, comparable to `targets`, (B, ...)."""

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of a batch, a scalar."""

    @abstractmethod
    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """The metrics of a whole split."""

    def answers(self, outputs: Tensor, *, top: int = 1) -> list[dict[str, Any]]:
        """One readable answer per network; of classes, the `top` most probable."""
        return [{"value": value.tolist()} for value in outputs]

    def better(self, new: float, old: float) -> bool:
        """Whether one value of the metric is better than another; NaN never is."""
        return new > old if self.maximise else new < old

    def to_json(self) -> dict[str, Any]:
        """Name and fields as plain values, for `task_from_json`."""
        return {"name": self.name, **to_json(self)}
