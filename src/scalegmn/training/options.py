"""Checking what a person wrote against what a constructor takes: names, types and values, one line per complaint."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from ..errors import ScaleGMNError

# Of one place, pydantic may report several failures (one per member of a union); these say least.
_VAGUE = ("none_required", "model_type")


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a complaint about an unknown name.

    >>> nearest("epoch", ["epochs", "batch"])
    "did you mean 'epochs'?"
    >>> nearest("zzz", ["epochs", "batch"])
    'expected one of epochs, batch'
    """
    known = list(known)
    close = difflib.get_close_matches(word, known, 1)
    return f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(known) or 'nothing'}"


def complain(error: ValidationError, where: str, known: Callable[[tuple[str, ...]], Iterable[str]]) -> ScaleGMNError:
    """One line for the first thing that is wrong.

    Arguments:
        error: What pydantic found.
        where: The words in front, such as the name of the file.
        known: The valid names at a place.
    """
    found = sorted(error.errors(), key=lambda e: e["type"] in _VAGUE)[0]
    place = tuple(str(part) for part in found["loc"])
    key = ".".join(place)
    start = f"{where}: " if where else ""
    if found["type"] == "extra_forbidden":
        return ScaleGMNError(f"{start}unknown key {key!r}; {nearest(place[-1], known(place[:-1]))}")
    if found["type"] == "missing":
        return ScaleGMNError(f"{start}missing key {key!r}")
    if found["type"] == "value_error":
        return ScaleGMNError(start + found["msg"].removeprefix("Value error, "))
    message = found["msg"][0].lower() + found["msg"][1:]
    return ScaleGMNError(f"{start}{key}: {message}, got {found['input']!r}")


def validated(where: str, builder: Callable[..., object], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with the types that a builder's keyword-only arguments declare.

    Arguments:
        where: The words in front of a complaint.
        builder: A class or function with annotated keyword-only arguments.
        options: What the recipe says.

    >>> def build(architectures: object, *, width: int = 8, sizes: tuple[int, ...] = ()) -> None: ...
    >>> validated("model 'm'", build, {"sizes": [1, 2]})
    {'sizes': (1, 2)}
    >>> validated("model 'm'", build, {"widht": 4})
    Traceback (most recent call last):
    ...
    scalegmn.errors.ScaleGMNError: model 'm': unknown key 'widht'; did you mean 'width'?
    """
    signature = inspect.signature(builder).parameters
    names = [k for k, p in signature.items() if p.kind is inspect.Parameter.KEYWORD_ONLY]
    # A name that starts like pydantic's own is still a fine option.
    settings = ConfigDict(extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False, protected_namespaces=())
    hints = _hints(builder)
    fields: dict[str, Any] = {
        k: (hints.get(k, Any), ... if signature[k].default is inspect.Parameter.empty else signature[k].default)
        for k in names
    }
    try:
        table: type[BaseModel] = create_model("Options", __config__=settings, **fields)
        checked = table.model_validate(dict(options))
    except ValidationError as error:
        raise complain(error, where, lambda place: names) from None
    return {k: getattr(checked, k) for k in options}


def _hints(builder: Callable[..., object]) -> dict[str, Any]:
    """Annotations by argument; those that cannot be resolved at run time are left out and not checked."""
    if isinstance(builder, partial):
        return _hints(builder.func)
    function = builder.__init__ if inspect.isclass(builder) else builder
    try:
        return get_type_hints(function)
    except NameError:
        return {}
