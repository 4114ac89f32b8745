"""Many modules or state dicts of one architecture, stacked."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..core.activations import Activation
from ..core.architecture import Architecture
from ..errors import ScaleGMNError
from .chain import Described, Unordered, check_order, infer, match
from .feedforward import Feedforward, default_layout
from .layout import Layout
from .trace.fx import check_module, trace
from .trace.plain import computed, copied, is_parametrised, materialised, unwrapped_module

Signature = dict[str, tuple[tuple[int, ...], torch.dtype]]
Packed = tuple[Layout, Tensor, dict[str, Tensor]]


def pack_modules(modules: Sequence[nn.Module]) -> Packed:
    """The layout, parameters (B, P) and passengers of modules that share an architecture.

    A module is traced once for each configuration, so that a different stride or frequency is noticed.
    """
    if isinstance(modules, nn.Module) and not isinstance(modules, nn.ModuleList):
        raise ScaleGMNError(f"modules: expected a list of modules, got one {type(modules).__name__}; put it in a list")
    if not modules:
        raise ScaleGMNError("modules: expected at least one, got none")
    modules = [materialised(m) for m in modules]
    traced: dict[object, Layout] = {}
    for i, module in enumerate(modules):
        check_module(module)
        key = _configuration(module)
        if key not in traced:
            traced[key] = trace(module)[1]
            first = next(iter(traced.values()))
            if traced[key] != first:
                raise ScaleGMNError(
                    f"module {i}: expected the architecture of module 0, {first.architecture}, with the same names; "
                    f"got {traced[key].architecture}"
                )
    layout = next(iter(traced.values()))
    names = [f"module {i}" for i in range(len(modules))]
    return pack_states([m.state_dict() for m in modules], layout, names)


def find_layout(
    state: Mapping[str, Tensor],
    like: nn.Module | Architecture | None,
    activation: Activation | None,
    prefix: str = "",
) -> Layout:
    """The layout of a state dict: from a module, from an architecture, or from the shapes and an activation.

    Arguments:
        state: The state dict of a whole file.
        like, activation: What is known about the network.
        prefix: Only entries whose names begin with it belong to the network.
    """
    if like is not None and activation is not None:
        raise ScaleGMNError("activation: expected either a module to follow or an activation, got both")
    prefix = f"{prefix.rstrip('.')}." if prefix else ""
    if prefix:
        return replace(find_layout(part_of(state, prefix), like, activation), prefix=prefix)
    if like is None and activation is None and isinstance(state, Described):
        like = state.module
    if like is not None and not isinstance(like, Architecture):
        return trace(like)[1]
    state = keep_kind(state, computed(state))
    layout = infer(state, activation) if like is None else match(state, like)
    if isinstance(state, Unordered):
        layers = layout.architecture.layers
        check_order(layout, circular=like is None and layers[0].size == layers[-1].size)
    return layout


def check_described(
    states: Sequence[Mapping[str, Tensor]], names: Sequence[str], layout: Layout, prefix: str = ""
) -> None:
    """Refuse a file that describes another network than the first; names and shapes do not tell a stride."""
    for name, state in zip(names, states, strict=True):
        if isinstance(state, Described):
            own = find_layout(state, None, None, prefix).architecture
            if own != layout.architecture:
                raise ScaleGMNError(
                    f"{name}: expected the architecture of {names[0]}; got {layout.architecture.beside(own)}"
                )


def plain_states(
    states: Sequence[Mapping[str, Tensor]], like: nn.Module | Architecture | None
) -> Sequence[Mapping[str, Tensor]]:
    """State dicts with plain weights, where `like` computes them from other tensors."""
    if not isinstance(like, nn.Module) or not is_parametrised(like):
        return states
    found = []
    for state in states:
        module = copied(unwrapped_module(like))
        try:
            module.load_state_dict(dict(state))
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise ScaleGMNError(f"state dict: does not fit the module ({reason})") from error
        found.append(materialised(module).state_dict())
    return found


def pack_states(states: Sequence[Mapping[str, Tensor]], layout: Layout, names: Sequence[str]) -> Packed:
    """Stack state dicts of one layout.

    Arguments:
        states: One per network.
        layout: Of all of them.
        names: What to call each network in an error message.
    """
    if not states:
        raise ScaleGMNError("networks: expected at least one, got none")
    states = [unwrapped(s, layout) for s in states]
    first = _signature(states[0])
    for i, (name, state) in enumerate(zip(names, states, strict=True)):
        signature = _signature(state)
        if i == 0 or signature != first:
            complaint = layout.complain({k: shape for k, (shape, _) in signature.items()})
            complaint = complaint or _difference(layout, signature, first)
            if complaint:
                same = f" as in {names[0]}" if i else ""
                raise ScaleGMNError(f"{name}: expected the architecture {layout.architecture}{same}; {complaint}")
    stacked = {k: torch.stack([s[k].detach() for s in states]) for k in first}
    try:
        parameters, passengers = layout.pack(stacked)
    except ScaleGMNError as error:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise ScaleGMNError(f"{names[0]}{more}: {error}") from None
    bad = ~torch.isfinite(parameters).all(1)
    if bad.any():
        row = int(bad.nonzero()[0])
        column = int((~torch.isfinite(parameters[row])).nonzero()[0])
        segment = next(s for s in layout.architecture.segments if column < s.start + s.size)
        raise ScaleGMNError(
            f"{names[row]}: {layout.locate(segment)} has a weight that is {parameters[row, column].item()}; "
            "expected finite numbers"
        )
    return layout, parameters, passengers


def part_of(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The entries of a file under a prefix, by their names without it."""
    found = {k.removeprefix(prefix): t for k, t in state.items() if k.startswith(prefix)}
    if not found:
        first = sorted({k.split(".")[0] for k in state})
        raise ScaleGMNError(f"prefix: no entry begins with {prefix!r}; names begin with {', '.join(first[:6])}")
    return keep_kind(state, found)


def keep_kind(state: Mapping[str, Tensor], found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Entries that were made from those of a file; they have an order only if the file has one."""
    return Unordered(found) if isinstance(state, Unordered) else found


def unwrapped(state: Mapping[str, Tensor], layout: Layout) -> Mapping[str, Tensor]:
    """A state dict without the common prefix of its names (`module.`, `_orig_mod.`), if it then fits the layout."""
    known = {layout.prefix + key for key, _ in layout.shapes}
    state = state if known <= state.keys() else computed(state)
    parts = next(iter(state), "").split(".")
    for i in range(len(parts)):
        prefix = "".join(f"{p}." for p in parts[:i])
        if all(k.startswith(prefix) for k in state) and all(prefix + k in state for k in known):
            return {k.removeprefix(prefix): t for k, t in state.items()}
    return state


def _signature(state: Mapping[str, Tensor]) -> Signature:
    return {k: (tuple(t.shape), t.dtype) for k, t in state.items()}


def _difference(layout: Layout, own: Signature, first: Signature) -> str | None:
    """How a state dict differs from the layout; unknown entries are fine if they are integers or of other networks."""
    known = {layout.prefix + key for key, _ in layout.shapes}
    for key, (_, dtype) in own.items():
        if key not in known and dtype.is_floating_point and key.startswith(layout.home):
            return f"the state dict has {key}, which the architecture has not"
    if own.keys() != first.keys():
        return f"other entries than in the first network: {min(own.keys() ^ first.keys())}"
    other = next((k for k in own if own[k] != first[k]), None)
    return None if other is None else f"{other} is {own[other]} and in the first network {first[other]}"


def unpack_modules(layout: Layout, parameters: Tensor, passengers: Mapping[str, Tensor]) -> list[nn.Module]:
    """Copies of the template with the given parameters, or a `Feedforward` if there is no template."""
    template = layout.template
    if template is None:
        layout, passengers = default_layout(layout.architecture), {}
        with torch.random.fork_rng(devices=[]):  # its random weights are replaced at once
            template = Feedforward(layout.architecture)
    known = template.state_dict().keys()
    modules = []
    for state in unstack(layout.unpack(parameters, passengers)):
        module = copy.deepcopy(template).to(device=parameters.device, dtype=parameters.dtype)
        own, _ = layout.part(state)
        module.load_state_dict({k: t for k, t in own.items() if k in known})
        modules.append(module)
    return modules


def unstack(stacked: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """One state dict per network; tensors do not share memory."""
    if not stacked:
        return []
    count = next(iter(stacked.values())).shape[0]
    return [{k: t[i].detach().clone() for k, t in stacked.items()} for i in range(count)]


def _configuration(module: nn.Module) -> object:
    """Everything that decides how a module computes, except its tensors."""
    parts: list[object] = []
    for path, m in module.named_modules():
        own = {k: v for k, v in m.__dict__.items() if k not in _INTERNAL}
        own |= {k: m._buffers[k] for k in m._non_persistent_buffers_set}  # not in the state dict, where others are seen
        parts.append((path, type(m), tuple((k, _plain(v)) for k, v in sorted(own.items()))))
    parts.append(tuple((k, tuple(t.shape)) for k, t in module.state_dict().items()))
    return tuple(parts)


_INTERNAL = frozenset(nn.Module().__dict__)


def _plain(value: object) -> object:
    if isinstance(value, Tensor):
        return tuple(value.shape), tuple(value.flatten().tolist()[:16])
    return repr(value)
