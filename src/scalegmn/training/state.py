"""Checkpoints: tensors as safetensors, numbers as JSON, written whole or not at all."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ..core.schema import from_json
from ..errors import ScaleGMNError
from ..files import believing, hash_file, read_object, write_directory
from ..files.tensors import Tensors, packed, read_tensors
from ..zoo.store.writer import header_hash

_LOST = "delete the run to begin anew"


@dataclass
class Counters:
    """The progress of training.

    Arguments:
        step: Steps done.
        loss, networks: Sum of the losses of networks since the last validation, and their number.
        best: The best value of the metric so far.
        best_step: The step at which it was found.
        best_loss: The loss there, which breaks ties.
        stale: Validations since then.
        seconds: Time spent, over all attempts.
        validated: The step of the last validation.
        stopped: Why training ended before its last step; otherwise empty.
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
        counters: The progress of training.
        model: The current weights.
        best: The weights at the best validation.
        optimizer: The optimizer's tensors, by parameter and name.
        scaler: The gradient scaler's numbers; empty if there is none.
    """

    counters: Counters
    model: Tensors
    best: Tensors
    optimizer: Tensors
    scaler: dict[str, Any]


def save_state(directory: Path, state: State) -> None:
    """Write a checkpoint beside the old one, rename it into place, then remove the old one.

    Arguments:
        directory: Holds the checkpoint, as `000123/state.safetensors` and `000123/state.json` (counting saves).
        state: What to write.
    """
    last = latest(directory)
    name = f"{1 if last is None else int(last.name) + 1:06d}"
    parts = {"model": state.model, "best": state.best, "optimizer": state.optimizer}
    tensors = {f"{part}.{key}": t for part, table in parts.items() for key, t in table.items()}
    content = packed(tensors)
    values: dict[str, Any] = {"counters": asdict(state.counters), "scaler": state.scaler}
    values["tensors_sha256"] = hashlib.sha256(content).hexdigest()
    values["sha256"] = header_hash(values)
    write_directory(
        directory / name, {"state.safetensors": content, "state.json": json.dumps(values, indent=1).encode()}
    )
    keep_latest(directory)


def keep_latest(directory: Path) -> None:
    """Remove older checkpoints, and files that a killed process left behind."""
    last = latest(directory)
    for other in directory.iterdir():
        if other != last:
            shutil.rmtree(other, ignore_errors=True)


def latest(directory: Path) -> Path | None:
    """The latest complete checkpoint of a directory, or None."""
    return max(directory.glob("[0-9]*"), default=None)


def load_state(directory: Path) -> State | None:
    """The content of the latest complete checkpoint, or None."""
    path = latest(directory)
    if path is None:
        return None
    values = read_object(path / "state.json")
    _check(path, values)
    parts: dict[str, Tensors] = {"model": {}, "best": {}, "optimizer": {}}
    with believing(path / "state.safetensors", _LOST):
        for key, tensor in read_tensors(path / "state.safetensors").items():
            part, _, name = key.partition(".")
            parts[part][name] = tensor
    with believing(path / "state.json", _LOST):
        return State(from_json(Counters, values["counters"], "counters"), scaler=dict(values["scaler"]), **parts)


def _check(path: Path, values: Mapping[str, Any]) -> None:
    """Refuse a checkpoint that differs from its checksums; older ones have none."""
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
    """Restore the result of `optimizer_tensors`."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def weights_of(model: nn.Module) -> Tensors:
    """A copy of a model's weights and buffers on the CPU."""
    return {name: t.detach().cpu().clone() for name, t in model.state_dict().items()}
