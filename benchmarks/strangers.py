"""A trained model on networks that others might have fitted, and on networks that it should warn about.

    python benchmarks/strangers.py --images DIR --zoos DIR [--model mnist] [--count 400] [--json]

Fits test images (of the official test split, which no training network shows) with other recipes, asks the model
about them, about the first of them in other spellings (files in half and double precision, the frequency in the
weights, ...), and about networks that show no such image. An editor (mnist-dilation) edits them, and its pictures are
compared with the edited images. Zoos are built once and then used again. The tables in docs/pretrained.md are what
this prints. `published` is the convention of the training networks, `other` the other one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import scalegmn
from scalegmn.core.networks import Networks
from scalegmn.inference.sources import Reading
from scalegmn.inference.spelling import POINTS
from scalegmn.inference.trained import Trained
from scalegmn.models.heads import Editor
from scalegmn.tasks.editing import dilate
from scalegmn.zoo.images.collections import Images, load_images
from scalegmn.zoo.inr.build import build_inr_zoo
from scalegmn.zoo.inr.conventions import Convention, Fit, convention
from scalegmn.zoo.store.zoo import Zoo

Row = dict[str, Any]
State = dict[str, Tensor]
# By name: how it was fitted, and which share of --count is fitted so (long fits are dear).
RECIPES: dict[str, tuple[Fit, float]] = {
    "published": (Fit(), 1.0),
    "steps-200": (Fit(steps=200), 1.0),
    "steps-500": (Fit(steps=500), 1.0),
    "lr-3e-3": (Fit(lr=3e-3), 1.0),
    "lr-3e-4": (Fit(lr=3e-4), 1.0),
    "psnr-20": (Fit(psnr=20, steps=3000), 1.0),
    "other": (Fit(convention="nfn"), 1.0),
    "w0-20": (Fit(w0=20.0), 1.0),
    "steps-3000": (Fit(steps=3000), 0.5),
    "psnr-30": (Fit(psnr=30, steps=4000), 0.5),
    "psnr-40": (Fit(psnr=40, lr=3e-3, steps=6000), 0.5),
}
OTHERS = {"mnist": "fashion-mnist", "fashion-mnist": "mnist", "cifar10": "mnist"}
# The convention of the training networks.
USUAL = {"mnist": "dws", "fashion-mnist": "dws", "cifar10": "nfn"}


def main() -> None:
    """Build, ask, print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--images", type=Path, required=True)
    options.add_argument("--zoos", type=Path, required=True)
    options.add_argument("--model", default="mnist")
    options.add_argument("--data", default="mnist", choices=tuple(OTHERS))
    options.add_argument("--count", type=int, default=400)
    options.add_argument("--only", default="", help="recipes, separated by commas")
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    trained = scalegmn.load(given.model)
    source = _test_images(given.data, given.images)
    chosen = given.only.split(",") if given.only else list(RECIPES)
    zoos = {}
    for seed, (name, (fit, share)) in enumerate(RECIPES.items(), 100):
        if name in chosen:
            here = _as_usual(fit, given.data)
            zoos[name] = _built(source, given.zoos / name, here, int(share * given.count), seed)
    edits = isinstance(trained.model, Editor)
    rows = [(_edited if edits else _asked)(trained, name, zoo) for name, zoo in zoos.items()]
    if "published" in zoos and not edits:
        rows += _spelled(trained, zoos["published"], convention(USUAL[given.data]))
    far = [_far(trained, *found) for found in _strangers(given, source)]
    shown = json.dumps({"recipes": rows, "strangers": far}, indent=1) if given.json else _tables(rows, far)
    sys.stdout.write(shown + "\n")


def _tables(rows: list[Row], far: list[Row]) -> str:
    edits = any("edited" in r for r in rows)
    answer = "own image | untouched | edited" if edits else "accuracy"
    lines = [f"| networks | number | dB | {answer} | called far |", "|---|---:|---:|" + "---:|" * (4 if edits else 2)]
    for r in rows:
        told = f"{r['own']:.2f} | {r['untouched']:.2f} | {r['edited']:.2f}" if edits else f"{r['accuracy']:.1f} %"
        lines.append(f"| {r['name']} | {r['count']} | {r['db']:.1f} | {told} | {r['far']:.1f} % |")
    lines += ["", "| networks that show no such image | number | called far |", "|---|---:|---:|"]
    return "\n".join([*lines, *(f"| {r['name']} | {r['count']} | {r['far']:.1f} % |" for r in far)])


def _test_images(name: str, root: Path) -> Images:
    images = load_images(name, root, "test")
    return replace(images, test=np.ones(len(images), np.bool_))


def _as_usual(fit: Fit, data: str) -> Fit:
    """A recipe as written for `dws`, with the two conventions swapped where training networks have the other one."""
    if USUAL[data] == "dws":
        return fit
    return replace(fit, convention="nfn" if fit.convention == "dws" else "dws")


def _built(source: Images, out: Path, fit: Fit, count: int, seed: int) -> Zoo:
    # Seeds that no training zoo has: not a single first weight is shared.
    return build_inr_zoo(source, out, fit=fit, sizes=(0, 0, count), seed=seed)


def _ask(trained: Trained, networks: Any, points: str | None = None) -> tuple[list[int], float]:
    found = trained.read(networks, points=points)
    return [a["label"] for a in trained.predict(found)], _share(found)


def _share(found: Reading) -> float:
    """How many networks are called far, in percent."""
    far = torch.cat([p.distances for p in found.pieces if p.distances is not None]) > 1
    return 100 * far.double().mean().item()


def _row(name: str, zoo: Zoo, labels: list[int], far: float) -> Row:
    right = np.array(labels) == zoo.column("label")[: len(labels)].numpy()
    return {
        "name": name,
        "count": len(labels),
        "db": float(zoo.column("psnr")[: len(labels)].mean()),
        "accuracy": 100 * float(right.mean()),
        "far": far,
    }


def _asked(trained: Trained, name: str, zoo: Zoo) -> Row:
    return _row(f"{name}, a zoo", zoo, *_ask(trained, zoo))


def _edited(trained: Trained, name: str, zoo: Zoo) -> Row:
    """The mean squared error, times 100, of networks as they are and of their edited versions.

    Beside them the error of the networks as pictures of their own images: an edit starts from there.
    All are in the convention of training: networks in memory do not say which one they follow.
    """
    every = list(range(len(zoo)))
    canvas, usual = trained.task.canvas, convention(trained.task.canvas.convention)  # type: ignore[attr-defined]
    assert zoo.canvas is not None
    change = _between(convention(zoo.canvas.convention), usual)
    states = [change(state) for state in zoo.batch(every).to_state_dicts()]
    (a,) = zoo.architectures
    networks = Networks.from_state_dicts(
        states, like=replace(a, layers=(*a.layers[:-1], replace(a.layers[-1], offset=usual.offset)))
    )
    images = zoo.images(every)
    target = torch.from_numpy(dilate(images.numpy())).float() / 255
    found = trained.read(networks)
    before, after = (canvas.render(n) for n in (networks, found.hand_back(trained.edited(found))))
    pairs = {"own": (before, images.float() / 255), "untouched": (before, target), "edited": (after, target)}
    db = float(zoo.column("psnr").mean())
    told = {what: 100 * (a - b).square().mean().item() for what, (a, b) in pairs.items()} | {"far": _share(found)}
    return {"name": name, "count": len(zoo), "db": db, **told}


# -- the same networks, written in other ways -----------------------------------------------------------------------


def _sines(state: State, factor: float) -> State:
    """Weights and biases of the sine layers, all but the last, multiplied."""
    last = sorted(state)[-1].rpartition(".")[0]
    return {k: t if k.startswith(last) else t * factor for k, t in state.items()}


def _shift(state: State, gain: float, shift: float) -> State:
    last = sorted(state)[-1].rpartition(".")[0]
    changed = {f"{last}.weight": state[f"{last}.weight"] * gain, f"{last}.bias": state[f"{last}.bias"] * gain + shift}
    return {**state, **changed}


def _turned(state: State) -> State:
    first = min(state).rpartition(".")[0] + ".weight"
    return {**state, first: state[first].flip(1)}


# Precisions; then the frequency in the weights or not, black, white, what is added to the output, order of coordinates.
PRECISIONS = {"float64": torch.float64, "float16": torch.float16}
WAYS = (
    ("w0 in the weights", True, None, None),
    ("[0, 1], nothing added", False, (0.0, 1.0, 0.0), "dws"),
    ("[-1, 1], nothing added", False, (-1.0, 1.0, 0.0), "dws"),
    ("[0, 1], +0.5", False, (0.0, 1.0, 0.5), "dws"),
    ("[-1, 1], (row, column)", False, (-1.0, 1.0, 0.0), "nfn"),
    ("[0, 1], +0.5, (row, column)", False, (0.0, 1.0, 0.5), "nfn"),
    ("w0 in the weights, [0, 1], (row, column)", True, (0.0, 1.0, 0.0), "nfn"),
)


def _between(old: Convention, new: Convention) -> Callable[[State], State]:
    """From one convention to another."""
    gain = new.span / old.span
    shift = gain * (old.offset - old.low) + new.low - new.offset
    return partial(_changed, factor=1.0, gain=gain, shift=shift, turn=old.name != new.name)


def _written(usual: Convention) -> Iterator[tuple[str, Callable[[State], State], str]]:
    """Ways to write the networks of a convention, other than its own, and what their inputs are."""
    named = {order: words for words, order in POINTS.items()}
    for name, kind in PRECISIONS.items():
        yield name, lambda s, kind=kind: {k: t.to(kind) for k, t in s.items()}, named[usual.name]  # type: ignore[misc]
    for name, sines, values, order in WAYS:
        low, high, offset = values or (usual.low, usual.high, usual.offset)
        gain = (high - low) / usual.span
        shift = gain * (usual.offset - usual.low) + low - offset
        turn = (order or usual.name) != usual.name
        if sines or turn or (gain, shift) != (1, 0):
            change = partial(_changed, factor=30.0 if sines else 1.0, gain=gain, shift=shift, turn=turn)
            yield name, change, named[order or usual.name]


def _changed(state: State, *, factor: float, gain: float, shift: float, turn: bool) -> State:
    found = _shift(_sines(state, factor), gain, shift)
    return _turned(found) if turn else found


def _spelled(trained: Trained, zoo: Zoo, usual: Convention, count: int = 100, alone: int = 25) -> Iterator[Row]:
    states = zoo.batch(list(range(min(count, len(zoo))))).to_state_dicts()
    for name, change, points in _written(usual):
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder) / f"{i:03d}.pt" for i in range(len(states))]
            for file, state in zip(files, states, strict=True):
                torch.save(change(state), file)
            yield _row(f"{name}, a folder", zoo, *_ask(trained, folder))
            single = {told: [_ask(trained, file, told) for file in files[:alone]] for told in (None, points)}
        for told, answers in single.items():
            labels, far = [a[0][0] for a in answers], float(np.mean([a[1] for a in answers]))
            yield _row(f"{name}, file by file{' with --points' if told else ''}", zoo, labels, far)


# -- strangers ------------------------------------------------------------------------------------------------------


class Siren(nn.Module):
    """With torch's own initial weights."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 32), nn.Linear(32, 32), nn.Linear(32, channels)])

    def forward(self, x: Tensor) -> Tensor:
        """The picture."""
        for layer in self.layers[:-1]:
            x = torch.sin(30.0 * layer(x))
        return self.layers[-1](x) + 0.5


def _strangers(given: argparse.Namespace, source: Images) -> Iterator[tuple[str, Any]]:
    draw = np.random.default_rng(0)
    noise = draw.integers(0, 256, (100, *source.pixels.shape[1:])).astype(np.uint8)
    of_noise = Images("noise", noise, np.zeros(100, np.int64), np.ones(100, np.bool_))
    usual, other = _as_usual(Fit(), given.data), OTHERS[given.data]
    others = _test_images(other, given.images)
    if source.pixels.ndim > others.pixels.ndim:
        # Grey pictures in colours, and of the same size or not: an INR does not tell.
        others = replace(others, pixels=np.repeat(others.pixels[..., None], source.pixels.shape[-1], -1))
    yield f"INRs of {other}", _built(others, given.zoos / f"far-{other}", usual, 200, 202)
    yield "INRs of noise", _built(of_noise, given.zoos / "far-noise", usual, 100, 201)
    yield "untrained SIRENs", _built(source, given.zoos / "far-untrained", replace(usual, steps=0), 200, 203)
    torch.manual_seed(0)
    channels = source.pixels.shape[-1] if source.pixels.ndim > 3 else 1
    yield "random weights (torch's own)", [Siren(channels) for _ in range(100)]
    real = _built(source, given.zoos / "published", usual, max(100, given.count), 100).batch(list(range(100)))
    mixed = real.parameters.T[torch.randperm(real.parameters.shape[1])].T
    yield "weights in random order", real.replace(mixed)


def _far(trained: Trained, name: str, networks: Any) -> Row:
    found = trained.read(networks)
    count = sum(len(p.distances) for p in found.pieces if p.distances is not None)
    return {"name": name, "count": count, "far": _share(found)}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
