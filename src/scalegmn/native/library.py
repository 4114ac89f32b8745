"""Compiles and loads C++ sources at first use; without a compiler everything runs on plain torch operations."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

_SOURCE = Path(__file__).with_name("net.cpp")
_FLAGS = ["-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-std=c++17", "-fPIC"]
_CPUINFO = ("flags", "model name", "Features", "CPU implementer", "CPU part")
_SUFFIX = {torch.float32: "float", torch.float64: "double"}
_ENABLED: ContextVar[bool] = ContextVar("kernels", default=True)


def call(name: str, dtype: torch.dtype, *arguments: object, source: Path = _SOURCE) -> None:
    """Call a kernel; tensors go as addresses, structures by reference."""
    library = load(source)
    assert library is not None
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
    getattr(library, f"{name}_{_SUFFIX[dtype]}")(*found)


def usable(*tensors: Tensor | None, source: Path = _SOURCE) -> bool:
    """Whether the kernels can take these tensors: on the CPU, in float32 or float64, and a compiler was found."""
    if not _ENABLED.get():
        return False
    found = [t for t in tensors if t is not None]
    return all(t.device.type == "cpu" and t.dtype in _SUFFIX for t in found) and load(source) is not None


@contextmanager
def disabled() -> Iterator[None]:
    """Within this block everything runs on plain torch operations, as it does without a compiler."""
    token = _ENABLED.set(False)
    try:
        yield
    finally:
        _ENABLED.reset(token)


@cache
def load(source: Path = _SOURCE) -> ctypes.CDLL | None:
    """The compiled library of a C++ file, or None if there is no compiler or SCALEGMN_KERNELS=0."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if os.environ.get("SCALEGMN_KERNELS", "1") == "0" or compiler is None or platform.system() != "Linux":
        return None
    runtime = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    try:
        path = _build(compiler, source, link_openmp=not runtime)
        if runtime:
            # Share torch's OpenMP threads: a second pool would fight it for the cores.
            ctypes.CDLL(str(runtime[0]), mode=ctypes.RTLD_GLOBAL)
        return ctypes.CDLL(str(path))
    except (OSError, RuntimeError, subprocess.SubprocessError):
        # No compiler that works, or no folder for what it makes.
        return None


def _build(compiler: str, source: Path, *, link_openmp: bool) -> Path:
    key = hashlib.sha256()
    text = b"".join(path.read_bytes() for path in (source, *sorted(source.parent.glob("*.h"))))
    for part in (text, " ".join(_FLAGS).encode(), _processor(), bytes([link_openmp])):
        key.update(part)
    cache_home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = cache_home / "scalegmn" / f"{source.stem}-{key.hexdigest()[:16]}.so"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        objects, shared = Path(folder, "kernels.o"), Path(folder, "kernels.so")
        compile_ = [compiler, *_FLAGS, "-c", str(source), "-o", str(objects)]
        subprocess.run(compile_, check=True, capture_output=True, timeout=120)
        openmp = ["-fopenmp"] if link_openmp else []
        link = [compiler, "-shared", *openmp, str(objects), "-o", str(shared)]
        subprocess.run(link, check=True, capture_output=True, timeout=60)
        shared.replace(path)
    return path


def _processor() -> bytes:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor().encode()
    return "\n".join(sorted({line for line in lines if line.startswith(_CPUINFO)})).encode()
