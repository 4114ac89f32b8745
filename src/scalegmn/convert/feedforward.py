"""A module for any architecture, for exporting networks that were not read from a module."""

import math
from functools import lru_cache

import torch
from torch import Tensor, nn

from ..core.architecture import Architecture, Conv, Segment
from ..core.evaluate import prepare_inputs, respond
from ..core.views import views
from .layout import Layout, Source


class Feedforward(nn.Module):
    """A network of a given architecture, with ordinary parameters.

    Its state dict has `1.weight`, `1.bias`, `2.weight`, ... for the layers after the input. A layer with several
    incoming connections has `weight_from_0` and so on, a learned slope is called `slope`.

    Arguments:
        architecture: The network without its weights.

    >>> network = Feedforward(Architecture.mlp([2, 8, 1], "tanh"))
    >>> network(torch.rand(5, 2)).shape, list(network.state_dict())
    (torch.Size([5, 1]), ['1.weight', '1.bias', '2.weight', '2.bias'])
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        for segment, (key, shape) in zip(architecture.segments, _names(architecture), strict=True):
            layer, name = key.split(".")
            if layer not in self._modules:
                self.add_module(layer, nn.Module())
            value = torch.zeros(shape)
            if segment.kind == "weight":
                fan_in = math.prod(shape[1:])
                value = nn.init.uniform_(value, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))
            self.get_submodule(layer).register_parameter(name, nn.Parameter(value))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (N, n_L, *spatial) of inputs (N, n_0, *spatial)."""
        a = self.architecture
        row = torch.cat([self.get_parameter(key).flatten() for key, _ in _names(a)])[None]
        return respond(a, views(a, row), prepare_inputs(a, x, 1, row)).post[-1][0]

    def extra_repr(self) -> str:
        return str(self.architecture)


@lru_cache(maxsize=256)
def default_layout(architecture: Architecture) -> Layout:
    """The names and shapes that `Feedforward` uses."""
    names = _names(architecture)
    return Layout(architecture, tuple(Source(k) for k, _ in names), names)


@lru_cache(maxsize=256)
def _names(architecture: Architecture) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((_key(architecture, s), _shape(architecture, s)) for s in architecture.segments)


def _key(architecture: Architecture, segment: Segment) -> str:
    if segment.kind != "weight":
        return f"{segment.index}.{segment.kind}"
    connection = architecture.connections[segment.index]
    siblings = [s for s in architecture.segments if s.kind == "weight"]
    into = [architecture.connections[s.index] for s in siblings]
    if sum(c.target == connection.target for c in into) == 1:
        return f"{connection.target}.weight"
    same = [c for c in into if (c.source, c.target) == (connection.source, connection.target)]
    suffix = f"_{[c is connection for c in same].index(True)}" if len(same) > 1 else ""
    return f"{connection.target}.weight_from_{connection.source}{suffix}"


def _shape(architecture: Architecture, segment: Segment) -> tuple[int, ...]:
    if segment.kind != "weight" or len(segment.shape) == 1:
        return segment.shape
    map_ = architecture.connections[segment.index].map
    n_t, n_s, k = segment.shape
    return (n_t, n_s, *map_.kernel) if isinstance(map_, Conv) else (n_t, n_s * k)
