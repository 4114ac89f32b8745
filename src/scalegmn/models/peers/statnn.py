"""StatNN: networks seen through the statistics of their layers (Unterthiner et al. 2020)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...core.mixed import each_architecture
from ...core.networks import Networks
from ...errors import ScaleGMNError
from ..method import Method
from ..parts.dense import DenseSpec, rectified
from ..trunk import Pooling, Trunk

STATISTICS = 7
_HASHED = (torch.float32, torch.float64)
_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


def statistics(networks: Networks) -> Tensor:
    """Mean, variance and the quantiles 0, 1/4, 1/2, 3/4, 1 of each tensor of parameters.

    They do not change when neurons are permuted.

    Arguments:
        networks: B networks with S tensors of parameters each.

    Returns:
        Shape (B, 7 S).

    >>> from scalegmn import Architecture
    >>> architecture = Architecture.mlp([2, 8, 1], "tanh")
    >>> statistics(Networks(architecture, torch.randn(5, architecture.parameters))).shape
    torch.Size([5, 28])
    """
    return _described(networks, _quantiles(networks))


def _parts(networks: Networks) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = networks.parameters.split([s.size for s in networks.architecture.segments], dim=1)
    return found


def _described(networks: Networks, quantiles: Tensor) -> Tensor:
    """Mean, variance and the quantiles (B, S, 5), as (B, 7 S)."""
    moments = [torch.stack(torch.var_mean(x, dim=1, correction=0)[::-1], dim=1) for x in _parts(networks)]
    return torch.cat((torch.stack(moments, dim=1), quantiles), dim=2).flatten(1)


def _quantiles(networks: Networks) -> Tensor:
    """(B, S, 5)."""
    return torch.stack([_of_one(x) for x in _parts(networks)], dim=1)


def _of_one(x: Tensor) -> Tensor:
    """(B, n) to (B, 5)."""
    ordered = x.sort(dim=1).values
    position = torch.tensor(_QUANTILES, dtype=x.dtype, device=x.device) * (x.shape[1] - 1)
    low = position.floor().long()
    high = position.ceil().long()
    return torch.lerp(ordered[:, low], ordered[:, high], position - low)


class Memory:
    """Quantiles of networks that were seen before, so that weights are sorted once and not in every epoch.

    A network is recognised by the checksum of its weights. Sorting does not round, so what is remembered is the same
    to the last bit, whatever else is in a batch. Weights that have gradients are sorted every time, and so are those on
    another device.

    Arguments:
        most: Networks that are remembered, at about 200 bytes each and as many again per tensor of parameters.

    >>> from scalegmn import Architecture
    >>> architecture = Architecture.mlp([2, 8, 1], "tanh")
    >>> networks, memory = Networks(architecture, torch.randn(5, architecture.parameters)), Memory()
    >>> bool((memory(networks) == statistics(networks)).all()), len(memory)
    (True, 5)
    """

    def __init__(self, most: int = 200_000) -> None:
        self.most = most
        self._known: dict[bytes, Tensor] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __call__(self, networks: Networks) -> Tensor:
        """The statistics (B, 7 S) of networks, as `statistics` computes them."""
        rows = networks.parameters
        elsewhere = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
        if rows.requires_grad or rows.device.type != "cpu" or elsewhere or rows.dtype not in _HASHED:
            return statistics(networks)
        start = repr((networks.architecture.segments, rows.dtype)).encode()
        keys = [blake2b(start + row.tobytes(), digest_size=16).digest() for row in rows.numpy()]
        new = [i for i, key in enumerate(keys) if key not in self._known]
        if len(self._known) + len(new) > self.most:
            self._known.clear()
            new = list(range(len(keys)))
        if new:
            self._known |= zip([keys[i] for i in new], _quantiles(networks[new]), strict=True)
        return _described(networks, torch.stack([self._known[key] for key in keys]))


def features(
    networks: Networks | Sequence[Networks], size: int, describe: Callable[[Networks], Tensor] = statistics
) -> Tensor:
    """Statistics in the order of the input, padded with zeros to (B, size) if a network has fewer tensors."""
    return each_architecture(lambda batch: _fill(describe(batch), size), networks)


def _fill(x: Tensor, size: int) -> Tensor:
    if x.shape[1] > size:
        raise ScaleGMNError(f"statnn: made for at most {size} statistics per network, got {x.shape[1]}")
    return nn.functional.pad(x, (0, size - x.shape[1]))


class StatNNTrunk(Trunk):
    r"""An MLP on layer statistics: \(f(\theta) = \mathrm{MLP}(\mathrm{standardise}(\mathrm{statistics}(\theta)))\).

    Unterthiner et al., Predicting Neural Network Accuracy from Weights, 2020.

    Reads architectures of any kind; the statistics of those with fewer tensors are padded with zeros.

    >>> from scalegmn import Architecture
    >>> architecture = Architecture.mlp([2, 8, 1], "tanh")
    >>> StatNN([architecture], 1)(Networks(architecture, torch.randn(5, architecture.parameters))).shape
    torch.Size([5, 1])
    """

    spec: DenseSpec

    def build(self) -> None:
        spec = self.spec
        self.size = STATISTICS * max(len(a.segments) for a in self.architectures)
        self.register_buffer("mean", torch.zeros(self.size))
        self.register_buffer("std", torch.ones(self.size))
        self.memory = Memory()
        self.maps = rectified([self.size, *[spec.width] * (spec.layers - 1)], dropout=spec.dropout)

    @torch.no_grad()
    def measure(self, training: Sequence[Networks]) -> None:
        """Fit the standardisation of the statistics."""
        found_var, found_mean = torch.var_mean(features(training, self.size), dim=0, correction=0)
        self.get_buffer("mean").copy_(found_mean)
        self.get_buffer("std").copy_(torch.where(found_var > 0, found_var.sqrt(), torch.ones_like(found_var)))

    def forward(self, networks: Networks) -> Tensor:
        """Hidden states (B, width)."""
        mean, std = self.get_buffer("mean"), self.get_buffer("std")
        hidden: Tensor = self.maps((features(networks, self.size, self.memory) - mean) / std)
        return hidden

    def pooling(self) -> Pooling:
        return Pooling(nn.Identity(), nn.Identity(), self.spec.width)


class StatNNTrees:
    """Gradient-boosted trees on layer statistics, the strongest model of Unterthiner et al. 2020.

    Histogram gradient boosting of scikit-learn; it is not an `nn.Module` and is fitted in one call.

    Arguments:
        task: What the targets are.
        iterations: Boosting rounds.
        learning_rate: Shrinkage of each round.
        seed: Of the binning and of the early stopping's split.

    >>> from scalegmn import Architecture
    >>> architecture = Architecture.mlp([2, 8, 1], "tanh")
    >>> networks = Networks(architecture, torch.randn(40, architecture.parameters))
    >>> trees = StatNNTrees("regression", iterations=5)
    >>> trees.fit(networks, networks.parameters.mean(1)).predict(networks).shape
    torch.Size([40])
    """

    def __init__(
        self,
        task: Literal["classification", "regression"],
        *,
        iterations: int = 300,
        learning_rate: float = 0.05,
        seed: int = 0,
    ) -> None:
        # scikit-learn takes about a second to load, so it waits until trees are wanted.
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        classes = {"classification": HistGradientBoostingClassifier, "regression": HistGradientBoostingRegressor}
        if task not in classes:
            raise ScaleGMNError(f"task: expected 'classification' or 'regression', got {task!r}")
        self.task = task
        self.size = 0
        self.trees: Any = classes[task](max_iter=iterations, learning_rate=learning_rate, random_state=seed)

    def fit(self, networks: Networks | Sequence[Networks], targets: Tensor) -> StatNNTrees:
        """Fit to networks and their targets (B,)."""
        batches = [networks] if isinstance(networks, Networks) else list(networks)
        self.size = STATISTICS * max(len(b.architecture.segments) for b in batches)
        self.trees.fit(features(batches, self.size).detach().cpu().numpy(), targets.detach().cpu().numpy())
        return self

    def predict(self, networks: Networks | Sequence[Networks]) -> Tensor:
        """Labels or values (B,)."""
        if not self.size:
            raise ScaleGMNError("statnn: the trees are not fitted; call fit first")
        return torch.from_numpy(self.trees.predict(features(networks, self.size).detach().cpu().numpy()))

    def __repr__(self) -> str:
        return f"StatNNTrees({self.trees!r})"


StatNN = Method("statnn", "StatNN", "Unterthiner et al., arXiv 2020", ("permutation",), StatNNTrunk, DenseSpec(256))
"""StatNN (`statnn`); options as in `DenseSpec`."""
