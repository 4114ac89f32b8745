"""Keras files, written here as Keras writes them: `.keras` of version 3, `.h5` with and without the model."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from scalegmn.convert.formats.files import format_of, read_state_dict
from scalegmn.core.networks import Networks
from scalegmn.errors import ScaleGMNError

h5py = pytest.importorskip("h5py")

Array = np.ndarray[Any, np.dtype[Any]]
RNG = np.random.default_rng(0)


def draw(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


# A model in Keras' words: class, settings, weights in Keras' order.
CNN: list[tuple[str, dict[str, Any], list[Array]]] = [
    ("InputLayer", {"name": "input_layer"}, []),
    (
        "Conv2D",
        {"name": "conv2d_7", "strides": [1, 1], "padding": "same", "activation": "linear", "use_bias": True},
        [draw(3, 3, 2, 4), draw(4)],
    ),
    (
        "BatchNormalization",
        {"name": "norm", "epsilon": 1e-3, "scale": True, "center": True},
        [draw(4), draw(4), draw(4), np.abs(draw(4)) + 0.5],
    ),
    ("Activation", {"name": "act", "activation": "relu"}, []),
    ("MaxPooling2D", {"name": "pool", "pool_size": [2, 2], "strides": [2, 2], "padding": "valid"}, []),
    (
        "Conv2D",
        {"name": "conv2d_8", "strides": [2, 2], "padding": "valid", "activation": "tanh"},
        [draw(3, 3, 4, 5), draw(5)],
    ),
    ("Flatten", {"name": "flatten"}, []),
    ("Dropout", {"name": "dropout", "rate": 0.1}, []),
    ("Dense", {"name": "dense", "activation": {"class_name": "function", "config": "relu"}}, [draw(20, 6), draw(6)]),
    ("Dense", {"name": "dense_1", "activation": "linear"}, [draw(6, 3), draw(3)]),
]


def as_keras_computes(x: Tensor) -> Tensor:
    """The same model with the channels last, in torch's functions: x (N, H, W, C)."""
    weights = [[torch.from_numpy(a) for a in arrays] for _, _, arrays in CNN if arrays]
    (k1, b1), (gain, shift, mean, variance), (k2, b2), (w1, c1), (w2, c2) = weights

    def conv(y: Tensor, kernel: Tensor, bias: Tensor, **options: Any) -> Tensor:
        y = nn.functional.conv2d(y.permute(0, 3, 1, 2), kernel.permute(3, 2, 0, 1), bias, **options)
        return y.permute(0, 2, 3, 1)

    y = conv(x, k1, b1, padding=1)
    y = torch.relu((y - mean) / (variance + 1e-3).sqrt() * gain + shift)
    y = nn.functional.max_pool2d(y.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)
    y = torch.tanh(conv(y, k2, b2, stride=2))
    return torch.relu(y.flatten(1) @ w1 + c1) @ w2 + c2


def config(kind: str = "Sequential") -> dict[str, Any]:
    layers = [{"class_name": name, "config": settings, "inbound_nodes": []} for name, settings, _ in CNN]
    return {"class_name": kind, "config": {"name": "model", "layers": layers}}


def write_keras(path: Path, *, described: Mapping[str, Any] | None = None) -> Path:
    """The format of Keras 3: groups are called after classes, weights are numbered."""
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        counts: dict[str, int] = {}
        for kind, _, arrays in CNN:
            base = {"BatchNormalization": "batch_normalization"}.get(kind, kind.lower())
            counts[base] = counts.get(base, -1) + 1
            group = file.create_group(f"layers/{base}_{counts[base]}" if counts[base] else f"layers/{base}")
            values = group.create_group("vars")
            for i, array in enumerate(arrays):
                values.create_dataset(str(i), data=array)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", json.dumps(described or config()))
        archive.writestr("metadata.json", "{}")
        archive.writestr("model.weights.h5", content.getvalue())
    return path


def write_h5(path: Path, *, model: bool = True) -> Path:
    """The format before: names in attributes, the model as JSON."""
    names = {"Conv2D": ("kernel:0", "bias:0"), "Dense": ("kernel:0", "bias:0")}
    norm = ("gamma:0", "beta:0", "moving_mean:0", "moving_variance:0")
    with h5py.File(path, "w") as file:
        root = file.create_group("model_weights") if model else file
        if model:
            file.attrs["model_config"] = json.dumps(config())
        root.attrs["layer_names"] = [s["name"].encode() for _, s, _ in CNN]
        for kind, settings, arrays in CNN:
            group = root.create_group(settings["name"])
            words = [f"{settings['name']}/{w}" for w in names.get(kind, norm)[: len(arrays)]]
            group.attrs["weight_names"] = [w.encode() for w in words]
            for word, array in zip(words, arrays, strict=True):
                group.create_dataset(word, data=array)
    return path


@pytest.mark.parametrize("written", [write_keras, write_h5])
def test_a_model_computes_what_it_computed_in_keras(tmp_path: Path, written: Any) -> None:
    path = written(tmp_path / "whatever.bin")
    assert format_of(path) == "keras"
    networks = Networks.from_files([path])
    assert str(networks.architecture) == "2-4-5-6-3 [relu, tanh]"
    x = torch.rand(7, 10, 10, 2)
    torch.testing.assert_close(networks.evaluate(x.permute(0, 3, 1, 2))[0], as_keras_computes(x), rtol=1e-4, atol=1e-4)


def test_weights_alone_keep_their_order_where_names_tell_it(tmp_path: Path) -> None:
    state = read_state_dict(write_h5(tmp_path / "w.h5", model=False))
    assert state["dense.weight"].shape == (6, 20)
    assert state["conv2d_7.weight"].shape == (4, 2, 3, 3)
    with h5py.File(tmp_path / "dense.h5", "w") as file:
        for i, array in enumerate([draw(2, 8), draw(8, 1)]):
            file.create_dataset(f"layers/dense{f'_{i}' if i else ''}/vars/0", data=array)
    networks = Networks.from_files([tmp_path / "dense.h5"], activation="tanh")
    assert str(networks.architecture) == "2-8-1 [tanh]"


def test_what_keras_files_may_not_hold(tmp_path: Path) -> None:
    def complaint(path: Path) -> str:
        with pytest.raises(ScaleGMNError) as caught:
            read_state_dict(path)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    padded = config()
    padded["config"]["layers"][5]["config"] = {**CNN[5][1], "padding": "same"}
    assert "padding 'same' needs an odd kernel and stride 1" in complaint(write_keras(tmp_path / "a", described=padded))
    strange = config()
    strange["config"]["layers"][3] = {"class_name": "Lambda", "config": {"name": "code", "function": "print()"}}
    assert "layer code (Lambda): unexpected settings (this layer is not supported)" in complaint(
        write_keras(tmp_path / "b", described=strange)
    )
    assert "expected a Sequential or Functional" in complaint(write_keras(tmp_path / "c", described=config("Mine")))
    with h5py.File(tmp_path / "links.h5", "w") as file:
        file["layers"] = h5py.ExternalLink("/etc/passwd", "/")
    assert "layers is missing or a link" in complaint(tmp_path / "links.h5")
    with h5py.File(tmp_path / "huge.h5", "w") as file:
        file.create_dataset("layers/dense/vars/0", shape=(1 << 20, 1 << 20), dtype="f4", chunks=(1024, 1024))
    assert "of numbers in this file" in complaint(tmp_path / "huge.h5")
    whole = write_h5(tmp_path / "cut.h5").read_bytes()
    (tmp_path / "cut.h5").write_bytes(whole[: len(whole) // 2])
    assert "is not a readable Keras file" in complaint(tmp_path / "cut.h5")
