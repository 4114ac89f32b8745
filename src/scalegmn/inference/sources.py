"""Reading files, modules and zoos as networks for a trained model: matched to an architecture, and checked."""

from __future__ import annotations

import glob
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..convert.batch import keep_kind, pack_states, part_of, unwrapped
from ..convert.chain import Described, Unordered, check_order, match, resized
from ..convert.formats import files
from ..convert.layout import Layout
from ..convert.trace.fx import trace
from ..convert.trace.plain import computed
from ..core.architecture import Architecture
from ..core.networks import Networks
from ..errors import ScaleGMNError
from ..models.heads import Metanetwork
from ..zoo.store.zoo import Zoo
from .spelling import Spelling, restated

One = nn.Module | Mapping[str, Tensor] | str | Path | Networks | Zoo
Readable = One | Sequence[One]
# Networks that a model sees at a time.
CHUNK = 256
FAR = "far from the networks in training; the answer may mean nothing"


@dataclass(frozen=True)
class Hints:
    """What the user says about the networks.

    Arguments:
        activation: Decides between architectures of equal shapes, such as `relu`.
        layouts: Of modules with such state dicts; each file follows one of them.
        prefix: Only entries under this name belong to the network; ends with a dot.
        split: Only this split of a zoo.
    """

    activation: str | None = None
    layouts: tuple[Layout, ...] = ()
    prefix: str = ""
    split: str | None = None


@dataclass(frozen=True)
class Chunk:
    """Networks that a model reads together.

    Arguments:
        networks: In batches of one architecture.
        names: One per network.
        places: For each network of the concatenated batches, its position in `names`.
    """

    networks: list[Networks]
    names: list[str]
    places: Tensor

    def __add__(self, other: Chunk) -> Chunk:
        places = torch.cat([self.places, other.places + len(self.names)])
        return Chunk(self.networks + other.networks, self.names + other.names, places)

    def check_finite(self, where: str = "") -> Chunk:
        """Refuse infinite or NaN weights.

        Arguments:
            where: The networks are, in front of their names in messages.
        """
        bad = torch.cat([~torch.isfinite(batch.parameters).all(1).cpu() for batch in self.networks])
        if bad.any():
            name = self.names[int(self.places[bad].min())]
            raise ScaleGMNError(f"{where}{name}: has infinite or NaN weights; leave it out")
        return self


@dataclass(frozen=True)
class Piece:
    """One of the given sources.

    Arguments:
        given: The source itself.
        names: One per network in it.
        networks: The networks; those of a zoo stay on disk until they are needed.
        assumed: Activations that had to be assumed.
        unseen: What is new to the model about their architecture, if anything.
        rows: The numbers of networks of a zoo.
        spelling: Their convention, if it is not that of the training networks.
        written: In that case, the networks in their own convention, if they are not those of a zoo.
        known: In that case, the architecture in which the model reads them.
        distances: From training networks (B,), more than 1 is far; None if the model has no statistics of those.
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
        """Networks that the model returned, in the convention of this source."""
        if self.spelling is None or self.written is None:
            return networks
        return self.spelling.write(networks, self.written)

    def told(self) -> list[dict[str, Any]]:
        """Notes about each network, as plain values."""
        row = {"assumed": self.assumed, "unseen": self.unseen}
        if self.distances is None:
            return [row for _ in self.names]
        words = (self.spelling.words or None) if self.spelling is not None else None
        distances = [None if math.isnan(d) else round(d, 3) for d in self.distances.tolist()]
        return [{**row, "read_as": words, "distance": d} for d in distances]

    def chunks(self) -> Iterator[Chunk]:
        """The networks, a given number at a time."""
        for start in range(0, len(self.names), CHUNK):
            names, where = self.names[start : start + CHUNK], ""
            if isinstance(self.networks, Zoo):
                assert self.rows is not None
                batches, places = self.networks.batches(self.rows[start : start + CHUNK])
                if self.spelling is not None and self.known is not None:
                    batches = [self.spelling.read(batch, self.known) for batch in batches]
                where = f"{self.networks.path}: network "
            else:
                batches, places = [self.networks[start : start + CHUNK]], torch.arange(len(names))
            yield Chunk(batches, names, places).check_finite(where)


@dataclass(frozen=True)
class Reading:
    """Networks from several sources, and how to return them.

    Arguments:
        pieces: The sources, in order.
        single: Whether a single source was given instead of a list.
    """

    pieces: list[Piece]
    single: bool

    @property
    def names(self) -> list[str]:
        """The names of all networks."""
        return [name for piece in self.pieces for name in piece.names]

    def notes(self) -> list[str]:
        """What the user should know before trusting the answers."""
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
                yield group
                group = None
            group = chunk if group is None else group + chunk
        if group is not None:
            yield group

    def hand_back(self, networks: Sequence[Networks]) -> Any:
        """Other networks in the form of those that were given; for a path, a state dict."""
        pairs = zip(self.pieces, networks, strict=True)
        results = [_like(piece.given, piece.rewritten(batch)) for piece, batch in pairs]
        return results[0] if self.single else results


def _like(one: One, networks: Networks) -> object:
    if isinstance(one, Networks):
        return networks
    if isinstance(one, nn.Module):
        return networks.to_modules()[0]
    before = one if isinstance(one, Mapping) else files.read_state_dict(cast(Path, one))
    after = networks.to_state_dicts()[0]
    return {k: t.to(before[k].dtype) if k in before else t for k, t in after.items()}


@dataclass(frozen=True)
class Reader:
    """How one model reads networks.

    Arguments:
        model: Says what it can read.
        layouts: How the files that it was trained on were read.
        restates: Whether networks in another convention are converted to a known architecture.
    """

    model: Metanetwork
    layouts: tuple[Layout, ...] = ()
    restates: bool = False

    def read(self, source: Readable, hints: Hints) -> Reading:
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
                    yield self._state(files.read_state_dict(path), str(path), path, hints)
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
        """How to convert an architecture to one of the model's that computes the same."""
        known = self.model.architectures
        if not self.restates or architecture in known:
            return None
        return next(((way, a) for a in known if (way := restated(architecture, a)) is not None), None)

    def _unseen(self, architecture: Architecture, name: str) -> str | None:
        """What is new to the model about an architecture; refuses one that it cannot read."""
        known = self.model.architectures
        if architecture in known:
            return None
        reason = self.model.reads(architecture)
        if reason is not None:
            raise ScaleGMNError(f"{name}: {reason}")
        alike = next((k for k in known if str(k) == str(architecture)), None)
        return str(architecture) if alike is None else alike.beside(architecture).partition("; ")[2]

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
            return layout, None if hints.activation else _hidden(layout)
        return self._by_shapes(state, hints)

    def _by_shapes(self, state: Mapping[str, Tensor], hints: Hints) -> tuple[Layout, str | None]:
        """For a file without a known layout, an architecture of the model that fits, perhaps with other sizes."""
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
    """The error about something that holds no networks."""
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


def _hidden(layout: Layout) -> str | None:
    """The activations of the hidden layers."""
    return ", ".join(dict.fromkeys(str(layer.activation) for layer in layout.architecture.layers[1:-1])) or None


def _only(layouts: Sequence[Layout], hints: Hints) -> Layout:
    """The layout that fits the given activation; refuses none or several."""
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
    """A description of an unknown state dict by its shapes."""
    try:
        return str(Networks.from_state_dicts([state], activation="identity").architecture).partition(" ")[0]
    except ScaleGMNError:
        shapes = [f"{k} {tuple(t.shape)}" for k, t in state.items()]
        return "tensors " + ", ".join(shapes[:6]) + (", ..." if len(shapes) > 6 else "")
