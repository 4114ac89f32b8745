"""What a person hands to a trained model, read as networks: matched to an architecture and checked once, here."""

from __future__ import annotations

import glob
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..convert import files
from ..convert.batch import keep_kind, pack_states, part_of, unwrapped
from ..convert.chain import Described, Unordered, check_order, match, resized
from ..convert.fx import trace
from ..convert.layout import Layout
from ..convert.plain import computed
from ..core.architecture import Architecture
from ..core.networks import Networks
from ..errors import ScaleGMNError
from ..models.base import Metanetwork
from ..zoo.store.zoo import Zoo
from .spelling import Spelling, restated

One = nn.Module | Mapping[str, Tensor] | str | Path | Networks | Zoo
Source = One | Sequence[One]
# Networks that a model sees at a time.
CHUNK = 256
FAR = "far from the networks in training; the answer may mean nothing"


@dataclass(frozen=True)
class Hints:
    """What a person says about the networks.

    Arguments:
        activation: Decides between architectures of equal shapes, such as `relu`.
        layouts: Of modules with such state dicts; each file follows one of them.
        prefix: Only entries under this name are the network's; ends with a dot.
        split: Of a zoo, only these networks.
    """

    activation: str | None = None
    layouts: tuple[Layout, ...] = ()
    prefix: str = ""
    split: str | None = None


@dataclass(frozen=True)
class Chunk:
    """Networks that a model sees together.

    Arguments:
        networks: In batches of one architecture.
        names: One per network.
        places: For each network of the batches, one after the other, its place in `names`.
    """

    networks: list[Networks]
    names: list[str]
    places: Tensor

    def __add__(self, other: Chunk) -> Chunk:
        places = torch.cat([self.places, other.places + len(self.names)])
        return Chunk(self.networks + other.networks, self.names + other.names, places)

    def check_finite(self) -> Chunk:
        """The same, unless a weight is infinite or NaN."""
        bad = torch.cat([~torch.isfinite(batch.parameters).all(1).cpu() for batch in self.networks])
        if bad.any():
            name = self.names[int(self.places[bad].min())]
            raise ScaleGMNError(f"{name}: has weights that are infinite or no numbers; leave it out")
        return self


@dataclass(frozen=True)
class Piece:
    """One thing that was given.

    Arguments:
        given: What was handed over.
        names: One per network in it.
        networks: The networks; those of a zoo stay on disk until their turn comes.
        assumed: Activations that nobody told, where they were assumed.
        unseen: What is new to the model about their architecture, if anything.
        rows: The numbers of networks of a zoo.
        spelling: How they were written, where the model sees them in another way.
        written: The networks as they were written then, if they are not those of a zoo.
        known: The architecture in which the model sees them then.
        distances: From training networks (B,), more than 1 is far; None where the model does not remember those.
    """

    given: One
    names: list[str]
    networks: Networks | Zoo
    assumed: str | None = None
    unseen: str | None = None
    rows: Tensor | None = None
    spelling: Spelling | None = None
    written: Networks | None = None
    known: Architecture | None = None
    distances: Tensor | None = None

    def rewritten(self, networks: Networks) -> Networks:
        """Networks that the model gave, in the way in which these were written."""
        if self.spelling is None or self.written is None:
            return networks
        return self.spelling.write(networks, self.written)

    def told(self) -> list[dict[str, Any]]:
        """What is known about each network besides its weights, as plain values."""
        row = {"assumed": self.assumed, "unseen": self.unseen}
        if self.distances is None:
            return [row for _ in self.names]
        words = (self.spelling.words or None) if self.spelling is not None else None
        distances = [None if math.isnan(d) else round(d, 3) for d in self.distances.tolist()]
        return [{**row, "read_as": words, "distance": d} for d in distances]

    def chunks(self) -> Iterator[Chunk]:
        """The networks, so many at a time."""
        for start in range(0, len(self.names), CHUNK):
            names = self.names[start : start + CHUNK]
            if isinstance(self.networks, Zoo):
                assert self.rows is not None
                batches, places = self.networks.batches(self.rows[start : start + CHUNK])
                if self.spelling is not None and self.known is not None:
                    batches = [self.spelling.read(batch, self.known) for batch in batches]
            else:
                batches, places = [self.networks[start : start + CHUNK]], torch.arange(len(names))
            yield Chunk(batches, names, places)


@dataclass(frozen=True)
class Reading:
    """Networks, and how to hand them back.

    Arguments:
        pieces: In the order in which they were given.
        single: Whether one thing was given rather than a list.
    """

    pieces: list[Piece]
    single: bool

    @property
    def names(self) -> list[str]:
        """One per network."""
        return [name for piece in self.pieces for name in piece.names]

    def notes(self) -> list[str]:
        """What a person should know before believing the answers."""
        found: dict[str, list[str]] = {}
        for piece in self.pieces:
            if piece.assumed:
                text = f"the files do not tell their activations; assumed {piece.assumed}, as in training"
                found.setdefault(text, []).extend(piece.names)
            if piece.unseen:
                found.setdefault(f"not seen in training: {piece.unseen}", []).extend(piece.names)
            if piece.spelling is not None and piece.spelling.words:
                found.setdefault(f"read as {piece.spelling.words}", []).extend(piece.names)
            if piece.distances is not None:
                far = [name for name, d in zip(piece.names, piece.distances.tolist(), strict=True) if d > 1]
                if far:
                    found.setdefault(FAR, []).extend(far)
        return [f"{n[0]}{f' and {len(n) - 1} more' if n[1:] else ''}: {text}" for text, n in found.items()]

    def chunks(self) -> Iterator[Chunk]:
        """All networks in order, small pieces together."""
        group: Chunk | None = None
        for chunk in (chunk for piece in self.pieces for chunk in piece.chunks()):
            if group is not None and len(group.names) + len(chunk.names) > CHUNK:
                yield group.check_finite()
                group = None
            group = chunk if group is None else group + chunk
        if group is not None:
            yield group.check_finite()

    def hand_back(self, networks: Sequence[Networks]) -> Any:
        """Other networks in the form of those that were given; for a path, its state dict."""
        pairs = zip(self.pieces, networks, strict=True)
        results = [_like(piece.given, piece.rewritten(batch)) for piece, batch in pairs]
        return results[0] if self.single else results


def _like(one: One, networks: Networks) -> object:
    if isinstance(one, Networks):
        return networks
    if isinstance(one, nn.Module):
        return networks.to_modules()[0]
    before = one if isinstance(one, Mapping) else files.read(cast(Path, one))
    after = networks.to_state_dicts()[0]
    return {k: t.to(before[k].dtype) if k in before else t for k, t in after.items()}


@dataclass(frozen=True)
class Reader:
    """How one model reads networks.

    Arguments:
        model: Says what it can read.
        layouts: How the files were read that it was trained on.
        restates: Whether networks that compute the same as a known architecture, written otherwise, are brought to it.
    """

    model: Metanetwork
    layouts: tuple[Layout, ...] = ()
    restates: bool = False

    def read(self, source: Source, hints: Hints) -> Reading:
        """Read anything that holds networks.

        Arguments:
            source: A module, a state dict, a file, a folder of files, a pattern such as `runs/*.pt`, a zoo, networks,
                or a list of those.
            hints: What is known about files.
        """
        single = isinstance(source, nn.Module | Mapping | str | Path | Networks | Zoo)
        if not single and not isinstance(source, Iterable):
            raise _strange(source)
        given = [source] if single else list(cast(Sequence[One], source))
        pieces = [p for i, one in enumerate(given) for p in self._pieces(cast(One, one), i, hints)]
        if not any(piece.names for piece in pieces):
            raise ScaleGMNError("networks: expected at least one, got none")
        return Reading(pieces, single)

    def _pieces(self, one: One, position: int, hints: Hints) -> Iterator[Piece]:
        if isinstance(one, str | Path):
            for path in expand(one):
                if isinstance(path, Zoo):
                    yield self._zoo(path, hints.split)
                else:
                    yield self._state(files.read(path), str(path), path, hints)
        elif isinstance(one, Zoo):
            yield self._zoo(one, hints.split)
        elif isinstance(one, Mapping):
            yield self._state(one, f"state dict {position}", one, hints)
        elif isinstance(one, nn.Module):
            yield self._checked(Networks.from_modules([one]), [f"module {position}"], one)
        elif isinstance(one, Networks):
            yield self._checked(one, [f"network {position + i}" for i in range(len(one))], one)
        else:
            raise _strange(one)

    def _zoo(self, zoo: Zoo, split: str | None) -> Piece:
        rows, names = torch.arange(len(zoo)) if split is None else zoo.split(split), zoo.names()
        named = [names[i] for i in rows.tolist()]
        found = self._restated(zoo.architectures[0]) if len(zoo.architectures) == 1 else None
        if found is not None:
            return Piece(zoo, named, zoo, rows=rows, spelling=found[0], known=found[1])
        unseen = [self._unseen(a, str(zoo.path)) for a in zoo.architectures]
        told = next((words for words in unseen if words), None)
        return Piece(zoo, named, zoo, unseen=told, rows=rows)

    def _checked(self, networks: Networks, names: list[str], given: One, assumed: str | None = None) -> Piece:
        found = self._restated(networks.architecture)
        if found is not None:
            return Piece(given, names, found[0].read(networks, found[1]), spelling=found[0], written=networks)
        unseen = self._unseen(networks.architecture, names[0] if names else "networks")
        return Piece(given, names, networks, assumed, unseen)

    def _restated(self, architecture: Architecture) -> tuple[Spelling, Architecture] | None:
        """How to bring an architecture to one of the model's that computes the same."""
        known = self.model.architectures
        if not self.restates or architecture in known:
            return None
        return next(((way, a) for a in known if (way := restated(architecture, a)) is not None), None)

    def _unseen(self, architecture: Architecture, name: str) -> str | None:
        """What the model has not seen about an architecture; complain if it cannot read it."""
        known = self.model.architectures
        if architecture in known:
            return None
        reason = self.model.reads(architecture)
        if reason is not None:
            raise ScaleGMNError(f"{name}: {reason}")
        alike = next((k for k in known if str(k) == str(architecture)), None)
        return str(architecture) if alike is None else alike.beside(architecture).partition("; ")[2]

    # -- state dicts ---------------------------------------------------------------------------------------------

    def _state(self, state: Mapping[str, Tensor], name: str, given: One, hints: Hints) -> Piece:
        dtype = next(self.model.parameters()).dtype
        try:
            layout, assumed = self._layout(state, hints)
        except ScaleGMNError as error:
            raise ScaleGMNError(f"{name}: {error}") from None
        # Converted first, then checked: a file in half or double precision is as good as any.
        cast_ = {k: t.to(dtype) if t.is_floating_point() else t for k, t in state.items()}
        _, parameters, passengers = pack_states([cast_], layout, [name])
        networks = Networks(layout.architecture, parameters, layout=layout, passengers=passengers)
        return self._checked(networks, [name], given, assumed)

    def _layout(self, state: Mapping[str, Tensor], hints: Hints) -> tuple[Layout, str | None]:
        """How to read a state dict, and the activations that were assumed for it."""
        if isinstance(state, Described):
            return trace(state.module)[1], None
        if hints.layouts:
            told = [replace(layout, prefix=hints.prefix) for layout in hints.layouts]
            return _only([k for k in told if _fits(k, state)] or told[:1], hints), None
        remembered = [k for k in self.layouts if k.prefix.startswith(hints.prefix) and _fits(k, state)]
        if remembered:
            layout = _only(remembered, hints)
            return layout, None if hints.activation or not _bare(state, layout) else _hidden(layout)
        return self._by_shapes(state, hints)

    def _by_shapes(self, state: Mapping[str, Tensor], hints: Hints) -> tuple[Layout, str | None]:
        """A file that nothing is known about: an architecture of the model, perhaps with other sizes, fits in order."""
        part = part_of(state, hints.prefix) if hints.prefix else state
        part = keep_kind(part, computed(part))
        known = self.model.architectures
        sized = [found for k in known if (found := resized(part, k)) is not None]
        candidates = [a for a in known if a in sized] or [a for a in sized if self.model.reads(a) is None] or sized
        if not candidates:
            raise ScaleGMNError(f"this model was built for {'; '.join(map(str, known))}; got {_describe(part)}")
        layout = _only([replace(match(part, a), prefix=hints.prefix) for a in dict.fromkeys(candidates)], hints)
        layers = layout.architecture.layers
        if isinstance(state, Unordered):
            check_order(layout, circular=layout.architecture not in known and layers[0].size == layers[-1].size)
        return layout, None if hints.activation else _hidden(layout)


def _strange(given: object) -> ScaleGMNError:
    """The complaint about something that holds no networks."""
    kind = f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__
    return ScaleGMNError(f"networks: expected a module, a state dict, a path, a zoo or Networks, got {kind}")


def expand(path: str | Path) -> list[Path | Zoo]:
    """The files and zoos that a path names: a file, a zoo, a folder of checkpoints, or a pattern.

    Arguments:
        path: In a folder, files whose content is not a checkpoint are skipped.
    """
    path = Path(path)
    if not path.exists() and glob.has_magic(str(path)):
        found = [p for name in sorted(glob.glob(str(path), recursive=True)) for p in expand(name)]
        if not found:
            raise ScaleGMNError(f"{path}: no file fits this pattern")
        return found
    if not path.is_dir():
        return [path]
    if (path / "zoo.json").is_file():
        return [Zoo.open(path)]
    inside: list[Path | Zoo] = [p for p in sorted(path.rglob("*")) if p.is_file() and files.format_of(p) is not None]
    if not inside:
        raise ScaleGMNError(f"{path}: holds no checkpoints")
    return inside


def _fits(layout: Layout, state: Mapping[str, Tensor]) -> bool:
    return layout.complain({k: tuple(t.shape) for k, t in unwrapped(state, layout).items()}) is None


def _bare(state: Mapping[str, Tensor], layout: Layout) -> bool:
    """Whether shapes are all that a file tells: no statistics, no layers but those that have weights."""
    try:
        return resized(layout.part(unwrapped(state, layout))[0], layout.architecture) is not None
    except ScaleGMNError:
        return False


def _hidden(layout: Layout) -> str | None:
    """The activations of the hidden layers."""
    return ", ".join(dict.fromkeys(str(layer.activation) for layer in layout.architecture.layers[1:-1])) or None


def _only(layouts: Sequence[Layout], hints: Hints) -> Layout:
    """The layout that is left when the activation is taken into account; complain about none or several."""
    wanted = hints.activation
    kept = [k for k in layouts if wanted is None or wanted in _activations(k.architecture)]
    found = list(dict.fromkeys(k.architecture for k in kept))
    if not found:
        known = sorted({name for k in layouts for name in _activations(k.architecture) if "(" not in name})
        raise ScaleGMNError(f"activation: this model was built for {', '.join(known)}; got {wanted!r}")
    if len(found) > 1:
        several = "; ".join(map(str, found)) if len(set(map(str, found))) > 1 else found[0].beside(found[1])
        raise ScaleGMNError(
            f"fits several architectures of this model ({several}); say which activation it has (--activation)"
        )
    return kept[0]


def _activations(architecture: Architecture) -> set[str]:
    acts = [layer.activation for layer in architecture.layers[1:-1]]
    return {act.name for act in acts} | {str(act) for act in acts}


def _describe(state: Mapping[str, Tensor]) -> str:
    """A strange state dict as far as its shapes tell."""
    try:
        return str(Networks.from_state_dicts([state], activation="identity").architecture).partition(" ")[0]
    except ScaleGMNError:
        shapes = [f"{k} {tuple(t.shape)}" for k, t in state.items()]
        return "tensors " + ", ".join(shapes[:6]) + (", ..." if len(shapes) > 6 else "")
