"""Building INR zoos: one small network per image and view, streamed to shards."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ... import __version__
from ...cluster import map_on_ray
from ...core.activations import activation
from ...core.architecture import Architecture
from ...errors import ScaleGMNError
from ..images.collections import Images
from ..store.splits import RULE, Selection, check_seed, part, select
from ..store.writer import ZooWriter
from ..store.zoo import Zoo
from .canvas import Canvas
from .conventions import Fit, FitResult, Inr
from .fit import EngineName, best_engine, fit_inrs
from .plain import group_size

SHARD = 1024
# Networks of one job on a cluster: a whole number of groups, a few seconds to minutes of work.
CLUSTER_JOB = 128

Report = Callable[[int, int, Tensor], None]


class Job(NamedTuple):
    """Some networks to fit: their images (n, H, W, C) uint8 and their numbers in the zoo."""

    images: Tensor
    numbers: range


def inr_architecture(shape: Inr) -> Architecture:
    """The architecture of INRs: sin(w0 (W x + b)) or another activation, and the offset of the convention at the end.

    >>> from scalegmn.zoo.inr.conventions import inr
    >>> inr_architecture(inr(1)).layers[-1].offset
    0.5
    """
    hidden = activation("sine", shape.w0) if shape.activation == "sine" else activation(shape.activation)
    plain = Architecture.mlp(shape.sizes, hidden)
    output = replace(plain.layers[-1], offset=shape.convention.offset)
    return Architecture((*plain.layers[:-1], output), plain.connections)


def inr_canvas(shape: Inr, height: int, width: int) -> Canvas:
    """The canvas of INRs of this shape."""
    kind = shape.convention
    return Canvas(kind.name, height, width, shape.channels, kind.low, kind.high)


def build_inr_zoo(
    source: Images,
    out: str | Path,
    *,
    fit: Fit | None = None,
    count: int | None = None,
    sizes: Sequence[int] | None = None,
    views: int = 1,
    held_out_views: int | None = None,
    split: str | None = None,
    seed: int = 0,
    ray: str | None = None,
    report: Report | None = None,
) -> Zoo:
    """Fit INRs to images and write them to a zoo, continuing after the last complete shard of an earlier run.

    The bytes depend on the arguments alone, not on interruptions, the number of threads or `ray`. The zoo records the
    engine and is not continued with the other one.

    Arguments:
        source: The images.
        out: The directory of the zoo.
        fit: How every network is fitted.
        count: Number of images, drawn at random; all if omitted.
        sizes: Instead, the numbers of training, validation and test images.
        views: Independent fits of every image.
        held_out_views: The same for validation and test images, if it differs.
        split: Take images of this split alone, as in the zoo of all images with seed 0; such zoos can be combined with
            it, because no image is for training in one and held out in another.
        seed: Decides the choice of images, the splits and all initial weights.
        ray: Address of a Ray cluster, or `local` to start one; if omitted this process does the work.
        report: Called with the networks done, the networks in all and the PSNR of those just done (n,).

    >>> import tempfile
    >>> from scalegmn.zoo.images.collections import load_images
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     zoo = build_inr_zoo(load_images("digits"), folder, fit=Fit(hidden=(8,), steps=5), count=20)
    ...     len(zoo), zoo.columns
    (20, ('image', 'label', 'psnr', 'split', 'steps', 'view'))
    """
    fit = fit or Fit()
    others = views if held_out_views is None else held_out_views
    if not 1 <= min(views, others) <= max(views, others) <= 10**6:
        raise ScaleGMNError(f"views: expected 1 to {10**6} fits of an image, got {views} and {others}")
    check_seed(seed)
    if split is not None and sizes is not None:
        raise ScaleGMNError(f"split: give a split or sizes, not both; got {split!r} and {tuple(sizes)}")
    chosen = select(source.test, count, seed, sizes) if split is None else part(source.test, count, seed, split)
    rows = chosen.rows.numpy()
    images = torch.from_numpy(source.pixels[rows]).reshape(len(rows), *source.pixels.shape[1:3], -1)
    shape = fit.shape(images.shape[3])
    engine = best_engine()
    # Written only where given, so that zoos without them keep their bytes.
    extra = {"sizes": sizes and list(sizes), "held_out_views": held_out_views, "split": split}
    extra = {name: value for name, value in extra.items() if value is not None}
    writer = ZooWriter(
        out,
        kind="inr",
        arguments={**_arguments(source, len(images), fit, views, seed), **extra, "engine": engine},
        canvas=inr_canvas(shape, images.shape[1], images.shape[2]),
        formerly={"images_sha256": hashlib.sha256(source.pixels.tobytes() + source.labels.tobytes()).hexdigest()},
    )
    if not writer.finished:
        fits = torch.tensor([views if split == "train" else others for split in chosen.splits])
        plan = _Plan(fit, engine, shape, images, torch.from_numpy(source.labels[rows]), chosen, fits, seed)
        plan.run(writer, ray, report)
        notes = {"splits": RULE, "scalegmn": __version__, "torch": str(torch.__version__)}
        writer.finish(images=images, notes=notes)
    return Zoo.open(out)


def _arguments(source: Images, count: int, fit: Fit, views: int, seed: int) -> dict[str, object]:
    settings = {key: list(v) if isinstance(v, tuple) else v for key, v in vars(fit).items()}
    content = {"images": source.name, "channels": source.channels, "count": count, "images_sha256": source.checksum()}
    return {**content, "views": views, "seed": seed, **settings}


def fit_job(fit: Fit, engine: EngineName, seed: int, threads: int | None, job: Job) -> FitResult:
    """Fit the networks of one job; the result depends neither on the machine's load nor on `threads`."""
    canvas = inr_canvas(fit.shape(job.images.shape[3]), job.images.shape[1], job.images.shape[2])
    targets = job.images.flatten(1, 2).float() / 255
    return fit_inrs(targets, canvas.grid(), fit, seed=seed, indices=job.numbers, threads=threads, engine=engine)


@dataclass(frozen=True)
class _Plan:
    """Everything that decides the networks of a zoo, in the order of their numbers: image by image, view by view."""

    fit: Fit
    engine: EngineName
    shape: Inr
    images: Tensor
    labels: Tensor
    chosen: Selection
    views: Tensor
    seed: int

    def __len__(self) -> int:
        return int(self.views.sum())

    @cached_property
    def image(self) -> Tensor:
        """The image of every network."""
        return torch.arange(len(self.images)).repeat_interleave(self.views)

    @cached_property
    def view(self) -> Tensor:
        """The number of every network among those of its image."""
        return torch.arange(len(self)) - (self.views.cumsum(0) - self.views)[self.image]

    def run(self, writer: ZooWriter, ray: str | None, report: Report | None) -> None:
        """Fit and append the networks that are still missing."""
        shards = [range(s, min(s + SHARD, len(self))) for s in range(0, len(self), SHARD)][writer.shards :]
        architecture = inr_architecture(self.shape)
        done = len(writer)
        if report is not None:
            report(done, len(self), torch.empty(0))
        results = self._results(shards, ray)
        for shard in shards:
            parts: list[FitResult] = []
            while sum(len(part.psnr) for part in parts) < len(shard):
                parts.append(next(results))
                done += len(parts[-1].psnr)
                if report is not None:
                    report(done, len(self), parts[-1].psnr)
            joined = FitResult.joined(parts)
            self._check(joined, shard)
            writer.append(architecture, joined.parameters, self._columns(joined, shard))

    def _results(self, shards: Sequence[range], ray: str | None) -> Iterator[FitResult]:
        job = partial(fit_job, self.fit, self.engine, self.seed)
        if ray is not None:
            return map_on_ray(partial(job, 1), self._jobs(shards, CLUSTER_JOB), ray)
        # Groups are what a thread fits at once. A job of a few groups keeps all threads busy and the bar moving.
        group = group_size(self.shape, self.images.shape[1] * self.images.shape[2])
        size = max(group * torch.get_num_threads(), 64)
        return map(partial(job, None), self._jobs(shards, size))

    def _jobs(self, shards: Sequence[range], size: int) -> Iterator[Job]:
        for shard in shards:
            for start in range(shard.start, shard.stop, size):
                numbers = range(start, min(start + size, shard.stop))
                yield Job(self.images[self.image[numbers.start : numbers.stop]], numbers)

    def _check(self, result: FitResult, shard: range) -> None:
        bad = torch.nonzero(~torch.isfinite(result.parameters).all(1))
        if len(bad):
            raise ScaleGMNError(f"fit: network {shard.start + int(bad[0])} diverged with lr={self.fit.lr}; lower it")

    def _columns(self, result: FitResult, shard: range) -> dict[str, Tensor | list[str]]:
        image = self.image[shard.start : shard.stop]
        return {
            "label": self.labels[image],
            "image": image,
            "view": self.view[shard.start : shard.stop],
            "split": [self.chosen.splits[i] for i in image.tolist()],
            "psnr": result.psnr.float(),
            "steps": result.steps,
        }
