"""Networks that others made: finding their convention, and how far they are from those in training."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ..core.architecture import Architecture
from ..core.networks import Networks
from ..errors import ScaleGMNError
from ..models.heads import Metanetwork
from ..zoo.inr.canvas import Canvas
from ..zoo.store.zoo import Zoo
from .familiar import Familiar
from .sources import Chunk, Piece, Reading
from .spelling import FAR_SHARE, Spelling, of_canvas, settle, spellings, turns, with_points

Distance = Callable[[Networks], Tensor]
# Networks of a call that decide how all of them are written.
_VOTERS = 64


def look(
    found: Reading, model: Metanetwork, familiar: Familiar | None, canvas: Canvas | None, points: str | None = None
) -> Reading:
    """The same networks with their distances from training networks, in the convention that brings them nearest.

    Files of one call with the same shapes are assumed to follow one convention. A zoo of INRs says which it follows.

    Arguments:
        found: The networks that were read.
        model: The model that will read them.
        familiar: Statistics of its training networks; without them there are no distances, and nothing is guessed.
        canvas: The canvas of the training networks, if they are INRs.
        points: The order of the coordinates of networks that do not come from a zoo, `x,y` or `row,column`, if known.
    """
    if points is not None and canvas is None:
        raise ScaleGMNError("points: expected a model of INRs of pictures, got one of other networks; leave it out")
    distance = None if familiar is None else partial(familiar.distance, model.architectures)
    pieces = found.pieces
    if canvas is not None and distance is not None:
        pieces = _zoos(pieces, model, canvas)
    if canvas is not None and (distance is not None or points is not None):
        pieces = _files(pieces, model, canvas, distance, points)
    if distance is not None:
        pieces = [replace(p, distances=_distances(p, distance)) for p in pieces]
    return Reading(pieces, found.single)


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


def _files(
    pieces: Sequence[Piece], model: Metanetwork, canvas: Canvas, distance: Distance | None, points: str | None
) -> list[Piece]:
    """Networks of unknown convention: converted so that most of them come near training networks."""
    groups: dict[tuple[Architecture, bool], dict[int, Networks]] = {}
    for i, piece in enumerate(pieces):
        networks = piece.networks
        if isinstance(networks, Networks) and len(networks) and networks.architecture in model.architectures:
            Chunk([networks], piece.names, torch.arange(len(networks))).check_finite()
            groups.setdefault((networks.architecture, piece.assumed is None), {})[i] = networks
        elif points is not None and not isinstance(networks, Zoo):
            raise ScaleGMNError(
                f"points: {piece.names[0]}: expected networks of the shape of those in training; leave it out"
            )
    result = list(pieces)
    for (architecture, told), members in groups.items():
        voters = Networks(architecture, torch.cat([n.parameters.cpu() for n in members.values()])[:_VOTERS])
        ways = spellings(architecture, canvas, told=told)
        if points is not None:
            ways = with_points(ways, points, canvas)
        way = ways[0][0] if distance is None else _way(voters, ways, distance)
        for i, networks in members.items() if way.words else ():
            piece = pieces[i]
            before = piece.spelling.then(way) if piece.spelling is not None else way
            seen = way.read(networks, architecture)
            result[i] = replace(piece, networks=seen, spelling=before, written=piece.written or networks)
    return result


def _way(networks: Networks, ways: Sequence[tuple[Spelling, Spelling]], distance: Distance) -> Spelling:
    def seen(way: Spelling) -> Tensor:
        return distance(way.read(networks, networks.architecture))

    found, near = ways[0], seen(ways[0][0])
    # Most are written as those in training: one look is enough then.
    if bool((near > 1).double().mean() >= FAR_SHARE):
        tried = torch.stack([near, *(seen(usual) for usual, _ in ways[1:])])
        chosen = settle(tried)
        found, near = ways[chosen], tried[chosen]
    usual, turned = found
    return turned if turned.swap != usual.swap and turns(near, seen(turned)) else usual
