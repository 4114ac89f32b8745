r"""How far is a network from those that a model was trained on? Two distances that no symmetry changes.

Both are Mahalanobis distances to the nearest of a few centres, \(\min_k \lVert \Sigma^{-1/2} (x - \mu_k) \rVert\), in
units of what all but a few validation networks stay below (Lee et al. 2018 find unknown inputs of classifiers so). One
looks at sizes: of each tensor of the balanced network, and of its answers to fixed inputs. The other looks at the
embedding, where networks of another kind lie elsewhere though their weights are of the usual size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..alignment.scales import equalising
from ..alignment.states import default_inputs
from ..core.canonical import Canonical, phase, present
from ..core.networks import Networks
from ..models.base import InvariantModel, Metanetwork
from ..tasks import Classification, Task
from ..training.data import PREPARE, fetch, listed, seed_for
from ..zoo.store.zoo import Zoo

# Of the validation networks, so many have a smaller distance than the limit, in each of the two.
SHARE = 0.996
# Training networks that are looked at, and networks at a time.
SAMPLE, CHUNK = 8192, 256
# Directions in which training networks hardly differ count as if they differed by so much of the largest.
_LEAST = 1e-4


@dataclass(frozen=True)
class Cloud:
    """Points around a few centres, with one covariance.

    Arguments:
        centres: Of the points (K, d).
        whitening: Brings the covariance to one (d, d).
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
        """Of points (B, d) from the nearest centre, in units of the limit (B,)."""
        # Not by products: their rounding matters where centres are close to each other.
        apart = (points[:, None] - self.centres) @ self.whitening
        return apart.norm(dim=2).amin(1) / self.limit


def sizes(networks: Networks) -> Tensor:
    """Logarithms of the sizes of tensors and answers, the same for all networks of an orbit (B, k).

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
    with torch.no_grad():
        answers = exact.evaluate(default_inputs(exact))
    # Of a network that gives maps, the mean of each.
    answers = answers.flatten(3).mean(3) if answers.dim() > 3 else answers
    spread = (answers - answers.mean(1, keepdim=True)).pow(2).mean(1)
    squares = torch.cat([torch.stack([p.pow(2).mean(1) for p in parts], 1), spread], 1)
    # Tensors of zeros have a size too, one that no network in training has.
    return torch.cat([squares.clamp_min(1e-30).log() / 2, answers.mean(1).clamp(-1e6, 1e6)], 1)


@dataclass(frozen=True)
class Familiar:
    """What a model remembers of its training networks.

    Arguments:
        sizes: One cloud for each architecture of the model.
        embedding: The cloud of embeddings; None for an editor, which has none.
    """

    sizes: tuple[Cloud, ...]
    embedding: Cloud | None

    @staticmethod
    def measure(model: Metanetwork, task: Task, zoo: Zoo, canonical: Canonical) -> Familiar:
        """Look at training and validation networks of a zoo.

        Arguments:
            model: The trained model.
            task: Its task; the classes of a classification have a centre each.
            zoo: What it was trained on.
            canonical: The form in which it sees networks.
        """
        draw = torch.Generator().manual_seed(seed_for(0, PREPARE))
        train, val = (zoo.split(name) for name in ("train", "val"))
        train = train[torch.randperm(len(train), generator=draw)[:SAMPLE]].sort().values
        clouds = []
        for kind in range(len(zoo.architectures)):
            mine = [part[zoo.architecture_of(part) == kind] for part in (train, val)]
            points = [_gathered(sizes(n) for n in _chunks(zoo, part)) for part in mine]
            clouds.append(Cloud.around(points[0], torch.zeros(len(points[0]), dtype=torch.long), points[1]))
        if not isinstance(model, InvariantModel):
            return Familiar(tuple(clouds), None)
        found = [_gathered(_embedded(model, n, canonical) for n in _chunks(zoo, part)) for part in (train, val)]
        groups = task.targets(zoo, _order(zoo, train)) if isinstance(task, Classification) else torch.zeros(len(train))
        return Familiar(tuple(clouds), Cloud.around(found[0], groups, found[1]))

    def distance(self, model: Metanetwork, networks: Networks, canonical: Canonical) -> Tensor:
        """Of networks of one architecture from those in training (B,); more than 1 is far.

        Arguments:
            model: The model that remembers.
            networks: In the model's type.
            canonical: The form in which it sees networks.
        """
        found = []
        if networks.architecture in model.architectures:
            found.append(self.sizes[model.architectures.index(networks.architecture)].distance(sizes(networks)))
        if self.embedding is not None and isinstance(model, InvariantModel):
            found.append(self.embedding.distance(_embedded(model, networks, canonical)))
        return torch.stack(found).amax(0) if found else torch.zeros(len(networks))

    # -- files ---------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """All numbers by name, as a file holds them."""
        clouds = {f"sizes.{i}": cloud for i, cloud in enumerate(self.sizes)}
        clouds |= {} if self.embedding is None else {"embedding": self.embedding}
        return {f"{name}.{key}": value.float() for name, cloud in clouds.items() for key, value in vars(cloud).items()}

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor]) -> Familiar:
        """What `tensors` gave."""
        parts: dict[str, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            cloud, _, key = name.rpartition(".")
            parts.setdefault(cloud, {})[key] = value.double()
        clouds = {name: Cloud(**values) for name, values in parts.items()}
        count = sum(name.startswith("sizes.") for name in clouds)
        return Familiar(tuple(clouds[f"sizes.{i}"] for i in range(count)), clouds.get("embedding"))


def _embedded(model: InvariantModel, networks: Networks, canonical: Canonical) -> Tensor:
    mine = next(model.parameters())
    with torch.no_grad():
        seen = present(networks.to(dtype=mine.dtype), canonical, mine.device)
        return model.embed(seen).double().cpu()


def _chunks(zoo: Zoo, indices: Tensor) -> Iterable[Networks]:
    for part in indices.split(CHUNK):
        yield from listed(fetch(zoo, part).networks)


def _order(zoo: Zoo, indices: Tensor) -> Tensor:
    """The numbers of networks in the order in which `_chunks` gives them."""
    return torch.cat([fetch(zoo, part).indices for part in indices.split(CHUNK)])


def _gathered(parts: Iterable[Tensor]) -> Tensor:
    return torch.cat(list(parts))
