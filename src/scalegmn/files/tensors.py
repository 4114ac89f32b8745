"""Tensors in safetensors files."""

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from ..errors import ScaleGMNError
from . import open_file, write_atomically

Tensors = dict[str, Tensor]


def packed(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors as the bytes of a file."""
    return save({k: t.detach().cpu().contiguous().clone() for k, t in tensors.items()})


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file, whole or not at all."""
    write_atomically(path, packed(tensors))


def read_tensors(path: Path) -> Tensors:
    """Read a safetensors file."""
    # Anything but a regular file is refused before it is mapped.
    open_file(path).close()
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise ScaleGMNError(f"{path}: cannot read the tensors: {error}") from None
