"""Arrays in a pickle, read without unpickling, by an interpreter that knows only containers and bytes.

A pickle is a program. Here a name in it (`numpy.dtype`) stays a string, and a call is only recorded with its arguments.
In the end, arrays are made from shape, type and bytes, if these are plain. No class is looked up, no state is set.
"""

import math
import pickletools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ...errors import ScaleGMNError
from ...files.arrays import Array

# What numpy writes, in the spellings of its old and new versions.
_NAMES: Final = {
    "_codecs encode": "bytes",
    "numpy ndarray": "class",
    "numpy dtype": "dtype",
    "numpy.core.multiarray _reconstruct": "array",
    "numpy._core.multiarray _reconstruct": "array",
    "numpy.core.numeric _frombuffer": "view",
    "numpy._core.numeric _frombuffer": "view",
}
_CONSTANTS: Final[dict[str, Callable[[], Any]]] = {
    "EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple,
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False,
}  # fmt: skip
_NUMBERS: Final = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4")
_TEXTS: Final = ("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8")
_BYTES: Final = ("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8")
_OLD_TEXTS: Final = ("STRING", "BINSTRING", "SHORT_BINSTRING")


@dataclass(eq=False)
class _Note:
    """A recorded call that was not made: the function, its arguments, and the state that was to be set."""

    name: str
    arguments: tuple[Any, ...]
    state: Any = None


def read_pickle(content: bytes) -> Any:
    """The dictionaries, lists, numbers, bytes and integer arrays of a pickle.

    Arguments:
        content: The bytes. Names other than those that numpy writes for arrays are refused.

    >>> import pickle
    >>> read_pickle(pickle.dumps({"data": np.arange(3, dtype=np.uint8)}))["data"]
    array([0, 1, 2], dtype=uint8)
    """
    try:
        found = _run(content)
        return {_text(k): _value(v) for k, v in found.items()} if isinstance(found, dict) else _value(found)
    except ScaleGMNError:
        raise
    except Exception as error:  # a damaged program may fail at any place
        raise ScaleGMNError(f"not a complete pickle ({type(error).__name__})") from error


def _run(content: bytes) -> Any:
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def cut() -> list[Any]:
        """The entries above the last mark."""
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    argument: Any
    for opcode, argument, _ in pickletools.genops(content):
        name = opcode.name
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name]())
        elif name in _NUMBERS or name in _TEXTS:
            stack.append(argument)
        elif name in _BYTES:
            stack.append(bytes(argument))
        elif name in _OLD_TEXTS:
            stack.append(argument.encode("latin-1"))
        elif name == "MARK":
            marks.append(len(stack))
        elif name in ("LIST", "TUPLE"):
            stack.append(list(cut()) if name == "LIST" else tuple(cut()))
        elif name == "DICT":
            stack.append(_pairs(cut()))
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            stack[-int(name[-1]) :] = [tuple(stack[-int(name[-1]) :])]
        elif name in ("APPEND", "APPENDS"):
            items = cut() if name == "APPENDS" else [stack.pop()]
            _expect(stack[-1], list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = cut() if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
            _expect(stack[-1], dict).update(_pairs(items))
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if argument is None else argument] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "GLOBAL":
            stack.append(_known(argument))
        elif name == "STACK_GLOBAL":
            stack[-2:] = [_known(f"{stack[-2]} {stack[-1]}")]
        elif name == "REDUCE":
            stack[-2:] = [_Note(_expect(stack[-2], _Note).name, _expect(stack[-1], tuple))]
        elif name == "BUILD":
            state = stack.pop()
            _expect(stack[-1], _Note).state = state
        elif name == "STOP":
            return stack.pop()
        elif name not in ("PROTO", "FRAME"):
            raise ScaleGMNError(f"refused to follow {name} in a pickle; expected only arrays, lists and dictionaries")
    raise EOFError


def _known(name: str) -> _Note:
    if name not in _NAMES:
        dotted = name.replace(" ", ".")
        raise ScaleGMNError(f"refused to unpickle {dotted}; expected only arrays, lists and dictionaries")
    return _Note(_NAMES[name], ())


def _expect(value: Any, kind: type[Any]) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{type(value).__name__} in the place of {kind.__name__}")
    return value


def _pairs(items: list[Any]) -> dict[Any, Any]:
    return dict(zip(items[::2], items[1::2], strict=True))


def _value(value: Any) -> Any:
    """A recorded array as an array, recorded bytes as bytes, and everything else unchanged."""
    if not isinstance(value, _Note):
        return value
    if value.name == "bytes":
        text, encoding = value.arguments
        return text.encode("latin-1" if encoding == "latin1" else "ascii")
    if value.name == "view":
        content, dtype, shape, _ = value.arguments
        return _array(content, dtype, shape)
    if value.name == "array":
        _, shape, dtype, by_columns, content = value.state
        return _array(content, dtype, shape, "F" if by_columns else "C")
    raise TypeError(value.name)


def _array(content: Any, dtype: Any, shape: Any, order: Any = "C") -> Array:
    code = _text(_expect(dtype, _Note).arguments[0])
    byte_order = _text(dtype.state[1]) if dtype.state else "|"
    if dtype.name != "dtype" or not re.fullmatch("[iu][1248]", code) or byte_order not in ("<", ">", "|", "="):
        raise ScaleGMNError(f"expected whole numbers in its arrays, got {byte_order}{code}"[:120])
    kind = np.dtype(byte_order + code)
    raw = _expect(_value(content), bytes)
    if len(raw) != math.prod(_expect(shape, tuple)) * kind.itemsize:
        raise ValueError("shape and size disagree")
    return np.frombuffer(raw, kind).reshape(shape, order=order)


def _text(key: object) -> str:
    if isinstance(key, _Note):
        key = _value(key)
    return key.decode("latin-1") if isinstance(key, bytes) else str(key)
