"""What is in a zoo, in numbers: counts, metrics, and how the weights of each layer are distributed."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...core.architecture import Architecture, Segment
from ...core.schema import Json
from ...files.arrays import Array
from .zoo import Zoo

BINS = 30
# Weights that are in memory at a time: few enough for the caches.
BLOCK = 2**17

# Splits and labels have lines of their own; every file has another name.
_TOLD_ELSEWHERE = ("split", "label", "file")


@dataclass(frozen=True)
class LayerStatistics:
    """The distribution of one weight matrix or bias over all networks of an architecture.

    Arguments:
        name: `W1`, `b1`, `W2`, ...: the weights into and the bias of a layer.
        architecture: The position in `Zoo.architectures`.
        count: Number of values in all networks.
        mean, std, smallest, largest: Of the values.
        negative: Share of negative values; near 1/2 if training does not prefer a sign.
        norm: Mean length of a neuron's weights, or size of its bias.
        norm_spread: Standard deviation of that length over its mean; 0 if training fixes the scale of neurons.
    """

    name: str
    architecture: int
    count: int
    mean: float
    std: float
    smallest: float
    largest: float
    negative: float
    norm: float
    norm_spread: float


def segment_name(architecture: Architecture, segment: Segment) -> str:
    """The usual name of a part of the parameters: `W2` for the weights into layer 2, `b2` for its bias.

    >>> a = Architecture.mlp([2, 4, 1])
    >>> [segment_name(a, s) for s in a.segments]
    ['W1', 'b1', 'W2', 'b2']
    """
    if segment.kind != "weight":
        return f"{'b' if segment.kind == 'bias' else 'a'}{segment.index}"
    c = architecture.connections[segment.index]
    alone = sum(s.kind == "weight" and architecture.owner(s) == c.target for s in architecture.segments) == 1
    return f"W{c.target}" if alone else f"W{c.target} from {c.source}"


class _Sums:
    """Sums over networks of one architecture, from which everything else follows, so that a zoo is read only once.

    Arguments:
        architecture: Of the networks.
    """

    def __init__(self, architecture: Architecture) -> None:
        self.architecture = architecture
        sizes = [s.size // s.shape[0] for s in architecture.segments for _ in range(s.shape[0])]
        # Where the weights of each neuron begin; they lie together.
        self.neurons = np.cumsum([0, *sizes[:-1]])
        self.networks = 0
        self.total, self.squares, self.negative = (np.zeros(architecture.parameters) for _ in range(3))
        self.smallest = np.full(architecture.parameters, np.inf)
        self.largest = -self.smallest
        self.norms, self.norm_squares = (np.zeros(len(sizes)) for _ in range(2))

    def add(self, rows: Array) -> None:
        """Add networks (n, P)."""
        values = rows.astype(np.float64)
        self.networks += len(rows)
        self.total += values.sum(axis=0)
        self.negative += np.count_nonzero(rows < 0, axis=0)
        self.smallest = np.minimum(self.smallest, rows.min(axis=0))
        self.largest = np.maximum(self.largest, rows.max(axis=0))
        np.square(values, out=values)
        self.squares += values.sum(axis=0)
        lengths = np.add.reduceat(values, self.neurons, axis=1)
        self.norm_squares += lengths.sum(axis=0)
        self.norms += np.sqrt(lengths).sum(axis=0)

    def result(self, segment: Segment, number: int) -> LayerStatistics:
        """The statistics of one weight matrix or bias of architecture `number`."""
        part = slice(segment.start, segment.start + segment.size)
        neurons = slice(*np.searchsorted(self.neurons, (part.start, part.stop)))
        count, lengths = self.networks * segment.size, self.networks * segment.shape[0]
        mean, norm = float(self.total[part].sum()) / count, float(self.norms[neurons].sum()) / lengths
        spread = _deviation(float(self.norm_squares[neurons].sum()) / lengths, norm)
        return LayerStatistics(
            name=segment_name(self.architecture, segment),
            architecture=number,
            count=count,
            mean=mean,
            std=_deviation(float(self.squares[part].sum()) / count, mean),
            smallest=float(self.smallest[part].min()),
            largest=float(self.largest[part].max()),
            negative=float(self.negative[part].sum()) / count,
            norm=norm,
            norm_spread=spread / norm if norm else 0.0,
        )


def _deviation(square: float, mean: float) -> float:
    return float(np.sqrt(max(square - mean * mean, 0.0)))


def per_neuron(values: Array, segment: Segment) -> Array:
    """A segment's columns (n, size) as (n, neurons, rest)."""
    return values.reshape(len(values), segment.shape[0], -1)


def layer_statistics(zoo: Zoo) -> list[LayerStatistics]:
    """Statistics of every weight matrix and bias over all networks; only some of them are in memory at a time."""
    sums = [_Sums(architecture) for architecture in zoo.architectures]
    for shard, entry in enumerate(zoo.header["shards"]):
        weights = zoo.read_shard(shard)
        rows = max(1, BLOCK // max(1, weights.shape[1]))
        for start in range(0, len(weights), rows):
            sums[entry["architecture"]].add(weights[start : start + rows])
    return [s.result(part, i) for i, s in enumerate(sums) if s.networks for part in s.architecture.segments]


def column_summary(values: Array) -> Json:
    """Mean, deviation, quantiles and a histogram of a column of numbers.

    >>> column_summary(np.array([1.0, 2.0, 3.0]))["median"]
    2.0
    """
    finite = values[np.isfinite(values)].astype(np.float64)
    if not len(finite):
        return {"count": 0}
    low, median, high = np.quantile(finite, [0.05, 0.5, 0.95])
    counts, edges = np.histogram(finite, bins=BINS)
    return {
        "count": len(finite),
        "mean": float(finite.mean()),
        "std": float(finite.std()),
        "min": float(finite.min()),
        "quantile_05": float(low),
        "median": float(median),
        "quantile_95": float(high),
        "max": float(finite.max()),
        "histogram": {"edges": edges.tolist(), "counts": counts.tolist()},
    }


def tau_cap(values: Array) -> float:
    r"""The largest Kendall's tau that a prediction without ties can have with values that have ties.

    \(\sqrt{1 - t / n_0}\) where t of the \(n_0\) pairs of values are equal: tau-b of a perfect order.

    Arguments:
        values: Shape (B,).

    >>> round(tau_cap(np.array([0.1, 0.2, 0.2, 0.3])), 4)
    0.9129
    """
    ties = np.unique(values, return_counts=True)[1].astype(np.float64)
    pairs = len(values) * (len(values) - 1) / 2
    return float(np.sqrt(1 - (ties * (ties - 1) / 2).sum() / pairs)) if pairs else float("nan")


def _tau_caps(zoo: Zoo) -> dict[str, float]:
    """By split, for zoos whose networks have a test accuracy to predict."""
    if "test_accuracy" not in zoo.columns:
        return {}
    values = zoo.column("test_accuracy").numpy()
    return {name: tau_cap(values[zoo.split(name).numpy()]) for name in zoo.splits if len(zoo.split(name)) > 1}


def info(zoo: Zoo) -> Json:
    """Everything that `scalegmn zoo info` prints about a zoo, as plain JSON."""
    kinds = zoo.architecture_of().numpy()
    layers = layer_statistics(zoo)
    weights = sum(layer.count for layer in layers)
    files = [*zoo.header["shards"], zoo.header["table"], *filter(None, [zoo.header["images"]])]
    return {
        "path": str(zoo.path),
        "kind": zoo.kind,
        "networks": len(zoo),
        "bytes": sum(entry["bytes"] for entry in files),
        "shards": len(zoo.header["shards"]),
        "architectures": [
            {"text": str(a), "parameters": a.parameters, "networks": int((kinds == i).sum())}
            for i, a in enumerate(zoo.architectures)
        ],
        "canvas": zoo.header["canvas"],
        "splits": {name: len(zoo.split(name)) for name in zoo.splits},
        "labels": _counts(zoo, "label") if "label" in zoo.columns else {},
        "categories": {n: _counts(zoo, n) for n in zoo.columns if zoo.categories(n) and n not in _TOLD_ELSEWHERE},
        "metrics": {n: column_summary(zoo.column(n).numpy()) for n in zoo.columns if zoo.column(n).is_floating_point()},
        "tau_cap": _tau_caps(zoo),
        "layers": [asdict(layer) for layer in layers],
        "negative": sum(layer.negative * layer.count for layer in layers) / weights,
        "arguments": zoo.arguments,
        "notes": zoo.header["notes"],
    }


def _counts(zoo: Zoo, name: str) -> dict[str, int]:
    column = zoo.column(name)
    if column.is_floating_point():
        return {}
    values, counts = np.unique(column.numpy(), return_counts=True)
    names: Any = zoo.categories(name)
    return {str(names[v] if names else v): int(c) for v, c in zip(values, counts, strict=True)}
