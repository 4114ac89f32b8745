"""Architectures as JSON and back, exactly: what a zoo stores about its networks besides their weights."""

import dataclasses
import math
import types
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ..errors import ScaleGMNError
from .architecture import Architecture
from .maps import LATER

Json = dict[str, Any]
T = TypeVar("T")


def architecture_to_json(architecture: Architecture) -> Json:
    """An architecture as plain dictionaries, lists and numbers.

    Maps of connections carry their name as `type`. Numbers survive exactly; those that JSON lacks become strings.

    >>> found = architecture_to_json(Architecture.mlp([2, 4, 1], "tanh"))
    >>> found["layers"][1]
    {'size': 4, 'activation': {'name': 'tanh', 'parameters': []}, 'bias': True, 'offset': 0.0}
    >>> found["connections"][0]
    {'source': 0, 'target': 1, 'map': {'type': 'Linear', 'positions': []}, 'pools': [], 'gain': 1.0}

    Fields that were added to the format later are left out if they have their default, so older files stay the same.
    """
    return to_json(architecture)


def architecture_from_json(value: Mapping[str, Any]) -> Architecture:
    """The architecture that `architecture_to_json` wrote.

    >>> architecture = Architecture.cnn([1, 16, 16], 10, "relu", stride=2)
    >>> architecture_from_json(architecture_to_json(architecture)) == architecture
    True
    """
    return from_json(Architecture, value, "architecture")


def to_json(value: object) -> Json:
    """Any dataclass of numbers, strings, tuples and dataclasses as plain dictionaries and lists."""
    found: Json = _encode(type(value), value)
    return found


def from_json(kind: type[T], value: Mapping[str, Any], where: str) -> T:
    """A dataclass of type `kind` from the result of `to_json`; error messages begin with `where`."""
    found = decode(kind, value, where)
    assert isinstance(found, kind)
    return found


def hints_of(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields, including `Annotated` metadata."""
    return _hints(kind)


@cache
def _hints(kind: type) -> dict[str, Any]:
    # What does not count in a comparison, such as a module that serves as a template, is not written down.
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.compare}


def _encode(hint: Any, value: Any) -> Any:
    if type(None) in get_args(hint):
        return None if value is None else _encode(_not_none(hint), value)
    if isinstance(hint, types.UnionType) and dataclasses.is_dataclass(value):
        return {"type": type(value).__name__, **_encode(type(value), value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        later = [f for f in dataclasses.fields(value) if LATER in f.metadata]
        plain = {f.name: f.default_factory() if callable(f.default_factory) else f.default for f in later}
        unsaid = {name for name, default in plain.items() if getattr(value, name) == default}
        hints = hints_of(type(value))
        return {name: _encode(part, getattr(value, name)) for name, part in hints.items() if name not in unsaid}
    if isinstance(value, tuple):
        return [_encode(part, entry) for part, entry in zip(_parts(hint, len(value)), value, strict=True)]
    if hint is float:
        return float(value) if math.isfinite(value) else str(value)
    return value


def decode(hint: Any, value: Any, where: str) -> Any:
    """Build what `hint` describes, and refuse anything else with an error that names the place.

    >>> decode(tuple[int, ...], [3, 3], "kernel"), decode(int | None, None, "gate")
    ((3, 3), None)
    """
    if get_origin(hint) is Annotated:
        return decode(get_args(hint)[0], value, where)
    choices = choices_of(hint)
    if choices:
        if value not in choices:
            raise ScaleGMNError(f"{where}: expected one of {', '.join(map(str, choices))}; got {value!r}")
        return value
    if type(None) in get_args(hint):
        return None if value is None else decode(_not_none(hint), value, where)
    if isinstance(hint, types.UnionType) and isinstance(value, Mapping):
        kinds = {kind.__name__: kind for kind in get_args(hint)}
        if value.get("type") not in kinds:
            raise ScaleGMNError(f"{where}.type: expected one of {', '.join(kinds)}, got {value.get('type')!r}")
        return decode(kinds[value["type"]], {k: v for k, v in value.items() if k != "type"}, where)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type) and isinstance(value, Mapping):
        return _decode_dataclass(hint, value, where)
    if get_origin(hint) is tuple and isinstance(value, list | tuple):
        parts = _parts(hint, len(value))
        if len(parts) == len(value):
            return tuple(decode(p, v, f"{where}[{i}]") for i, (p, v) in enumerate(zip(parts, value, strict=True)))
    if hint is float and value in ("inf", "-inf", "nan"):
        return float(value)
    if hint is float and type(value) in (int, float):
        return float(value)
    if hint in (int, bool, str) and type(value) is hint:
        return value
    if hint is int and type(value) is float and value.is_integer():
        return int(value)
    expected = hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
    raise ScaleGMNError(f"{where}: expected {expected}, got {value!r}")


def choices_of(hint: Any) -> tuple[Any, ...]:
    """The values of a Literal, or of several that are joined; none for any other type."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    if get_origin(hint) in (Union, types.UnionType) and all(get_origin(part) is Literal for part in get_args(hint)):
        return tuple(value for part in get_args(hint) for value in get_args(part))
    return ()


def _not_none(hint: Any) -> Any:
    """X of `X | None`."""
    (inner,) = (part for part in get_args(hint) if part is not type(None))
    return inner


def _parts(hint: Any, length: int) -> tuple[Any, ...]:
    """The types of the entries of a tuple: the same for all in `tuple[X, ...]`."""
    parts = get_args(hint)
    return (parts[0],) * length if parts[-1] is Ellipsis else parts


def _decode_dataclass(kind: type, value: Mapping[str, Any], where: str) -> Any:
    hints = hints_of(kind)
    unknown = [name for name in value if name not in hints]
    if unknown:
        raise ScaleGMNError(f"{where}: unknown entry {unknown[0]!r}; expected {', '.join(hints) or 'none'}")
    parts = {name: decode(hints[name], entry, f"{where}.{name}") for name, entry in value.items()}
    try:
        return kind(**parts)
    except TypeError as error:
        missing = [name for name in hints if name not in parts]
        raise ScaleGMNError(f"{where}: expected also {', '.join(missing)}") from error


def strict(value: Any) -> Any:
    """The same value with None in place of numbers that JSON lacks.

    >>> strict({"loss": float("nan"), "step": 3})
    {'loss': None, 'step': 3}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: strict(v) for k, v in value.items()}
    return [strict(v) for v in value] if isinstance(value, list | tuple) else value
