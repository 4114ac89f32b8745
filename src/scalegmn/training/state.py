"""Checkpoints: tensors as safetensors, numbers as JSON, there whole or not at all."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.optim import Optimizer

from .. import files
from ..core.schema import from_json
from ..errors import ScaleGMNError
from ..files import believing, hash_file, open_file, write_atomically, write_directory
from ..zoo.store.writer import header_hash

Tensors = dict[str, Tensor]
_LOST = "delete the run to begin anew"


@dataclass
class Counters:
    """Where training stands.

    Arguments:
        step: Steps done.
        loss, networks: Sum of the losses of networks since the last validation, and their number.
        best: The best value of the metric so far, and the step at which it was found.
        best_step: That step.
        best_loss: The loss there, which decides between equals.
        stale: Validations since then.
        seconds: Time spent, over all attempts.
        validated: The step of the last validation.
        stopped: Why training ended before its last step; empty while it goes on.
    """

    step: int = 0
    loss: float = 0.0
    networks: int = 0
    best: float | None = None
    best_step: int = 0
    best_loss: float | None = None
    stale: int = 0
    seconds: float = 0.0
    validated: int = -1
    stopped: str = ""


@dataclass
class State:
    """Everything that a later process needs to continue as if nothing had happened.

    Random numbers are a function of the seed and the step, and so is the order of the data: neither is stored.

    Arguments:
        counters: Where training stands.
        model: The weights now.
        best: The weights at the best validation.
        optimizer: The optimizer's tensors, by parameter and name.
        scaler: The gradient scaler's numbers; empty where there is none.
    """

    counters: Counters
    model: Tensors
    best: Tensors
    optimizer: Tensors
    scaler: dict[str, Any]


def save_state(directory: Path, state: State) -> None:
    """Write a checkpoint beside the old one, put it in its place by a rename, then remove the old one.

    Arguments:
        directory: Holds the checkpoint, as `000123/state.safetensors` and `000123/state.json` (counting saves).
        state: What to keep.
    """
    last = latest(directory)
    name = f"{1 if last is None else int(last.name) + 1:06d}"
    parts = {"model": state.model, "best": state.best, "optimizer": state.optimizer}
    tensors = {f"{part}.{key}": t for part, table in parts.items() for key, t in table.items()}
    packed = _packed(tensors)
    values: dict[str, Any] = {"counters": asdict(state.counters), "scaler": state.scaler}
    values["tensors_sha256"] = hashlib.sha256(packed).hexdigest()
    values["sha256"] = header_hash(values)
    write_directory(
        directory / name, {"state.safetensors": packed, "state.json": json.dumps(values, indent=1).encode()}
    )
    keep_latest(directory)


def _packed(tensors: Mapping[str, Tensor]) -> bytes:
    return save({k: t.detach().cpu().contiguous().clone() for k, t in tensors.items()})


def keep_latest(directory: Path) -> None:
    """Remove older checkpoints, and what a killed process left."""
    last = latest(directory)
    for other in directory.iterdir():
        if other != last:
            shutil.rmtree(other, ignore_errors=True)


def latest(directory: Path) -> Path | None:
    """The latest complete checkpoint of a directory, or None."""
    return max(directory.glob("[0-9]*"), default=None)


def load_state(directory: Path) -> State | None:
    """What the latest complete checkpoint holds, or None."""
    path = latest(directory)
    if path is None:
        return None
    values = read_json(path / "state.json")
    _check(path, values)
    parts: dict[str, Tensors] = {"model": {}, "best": {}, "optimizer": {}}
    with believing(path / "state.safetensors", _LOST):
        for key, tensor in read_tensors(path / "state.safetensors").items():
            part, _, name = key.partition(".")
            parts[part][name] = tensor
    with believing(path / "state.json", _LOST):
        return State(from_json(Counters, values["counters"], "counters"), scaler=dict(values["scaler"]), **parts)


def _check(path: Path, values: Mapping[str, Any]) -> None:
    """Complain about a checkpoint that is not as it was written; older ones do not say how they were."""
    if "sha256" not in values:
        return
    tensors = path / "state.safetensors"
    for file, same in (
        (path / "state.json", header_hash(values) == values["sha256"]),
        (tensors, hash_file(tensors) == values.get("tensors_sha256")),
    ):
        if not same:
            raise ScaleGMNError(f"{file}: changed since it was written (wrong checksum); {_LOST}")


def optimizer_tensors(optimizer: Optimizer) -> Tensors:
    """The state of an optimizer whose state is tensors, such as AdamW."""
    state: Mapping[int, Mapping[str, Tensor]] = optimizer.state_dict()["state"]
    return {f"{i}.{name}": t for i, entries in state.items() for name, t in entries.items()}


def restore_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` gave."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def weights_of(model: nn.Module) -> Tensors:
    """A copy of a model's weights and buffers on the CPU."""
    return {name: t.detach().cpu().clone() for name, t in model.state_dict().items()}


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file, whole or not at all."""
    write_atomically(path, _packed(tensors))


def read_tensors(path: Path) -> Tensors:
    """Read a safetensors file."""
    # Anything but a regular file is refused before it is mapped.
    open_file(path).close()
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise ScaleGMNError(f"{path}: cannot read the tensors: {error}") from None


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file, whole or not at all."""
    write_atomically(path, (json.dumps(value, indent=1) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object."""
    found = files.read_json(path)
    if not isinstance(found, dict):
        raise ScaleGMNError(f"{path}: expected a JSON object, got {type(found).__name__}")
    return found


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a file of JSON objects; a line that a crash cut short is left out."""
    if not path.exists():
        return []
    content = files.read_bytes(path)
    with believing(path):
        found = [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]
    if not all(isinstance(line, dict) for line in found):
        raise ScaleGMNError(f"{path}: expected a JSON object on every line")
    return found


def write_lines(path: Path, values: Iterable[Mapping[str, Any]]) -> None:
    """Replace a file of JSON objects."""
    write_atomically(path, "".join(json.dumps(value) + "\n" for value in values).encode())
