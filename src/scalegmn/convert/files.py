"""Reading and writing state dicts on disk, without ever running what is in a file."""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from ..errors import ScaleGMNError
from ..files import write_atomically
from .chain import Unordered

SUFFIXES = (".pt", ".pth", ".ckpt", ".safetensors")
_WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "weights")


def read(path: str | Path) -> dict[str, Tensor]:
    """The state dict in a file, on the CPU.

    Arguments:
        path: A file that `torch.save` wrote (a state dict, or a checkpoint with one inside), or a safetensors file.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ScaleGMNError(f"{path}: expected a file that ends in {', '.join(SUFFIXES)}")
    _check_readable(path)
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    return _state(_read_torch(path), path)


def write(state: Mapping[str, Tensor], path: str | Path) -> None:
    """Write a state dict; the suffix decides the format. What is there stays until the new file is whole."""
    path = check_writable(path)
    tensors = {k: t.detach().cpu().contiguous() for k, t in state.items()}
    try:
        if path.suffix == ".safetensors":
            # Two names of one tensor must not share memory there.
            content = save({k: t.clone() for k, t in tensors.items()})
        else:
            buffer = io.BytesIO()
            torch.save(tensors, buffer)
            content = buffer.getvalue()
    except (RuntimeError, SafetensorError) as error:
        raise ScaleGMNError(f"{path}: cannot be written ({_first(error)})") from error
    write_atomically(path, content)


def check_writable(path: str | Path) -> Path:
    """Complain about a name that no format has, or a folder that is not there."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ScaleGMNError(f"{path}: expected a name that ends in {', '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise ScaleGMNError(f"{path}: expected an existing folder, got {path.parent}; make it first")
    return path


def _check_readable(path: Path) -> None:
    try:
        if not path.is_file():
            raise ScaleGMNError(f"{path}: {'is not a file' if path.exists() else 'no such file'}")
        with path.open("rb") as file:
            empty = not file.read(1)
    except OSError as error:
        raise ScaleGMNError(f"{path}: cannot be read ({error.strerror}); check its name and permissions") from error
    if empty:
        raise ScaleGMNError(f"{path}: the file is empty")


def _read_torch(path: Path) -> object:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the one line of an error says enough
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # What a damaged file raises depends on where it breaks off.
        code = _refused(error) or _pickled_code(path)
        if code is not None:
            raise ScaleGMNError(
                f"{path}: holds Python objects or code ({code}), not only tensors, and was not loaded, because that "
                "could run code; save module.state_dict() instead of the module"
            ) from error
        raise ScaleGMNError(f"{path}: cannot be read; {_damage(error)}") from error


def _refused(error: Exception) -> str | None:
    """The name at which torch stopped, if it stopped at a name that is not one of a tensor."""
    found = re.search(r"(?:GLOBAL|global:?|class|instruction) ['\"]?([\w.]*\.[\w.]+)", str(error))
    return found[1] if found and isinstance(error, pickle.UnpicklingError) else None


def _pickled_code(path: Path) -> str | None:
    """The first global that an ordinary pickle would import, found without running it."""
    words: list[str] = []
    try:
        for opcode, argument, _ in pickletools.genops(path.read_bytes()):
            if opcode.name == "GLOBAL":
                return str(argument).replace(" ", ".")
            if opcode.name == "STACK_GLOBAL":
                return ".".join(words[-2:])
            if isinstance(argument, str):
                words.append(argument)
    except ValueError:
        return None
    return None


def _damage(error: Exception) -> str:
    detail = f" ({_first(error)})" if isinstance(error, RuntimeError) else ""
    return f"the file is truncated, damaged, or not one that torch.save wrote{detail}"


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        state = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise ScaleGMNError(f"{path}: cannot be read; the file is truncated or damaged ({_first(error)})") from error
    return Unordered(state)


def _first(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return re.split(r"(?<=\w)\. ", lines[0])[0][:120] if lines else type(error).__name__


def _state(content: object, path: Path) -> dict[str, Tensor]:
    """Find the state dict in what a file holds."""
    if isinstance(content, Mapping):
        state = as_state(content)
        if state is not None:
            return state
        for name in _WRAPPERS:
            inner = content.get(name)
            state = as_state(inner) if isinstance(inner, Mapping) else None
            if state is not None:
                return state
        kind = f"a dictionary with {', '.join(map(str, list(content)[:5])) or 'nothing'}"
    else:
        kind = f"a {type(content).__name__}"
    raise ScaleGMNError(f"{path}: expected a state dict (names to tensors), or one under {_WRAPPERS[0]!r}; got {kind}")


def as_state(content: Mapping[Any, object]) -> dict[str, Tensor] | None:
    """A mapping as a state dict: names to tensors, plain numbers become tensors; None if it is not one."""
    state = {}
    for key, value in content.items():
        if not isinstance(key, str) or not isinstance(value, Tensor | int | float | bool):
            return None
        state[key] = value.detach() if isinstance(value, Tensor) else torch.as_tensor(value)
    if not any(t.is_floating_point() and t.dim() for t in state.values()):
        return None
    return Unordered(state) if isinstance(content, Unordered) else state
