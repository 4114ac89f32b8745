"""Networks that others made: finding their convention, and how far they are from those in training."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..core.architecture import Architecture
from ..core.networks import Networks
from ..models.heads import Metanetwork
from ..zoo.inr.canvas import Canvas
from ..zoo.store.zoo import Zoo
from .familiar import Familiar
from .sources import Chunk, Piece, Reading
from .spelling import FAR_SHARE, Spelling, of_canvas, settle, spellings, turns

Distance = Callable[[Networks], Tensor]
# Networks of a call that decide how all of them are written.
_VOTERS = 64


def look(found: Reading, model: Metanetwork, familiar: Familiar, canvas: Canvas | None) -> Reading:
    """The same networks with their distances from training networks, in the convention that brings them nearest.

    Files of one call with the same shapes are assumed to follow one convention. A zoo of INRs says which it follows.

    Arguments:
        found: The networks that were read.
        model: The model that will read them.
        familiar: Statistics of its training networks.
        canvas: The canvas of the training networks, if they are INRs.
    """

    def distance(networks: Networks) -> Tensor:
        return familiar.distance(model.architectures, networks)

    pieces = found.pieces
    if canvas is not None:
        pieces = _files(_zoos(pieces, model, canvas), model, canvas, distance)
    return Reading([replace(p, distances=_distances(p, distance)) for p in pieces], found.single)


def _distances(piece: Piece, distance: Distance) -> Tensor:
    found = [torch.zeros(0)]
    for chunk in piece.chunks():
        each = torch.cat([distance(batch) for batch in chunk.networks])
        found.append(each[chunk.places.argsort()].float())
    return torch.cat(found)


def _zoos(pieces: Sequence[Piece], model: Metanetwork, canvas: Canvas) -> list[Piece]:
    """Zoos with another canvas of the same size: their networks are converted to the known one."""
    result = list(pieces)
    for i, piece in enumerate(pieces):
        zoo = piece.networks
        if not isinstance(zoo, Zoo) or zoo.canvas is None or zoo.canvas == canvas or len(zoo.architectures) > 1:
            continue
        known = piece.known or zoo.architecture
        if known in model.architectures and (zoo.canvas.height, zoo.canvas.width) == (canvas.height, canvas.width):
            way = of_canvas(zoo.canvas, canvas, known)
            result[i] = replace(piece, spelling=piece.spelling.then(way) if piece.spelling else way, known=known)
    return result


def _files(pieces: Sequence[Piece], model: Metanetwork, canvas: Canvas, distance: Distance) -> list[Piece]:
    """Networks of unknown convention: converted so that most of them come near training networks."""
    groups: dict[tuple[Architecture, bool], dict[int, Networks]] = {}
    for i, piece in enumerate(pieces):
        networks = piece.networks
        if isinstance(networks, Networks) and len(networks) and networks.architecture in model.architectures:
            Chunk([networks], piece.names, torch.arange(len(networks))).check_finite()
            groups.setdefault((networks.architecture, piece.assumed is None), {})[i] = networks
    result = list(pieces)
    for (architecture, told), members in groups.items():
        voters = Networks(architecture, torch.cat([n.parameters.cpu() for n in members.values()])[:_VOTERS])
        way = _way(voters, spellings(architecture, canvas, told=told), distance)
        for i, networks in members.items() if way.words else ():
            piece = pieces[i]
            before = piece.spelling.then(way) if piece.spelling is not None else way
            seen = way.read(networks, architecture)
            result[i] = replace(piece, networks=seen, spelling=before, written=piece.written or networks)
    return result


def _way(networks: Networks, ways: Sequence[tuple[Spelling, Spelling]], distance: Distance) -> Spelling:
    def seen(way: Spelling) -> Tensor:
        return distance(way.read(networks, networks.architecture))

    found, near = ways[0], distance(networks)
    # Most are written as those in training: one look is enough then.
    if bool((near > 1).double().mean() >= FAR_SHARE):
        tried = torch.stack([near, *(seen(usual) for usual, _ in ways[1:])])
        chosen = settle(tried)
        found, near = ways[chosen], tried[chosen]
    usual, turned = found
    return turned if turned.swap != usual.swap and turns(near, seen(turned)) else usual
