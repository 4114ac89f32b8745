"""Which class does a network belong to?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.networks import Networks
from ..errors import ScaleGMNError
from ..models.heads import Classifier, Metanetwork
from ..models.trunk import Trunk
from ..zoo.store.zoo import Zoo
from .base import Head, Task


@dataclass(frozen=True)
class Classification(Task):
    """Cross-entropy and accuracy on a column of labels, such as the digit that an INR shows.

    Arguments:
        column: The column of the zoo.
        classes: Its values in ascending order, one for each output of the model.
        names: What the values are called, for a column of strings.
        titles: What people call the classes, if labels are numbers.

    >>> task = Classification("label", (3, 7))
    >>> task.answers(torch.tensor([[0.0, 2.0]]))
    [{'label': 7, 'probability': 0.8808}]
    >>> Classification("label", (3, 7), titles=("dress", "sneaker")).answers(torch.tensor([[0.0, 2.0]]))
    [{'label': 7, 'title': 'sneaker', 'probability': 0.8808}]
    """

    name: ClassVar[str] = "classification"
    head: ClassVar[Head] = "invariant"
    metric: ClassVar[str] = "accuracy"
    maximise: ClassVar[bool] = True

    column: str
    classes: tuple[int, ...]
    names: tuple[str, ...] = ()
    titles: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.titles and len(self.titles) != len(self.classes):
            raise ScaleGMNError(f"titles: expected one for each of {len(self.classes)} classes, got {len(self.titles)}")

    @classmethod
    def from_zoo(cls, zoo: Zoo, *, column: str | None = None) -> Classification:
        """Every value that the column (`label`, or what the zoo was imported with) takes is a class."""
        column = column or zoo.label("label")
        values = zoo.column(column)
        if values.is_floating_point():
            raise ScaleGMNError(
                f"classification: column {column!r} holds {values.dtype}; expected integers or names; "
                "task regression learns numbers"
            )
        return cls(column, tuple(values.long().unique().tolist()), zoo.categories(column))

    def attach(self, trunk: Trunk, options: Mapping[str, Any]) -> Classifier:
        """One output for each class."""
        return Classifier(trunk, len(self.classes), **options)

    def targets(self, zoo: Zoo, indices: Tensor) -> Tensor:
        """Positions in `classes` (B,)."""
        values, place = zoo.column(self.column)[indices].unique(return_inverse=True)
        # Another zoo may number its names otherwise.
        names, labels = zoo.categories(self.column), self.names or self.classes
        words = [names[value] for value in values.tolist()] if names else values.tolist()
        strange = [word for word in words if word not in labels]
        if strange:
            raise ScaleGMNError(f"column {self.column!r}: expected one of {labels}, got {strange[0]!r}")
        return torch.tensor([labels.index(word) for word in words], dtype=torch.long)[place]

    def respond(self, model: Metanetwork, networks: Networks | Sequence[Networks]) -> Tensor:
        """Logits (B, classes)."""
        logits: Tensor = model(networks)
        return logits

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs.float(), targets)

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        hits = (outputs.argmax(1) == targets).double().mean()
        return {"loss": self.loss(outputs, targets).item(), "accuracy": hits.item()}

    def answers(self, outputs: Tensor, *, top: int = 1) -> list[dict[str, Any]]:
        """The most probable label; with `top` > 1 also the list of that many, under `top`."""
        p, best = outputs.float().softmax(1).topk(min(top, len(self.classes)), 1)
        labels = self.names or self.classes
        told = [{"label": label} for label in labels]
        if self.titles:
            told = [{**one, "title": title} for one, title in zip(told, self.titles, strict=True)]
        rows = zip(best.tolist(), p.tolist(), strict=True)
        ranked = [[{**told[i], "probability": round(q, 4)} for i, q in zip(*r, strict=True)] for r in rows]
        return [{**r[0], "top": r} if top > 1 else r[0] for r in ranked]
