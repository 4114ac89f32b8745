"""Loads and calls compiled sources; without a compiler everything runs on plain torch operations."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch
from torch import Tensor

from ..errors import ScaleGMNError
from .build import MissingCompilerError, NoCompilerError, build, failures, find_compiler, openmp, tell

_SUFFIX = {torch.float32: "float", torch.float64: "double"}
_ENABLED: ContextVar[bool] = ContextVar("native", default=True)


class Span(ctypes.Structure):
    """An array for compiled code: its address and its number of entries."""

    _fields_ = [("data", ctypes.c_void_p), ("count", ctypes.c_int64)]


def span(tensor: Tensor | None, dtype: torch.dtype) -> Span:
    """A contiguous tensor of a type on the CPU as a span, which must not outlive it; of None an empty one.

    >>> span(torch.zeros(2, 3), torch.float32).count
    6
    """
    if tensor is None:
        return Span(None, 0)
    if tensor.dtype != dtype or tensor.device.type != "cpu" or not tensor.is_contiguous():
        found = f"{tensor.dtype} on {tensor.device} with strides {tensor.stride()}"
        raise ScaleGMNError(f"native: expected contiguous {dtype} on the CPU, got {found}")
    return Span(tensor.data_ptr(), tensor.numel())


def call_net(name: str, dtype: torch.dtype, *arguments: bytes | int) -> None:
    """Call a compiled function of `net.cpp`, which takes addresses and packed structures. Its errors are raised."""
    refusal: bytes | None = _function(name, dtype)(*arguments)
    if refusal is not None:
        raise ScaleGMNError(f"native: net.{name} refused its arguments: {refusal.decode()}")


@cache
def _function(name: str, dtype: torch.dtype) -> Callable[..., bytes | None]:
    function = getattr(load("net"), f"{name}_{_SUFFIX[dtype]}")
    function.restype = ctypes.c_char_p
    function.argtypes = [ctypes.c_void_p] * (1 if name == "units" else 2)
    found: Callable[..., bytes | None] = function
    return found


def call(name: str, dtype: torch.dtype, *arguments: object, source: str) -> None:
    """Call a compiled function; tensors are passed as addresses, structures by reference. Its errors are raised.

    Arguments:
        name: Of the function, without the suffix of its type.
        dtype: float32 or float64.
        arguments: What it takes.
        source: The C++ file that holds it.
    """
    library = load(source)
    if library is None:
        raise ScaleGMNError(f"native: {source}.cpp is not compiled here; use what runs without it")
    found: list[object] = []
    for a in arguments:
        if isinstance(a, Tensor):
            found.append(ctypes.c_void_p(a.data_ptr()))
        elif a is None:
            found.append(ctypes.c_void_p(None))
        elif isinstance(a, ctypes.Structure):
            found.append(ctypes.byref(a))
        else:
            found.append(a)
    function = getattr(library, f"{name}_{_SUFFIX[dtype]}")
    function.restype = ctypes.c_char_p
    refusal: bytes | None = function(*found)
    if refusal is not None:
        raise ScaleGMNError(f"native: {source}.{name} refused its arguments: {refusal.decode()}")


def usable(*tensors: Tensor | None, source: str = "net") -> bool:
    """Whether compiled code can take these tensors: on the CPU, in float32 or float64, and a compiler was found."""
    if not _ENABLED.get():
        return False
    return all(t is None or (t.is_cpu and t.dtype in _SUFFIX) for t in tensors) and _load(source) is not None


@contextmanager
def disabled() -> Iterator[None]:
    """Within this block everything runs on plain torch operations, as it does without a compiler."""
    token = _ENABLED.set(False)
    try:
        yield
    finally:
        _ENABLED.reset(token)


def load(source: str = "net") -> ctypes.CDLL | None:
    """The compiled library of a C++ file, or None; if there is no compiler, or it fails, one line says so.

    Arguments:
        source: `net`, `fit` or `cnn`.
    """
    return _load(source)


@cache
def _load(source: str) -> ctypes.CDLL | None:
    try:
        find_compiler()
    except MissingCompilerError as error:
        if not failures:
            tell(f"scalegmn: plain torch runs instead of compiled code, slower: {error}\n")
        failures[source] = str(error)
        return None
    except NoCompilerError:
        return None
    try:
        path = build(source)
        shared = openmp()
        if shared is not None:
            ctypes.CDLL(str(shared), mode=ctypes.RTLD_GLOBAL)
        return ctypes.CDLL(str(path))
    except (NoCompilerError, OSError) as error:
        failures[source] = str(error)
        tell(f"scalegmn: plain torch runs instead of compiled code, slower: {error}\n")
        return None
