"""A zoo from parts of others: some of the networks of one, or those of several together."""

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from ...errors import ScaleGMNError
from ...files import fresh_directory
from ...files.arrays import Array
from .writer import HEADER, Column, ZooWriter
from .zoo import Zoo

SHARD = 1024


def combine(sources: Sequence[Zoo], out: str | Path, *, where: Mapping[str, str] | None = None) -> Zoo:
    """Write the networks of zoos that fulfil a condition to a new zoo; each keeps its split and its row of the table.

    Arguments:
        sources: Zoos of one kind; they need the same columns.
        out: The directory to write.
        where: By column, the value that a network must have.

    >>> import tempfile
    >>> from scalegmn.zoo.inr.build import Fit, build_inr_zoo
    >>> from scalegmn.zoo.images.collections import load_images
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     both = build_inr_zoo(
    ...         load_images("digits"), f"{folder}/a", fit=Fit(hidden=(8,), steps=2), count=20, views=2
    ...     )
    ...     len(combine([both], f"{folder}/b", where={"view": "1"}))
    20
    """
    if not sources:
        raise ScaleGMNError("combine: expected at least one zoo, got none")
    first, condition = sources[0], dict(where or {})
    for zoo in sources[1:]:
        if (zoo.kind, zoo.columns, zoo.canvas) != (first.kind, first.columns, first.canvas):
            raise ScaleGMNError(f"combine: {zoo.path} and {first.path} differ in kind, columns or canvas")
        for name in zoo.columns:
            if bool(zoo.categories(name)) != bool(first.categories(name)):
                both = f"{zoo.path} and {first.path}"
                raise ScaleGMNError(f"combine: column {name!r} of {both} holds names in one and numbers in the other")
    chosen = [_matching(zoo, condition) for zoo in sources]
    if not any(len(rows) for rows in chosen):
        wanted = " and ".join(f"{name} {value}" for name, value in condition.items()) or "any condition"
        raise ScaleGMNError(f"combine: no network has {wanted}")
    _refuse_leaks(sources, chosen)
    hashes = [zoo.header["sha256"] for zoo in sources]
    arguments = {"combined": hashes, "where": condition}
    if (Path(out) / HEADER).is_file():
        # Finished before, or refused.
        ZooWriter(out, kind=first.kind, arguments=arguments, canvas=first.canvas)
        return Zoo.open(out)
    with fresh_directory(out) as folder:
        writer = ZooWriter(folder, kind=first.kind, arguments=arguments, canvas=first.canvas)
        _write(writer, sources, chosen)
    return Zoo.open(out)


def _write(writer: ZooWriter, sources: Sequence[Zoo], chosen: Sequence[Array]) -> None:
    first = sources[0]
    pieces = [
        (zoo, kind, rows[start : start + SHARD], offset)
        for zoo, numbers, offset in zip(sources, chosen, _offsets(sources), strict=True)
        for kind, rows in _by_architecture(zoo, numbers)
        for start in range(0, len(rows), SHARD)
    ]
    for zoo, kind, rows, offset in pieces:
        networks, _ = zoo.batches(torch.from_numpy(rows))
        writer.append(zoo.architectures[kind], networks[0].parameters, _columns(zoo, rows, offset))
    pictures = [zoo.stored_images() for zoo in sources] if first.has_images else []
    ways = {json.dumps(way, sort_keys=True): way for zoo in sources for way in zoo.layouts}
    notes = {**first.header["notes"], **({"layouts": list(ways.values())} if ways else {})}
    writer.finish(images=torch.cat(pictures) if pictures else None, notes=notes)


def _matching(zoo: Zoo, where: Mapping[str, str]) -> Array:
    keep = np.ones(len(zoo), np.bool_)
    for name, value in where.items():
        column, names = zoo.column(name).numpy(), zoo.categories(name)
        if names:
            if value not in names:
                raise ScaleGMNError(f"where: column {name!r} of {zoo.path} holds {', '.join(names)}; got {value!r}")
            keep &= column == names.index(value)
        else:
            try:
                keep &= column == float(value)
            except ValueError:
                raise ScaleGMNError(f"where: column {name!r} of {zoo.path} holds numbers; got {value!r}") from None
    return np.flatnonzero(keep)


def _refuse_leaks(sources: Sequence[Zoo], chosen: Sequence[Array]) -> None:
    """Refuse zoos in which an image is for training in one and held out in another."""
    if len(sources) < 2 or not sources[0].has_images or "split" not in sources[0].columns:
        return
    seen = [_images_by_use(zoo, rows) for zoo, rows in zip(sources, chosen, strict=True)]
    for (one, (training, _)), (other, (_, held_out)) in itertools.permutations(zip(sources, seen, strict=True), 2):
        shared = training & held_out
        if shared:
            raise ScaleGMNError(
                f"combine: {len(shared)} training images of {one.path} are validation or test images of {other.path}; "
                "build both zoos with the same split of the images, or keep one split with --where"
            )


def _images_by_use(zoo: Zoo, rows: Array) -> tuple[set[bytes], set[bytes]]:
    """Checksums of the images of some networks: those for training, and those held out."""
    numbers = torch.from_numpy(rows)
    training = zoo.column("split")[numbers] == (zoo.splits.index("train") if "train" in zoo.splits else -1)
    stored = zoo.stored_images().numpy()

    def checksums(images: Array) -> set[bytes]:
        return {hashlib.sha256(stored[i].tobytes()).digest() for i in np.unique(images)}

    images = zoo.column("image")[numbers]
    return checksums(images[training].numpy()), checksums(images[~training].numpy())


def _by_architecture(zoo: Zoo, rows: Array) -> list[tuple[int, Array]]:
    kinds = zoo.architecture_of(torch.from_numpy(rows)).numpy()
    return [(int(kind), rows[kinds == kind]) for kind in np.unique(kinds)]


def _offsets(sources: Sequence[Zoo]) -> list[int]:
    """Where the images of each zoo begin among those of all."""
    counts = [len(zoo.stored_images()) if zoo.has_images else 0 for zoo in sources]
    return [sum(counts[:i]) for i in range(len(counts))]


def _columns(zoo: Zoo, rows: Array, offset: int) -> dict[str, Column]:
    found: dict[str, Column] = {}
    for name in zoo.columns:
        values, names = zoo.column(name)[torch.from_numpy(rows)], zoo.categories(name)
        found[name] = [names[i] for i in values.tolist()] if names else values
    if zoo.has_images:
        found["image"] = zoo.column("image")[torch.from_numpy(rows)] + offset
    return found
