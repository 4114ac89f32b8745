"""The number of floating-point operations in the products of some work, independent of the implementation."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, register_flop_formula

from . import net as _operators  # noqa: F401  registers what is counted
from .formula import Net


def operations(work: Callable[[], object]) -> int:
    """Operations of all products in `work`; a product and a sum are two.

    Every net is counted as the best algorithm has it: a scalar times a vector of a vertex is mapped on that vertex,
    two maps of one vector are one product, and a symmetrised net has one last map.

    >>> x = torch.ones(2, 3)
    >>> operations(lambda: x @ x.T)
    24
    """
    counter = FlopCounterMode(display=False)
    with counter:
        work()
    return counter.get_total_flops()


def _products(n: Net) -> tuple[int, int, int]:
    """Multiplications of E x, of Gamma m and A m, and of W h."""
    rows = n.x.shape[:3].numel() if n.scalar is None else n.scalar.numel()
    outputs, hidden = n.last.shape
    mapped = rows if n.scalar is None else n.x.shape[:2].numel()
    stack = n.first.numel() + (0 if n.gamma is None else n.gamma.numel())
    return (
        0 if n.edge is None else rows * n.edge.numel(),
        mapped * stack,
        rows * hidden * outputs,
    )


def _forward(*arguments: Any, out_val: Any = None) -> int:
    return 2 * sum(_products(Net(*arguments)))


def _backward(grad: Any, memory: Any, wants_x: bool, *arguments: Any, out_val: Any = None) -> int:
    """The backward pass of a product has two products of its size: for the matrix, and for the vectors if needed."""
    n = Net(*arguments)
    edge, stack, last = _products(n)
    inner = wants_x or n.vertex is not None
    return 2 * (2 * last + (2 if inner else 1) * stack + (2 if wants_x else 1) * edge)


register_flop_formula(torch.ops.scalegmn.net, get_raw=True)(_forward)
register_flop_formula(torch.ops.scalegmn.net_backward, get_raw=True)(_backward)
