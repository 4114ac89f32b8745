"""Compiles C++ sources once and keeps the result where no other user can change it; needs no torch."""

import hashlib
import importlib.util
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent
_FLAGS = ["-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-std=c++17", "-fPIC"]
# Where the processor has AVX-512 our vectors have 512 bits, and so have those that the compiler makes.
_FLAGS += ["-mprefer-vector-width=512"] if platform.machine() in ("x86_64", "AMD64") else []
_SANITIZE = ["-O1", "-g1", "-march=native", "-fopenmp", "-std=c++17", "-fPIC", "-fno-omit-frame-pointer"]
_SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
_LONGEST = 600.0  # seconds of one compilation
_CPUINFO = ("flags", "model name", "Features", "CPU implementer", "CPU part")


# Why sources could not be used in this process, by name.
failures: dict[str, str] = {}


class NoCompilerError(Exception):
    """No compiled code is available; the message says why."""


class MissingCompilerError(NoCompilerError):
    """Compiled code would run here, if there were a compiler."""


def build(name: str) -> Path:
    """The shared library of a source, compiled now if necessary; raises `NoCompilerError` if that is impossible.

    Arguments:
        name: Of the source, such as `net`.
    """
    compiler, path = find_compiler(), library_path(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _is_private(path.parent.resolve()):
            raise NoCompilerError(
                f"others can write to {path.parent}; make it yours alone (chmod go-w, chown), or set XDG_CACHE_HOME"
            )
        if not _is_private(path):
            _compile(compiler, name, path)
    except OSError as error:
        raise NoCompilerError(f"{error.filename or path.parent}: {error.strerror or error}") from error
    return path


def backend() -> str:
    """Which backend is used, without compiling anything: compiled code and its compiler, or plain torch and the reason.

    >>> backend().split()[0] in ("compiled", "plain")
    True
    """
    if failures:
        return f"plain torch ({next(iter(failures.values()))})"
    try:
        compiler = find_compiler()
        when = "" if _is_private(library_path("net")) else " (at first use)"
        version = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=10, check=False)
        return f"compiled with {version.stdout.partition(chr(10))[0] or compiler}{when}"
    except (NoCompilerError, OSError, subprocess.SubprocessError) as error:
        return f"plain torch ({error})"


def find_compiler() -> str:
    """The C++ compiler, which `CXX` may name."""
    if os.environ.get("SCALEGMN_KERNELS", "1") == "0":
        raise NoCompilerError("SCALEGMN_KERNELS is 0")
    if platform.system() != "Linux":
        raise NoCompilerError(f"compiled code is for Linux, not {platform.system()}")
    wanted = os.environ.get("CXX", "g++")
    compiler = shutil.which(wanted)
    if compiler is None:
        raise MissingCompilerError(f"no compiler {wanted}; install it or name one with CXX")
    return compiler


def openmp() -> Path | None:
    """The OpenMP library of torch, whose threads are shared: a second pool would compete for the cores."""
    torch = importlib.util.find_spec("torch")
    places = torch.submodule_search_locations if torch is not None and torch.submodule_search_locations else []
    return next((found for place in places for found in sorted(Path(place, "lib").glob("libgomp*.so*"))), None)


def library_path(name: str) -> Path:
    """The path of the compiled source, named by the hash of everything it depends on."""
    key = hashlib.sha256()
    text = b"".join(path.read_bytes() for path in (FOLDER / f"{name}.cpp", *sorted(FOLDER.glob("*.h"))))
    for part in (text, " ".join(flags()).encode(), _processor(), bytes([openmp() is None])):
        key.update(part)
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "scalegmn" / f"{name}-{key.hexdigest()[:16]}.so"


def tell(text: str) -> None:
    """A message for people, on stderr."""
    sys.stderr.write(text)
    sys.stderr.flush()


def flags() -> list[str]:
    """The options of the compiler."""
    return [*_SANITIZE, *_SANITIZERS] if os.environ.get("SCALEGMN_SANITIZE") else _FLAGS


def _is_private(path: Path) -> bool:
    """Whether a file or folder (not a link) belongs to this user and nobody else can write to it."""
    try:
        found = path.lstat()
    except OSError:
        return False
    shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return not stat.S_ISLNK(found.st_mode) and found.st_uid == os.geteuid() and not shared


def _compile(compiler: str, name: str, path: Path) -> None:
    source, started = FOLDER / f"{name}.cpp", time.monotonic()
    tell(f"scalegmn: compiling {source.name} with {Path(compiler).name}, once ... ")
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made, shared = Path(folder, "made.o"), Path(folder, "made.so")
        link = ["-fopenmp"] if openmp() is None else []
        sanitizers = _SANITIZERS if os.environ.get("SCALEGMN_SANITIZE") else []
        # What is loaded into Python first, such as a sanitizer, is not meant for the compiler.
        environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        try:
            for command in (
                [compiler, *flags(), "-c", str(source), "-o", str(made)],
                [compiler, "-shared", *link, *sanitizers, str(made), "-o", str(shared)],
            ):
                _run(command, environment, started)
        except subprocess.SubprocessError as error:
            tell("failed\n")
            raise NoCompilerError(f"{Path(compiler).name} fails on {source.name}: {_reason(error)}") from error
        shared.chmod(0o700)
        shared.replace(path)
    tell(f"{time.monotonic() - started:.0f} s\n")


def _run(command: list[str], environment: dict[str, str], started: float) -> None:
    """Run a compiler; a terminal sees the seconds pass."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment) as process:
        try:
            while True:
                try:
                    _, errors = process.communicate(timeout=1)
                    break
                except subprocess.TimeoutExpired:
                    seconds = time.monotonic() - started
                    if seconds > _LONGEST:
                        raise
                    if sys.stderr.isatty():
                        text = f"{seconds:.0f} s"
                        tell(text + "\b" * len(text))
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, stderr=errors)


def _reason(error: subprocess.SubprocessError) -> str:
    """The first line of a compiler's output that reports an error."""
    if not isinstance(error, subprocess.CalledProcessError):
        return "it takes too long"
    lines = error.stderr.decode(errors="replace").splitlines()
    first = next((line for line in lines if "error" in line), lines[0] if lines else f"exit code {error.returncode}")
    return first.strip()[:200]


@cache
def _processor() -> bytes:
    """What `-march=native` depends on: the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor().encode()
    return "\n".join(sorted({line for line in lines if line.startswith(_CPUINFO)})).encode()
