"""How large is a number that belongs to a network, such as its test accuracy?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import functional as F

from ..core.networks import Networks
from ..errors import ScaleGMNError
from ..models.heads import Metanetwork, Regressor
from ..models.trunk import Trunk
from ..zoo.store.zoo import Zoo
from .base import Head, Task


@dataclass(frozen=True)
class Regression(Task):
    r"""Mean squared error, Kendall's tau and \(R^2\) on a column of numbers.

    On the column `test_accuracy` of a zoo of classifiers this is generalisation prediction (Unterthiner et al., 2020).

    Arguments:
        column: The column of the zoo.
        sigmoid: Whether answers are squeezed into (0, 1), as accuracies are.
        mean, std: Of the column over the training networks; without a sigmoid, answers are mean + std * output.

    >>> import torch
    >>> task = Regression("test_accuracy", sigmoid=True)
    >>> task.metrics(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.1, 0.2, 0.4]))["tau"]
    1.0
    """

    name: ClassVar[str] = "regression"
    head: ClassVar[Head] = "invariant"
    metric: ClassVar[str] = "tau"
    maximise: ClassVar[bool] = True

    column: str
    sigmoid: bool = False
    mean: float = 0.0
    std: float = 1.0

    @classmethod
    def from_zoo(cls, zoo: Zoo, *, column: str | None = None, sigmoid: bool = False) -> Regression:
        """Mean and deviation of the column (`test_accuracy`, or what the zoo was imported with) in training."""
        column = column or zoo.label("test_accuracy")
        values = zoo.column(column)
        if zoo.categories(column):
            raise ScaleGMNError(f"regression: column {column!r} holds names; expected numbers")
        bad = values.isfinite().logical_not().nonzero()
        if len(bad):
            first = int(bad[0])
            raise ScaleGMNError(
                f"regression: column {column!r}: network {first} has {values[first].item()}; expected finite numbers"
            )
        training = values[zoo.split("train")].double()
        if sigmoid and not (values.min() >= 0 and values.max() <= 1):
            raise ScaleGMNError(
                f"regression: sigmoid = true needs values in [0, 1]; column {column!r} runs from "
                f"{values.min().item():g} to {values.max().item():g}"
            )
        return cls(column, sigmoid, training.mean().item(), training.std(correction=0).item() or 1.0)

    def attach(self, trunk: Trunk, options: Mapping[str, Any]) -> Regressor:
        """One number, which `respond` brings to the units of the column."""
        return Regressor(trunk, **options)

    def targets(self, zoo: Zoo, indices: Tensor) -> Tensor:
        return zoo.column(self.column)[indices].float()

    def respond(self, model: Metanetwork, networks: Networks | Sequence[Networks]) -> Tensor:
        """Numbers (B,)."""
        raw: Tensor = model(networks)[:, 0].float()
        return raw.sigmoid() if self.sigmoid else self.mean + self.std * raw

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        # In units of the column's own spread, so that one learning rate suits every column.
        scale = 1.0 if self.sigmoid else self.std
        return F.mse_loss(outputs / scale, targets / scale)

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        # scipy.stats takes longer to load than everything else here together.
        from scipy.stats import kendalltau

        error = F.mse_loss(outputs.double(), targets.double()).item()
        spread = targets.double().var(correction=0).item()
        return {
            "loss": self.loss(outputs, targets).item(),
            "mse": error,
            # Of a single network there is no order.
            "tau": float(kendalltau(outputs.numpy(), targets.numpy()).statistic) if len(targets) > 1 else math.nan,
            "r2": 1 - error / spread if spread > 0 else float("nan"),
        }

    def answers(self, outputs: Tensor, *, top: int = 1) -> list[dict[str, Any]]:
        if top > 1:
            raise ScaleGMNError("top: expected a model of task classification, got regression")
        return [{self.column: round(value, 6)} for value in outputs.tolist()]
