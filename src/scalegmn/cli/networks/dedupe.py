"""`scalegmn dedupe`: which checkpoints of a folder are copies of each other."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import ScaleGMNError
from ..application import app, examples
from ..console import number, print_json, stdout, table, track
from ..sources import hidden_activation, load_module
from .options import Activation, Frequency, Json

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from ...alignment.dedupe import Link
    from ...core.activations import Activation as Function
    from ...core.networks import Networks

_ORDER = ("identical", "same", "near")
_WORDS = {"identical": "identical files", "same": "the same up to symmetry", "near": "near"}


@app.command(
    epilog=examples(
        "scalegmn dedupe checkpoints --activation relu",
        "scalegmn dedupe checkpoints --arch mine:small --arch mine:large --json",
    )
)
def dedupe(
    folder: Annotated[Path, typer.Argument(help="A folder; subfolders are searched too.")],
    arch: Annotated[
        list[str] | None, typer.Option(help="module:function that returns an nn.Module; may be given several times.")
    ] = None,
    activation: Activation = None,
    w0: Frequency = None,
    near: Annotated[float, typer.Option(help="The largest distance of networks that count as near.")] = 0.35,
    as_json: Json = False,
) -> None:
    """Group checkpoints: identical files, networks that are equal up to symmetry, near networks, unrelated ones.

    Architectures may differ; networks of different architectures are unrelated. The kind of a group is that of its
    weakest link.
    """
    began = time.perf_counter()
    if not folder.is_dir():
        raise ScaleGMNError(f"{folder}: expected a folder")
    if arch is None and activation is None:
        raise ScaleGMNError("dedupe: expected --activation or --arch: a checkpoint does not tell how it computes")
    likes = [load_module(a) for a in arch or []]
    answer = search(folder, likes, hidden_activation(activation, w0), near)
    answer["seconds"] = round(time.perf_counter() - began, 3)
    if as_json:
        print_json(answer)
    else:
        _show(answer)


def search(folder: Path, likes: Sequence[nn.Module], activation: Function | None, near: float) -> dict[str, Any]:
    """Everything that the command prints, as plain values.

    Arguments:
        folder: Where the files are.
        likes: Modules that some of the files may belong to.
        activation: For files of multilayer perceptrons that belong to none of them.
        near: The largest distance of networks that count as near.
    """
    from ...alignment.dedupe import Link, find_copies, groups
    from ...convert.formats.files import SUFFIXES, format_of
    from ...files import hash_file

    # The content decides; damaged files are known by their names.
    found = (p for p in folder.rglob("*") if p.is_file())
    paths = sorted(p for p in found if p.suffix in SUFFIXES or format_of(p) is not None)
    if not paths:
        raise ScaleGMNError(f"{folder}: holds no checkpoints")
    first: dict[str, int] = {}
    links: list[Link] = []
    for i, path in enumerate(track(paths, "hashing")):
        other = first.setdefault(hash_file(path), i)
        if other != i:
            links.append(Link(other, i, "identical", 0.0))
    batches, unread = _read(paths, sorted(first.values()), likes, activation)
    compared = 0
    for networks, positions, types in batches:

        def bar(parts: Sequence[Tensor], name: str = str(networks.architecture)) -> Iterator[Tensor]:
            return track(parts, f"comparing {name}")

        copies = find_copies(networks, near=near, types=types, track=bar)
        compared += copies.compared
        links += [Link(positions[k.first], positions[k.second], k.kind, k.distance) for k in copies.links]
    return {
        "files": len(paths),
        "architectures": sorted({str(networks.architecture) for networks, _, _ in batches}),
        "compared": compared,
        "groups": [_group(paths, members, links) for members in groups(len(paths), links) if len(members) > 1],
        "unrelated": [
            str(paths[members[0]])
            for members in groups(len(paths), links)
            if len(members) == 1 and members[0] not in unread
        ],
        "unread": [{"file": str(paths[i]), "reason": reason} for i, reason in unread.items()],
    }


def _group(paths: Sequence[Path], members: Sequence[int], links: Sequence[Link]) -> dict[str, Any]:
    inside = set(members)
    own = [link for link in links if link.first in inside]
    return {
        "kind": max((link.kind for link in own), key=_ORDER.index),
        "files": [str(paths[i]) for i in members],
        "links": [
            {"files": [str(paths[k.first]), str(paths[k.second])], "kind": k.kind, "distance": k.distance} for k in own
        ],
    }


def _read(
    paths: Sequence[Path], chosen: Sequence[int], likes: Sequence[nn.Module], activation: Function | None
) -> tuple[list[tuple[Networks, list[int], list[torch.dtype]]], dict[int, str]]:
    """Files as batches of networks with their positions, and why the others cannot be read."""
    from ...convert.formats import files

    unread: dict[int, str] = {}
    shelves: dict[object, list[tuple[int, dict[str, Tensor]]]] = {}
    for i in track(chosen, "reading"):
        try:
            state = files.read_state_dict(paths[i])
        except ScaleGMNError as error:
            unread[i] = str(error)
            continue
        shape = tuple((key, tuple(t.shape), t.dtype) for key, t in state.items())
        shelves.setdefault(shape, []).append((i, state))
    batches = []
    for shelf in shelves.values():
        try:
            batches.append(_batch(paths, shelf, likes, activation))
        except ScaleGMNError:
            # One of them is at fault; the others may be read.
            for item in shelf:
                try:
                    batches.append(_batch(paths, [item], likes, activation))
                except ScaleGMNError as error:
                    unread[item[0]] = str(error)
    return _joined(batches), unread


def _batch(
    paths: Sequence[Path],
    shelf: Sequence[tuple[int, dict[str, Tensor]]],
    likes: Sequence[nn.Module],
    activation: Function | None,
) -> tuple[Networks, list[int]]:
    """State dicts of equal names and shapes as networks: of the first module that they fit, or a perceptron."""
    from ...core.networks import Networks

    positions, states = [i for i, _ in shelf], [state for _, state in shelf]
    names = [str(paths[i]) for i in positions]
    complaints = []
    for like in (*likes, *([] if activation is None else [None])):
        try:
            made = Networks.from_state_dicts(
                states, like=like, activation=activation if like is None else None, names=names
            )
        except ScaleGMNError as error:
            complaints.append(error)
        else:
            return made, positions
    raise complaints[-1]


def _joined(batches: Sequence[tuple[Networks, list[int]]]) -> list[tuple[Networks, list[int], list[torch.dtype]]]:
    """One batch per architecture, with positions and types, whatever the names and types were."""
    import torch

    from ...core.networks import Networks

    found: dict[object, list[tuple[Networks, list[int]]]] = {}
    for batch in batches:
        found.setdefault(batch[0].architecture, []).append(batch)
    joined = []
    for parts in found.values():
        widest = reduce(torch.promote_types, (n.dtype for n, _ in parts))
        networks = Networks.cat([n.to(dtype=widest) for n, _ in parts])
        types = [n.dtype for n, positions in parts for _ in positions]
        joined.append((networks, [i for _, positions in parts for i in positions], types))
    return joined


def _show(answer: dict[str, Any]) -> None:
    from rich.text import Text

    console = stdout()
    for group in answer["groups"]:
        console.print(f"{len(group['files'])} {_WORDS[group['kind']]}", markup=False)
        shown = table("", "", "", show_header=False)
        for link in group["links"]:
            names = Text(" ".join(link["files"]))
            shown.add_row(names, _WORDS[link["kind"]], "" if link["kind"] == "identical" else number(link["distance"]))
        console.print(shown)
    for item in answer["unread"]:
        console.print(f"not read: {item['reason']}", markup=False)
    console.print(
        f"{answer['files']} files, {len(answer['groups'])} group(s), {len(answer['unrelated'])} unrelated, "
        f"{answer['compared']} pairs compared, {answer['seconds']} s"
    )
