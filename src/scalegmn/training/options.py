"""Checking options against what a constructor takes: names, types and values, with one-line errors."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from ..errors import ScaleGMNError, nearest

# Of one place, pydantic may report several failures (one per member of a union); these say least.
_VAGUE = ("none_required", "model_type")


def complain(error: ValidationError, where: str, known: Callable[[tuple[str, ...]], Iterable[str]]) -> ScaleGMNError:
    """A one-line error for the first problem.

    Arguments:
        error: What pydantic found.
        where: The beginning of the message, such as the name of the file.
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
    """The options with the types that a function's keyword-only arguments declare.

    Arguments:
        where: The beginning of an error message.
        builder: A function with annotated keyword-only arguments.
        options: What the recipe says.

    >>> def build(zoo: object, *, width: int = 8, sizes: tuple[int, ...] = ()) -> None: ...
    >>> validated("task 't'", build, {"sizes": [1, 2]})
    {'sizes': (1, 2)}
    >>> validated("task 't'", build, {"widht": 4})
    Traceback (most recent call last):
    ...
    scalegmn.errors.ScaleGMNError: task 't': unknown key 'widht'; did you mean 'width'?
    """
    signature = inspect.signature(builder).parameters
    names = [k for k, p in signature.items() if p.kind is inspect.Parameter.KEYWORD_ONLY]
    # A name that starts like pydantic's own is still a fine option.
    settings = ConfigDict(extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False, protected_namespaces=())
    hints = get_type_hints(builder)
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
