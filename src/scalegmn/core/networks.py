"""A batch of networks of one architecture as dense tensors."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, SupportsIndex

import torch
from torch import Tensor, nn

from ..convert import batch as _batch
from ..convert.feedforward import default_layout
from ..convert.formats import files as _files
from ..convert.layout import Layout
from ..errors import ScaleGMNError
from ..files import real_path
from . import evaluate as _evaluate
from .activations import Activation
from .activations import activation as _activation
from .architecture import Architecture
from .evaluate import Responses
from .html import html_table
from .views import Parameters, views

Index = SupportsIndex | slice | Sequence[int] | Tensor


class Networks:
    """A batch of B networks that share an architecture.

    All parameters of a network are in one row of `parameters`, in the order of `architecture.segments`; `weights`
    and `biases` are views of it.

    Arguments:
        architecture: Of every network.
        parameters: Shape (B, P).
        layout: The names under which the networks were stored, if any; export uses them again.
        passengers: Other stored entries, one tensor (B, ...) each.

    >>> architecture = Architecture.mlp([2, 8, 1], "tanh")
    >>> networks = Networks(architecture, torch.randn(5, architecture.parameters))
    >>> networks.evaluate(torch.rand(100, 2)).shape
    torch.Size([5, 100, 1])
    """

    def __init__(
        self,
        architecture: Architecture,
        parameters: Tensor,
        *,
        layout: Layout | None = None,
        passengers: Mapping[str, Tensor] | None = None,
    ) -> None:
        if not isinstance(architecture, Architecture):
            raise ScaleGMNError(
                f"architecture: expected an Architecture, got {type(architecture).__name__}; "
                "Networks.from_modules reads modules"
            )
        if parameters.dim() != 2 or parameters.shape[1] != architecture.parameters:
            raise ScaleGMNError(
                f"parameters: expected shape (networks, {architecture.parameters}) for {architecture}, "
                f"got {tuple(parameters.shape)}"
            )
        self.architecture = architecture
        self.parameters = parameters
        self.layout = layout
        self.passengers = dict(passengers or {})

    @classmethod
    def from_tensors(
        cls,
        architecture: Architecture,
        weights: Sequence[Tensor | None],
        biases: Sequence[Tensor | None],
        slopes: Sequence[Tensor | None] = (),
    ) -> Networks:
        """Assemble networks from one tensor per connection and layer, as in `weights`, `biases`, `slopes`.

        Arguments:
            architecture: Of every network.
            weights: Per connection, None for a skip; shared and constant weights may be left out.
            biases: Per layer, None if it has none.
            slopes: Per layer, for learned slopes; may be omitted if no layer has them.
        """
        tensors = {"weight": weights, "bias": biases, "slope": slopes}
        used = {(s.kind, s.index) for s in architecture.segments} | {(s.kind, s.index) for s in architecture.shared}
        used |= {("weight", i) for i, c in enumerate(architecture.connections) if c.constant}
        for kind, given in tensors.items():
            for i, tensor in enumerate(given):
                if tensor is not None and (kind, i) not in used:
                    raise ScaleGMNError(f"{kind} {i}: expected none in {architecture}, got {tuple(tensor.shape)}")
        count = next((len(t) for given in tensors.values() for t in given if t is not None), 0)
        parts = []
        for s in architecture.segments:
            given = tensors[s.kind]
            tensor = given[s.index] if s.index < len(given) else None
            # Of a weight (targets, sources, kernel) the kernel may be left out or have its own shape.
            ends = tensor is not None and tensor.shape[1:3] == s.shape[:2] and tensor.shape[1:].numel() == s.size
            if tensor is None or not ends or len(tensor) != count:
                where = f"{'connection' if s.kind == 'weight' else 'layer'} {s.index}"
                shape = ", ".join(map(str, s.shape))
                got = "none" if tensor is None else tuple(tensor.shape)
                raise ScaleGMNError(f"{s.kind} of {where}: expected shape ({count}, {shape}), got {got}")
            parts.append(tensor.reshape(tensor.shape[0], s.size))
        return cls(architecture, torch.cat(parts, dim=1))

    @classmethod
    def from_modules(cls, modules: Sequence[nn.Module]) -> Networks:
        """Read modules, all of one architecture.

        Arguments:
            modules: Modules whose `forward` torch.fx can trace; evaluation mode is assumed (docs/networks.md).

        >>> modules = [nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)) for _ in range(3)]
        >>> networks = Networks.from_modules(modules)
        >>> networks
        Networks(3 x 2-8-1 [relu], torch.float32, cpu)
        >>> torch.equal(networks.to_modules()[2][0].weight, modules[2][0].weight)
        True
        """
        layout, parameters, passengers = _batch.pack_modules(modules)
        return cls(layout.architecture, parameters, layout=layout, passengers=passengers)

    @classmethod
    def from_state_dicts(
        cls,
        states: Sequence[Mapping[str, Tensor]],
        *,
        like: nn.Module | Architecture | None = None,
        activation: str | Activation | None = None,
        names: Sequence[str] | None = None,
        prefix: str = "",
    ) -> Networks:
        """Read state dicts, all of one architecture.

        Arguments:
            states: One per network. Entries that are not floating-point numbers are kept for export.
            like: A module with such a state dict, or the architecture that its entries follow in order.
            activation: Without `like`: the hidden activation of a multilayer perceptron.
            names: What to call each network in an error message.
            prefix: Read only the entries under this name, such as `actor.`; the others are kept for export.

        >>> state = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)).state_dict()
        >>> Networks.from_state_dicts([state], activation="relu")
        Networks(1 x 2-8-1 [relu], torch.float32, cpu)
        """
        if isinstance(states, Mapping):
            raise ScaleGMNError("state dicts: expected a list of them, got one; put it in a list")
        if not states:
            raise ScaleGMNError("state dicts: expected at least one, got none")
        names = [f"state dict {i}" for i in range(len(states))] if names is None else names
        plain = []
        for name, state in zip(names, states, strict=True):
            tensors = _files.as_state(state, name) if isinstance(state, Mapping) else None
            if tensors is None:
                raise ScaleGMNError(f"{name}: expected a dictionary of names and tensors, got a {type(state).__name__}")
            plain.append(tensors)
        act = None if activation is None else _activation(activation)
        try:
            layout = _batch.find_layout(plain[0], like, act, prefix)
        except ScaleGMNError as error:
            if like is None or isinstance(like, Architecture):
                raise ScaleGMNError(f"{names[0]}: {error}") from None
            raise
        if like is None and act is None:
            _batch.check_described(plain, names, layout, prefix)
        states = _batch.plain_states(plain, like)
        layout, parameters, passengers = _batch.pack_states(states, layout, names)
        return cls(layout.architecture, parameters, layout=layout, passengers=passengers)

    @classmethod
    def from_files(
        cls,
        paths: Sequence[str | Path],
        *,
        like: nn.Module | Architecture | None = None,
        activation: str | Activation | None = None,
        prefix: str = "",
    ) -> Networks:
        """Read files with one network each (torch, safetensors, Keras or ONNX, whatever their names).

        No code in them is run.

        Arguments:
            paths: The files.
            like, activation, prefix: As in `from_state_dicts`. A Keras file that holds its model, and an ONNX
                graph, need none of them.
        """
        if isinstance(paths, str | Path):
            raise ScaleGMNError(f"paths: expected a list of files, got {paths}; put it in a list")
        states = [_files.read_state_dict(p) for p in paths]
        names = [str(p) for p in paths]
        return cls.from_state_dicts(states, like=like, activation=activation, names=names, prefix=prefix)

    def to_state_dicts(self) -> list[dict[str, Tensor]]:
        """One state dict per network, with the names it was read with (or those of `Feedforward`)."""
        layout = self.layout or default_layout(self.architecture)
        return _batch.unstack(layout.unpack(self.parameters, self.passengers))

    def to_modules(self) -> list[nn.Module]:
        """One module per network, of the class it was read from (or a `Feedforward`)."""
        layout = self.layout or default_layout(self.architecture)
        return _batch.unpack_modules(layout, self.parameters, self.passengers)

    def to_files(self, paths: Sequence[str | Path]) -> None:
        """Write one state dict per network; the suffix of a path decides the format, as in `from_files`."""
        if len(paths) != len(self):
            raise ScaleGMNError(f"paths: expected one for each of {len(self)} network(s), got {len(paths)}")
        if len({real_path(path) for path in paths}) < len(paths):
            raise ScaleGMNError("paths: expected another for each network, got one of them twice")
        for path in paths:
            _files.check_writable(path)
        for state, path in zip(self.to_state_dicts(), paths, strict=True):
            _files.write(state, path)

    def to_pyg(self) -> list[object]:
        """One `torch_geometric.data.Data` per network: neurons as nodes, weights on edges (docs/networks.md)."""
        from ..convert.formats.pyg import to_data

        return to_data(self.architecture, self.views)

    def replace(self, parameters: Tensor) -> Networks:
        """The same networks with other parameters (B, P); if their number changes, stored names are dropped."""
        if parameters.shape[0] != len(self):
            return Networks(self.architecture, parameters)
        return Networks(self.architecture, parameters, layout=self.layout, passengers=self.passengers)

    @cached_property
    def views(self) -> Parameters:
        """Weights, biases and slopes as views of `parameters`."""
        return views(self.architecture, self.parameters)

    @property
    def weights(self) -> tuple[Tensor | None, ...]:
        """The weights of every connection: (B, n_t, n_s / groups, K); (B, n) for one per neuron; None for a skip."""
        return self.views.weights

    @property
    def biases(self) -> tuple[Tensor | None, ...]:
        """The biases of every layer (B, n); None if it has none."""
        return self.views.biases

    @property
    def dtype(self) -> torch.dtype:
        """The type of the parameters."""
        return self.parameters.dtype

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self.parameters.device

    def __len__(self) -> int:
        return self.parameters.shape[0]

    def __iter__(self) -> Iterator[Networks]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Index) -> Networks:
        """A batch with some of the networks; an integer gives a batch of one."""
        one = _as_integer(index)
        if one is not None:
            if not -len(self) <= one < len(self):
                raise IndexError(f"network {one} of {len(self)}")
            index = [one % len(self)]
        passengers = {k: t[index] for k, t in self.passengers.items()}
        return Networks(self.architecture, self.parameters[index], layout=self.layout, passengers=passengers)

    @staticmethod
    def cat(batches: Sequence[Networks]) -> Networks:
        """Concatenate batches of the same architecture; stored names are kept if all batches have the same."""
        if not batches:
            raise ScaleGMNError("cat: expected at least one batch of networks, got none")
        first = batches[0]
        for other in batches[1:]:
            if other.architecture != first.architecture:
                raise ScaleGMNError(
                    f"cat: expected one architecture, got {first.architecture.beside(other.architecture)}"
                )
        parameters = torch.cat([b.parameters for b in batches])
        if any(b.layout != first.layout or b.passengers.keys() != first.passengers.keys() for b in batches):
            return Networks(first.architecture, parameters)
        passengers = {k: torch.cat([b.passengers[k] for b in batches]) for k in first.passengers}
        return Networks(first.architecture, parameters, layout=first.layout, passengers=passengers)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Networks:
        """The same networks on another device or in another type."""
        # Passengers keep their type: they are what was stored.
        passengers = {k: t.to(device=device) for k, t in self.passengers.items()}
        parameters = self.parameters.to(device=device, dtype=dtype)
        return Networks(self.architecture, parameters, layout=self.layout, passengers=passengers)

    def detach(self) -> Networks:
        """The same networks, cut off from the graph of gradients."""
        return self.replace(self.parameters.detach())

    def __repr__(self) -> str:
        return f"Networks({len(self)} x {self.architecture}, {self.dtype}, {self.device})"

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        a = self.architecture
        rows = {"architecture": a, "parameters": f"{a.parameters:,}", "type": self.dtype, "device": self.device}
        return html_table(f"{len(self):,} networks", rows)

    def evaluate(self, x: Tensor) -> Tensor:
        """Evaluate all networks at once.

        Arguments:
            x: Inputs common to all networks (N, n_0, *spatial), or one set per network (B, N, n_0, *spatial).

        Returns:
            Outputs (B, N, n_L, *spatial).
        """
        return self.responses(x).post[-1]

    def responses(self, x: Tensor) -> Responses:
        """Every neuron's pre- and post-activation: vertex features, multiplied by q when neurons are scaled by q."""
        x = _evaluate.prepare_inputs(self.architecture, x, len(self), self.parameters)
        return _evaluate.respond(self.architecture, self.views, x)

    def gradients(self, x: Tensor, cotangent: Tensor | None = None) -> tuple[Tensor, ...]:
        """The gradient of <cotangent, output> at every pre-activation (channel means): dual features, scaled by 1/q.

        Arguments:
            x: As in `evaluate`.
            cotangent: Broadcasts to the output; ones if omitted.

        Returns:
            Per layer (B, N, n).
        """
        x = _evaluate.prepare_inputs(self.architecture, x, len(self), self.parameters)
        return _evaluate.respond_with_gradients(self.architecture, self.views, x, cotangent)[1]


def _as_integer(index: Any) -> int | None:
    """An index as an integer, whatever library it comes from; None for slices, lists and vectors."""
    try:
        return None if isinstance(index, Tensor) and index.dim() else operator.index(index)
    except TypeError:
        return None
