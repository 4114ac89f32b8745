"""Normalisations that people write out, found in a traced graph: RMSNorm as in language models, and LayerNorm."""

from collections.abc import Iterator

import torch
from torch import Tensor, fx

_NEUTRAL = ("float", "double", "to", "type_as", "contiguous", "clone")
_SAME = {"truediv": "div", "true_divide": "div", "divide": "div", "multiply": "mul", "subtract": "sub"}


def unit(x: Tensor, eps: float, kind: str) -> Tensor:
    """A normalisation over the last axis without gains: `rms` divides by the root of the mean square, `layer` by the
    standard deviation, after the mean is taken away.

    >>> unit(torch.tensor([3.0, -4.0]), 0.0, "rms").square().mean().item()
    1.0
    """
    centred = x if kind == "rms" else x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)


def join_norms(graph: fx.Graph) -> None:
    """Put one call of `unit` in the place of every normalisation that is written out; what is unused stays behind."""
    for node in list(graph.nodes):
        for value, inverse in _quotients(node):
            found = _layer(value, inverse) or _rms(value, inverse)
            if found is not None:
                with graph.inserting_before(node):
                    made = graph.call_function(unit, found)
                made.meta = dict(node.meta)
                node.replace_all_uses_with(made)
                break


Found = tuple[fx.Node, float, str]


def _rms(value: fx.Node, inside: fx.Node) -> Found | None:
    """x / sqrt(mean(x^2) + eps)."""
    mean, eps = _shifted(inside)
    if mean is None or not _over_last(mean, "mean"):
        return None
    square = _bare(mean.args[0])
    return (value, eps, "rms") if square is not None and _squared(square) is value else None


def _layer(value: fx.Node, inside: fx.Node) -> Found | None:
    """(x - mean(x)) / sqrt(var(x) + eps), with the variance of all, not the unbiased one."""
    spread, eps = _shifted(inside)
    if spread is None or _name(value) != "sub" or not _over_last(_bare(value.args[1]), "mean"):
        return None
    x, mean = _bare(value.args[0]), _bare(value.args[1])
    if x is None or mean is None or _bare(mean.args[0]) is not x:
        return None
    if _over_last(spread, "var"):
        of_all = spread.kwargs.get("unbiased") is False or spread.kwargs.get("correction") == 0
        return (x, eps, "layer") if of_all and _bare(spread.args[0]) is x else None
    square = _bare(spread.args[0]) if _over_last(spread, "mean") else None
    return (x, eps, "layer") if square is not None and _squared(square) is value else None


def _quotients(node: fx.Node) -> Iterator[tuple[fx.Node, fx.Node]]:
    """The ways to read a node as a / sqrt(b): the pairs (a, b)."""
    if _name(node) not in ("mul", "div") or len(node.args) != 2:
        return
    one, two = (_bare(a) for a in node.args)
    if one is None or two is None:
        return
    pairs = ((one, two), (two, one)) if _name(node) == "mul" else ((one, two),)
    for value, other in pairs:
        inside = _bare(other.args[0]) if _name(other) == {"mul": "rsqrt", "div": "sqrt"}[_name(node)] else None
        if inside is not None:
            yield value, inside


def _shifted(node: fx.Node) -> tuple[fx.Node | None, float]:
    """A sum of a node and a number."""
    if _name(node) == "add" and len(node.args) == 2:
        for a, b in (node.args, node.args[::-1]):
            if isinstance(a, fx.Node) and isinstance(b, float):
                return _bare(a), b
    return None, 0.0


def _squared(node: fx.Node) -> fx.Node | None:
    """What a node is the square of."""
    base = _bare(node.args[0]) if node.args else None
    power = _name(node) == "pow" and len(node.args) == 2 and node.args[1] == 2
    itself = _name(node) == "mul" and len(node.args) == 2 and _bare(node.args[1]) is base
    return base if power or itself or _name(node) == "square" else None


def _over_last(node: object, name: str) -> bool:
    """Whether a node is a mean or the like over the last axis, which it keeps."""
    if not isinstance(node, fx.Node) or _name(node) != name:
        return False
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    kept = node.args[2] if name == "mean" and len(node.args) > 2 else node.kwargs.get("keepdim", False)
    return kept is True and (dim in (-1, [-1], (-1,)))


def _bare(node: object) -> fx.Node | None:
    """A node without changes of precision around it."""
    while isinstance(node, fx.Node) and _name(node) in _NEUTRAL:
        node = node.args[0]
    return node if isinstance(node, fx.Node) else None


def _name(node: fx.Node) -> str:
    if node.op not in ("call_function", "call_method"):
        return ""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return _SAME.get(name, name)
