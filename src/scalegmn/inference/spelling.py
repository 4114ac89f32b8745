r"""Conventions for INRs of the same picture: frequencies, offsets, value ranges, coordinates.

Some use sin(w0 (W x + b)), others sin(W x + b) with w0 in the weights; images are on the scale [0, 1] or [-1, 1], with
or without 0.5 added to the output, and points are (x, y) or (row, column). A file does not say which. Every convention
(here called *spelling*) can be converted to that of the training networks by an exact change of the weights, and the
one whose result looks like training networks is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ..core.architecture import Architecture
from ..core.networks import Networks
from ..errors import ScaleGMNError
from ..zoo.inr.canvas import Canvas
from ..zoo.inr.conventions import CONVENTIONS, Convention

# Networks may be written in another way than those in training where so large a share of them is far.
FAR_SHARE = 0.25
# The order of the coordinates is another one if one network is so much nearer then; for n networks the mean counts, and
# a part 1 / sqrt(n) of it is enough.
TURN = 0.2
# Orders of coordinates that a user may name, and the conventions that have them.
POINTS = {"x,y": "dws", "row,column": "nfn"}


@dataclass(frozen=True)
class Spelling:
    r"""The convention of a network, as the change that converts it to a known architecture.

    \(W_l \to f_l W_l\), \(b_l \to f_l b_l\) for hidden layers, \(W_L \to g W_L\), \(b_L \to g b_L + s\), and perhaps
    the two inputs are swapped.

    Arguments:
        factors: f, per hidden layer.
        gain, shift: g and s.
        swap: Whether inputs are (row, column) instead of (x, y), or vice versa.
        words: A description; empty for the convention of the training networks.
    """

    factors: tuple[float, ...]
    gain: float = 1.0
    shift: float = 0.0
    swap: bool = False
    words: str = ""

    def then(self, other: Spelling) -> Spelling:
        """This change and then another one."""
        factors = tuple(a * b for a, b in zip(self.factors, other.factors, strict=True))
        shift = other.gain * self.shift + other.shift
        return Spelling(factors, self.gain * other.gain, shift, self.swap != other.swap, other.words or self.words)

    def read(self, networks: Networks, known: Architecture) -> Networks:
        """Networks with this spelling, converted to a known architecture.

        Arguments:
            networks: A perceptron.
            known: Of the same sizes.
        """
        factors = (*self.factors, self.gain)
        weights = [_times(w, f) for w, f in zip(networks.weights, factors, strict=True)]
        biases = [None, *(_times(b, f) for b, f in zip(networks.biases[1:], factors, strict=True))]
        if self.swap:
            assert weights[0] is not None
            weights[0] = weights[0].flip(2)
        if self.shift:
            assert biases[-1] is not None
            biases[-1] = biases[-1] + self.shift
        return Networks.from_tensors(known, weights, biases)

    def write(self, networks: Networks, like: Networks) -> Networks:
        """The inverse of `read`.

        Arguments:
            networks: Of the known architecture.
            like: Networks with this spelling, whose architecture and names are kept.
        """
        back = Spelling(tuple(1 / f for f in self.factors), 1 / self.gain, -self.shift / self.gain, self.swap)
        return like.replace(back.read(networks, like.architecture).parameters)


def _times(tensor: Tensor | None, factor: float) -> Tensor | None:
    return tensor if tensor is None or factor == 1 else tensor * factor


def restated(architecture: Architecture, known: Architecture) -> Spelling | None:
    """The change that converts an architecture with other frequencies or offset to a known one with the same function.

    >>> from scalegmn import activation
    >>> one, thirty = (Architecture.mlp([2, 8, 1], activation("sine", f)) for f in (1.0, 30.0))
    >>> restated(one, thirty).factors, restated(Architecture.mlp([2, 8, 1]), thirty)
    ((0.03333333333333333,), None)
    """
    if not (_perceptron(architecture) and _perceptron(known)) or _sizes(architecture) != _sizes(known):
        return None
    hidden = zip(architecture.layers[1:-1], known.layers[1:-1], strict=True)
    pairs = [(a.activation, b.activation) for a, b in hidden]
    if not all(a == b or a.name == b.name == "sine" for a, b in pairs):
        return None
    factors = tuple(a.parameters[0] / b.parameters[0] if a.name == "sine" else 1.0 for a, b in pairs)
    return Spelling(factors, shift=architecture.layers[-1].offset - known.layers[-1].offset)


def _sizes(a: Architecture) -> list[int]:
    return [layer.size for layer in a.layers]


def _perceptron(a: Architecture) -> bool:
    """Whether layers form a chain, all with biases, and offsets only at the end."""
    plain = Architecture.mlp(_sizes(a), [layer.activation for layer in a.layers[1:-1]])
    end = replace(plain.layers[-1], offset=a.layers[-1].offset)
    return a == Architecture((*plain.layers[:-1], end), plain.connections)


def of_canvas(canvas: Canvas, known: Canvas, architecture: Architecture) -> Spelling:
    """The change from one canvas to another: range of values and order of coordinates."""
    gain = (known.high - known.low) / (canvas.high - canvas.low)
    offset = architecture.layers[-1].offset
    # Of the output y + offset with black at `low`.
    shift = gain * (offset - canvas.low) + known.low - offset
    # A zoo says how its networks are written: there is nothing to tell.
    return Spelling((1.0,) * (len(architecture.layers) - 2), gain, shift, canvas.convention != known.convention)


def spellings(architecture: Architecture, canvas: Canvas, *, told: bool) -> list[tuple[Spelling, Spelling]]:
    """All spellings of networks of an architecture that may occur, the known one first.

    Each comes with its twin that has the coordinates in the other order. Values from 0 to 1 are expected to go with
    (x, y), values from -1 to 1 with (row, column), as in the published collections.

    Arguments:
        architecture: A perceptron with sine layers, an INR.
        canvas: The canvas of the training networks.
        told: Whether its frequencies and offset are known, like those of a module.
    """
    hidden = architecture.layers[1:-1]
    none = (1.0,) * len(hidden)
    if not _perceptron(architecture) or architecture.layers[0].size != 2:
        return [(Spelling(none), Spelling(none))]
    within = tuple(1 / h.activation.parameters[0] if h.activation.name == "sine" else 1.0 for h in hidden)
    offset, span = architecture.layers[-1].offset, canvas.high - canvas.low
    found: dict[tuple[object, ...], tuple[Spelling, Spelling]] = {}
    for factors in (none,) if told or within == none else (none, within):
        for kind in CONVENTIONS.values():
            for added in (offset,) if told else (offset, 0.0, kind.offset):
                gain = span / kind.span
                shift = gain * (added - kind.low) + canvas.low - offset
                usual, other = (
                    Spelling(factors, gain, shift, swap, _words(factors != none, kind, added, canvas, swap))
                    for swap in (kind.name != canvas.convention, kind.name == canvas.convention)
                )
                found.setdefault((factors, round(gain, 9), round(shift, 9)), (usual, other))
    # The known one has no words: there is nothing to tell.
    _, turned = found.pop((none, 1.0, 0.0))
    return [(Spelling(none), turned), *found.values()]


def check_points(points: str | None) -> None:
    """Refuse what names no order of coordinates.

    >>> check_points("column,row")
    Traceback (most recent call last):
    scalegmn.errors.ScaleGMNError: points: expected one of x,y; row,column, got 'column,row'
    """
    if points is not None and points not in POINTS:
        raise ScaleGMNError(f"points: expected one of {'; '.join(POINTS)}, got {points!r}")


def with_points(
    pairs: Sequence[tuple[Spelling, Spelling]], points: str, canvas: Canvas
) -> list[tuple[Spelling, Spelling]]:
    """The spellings with this order of coordinates, each as its own twin: nothing about the order is left to find out.

    Arguments:
        pairs: From `spellings`.
        points: `x,y` or `row,column`.
        canvas: The canvas of the training networks.

    >>> from scalegmn.core.activations import activation
    >>> canvas = Canvas("dws", 6, 6, 1)
    >>> pairs = spellings(Architecture.mlp([2, 8, 1], activation("sine", 30.0)), canvas, told=True)
    >>> [one.words for one, _ in with_points(pairs, "row,column", canvas)][0]
    'values from 0 to 1, nothing added to the output, points (row, column)'
    """
    check_points(points)
    swap = POINTS[points] != canvas.convention
    found = [(way, way) for pair in pairs for way in dict.fromkeys(pair) if way.swap == swap]
    if not found:
        raise ScaleGMNError("points: expected a perceptron with two inputs, which can be swapped; leave it out")
    return found


def _words(inside: bool, kind: Convention, added: float, canvas: Canvas, swap: bool) -> str:
    points = "(x, y)" if (canvas.convention == "dws") != swap else "(row, column)"
    output = f"{added:g} added to the output" if added else "nothing added to the output"
    frequency = ["sin(W x + b)"] if inside else []
    return ", ".join([*frequency, f"values from {kind.low:g} to {kind.high:g}", output, f"points {points}"])


def settle(distances: Tensor) -> int:
    """The common spelling of some networks; the first unless another is clearly right.

    Arguments:
        distances: For each spelling, of each network from those in training (S, B); more than 1 is far.

    >>> import torch
    >>> settle(torch.tensor([[0.9, 0.7], [0.3, 0.2]])), settle(torch.tensor([[9.0, 0.9], [0.3, 0.2]]))
    (0, 1)
    >>> settle(torch.tensor([[9.0, 9.0], [3.0, 2.0]])), settle(torch.tensor([[90.0, 90.0], [3.0, 1.0]]))
    (0, 1)
    """
    far = (distances > 1).double().mean(1)
    mean = distances.clamp(max=10).mean(1)
    best = int(mean.argmin())
    nearer = far[best] < far[0] / 2 or mean[best] < mean[0] / 4
    return best if far[0] >= FAR_SHARE and nearer else 0


def turns(distances: Tensor, turned: Tensor) -> bool:
    """Whether some networks are nearer to training networks with their coordinates in the other order.

    Arguments:
        distances, turned: Of each network as it is, and with coordinates in the other order (B,); those that are far
            either way are ignored.

    >>> import torch
    >>> turns(torch.tensor([0.6]), torch.tensor([0.5])), turns(torch.tensor([0.6] * 9), torch.tensor([0.5] * 9))
    (False, True)
    """
    clear = (distances < 2) & (turned < 2)
    gain = (distances - turned)[clear]
    return bool(len(gain)) and gain.mean().item() > TURN / len(gain) ** 0.5
