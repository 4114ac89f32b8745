"""Published INR collections: MNIST-INR and FMNIST-INR (Navon et al., 2023), CIFAR10-INR (Zhou et al., 2023)."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...core.architecture import Architecture
from ...core.networks import Networks
from ...errors import ScaleGMNError
from ...files import fresh_directory
from ..images.collections import Images, load_images
from ..inr.build import inr_architecture, inr_canvas
from ..inr.conventions import inr
from ..store.writer import SPLITS, ZooWriter
from ..store.zoo import Zoo
from .archive import Files, open_files, read_member

SHARD: Final = 1024
SEED: Final = 0
# The published cuts of CIFAR10-INR by image number: train, then val, then test.
CIFAR_CUTS: Final = (45_000, 50_000)
# A folder name may go on after the number of the image.
_DWS_NAME: Final = re.compile(r"_(training|testing)_(\d)_(\d+)(?:[^\d/][^/]*)?(?:/|$)")
_NFN_NAME: Final = re.compile(r"(?:^|/)randinit_smaller_(?:aug(\d+)_)?(\d)s/net(\d+)\.pth$")


@dataclass(frozen=True)
class Collection:
    """A published collection.

    Arguments:
        convention: `dws` or `nfn`.
        side, channels: Of the images.
    """

    convention: str
    side: int
    channels: int


COLLECTIONS: Final = {
    "mnist-inr": Collection("dws", 28, 1),
    "fmnist-inr": Collection("dws", 28, 1),
    "cifar10-inr": Collection("nfn", 32, 3),
}


class Member(NamedTuple):
    """A network in a collection.

    Arguments:
        name: Its file.
        label: The class of its image; -1 if the file itself contains it.
        split: `train`, `val` or `test`.
        image_id: The number of its image in the file's name; -1 if there is none.
        view: Which of several fits of the image.
        test: Whether the image is one of the official test set.
    """

    name: str
    label: int
    split: str
    image_id: int
    view: int
    test: bool = False


def import_inr(kind: str, source: str | Path, out: str | Path, *, images: str | Path | None = None) -> Zoo:
    """Convert a published INR collection to a zoo.

    Published splits are kept: lists of paths in a JSON file beside the networks, and CIFAR10-INR's cuts at images
    45,000 and 50,000. MNIST-INR without lists is split by its names, with a twelfth of the training networks for
    validation; a collection with neither is split 80/10/10. Nothing in a file is executed, and nothing is left at `out`
    if any of them is refused.

    Arguments:
        kind: `mnist-inr`, `fmnist-inr` or `cifar10-inr`.
        source: A folder or archive (.zip, .tar, .tar.gz).
        out: The directory of the zoo.
        images: The folder of the MNIST files. The image of a network is then found by the number in its file's name,
            and the zoo can be edited (`mnist-inr` only).
    """
    if kind not in COLLECTIONS:
        raise ScaleGMNError(f"import: expected one of {', '.join(COLLECTIONS)}; got {kind!r}")
    if images is not None and kind != "mnist-inr":
        raise ScaleGMNError(f"images: expected only with mnist-inr, whose names tell the image; got {kind!r}")
    collection = COLLECTIONS[kind]
    pictures = None if images is None else load_images("mnist", images)
    shape = inr(collection.channels, convention_name=collection.convention)
    canvas = inr_canvas(shape, collection.side, collection.side)
    with fresh_directory(out) as folder, open_files(source) as opened:
        entries, rule = _nfn_entries(opened) if kind == "cifar10-inr" else _dws_entries(opened, kind)
        arguments = {"collection": kind, "source": opened.path.name, "seed": SEED}
        writer = ZooWriter(folder, kind="inr", arguments=arguments, canvas=canvas)
        for start in range(0, len(entries), SHARD):
            part = entries[start : start + SHARD]
            # With images, network i has image i.
            rows = {} if pictures is None else {"image": torch.arange(start, start + len(part))}
            _append(writer, opened, part, inr_architecture(shape), rows)
        attached = None if pictures is None else _attached(opened, entries, pictures)
        writer.finish(images=attached, notes={"splits": rule})
    return Zoo.open(out)


def _attached(source: Files, entries: list[Member], images: Images) -> Tensor:
    """The image of every network (N, H, W, 1), by the number in its name; the labels must agree."""
    halves = (np.flatnonzero(~images.test), np.flatnonzero(images.test))
    rows = []
    for entry in entries:
        known = halves[entry.test]
        if not 0 <= entry.image_id < len(known):
            where = source.where(entry.name)
            raise ScaleGMNError(f"{where}: images: expected a number below {len(known):,} in its name")
        row = known[entry.image_id]
        if images.labels[row] != entry.label:
            raise ScaleGMNError(
                f"{source.where(entry.name)}: images: image {entry.image_id} is a {images.labels[row]}, not a "
                f"{entry.label}; expected the official MNIST files"
            )
        rows.append(row)
    return torch.from_numpy(images.pixels[rows]).unsqueeze(-1)


def _append(
    writer: ZooWriter, source: Files, entries: list[Member], architecture: Architecture, rows: Mapping[str, Tensor]
) -> None:
    states, labels = [], []
    for entry in entries:
        state = read_member(source, entry.name)
        inside = state.pop("label", None)
        if inside is not None and (inside.numel() != 1 or not 0 <= float(inside) <= 9 or float(inside) % 1):
            raise ScaleGMNError(f"{source.where(entry.name)}: expected a label from 0 to 9, got {inside.tolist()}")
        label = entry.label if inside is None else int(inside)
        if label < 0 or (entry.label >= 0 and label != entry.label):
            told = "has no label" if label < 0 else f"is labelled {label} inside and {entry.label} by its name"
            raise ScaleGMNError(f"{source.where(entry.name)}: {told}; expected one from 0 to 9")
        states.append(state)
        labels.append(label)
    names = [source.where(entry.name) for entry in entries]
    networks = Networks.from_state_dicts(states, like=architecture, names=names)
    columns: dict[str, Tensor | list[str]] = {
        "label": torch.tensor(labels),
        "split": [entry.split for entry in entries],
        "image_id": torch.tensor([entry.image_id for entry in entries]),
        "view": torch.tensor([entry.view for entry in entries]),
        **rows,
    }
    writer.append(architecture, networks.parameters.float(), columns)


def _nfn_entries(source: Files) -> tuple[list[Member], str]:
    found = []
    for name in source.names:
        match = _NFN_NAME.search(name)
        if match is None:
            continue
        image, view = int(match[3]), 0 if match[1] is None else int(match[1]) + 1
        split = SPLITS[sum(image >= cut for cut in CIFAR_CUTS)]
        # Copies augment the training set only; validation and test are those of the plain collection.
        if view == 0 or split == "train":
            found.append(Member(name, int(match[2]), split, image, view))
    if not found:
        raise ScaleGMNError(f"{source.path}: expected files randinit_smaller_<label>s/net<index>.pth, found none")
    found.sort(key=lambda entry: (entry.view, entry.image_id, entry.label))
    return found, "published: by image number, cut at 45,000 and 50,000; augmented copies in train only"


def _dws_entries(source: Files, kind: str) -> tuple[list[Member], str]:
    names = [n for n in source.names if n.endswith((".pth", ".pt"))]
    # Beside it may lie checkpoints from during the training.
    names = [n for n in names if n.endswith("/model_final.pth")] or names
    if not names:
        raise ScaleGMNError(f"{source.path}: expected networks as .pth files, found none")
    lists = _published_lists(source, names)
    if lists is not None:
        return [_dws_entry(source, kind, name, split) for name, split in sorted(lists.items())], "published: JSON lists"
    halves = [m[1] if (m := _DWS_NAME.search(n)) else "unknown" for n in names]
    rng = np.random.default_rng(SEED)
    splits = dict.fromkeys(names, "test")
    if "unknown" in halves:
        order, tenth = rng.permutation(len(names)), len(names) // 10
        splits.update((names[i], "train" if k >= 2 * tenth else "val") for k, i in enumerate(order) if k >= tenth)
        rule = f"not published: 80/10/10 with seed {SEED}"
    else:
        # Several fits of one image go to the same split.
        images: dict[str, list[str]] = {}
        for name in (n for n, half in zip(names, halves, strict=True) if half == "training"):
            images.setdefault(_number(name), []).append(name)
        order, fits = rng.permutation(len(images)), list(images.values())
        for k, i in enumerate(order):
            splits.update(dict.fromkeys(fits[i], "val" if k < len(order) // 12 else "train"))
        rule = f"published: training and testing; a twelfth of training for val with seed {SEED}"
    return [_dws_entry(source, kind, name, splits[name]) for name in names], rule


def _number(name: str) -> str:
    match = _DWS_NAME.search(name)
    assert match is not None
    return match[3]


def _dws_entry(source: Files, kind: str, name: str, split: str) -> Member:
    match = _DWS_NAME.search(name)
    if match is not None:
        # FMNIST-INR tells the label inside.
        label = int(match[2]) if kind == "mnist-inr" else -1
        return Member(name, label, split, int(match[3]), 0, match[1] == "testing")
    if kind == "mnist-inr":
        raise ScaleGMNError(
            f"{source.where(name)}: expected mnist_png_<training or testing>_<label>_<id>/checkpoints/model_final.pth"
        )
    return Member(name, -1, split, -1, 0)


def _published_lists(source: Files, names: list[str]) -> dict[str, str] | None:
    """The split of every network that a JSON file of path lists mentions; None if there is no such file."""
    files = [n for n in source.names if n.endswith(".json")]
    known = {name: content for name in files if (content := _split_lists(source, name)) is not None}
    if len(known) > 1:
        raise ScaleGMNError(f"{source.path}: expected one JSON file of splits, found {' and '.join(known)}")
    if not known:
        return None
    ((file, lists),) = known.items()
    # The paths start somewhere on the publisher's disk: only as many of their last parts count as tell files apart.
    depth = _telling_depth(names)
    by_tail = {_tail(name, depth): name for name in names}
    found: dict[str, str] = {}
    for split, path in lists:
        name = by_tail.get(_tail(path, depth))
        if name is None:
            raise ScaleGMNError(f"{source.where(file)}: lists {path}, which is not there")
        if name in found:
            raise ScaleGMNError(f"{source.where(file)}: lists {path} twice")
        found[name] = split
    return found


def _split_lists(source: Files, name: str) -> list[tuple[str, str]] | None:
    """Pairs of split and path from {train: [...], val: ..., test: ...}, or the same with {path: [...]} inside."""
    try:
        content = json.loads(source.read(name))
    except (ValueError, RecursionError) as error:
        raise ScaleGMNError(f"{source.where(name)}: is not JSON") from error
    if not isinstance(content, Mapping) or not set(content) & set(SPLITS):
        return None
    found: list[tuple[str, str]] = []
    for split in (split for split in SPLITS if split in content):
        listed = content[split]
        paths = listed.get("path") if isinstance(listed, Mapping) else listed
        if not isinstance(paths, list) or not all(isinstance(p, str) for p in paths):
            raise ScaleGMNError(f"{source.where(name)}: expected a list of paths for each of {', '.join(SPLITS)}")
        found += [(split, path) for path in paths]
    return found


def _tail(path: str, depth: int) -> tuple[str, ...]:
    return PurePosixPath(path).parts[-depth:]


def _telling_depth(names: list[str]) -> int:
    depth = 1
    while len({_tail(name, depth) for name in names}) < len(names):
        depth += 1
    return depth
