"""What the commands on checkpoints share: reading them as networks, and writing them in their original form."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ScaleGMNError
from ..console import stderr
from ..sources import hidden_activation, load_module

if TYPE_CHECKING:
    from torch import Tensor

    from ...core.networks import Networks


def read_networks(
    files: Sequence[Path], arch: str | None, activation: str | None, w0: float | None, prefix: str
) -> list[Networks]:
    """Checkpoints of one architecture, one network each; types may differ."""
    from ...core.networks import Networks

    like, function = None if arch is None else load_module(arch), hidden_activation(activation, w0)
    found = [Networks.from_files([file], like=like, activation=function, prefix=prefix) for file in files]
    for file, networks in zip(files, found, strict=True):
        if networks.architecture != found[0].architecture:
            both = found[0].architecture.beside(networks.architecture)
            raise ScaleGMNError(f"{file}: expected the architecture of {files[0]}, got {both}")
    return found


def check_like(out: Path, file: Path) -> None:
    """Refuse an output whose format is not the input's, before any work is done."""
    from ...convert.formats.files import format_of

    if out.suffix != file.suffix:
        raise ScaleGMNError(f"out: expected the format of {file.name}, {file.suffix or 'no suffix'}, got {out.name}")
    if not out.parent.is_dir():
        raise ScaleGMNError(f"{out}: expected an existing folder, got {out.parent}; make it first")
    if file.is_file() and format_of(file) not in ("torch", "safetensors"):
        raise ScaleGMNError(f"{file}: files of this kind are read, not written; save its weights with torch first")


def write_like(file: Path, networks: Networks, out: Path) -> None:
    """Write one network like the file that it came from: with the same names and everything else the checkpoint held.

    Arguments:
        file: Where the network came from.
        networks: One network.
        out: Where to write.
    """
    import torch

    from ...convert.formats.files import format_of, read_torch, write
    from ...convert.formats.files import read_state_dict as read_state
    from ...files import write_atomically

    (state,) = networks.to_state_dicts()
    stored = read_state(file)
    prefix = _prefix(list(stored), list(state))
    state = {key: state.get(key.removeprefix(prefix), tensor) for key, tensor in stored.items()}
    form = format_of(file)
    content: Any = {} if form == "safetensors" else read_torch(file)
    around = [key for key, v in content.items() if isinstance(v, dict) and v.keys() == stored.keys()]
    if not around:
        write(state, out, form=form)
        return
    buffer = io.BytesIO()
    torch.save({**content, around[0]: state}, buffer)
    write_atomically(out, buffer.getvalue())


def _prefix(stored: Sequence[str], names: Sequence[str]) -> str:
    """The common prefix of all names in a file, such as `module.`, which is not part of a layout."""
    parts = stored[0].split(".")
    prefixes = ["".join(f"{p}." for p in parts[:i]) for i in range(len(parts))]
    return next((p for p in prefixes if all(f"{p}{name}" in stored for name in names)), "")


def read_inputs(file: Path | None) -> Tensor | None:
    """Inputs of networks from a file: an array (.npy, or the first in .npz), or a tensor (.pt)."""
    import torch

    from ...convert.formats.files import read_torch
    from ...files import open_file
    from ...files.arrays import read_npy

    if file is None:
        return None
    found: object = None
    if file.suffix in (".npy", ".npz"):
        array = read_npy(file)
        if array.dtype.kind not in "fiub":
            raise ScaleGMNError(f"{file}: expected numbers as inputs, got {array.dtype}")
        found = torch.from_numpy(array.astype("float64"))
    elif file.suffix in (".pt", ".pth"):
        open_file(file).close()
        found = read_torch(file)
    if not isinstance(found, torch.Tensor) or found.is_sparse or found.is_meta or found.is_complex():
        raise ScaleGMNError(f"{file}: expected inputs (N, ...) as .npy, .npz, or a tensor in .pt")
    try:
        return found.double()
    except (RuntimeError, MemoryError) as error:
        raise ScaleGMNError(f"{file}: inputs of shape {tuple(found.shape)} do not fit into memory") from error


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say on stderr, if it is a terminal, what is being done."""
    console = stderr()
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield
