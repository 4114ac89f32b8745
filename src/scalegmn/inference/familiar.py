r"""How far is a network from those that a model was trained on? Two distances that no symmetry changes.

Both are Mahalanobis distances to the nearest of a few centres, \(\min_k \lVert \Sigma^{-1/2} (x - \mu_k) \rVert\), in
units of a limit that only few validation networks exceed. One looks at the sizes of the tensors of the balanced
network, and finds those that were trained in another way. The other looks at its outputs at fixed inputs, and
finds those that were trained in the usual way for another purpose; in a classification, each class has its own centre
(Lee et al. 2018 find unknown images in this way).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..alignment.scales import equalising
from ..alignment.states import default_inputs
from ..core.architecture import Architecture
from ..core.canonical import phase
from ..core.networks import Networks
from ..errors import ScaleGMNError
from ..tasks import Classification, Task
from ..training.data import PREPARE, batch_of, listed, seed_for
from ..zoo.inr.conventions import coordinates
from ..zoo.store.zoo import Zoo

# Of the validation networks, so many have a smaller distance than the limit, in each of the two.
SHARE = 0.996
# Training networks that are looked at, and networks at a time.
SAMPLE, CHUNK = 8192, 256
# Directions in which training networks hardly differ count as if they differed by so much of the largest.
_LEAST = 1e-4
# Answers of one network that are remembered, about.
_ANSWERS = 100


@dataclass(frozen=True)
class Cloud:
    """Points around a few centres, with one covariance.

    Arguments:
        centres: Of the points (K, d).
        whitening: Makes the covariance the identity (d, d).
        limit: The distance from the nearest centre that few points exceed.

    >>> points = torch.randn(1000, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> cloud = Cloud.around(points, torch.zeros(1000, dtype=torch.long), points)
    >>> cloud.distance(torch.tensor([[0.0, 0, 0], [9.0, 9, 9]], dtype=torch.float64)) > 1
    tensor([False,  True])
    """

    centres: Tensor
    whitening: Tensor
    limit: Tensor

    @staticmethod
    def around(points: Tensor, groups: Tensor, held_out: Tensor) -> Cloud:
        """The cloud of training networks.

        Arguments:
            points: Of training networks (N, d).
            groups: One centre each (N,).
            held_out: Points of validation networks (M, d), which set the limit.
        """
        kinds, place = groups.unique(return_inverse=True)
        centres = torch.stack([points[place == k].mean(0) for k in range(len(kinds))])
        rest = points - centres[place]
        values, vectors = torch.linalg.eigh(rest.T @ rest / len(rest))
        whitening = vectors / values.clamp_min(_LEAST * float(values.max().clamp_min(1e-12))).sqrt()
        cloud = Cloud(centres, whitening, torch.ones((), dtype=points.dtype))
        return replace(cloud, limit=cloud.distance(held_out).quantile(SHARE))

    def distance(self, points: Tensor) -> Tensor:
        """The distance (B,) of points (B, d) from the nearest centre, in units of the limit."""
        # Not by products: their rounding matters where centres are close to each other.
        apart = (points[:, None] - self.centres) @ self.whitening
        found: Tensor = apart.norm(dim=2).amin(1) / self.limit
        return found


def sizes(networks: Networks) -> Tensor:
    """Logarithms of the sizes of tensors, the same for all networks of an orbit (B, k).

    Arguments:
        networks: Of one architecture.

    >>> from scalegmn import Architecture, Transform
    >>> a = Architecture.mlp([2, 8, 8, 1], "relu")
    >>> networks = Networks(a, torch.randn(3, a.parameters, dtype=torch.float64))
    >>> torch.allclose(sizes(networks), sizes(Transform.sample(a, 3).apply(networks)))
    True
    """
    exact = phase(networks.detach().to("cpu", torch.float64))
    balanced = equalising(exact).apply(exact)
    parts = balanced.parameters.split([s.size for s in balanced.architecture.segments], dim=1)
    # Tensors of zeros have a size too, one that no network in training has.
    return torch.stack([p.pow(2).mean(1).clamp_min(1e-30).log() / 2 for p in parts], 1)


def answers(networks: Networks, inputs: Tensor) -> Tensor:
    """The outputs of networks at some inputs, as rows (B, k).

    Arguments:
        networks: Of one architecture.
        inputs: As in `Networks.evaluate`.
    """
    exact = networks.detach().to("cpu", torch.float64)
    with torch.no_grad():
        return exact.evaluate(inputs.double()).flatten(1).clamp(-1e6, 1e6)


def _inputs(zoo: Zoo, architecture: Architecture) -> Tensor:
    """Points of the picture for INRs, otherwise fixed random inputs; about a hundred output values."""
    outputs = architecture.layers[-1].size
    if zoo.canvas is not None:
        side = round((_ANSWERS / outputs) ** 0.5)
        return coordinates(side, side).double()
    one = torch.zeros(1, architecture.parameters, dtype=torch.float64)
    return default_inputs(Networks(architecture, one), max(1, _ANSWERS // outputs))


@dataclass(frozen=True)
class Known:
    """Statistics of a model's training networks of one architecture.

    Arguments:
        sizes: The cloud of their sizes.
        answers: The cloud of their outputs.
        inputs: The inputs at which they were evaluated.
    """

    sizes: Cloud
    answers: Cloud
    inputs: Tensor

    def distance(self, networks: Networks) -> Tensor:
        """The larger of both distances (B,)."""
        said = self.answers.distance(answers(networks, self.inputs))
        return torch.maximum(self.sizes.distance(sizes(networks)), said)


@dataclass(frozen=True)
class Familiar:
    """Statistics of a model's training networks.

    Arguments:
        known: By the position of an architecture in the model's list.
    """

    known: tuple[Known, ...]

    @staticmethod
    def measure(task: Task, zoo: Zoo) -> Familiar:
        """Measure training and validation networks of a zoo.

        Arguments:
            task: In a classification, each class has its own centre.
            zoo: The zoo that a model was trained on.
        """
        draw = torch.Generator().manual_seed(seed_for(0, PREPARE))
        train, val = (zoo.split(name) for name in ("train", "val"))
        train = train[torch.randperm(len(train), generator=draw)[:SAMPLE]].sort().values
        found = []
        for kind, architecture in enumerate(zoo.architectures):
            mine, held_out = (part[zoo.architecture_of(part) == kind] for part in (train, val))
            inputs = _inputs(zoo, architecture)
            one = torch.zeros(len(mine), dtype=torch.long)
            classes = task.targets(zoo, mine) if isinstance(task, Classification) else one
            norms = [_gathered(sizes(n) for n in _chunks(zoo, part)) for part in (mine, held_out)]
            said = [_gathered(answers(n, inputs) for n in _chunks(zoo, part)) for part in (mine, held_out)]
            clouds = Cloud.around(norms[0], one, norms[1]), Cloud.around(said[0], classes, said[1])
            found.append(Known(*clouds, inputs))
        return Familiar(tuple(found))

    def distance(self, architectures: Sequence[Architecture], networks: Networks) -> Tensor:
        """The distance (B,) of networks of one architecture from those in training; more than 1 is far, NaN is unknown.

        Arguments:
            architectures: Those of the model.
            networks: For an architecture that is not in the list, distances are unknown.
        """
        if networks.architecture not in architectures:
            return torch.full((len(networks),), torch.nan, dtype=torch.float64)
        return self.known[list(architectures).index(networks.architecture)].distance(networks)

    def tensors(self) -> dict[str, Tensor]:
        """All numbers by name, for a file."""
        found: dict[str, Tensor] = {}
        for i, known in enumerate(self.known):
            found[f"{i}.inputs"] = known.inputs.float()
            for name, cloud in (("sizes", known.sizes), ("answers", known.answers)):
                found |= {f"{i}.{name}.{key}": value.float() for key, value in vars(cloud).items()}
        return found

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor]) -> Familiar:
        """The inverse of `tensors`."""
        exact = {name: value.double() for name, value in tensors.items()}
        count = len({name.partition(".")[0] for name in exact})
        try:
            return Familiar(tuple(_known(exact, f"{i}.") for i in range(count)))
        except KeyError as error:
            raise ScaleGMNError(f"familiar.safetensors: lacks {error}; pack the run again") from None


def _known(tensors: Mapping[str, Tensor], prefix: str) -> Known:
    def cloud(name: str) -> Cloud:
        return Cloud(*(tensors[f"{prefix}{name}.{key}"] for key in ("centres", "whitening", "limit")))

    return Known(cloud("sizes"), cloud("answers"), tensors[f"{prefix}inputs"])


def _chunks(zoo: Zoo, indices: Tensor) -> Iterable[Networks]:
    for part in indices.split(CHUNK):
        yield from listed(batch_of(zoo, part).networks)


def _gathered(parts: Iterable[Tensor]) -> Tensor:
    return torch.cat(list(parts))
