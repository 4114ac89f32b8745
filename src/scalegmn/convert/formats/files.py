"""Reading and writing state dicts on disk, without ever running code from a file."""

import io
import pickle
import pickletools
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from ...errors import ScaleGMNError
from ...files import write_atomically
from ..chain import Described, Unordered

SUFFIXES = (".pt", ".pth", ".ckpt", ".safetensors")
Format = Literal["torch", "safetensors", "keras", "onnx"]
# A version, then the number of the next field of a ModelProto: producer, domain, documentation, graph, operators.
_ONNX = (b"\x12", b"\x1a", b"\x22", b"\x28", b"\x32", b"\x3a", b"\x42", b"\x72")
_WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "weights")


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """The state dict in a file, on the CPU. Its content decides how it is read, not its name.

    Arguments:
        path: A file that `torch.save` wrote (a state dict, or a checkpoint with one inside), a safetensors file, a
            Keras model (extra `keras`) or an ONNX graph (extra `onnx`).
    """
    path = Path(path)
    _check_readable(path)
    match format_of(path):
        case "safetensors":
            return _read_safetensors(path)
        case "keras":
            from .keras import read_keras

            return read_keras(path)
        case "onnx":
            from .onnx.module import read_onnx

            module = read_onnx(path)
            return Described(module.state_dict(), module)
        case _:
            return _state(read_torch(path), path)


def format_of(path: str | Path) -> Format | None:
    """The format of a file, from its first bytes; None for a file that is not a checkpoint."""
    path = Path(path)
    with path.open("rb") as file:
        start = file.read(9)
    if start.startswith(b"\x89HDF\r\n\x1a\n"):
        return "keras"
    if start.startswith(b"PK"):
        return "keras" if _is_keras(path) else "torch"
    if start.startswith(b"\x80"):
        return "torch"
    if start[:1] == b"\x08" and start[1:2] < b"\x40" and start[2:3] in _ONNX:
        return "onnx"
    header = int.from_bytes(start[:8], "little")
    return "safetensors" if start[8:] == b"{" and header <= path.stat().st_size - 8 else None


def _is_keras(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return "model.weights.h5" in archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError):
        return False


def write(state: Mapping[str, Tensor], path: str | Path, *, form: Format | None = None) -> None:
    """Write a state dict; an existing file is replaced only when the new one is complete.

    Arguments:
        state: Names and tensors.
        path: Of the file.
        form: The format; if omitted, the suffix decides.
    """
    path = check_writable(path) if form is None else Path(path)
    if form in ("keras", "onnx"):
        kind = form.upper() if form == "onnx" else "Keras"
        raise ScaleGMNError(f"{path}: {kind} files are read, not written; load the weights in Python instead")
    tensors = {k: t.detach().cpu().contiguous() for k, t in state.items()}
    try:
        if form == "safetensors" or (form is None and path.suffix == ".safetensors"):
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
    """Refuse a name without a known format, or in a folder that does not exist."""
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


def read_torch(path: Path) -> object:
    """Read a file of `torch.save` that holds only tensors and plain containers.

    Arguments:
        path: Of the file.
    """
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
    """The name that torch refused, if it is not one of a tensor."""
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
    return f"the file is truncated, damaged, or not one that torch.save wrote, nor safetensors, Keras or ONNX{detail}"


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
    """Find the state dict in the content of a file."""
    if isinstance(content, Mapping):
        state = as_state(content, str(path))
        if state is not None:
            return state
        for name in _WRAPPERS:
            inner = content.get(name)
            state = as_state(inner, str(path)) if isinstance(inner, Mapping) else None
            if state is not None:
                return state
        kind = f"a dictionary with {', '.join(map(str, list(content)[:5])) or 'nothing'}"
    else:
        kind = f"a {type(content).__name__}"
    raise ScaleGMNError(f"{path}: expected a state dict (names to tensors), or one under {_WRAPPERS[0]!r}; got {kind}")


def as_state(content: Mapping[Any, object], where: str) -> dict[str, Tensor] | None:
    """A mapping as a state dict, with plain numbers as tensors; None if it is not one.

    Arguments:
        content: The mapping.
        where: What to call it in an error message.
    """
    state = {}
    for key, value in content.items():
        if not isinstance(key, str) or not isinstance(value, Tensor | int | float | bool):
            return None
        if isinstance(value, Tensor):
            _check_dense(value, f"{where}: {key}")
        state[key] = value.detach() if isinstance(value, Tensor) else torch.as_tensor(value)
    if not any(t.is_floating_point() and t.dim() for t in state.values()):
        return None
    if isinstance(content, Described):
        return Described(state, content.module)
    return Unordered(state) if isinstance(content, Unordered) else state


def _check_dense(tensor: Tensor, what: str) -> None:
    kinds = {"sparse": tensor.layout != torch.strided, "without data": tensor.is_meta, "quantised": tensor.is_quantized}
    for kind, found in kinds.items():
        if found:
            raise ScaleGMNError(f"{what}: expected a dense tensor of numbers, got one that is {kind}")
