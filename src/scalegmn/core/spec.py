"""Options in one frozen object, which can be printed, compared, validated and stored in a file unchanged."""

import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, TypeVar, get_args, get_origin

from ..errors import ScaleGMNError, nearest
from .schema import choices_of, decode, hints_of

S = TypeVar("S", bound="Spec")


@dataclass(frozen=True)
class Range:
    """The allowed values of a number: at least `low`, less than `below`.

    `most` is far above any useful value. It catches typing mistakes, which could otherwise cost hours or all memory.

    >>> Range(0, 1).check("dropout", 0.2)
    """

    low: float
    below: float = math.inf
    most: float = math.inf

    def __str__(self) -> str:
        return f"at least {self.low:g}" + ("" if self.below == math.inf else f" and less than {self.below:g}")

    def check(self, name: str, value: float) -> None:
        """Refuse a number outside the range."""
        if not self.low <= value < self.below:
            raise ScaleGMNError(f"{name}: expected {self}, got {value}")
        if value > self.most:
            raise ScaleGMNError(f"{name}: expected at most {self.most}, got {value}")


Count = Annotated[int, Range(1, most=100_000)]
"""How many, at least one."""
Number = Annotated[int, Range(0, most=100_000)]
"""How many, perhaps none."""
Steps = Annotated[int, Range(0, most=10_000_000)]
"""How many steps, perhaps none."""
Depth = Annotated[int, Range(1, most=1000)]
"""How many layers, at least one."""
Share = Annotated[float, Range(0, 1)]
"""A probability less than 1, such as dropout."""


@dataclass(frozen=True, repr=False)
class Spec:
    """Options with types, ranges (`Annotated`) and defaults; the docstring of the class says what they mean.

    >>> @dataclass(frozen=True, repr=False)
    ... class Example(Spec):
    ...     width: Count = 8
    ...     dropout: Share = 0.0
    >>> Example(dropout=0)
    Example()
    >>> Example(width=0)
    Traceback (most recent call last):
    ...
    scalegmn.errors.ScaleGMNError: width: expected at least 1, got 0
    """

    def __post_init__(self) -> None:
        for name, hint in hints_of(type(self)).items():
            value = decode(hint, getattr(self, name), name)
            for limit in (a for part in (hint, *get_args(hint)) for a in getattr(part, "__metadata__", ())):
                if value is not None:
                    limit.check(name, value)
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        """Only the options that differ from the defaults."""
        changed = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default)
        return f"{type(self).__name__}({', '.join(changed)})"

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of the options."""
        return tuple(f.name for f in fields(cls))

    @classmethod
    def meanings(cls) -> dict[str, str]:
        """What every option means, from the docstrings of the class and its bases."""
        found: dict[str, str] = {}
        for kind in reversed(cls.__mro__):
            _, _, arguments = (inspect.getdoc(kind) or "").partition("Arguments:\n")
            section = arguments.split("\n\n")[0]
            for names, text in re.findall(r"^    ([\w, ]+): (.*(?:\n {8}.*)*)", section, re.MULTILINE):
                found |= dict.fromkeys(names.split(", "), " ".join(text.split()))
        return {name: found[name] for name in cls.names()}


def changed(spec: S, options: Mapping[str, object]) -> S:
    """The same specification with some options changed; unknown names are refused.

    >>> from scalegmn.nn.spec import PassingSpec
    >>> changed(PassingSpec(layers=2), {"width": 16})
    PassingSpec(width=16, layers=2)
    >>> changed(PassingSpec(), {"widht": 16})
    Traceback (most recent call last):
    ...
    scalegmn.errors.ScaleGMNError: unknown option 'widht'; did you mean 'width'?
    """
    for name in options:
        if name not in spec.names():
            raise ScaleGMNError(f"unknown option {name!r}; {nearest(name, spec.names())}")
    return replace(spec, **options)


def described(kind: type[Spec]) -> dict[str, str]:
    """The type of every option in words.

    >>> from scalegmn.nn.spec import PassingSpec
    >>> words = described(PassingSpec)
    >>> words["gate"], words["sign"], words["dropout"]
    ('int, at least 1, or nothing', 'symmetrise or absolute', 'float, at least 0 and less than 1')
    """
    return {name: _words(hint) for name, hint in hints_of(kind).items()}


def _words(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        return ", ".join(map(str, (_words(get_args(hint)[0]), *hint.__metadata__)))
    if choices_of(hint):
        *first, last = map(str, choices_of(hint))
        return f"{', '.join(first)} or {last}"
    if type(None) in get_args(hint):
        return f"{_words(get_args(hint)[0])}, or nothing"
    return f"list of {_words(get_args(hint)[0])}" if get_origin(hint) is tuple else str(hint.__name__)
