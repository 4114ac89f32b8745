"""Keras models on disk (`.keras`, `.h5`), read with h5py (extra `keras`): no code in them is run.

Keras keeps kernels as (height, width, inputs, outputs), matrices as (inputs, outputs) and flattens maps with the
channels last; the result follows torch. If the file holds the model's configuration, the result has a module.
"""

import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from ...errors import ScaleGMNError
from ..chain import Described, Unordered, natural

Array = np.ndarray[Any, np.dtype[Any]]
# Weights hardly compress; a file that claims to hold more than this many times its size was made to fill the memory.
SWELLING = 100

_NAMES = {
    "Dense": ("weight", "bias"),
    "Conv1D": ("weight", "bias"),
    "Conv2D": ("weight", "bias"),
    "BatchNormalization": ("weight", "bias", "running_mean", "running_var"),
}
_IDLE = ("InputLayer", "Dropout", "SpatialDropout1D", "SpatialDropout2D", "GaussianNoise", "ActivityRegularization")
_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "softmax": partial(nn.Softmax, dim=1),
    "elu": nn.ELU,
    "selu": nn.SELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "swish": nn.SiLU,
    "softplus": nn.Softplus,
    "leaky_relu": partial(nn.LeakyReLU, 0.2),
}


@dataclass(frozen=True)
class _Layer:
    """One layer of a Keras model: its name, its class and settings (if the file has them), its arrays in order."""

    name: str
    kind: str
    settings: Mapping[str, Any]
    arrays: Sequence[Array]


def read_keras(path: Path) -> dict[str, Tensor]:
    """The state dict of a Keras model, with a module if the file describes it.

    Arguments:
        path: A file that `model.save` or `model.save_weights` wrote.
    """
    try:
        import h5py
    except ImportError:
        raise ScaleGMNError(f"{path}: is a Keras file, which needs h5py; pip install 'scalegmn[keras]'") from None
    try:
        content, config = _opened(path)
        with h5py.File(content, "r") as file:
            layers = list(_layers(file, config, path, limit=SWELLING * max(path.stat().st_size, 1 << 16)))
    except ScaleGMNError:
        raise
    except (OSError, KeyError, ValueError, TypeError, AttributeError, RuntimeError, zipfile.BadZipFile) as error:
        raise ScaleGMNError(f"{path}: is not a readable Keras file ({' '.join(str(error).split())[:100]})") from error
    state = _converted(layers, path)
    if not state:
        raise ScaleGMNError(f"{path}: expected weights of Dense, Conv1D or Conv2D layers, found none")
    if all(layer.settings for layer in layers):
        return Described(state, _module(layers, path))
    return Unordered(state)


def _opened(path: Path) -> tuple[io.BytesIO | Path, dict[str, Any] | None]:
    """The HDF5 content, and the configuration if it is stored beside it."""
    if not zipfile.is_zipfile(path):
        return path, None
    with zipfile.ZipFile(path) as archive:
        for name in ("model.weights.h5", "config.json"):
            entry = archive.getinfo(name)
            if entry.file_size > SWELLING * max(entry.compress_size, 1 << 16):
                raise ScaleGMNError(f"{path}: {name} grows more than {SWELLING}-fold; refused")
        return io.BytesIO(archive.read("model.weights.h5")), json.loads(archive.read("config.json"))


def _layers(file: Any, config: dict[str, Any] | None, path: Path, *, limit: int) -> Iterator[_Layer]:
    """The layers in the order of the model."""
    if "model_config" in file.attrs:
        config = json.loads(file.attrs["model_config"])
    described = _chain(config, path) if config is not None else None
    root = _inside(file, "model_weights") if "model_weights" in file else file
    if any(name.startswith("layer_names") for name in root.attrs):
        yield from _old(root, described, limit)
        return
    group = _inside(root, "layers")
    counts: dict[str, int] = {}
    if described is None:
        names = sorted(group, key=natural)
        if any(not name.startswith("dense") for name in names if len(_arrays(group, f"{name}/vars", limit))):
            raise ScaleGMNError(f"{path}: holds weights without the model, whose order is not told; use model.save")
        described = [("Dense", {}) for _ in names]
    for kind, settings in described:
        # Keras calls the groups after the classes of the layers and numbers them: dense, dense_1, ...
        base = _snake(kind)
        number = counts.get(base, 0)
        counts[base] = number + 1
        name = f"{base}_{number}" if number else base
        arrays = _arrays(group, f"{name}/vars", limit)
        yield _Layer(str(settings.get("name", name)), kind, settings, arrays)


def _old(root: Any, described: list[tuple[str, dict[str, Any]]] | None, limit: int) -> Iterator[_Layer]:
    """Layers of the format before Keras 3, which lists their names and those of their weights."""
    settings = {str(s["name"]): (kind, s) for kind, s in described or ()}
    for name in _listed(root, "layer_names"):
        group = _inside(root, name)
        arrays = [_array(group, weight, limit) for weight in _listed(group, "weight_names")]
        kind, own = settings.get(name, (_guess(arrays), {}))
        if name in settings or arrays:
            yield _Layer(name, kind, own, arrays)


def _guess(arrays: Sequence[Array]) -> str:
    return {2: "Dense", 3: "Conv1D", 4: "Conv2D"}.get(arrays[0].ndim if arrays else 0, "BatchNormalization")


def _listed(group: Any, name: str) -> list[str]:
    """An attribute with names; a long one is kept in pieces."""
    pieces = [group.attrs[key] for key in sorted(group.attrs, key=natural) if key.rstrip("0123456789") == name]
    return [word.decode() if isinstance(word, bytes) else str(word) for piece in pieces for word in piece]


def _arrays(group: Any, name: str, limit: int) -> list[Array]:
    if name.split("/")[0] not in group:
        return []
    found = _inside(group, name)
    return [_array(found, key, limit) for key in sorted(found, key=natural)]


def _inside(group: Any, name: str) -> Any:
    """What is stored under a name, without following links to another place or file."""
    import h5py

    for part in name.split("/"):
        if not isinstance(group.get(part, getlink=True), h5py.HardLink):
            raise KeyError(f"{part} is missing or a link")
        group = group[part]
    return group


def _array(group: Any, name: str, limit: int) -> Array:
    found = _inside(group, name)
    if found.dtype.kind != "f" or found.nbytes > limit or found.is_virtual or found.external:
        raise ValueError(f"{name} is not an array of at most {limit >> 20} MiB of numbers in this file")
    return cast(Array, found[()])


def _chain(config: Mapping[str, Any], path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Classes and settings of the layers of a model in which each layer feeds the next."""
    kind, layers = config["class_name"], config["config"]["layers"]
    if kind not in ("Sequential", "Functional", "Model"):
        raise ScaleGMNError(f"{path}: expected a Sequential or Functional Keras model, got {kind}")
    if kind != "Sequential":
        nodes = [layer["inbound_nodes"] for layer in layers]
        sources = [json.dumps(n).count("keras_history") or len(n) for n in nodes]
        if any(count > 1 for count in sources):
            raise ScaleGMNError(f"{path}: a Keras model with branches is not supported; rebuild it in torch")
    return [(layer["class_name"], {"name": layer["config"].get("name", ""), **layer["config"]}) for layer in layers]


def _snake(name: str) -> str:
    """The name of a group that Keras derives from the name of a class.

    >>> _snake("Conv2D"), _snake("BatchNormalization"), _snake("InputLayer")
    ('conv2d', 'batch_normalization', 'input_layer')
    """
    name = re.sub(r"\W+", "", name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


def _converted(layers: Sequence[_Layer], path: Path) -> dict[str, Tensor]:
    """Arrays with torch's names and order of axes."""
    state: dict[str, Tensor] = {}
    channels = 0
    for layer in layers:
        if not layer.arrays:
            continue
        if layer.kind not in _NAMES:
            raise ScaleGMNError(f"{path}: layer {layer.name} is a {layer.kind}; known are {', '.join(_NAMES)}")
        for name, array in zip(_own_names(layer), layer.arrays, strict=True):
            tensor = torch.from_numpy(np.ascontiguousarray(array))
            if tensor.dim() > 2:  # a kernel (..., inputs, outputs)
                channels = tensor.shape[-1]
                tensor = tensor.permute(-1, -2, *range(tensor.dim() - 2))
            elif tensor.dim() == 2:
                # Keras flattens maps with the channels last.
                if channels and tensor.shape[0] % channels == 0:
                    tensor = tensor.unflatten(0, (-1, channels)).transpose(0, 1).flatten(0, 1)
                channels, tensor = 0, tensor.T
            state[f"{_module_name(layer.name)}.{name}"] = tensor.contiguous()
    return state


def _own_names(layer: _Layer) -> list[str]:
    names = list(_NAMES[layer.kind])
    if layer.kind == "BatchNormalization":
        given = [layer.settings.get("scale", True), layer.settings.get("center", True), True, True]
        names = [name for name, there in zip(names, given, strict=True) if there]
    return names[: len(layer.arrays)]


def _module_name(name: str) -> str:
    return name.replace(".", "_").replace("/", "_")


def _module(layers: Sequence[_Layer], path: Path) -> nn.Module:
    """The same model in torch."""
    module = nn.Sequential()
    for layer in layers:
        try:
            parts = list(_parts(layer))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ScaleGMNError(f"{path}: layer {layer.name} ({layer.kind}): unexpected settings ({error})") from error
        for suffix, part in parts:
            module.add_module(_module_name(layer.name) + suffix, part)
    return module.eval()


def _parts(layer: _Layer) -> Iterator[tuple[str, nn.Module]]:
    s = layer.settings
    match layer.kind:
        case "Dense":
            inputs, outputs = layer.arrays[0].shape
            yield "", nn.Linear(inputs, outputs, bias=len(layer.arrays) > 1)
        case "Conv1D" | "Conv2D":
            yield "", _convolution(layer)
        case "BatchNormalization":
            size = len(layer.arrays[-1])
            affine = bool(s.get("scale", True)), bool(s.get("center", True))
            if affine[0] != affine[1]:
                raise ValueError("scale and center must be both on or both off")
            norm = nn.BatchNorm2d(size, eps=float(s["epsilon"]), affine=affine[0])
            norm.num_batches_tracked = None  # Keras does not count them
            yield "", norm
        case "Flatten":
            yield "", nn.Flatten()
        case "ReLU" if not s.get("max_value") and not s.get("negative_slope") and not s.get("threshold"):
            yield "", nn.ReLU()
        case "LeakyReLU":
            yield "", nn.LeakyReLU(float(s.get("negative_slope", s.get("alpha", 0.3))))
        case "Activation" | "Softmax":
            yield from _activation(s.get("activation", "softmax"), "")
        case "GlobalAveragePooling2D":
            yield "", nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        case "MaxPooling2D" | "AveragePooling2D" if s.get("padding") == "valid":
            kind = nn.MaxPool2d if layer.kind == "MaxPooling2D" else nn.AvgPool2d
            yield "", kind(tuple(s["pool_size"]), tuple(s["strides"] or s["pool_size"]))
        case kind if kind not in _IDLE:
            raise ValueError("this layer is not supported")
    if layer.kind in ("Dense", "Conv1D", "Conv2D"):
        yield from _activation(s.get("activation", "linear"), "_activation")


def _activation(given: object, suffix: str) -> Iterator[tuple[str, nn.Module]]:
    name = given if isinstance(given, str) else "linear" if given is None else str(cast(Any, given)["config"])
    if name == "linear":
        return
    if name not in _ACTIVATIONS:
        raise ValueError(f"activation {name!r} is not known")
    yield suffix, _ACTIVATIONS[name]()


def _convolution(layer: _Layer) -> nn.Module:
    s = layer.settings
    *kernel, inputs, outputs = layer.arrays[0].shape
    if s.get("data_format", "channels_last") != "channels_last" or s.get("groups", 1) != 1:
        raise ValueError("channels_last and groups = 1 are expected")
    stride, dilation = tuple(s["strides"]), tuple(s.get("dilation_rate", (1,) * len(kernel)))
    if s["padding"] == "same" and (set(stride) != {1} or any(k % 2 == 0 for k in kernel)):
        raise ValueError("padding 'same' needs an odd kernel and stride 1: elsewhere Keras pads one side more")
    if s["padding"] not in ("same", "valid"):
        raise ValueError(f"padding {s['padding']!r} is not supported")
    padding = tuple(d * (k // 2) if s["padding"] == "same" else 0 for k, d in zip(kernel, dilation, strict=True))
    kind = nn.Conv1d if len(kernel) == 1 else nn.Conv2d
    made: nn.Module = kind(
        inputs, outputs, tuple(kernel), stride, padding, dilation, bias=len(layer.arrays) > 1  # type: ignore[arg-type]
    )
    return made
