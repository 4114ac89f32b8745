"""ONNX files: the same function as the graph says, and refusals in one line."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from convert.gallery import GALLERY, build
from torch import Tensor
from torch.nn import functional as F

from scalegmn.convert.formats.files import format_of
from scalegmn.core.networks import Networks
from scalegmn.core.transform import Transform
from scalegmn.errors import ScaleGMNError

onnx = pytest.importorskip("onnx")


def write(path: Path, nodes: list[object], tensors: dict[str, Tensor], shape: list[object], opset: int = 18) -> Path:
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    initial = [onnx.numpy_helper.from_array(t.numpy(), name) for name, t in tensors.items()]
    ends = [helper.make_tensor_value_info("x", kind, shape)], [helper.make_tensor_value_info("y", kind, None)]
    graph = helper.make_graph(nodes, "net", *ends, initial)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]), str(path))
    return path


def cnn(path: Path, seed: int) -> tuple[Path, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    t = {"conv.weight": draw(4, 1, 3, 3), "conv.bias": draw(4), "bn.weight": draw(4), "bn.bias": draw(4),
         "bn.mean": draw(4), "bn.var": draw(4).exp(), "fc.weight": draw(3, 4), "fc.bias": draw(3)}  # fmt: skip
    node = onnx.helper.make_node
    nodes = [
        node("Conv", ["x", "conv.weight", "conv.bias"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("BatchNormalization", ["a", "bn.weight", "bn.bias", "bn.mean", "bn.var"], ["b"], epsilon=1e-4),
        node("Relu", ["b"], ["c"]),
        node("GlobalAveragePool", ["c"], ["d"]),
        node("Flatten", ["d"], ["e"]),
        node("Gemm", ["e", "fc.weight", "fc.bias"], ["y"], transB=1),
    ]
    return write(path, nodes, t, ["N", 1, 8, 8]), t


def expected(t: dict[str, Tensor], x: Tensor) -> Tensor:
    z = F.conv2d(x, t["conv.weight"], t["conv.bias"], 2, 1)
    z = F.relu(F.batch_norm(z, t["bn.mean"], t["bn.var"], t["bn.weight"], t["bn.bias"], eps=1e-4))
    return F.linear(z.mean((2, 3)), t["fc.weight"], t["fc.bias"])


def test_networks_from_onnx(tmp_path: Path) -> None:
    made = [cnn(tmp_path / f"{i}.onnx", i) for i in range(2)]
    networks = Networks.from_files([path for path, _ in made])
    x = torch.randn(5, 1, 8, 8)
    found = networks.evaluate(x)
    torch.testing.assert_close(found, torch.stack([expected(t, x) for _, t in made]), atol=1e-5, rtol=1e-5)
    moved = Transform.sample(networks.architecture, 2).apply(networks)
    torch.testing.assert_close(moved.evaluate(x), found, atol=1e-4, rtol=1e-4)


def test_what_is_not_supported_is_refused(tmp_path: Path) -> None:
    node = onnx.helper.make_node("LSTM", ["x"], ["y"])
    path = write(tmp_path / "lstm.onnx", [node], {}, ["N", 3])
    with pytest.raises(ScaleGMNError, match="the operation LSTM is not supported; supported are"):
        Networks.from_files([path])
    whole, _ = cnn(tmp_path / "whole.onnx", 0)
    (tmp_path / "broken.onnx").write_bytes(whole.read_bytes()[:-40])
    with pytest.raises(ScaleGMNError, match="cannot be read as ONNX"):
        Networks.from_files([tmp_path / "broken.onnx"])
    (tmp_path / "other.onnx").write_bytes(b"not a graph at all" * 10)
    with pytest.raises(ScaleGMNError, match="nor safetensors, Keras or ONNX"):
        Networks.from_files([tmp_path / "other.onnx"])


def test_content_decides_not_the_name(tmp_path: Path) -> None:
    path, t = cnn(tmp_path / "no_suffix", 0)
    assert format_of(path) == "onnx"
    x = torch.randn(5, 1, 8, 8)
    torch.testing.assert_close(Networks.from_files([path]).evaluate(x)[0], expected(t, x), atol=1e-5, rtol=1e-5)


def test_graphs_of_equal_shapes_that_compute_otherwise_are_told_apart(tmp_path: Path) -> None:
    def mlp(name: str, operation: str) -> Path:
        node = onnx.helper.make_node
        nodes = [node("Gemm", ["x", "a"], ["h"]), node(operation, ["h"], ["z"]), node("Gemm", ["z", "b"], ["y"])]
        return write(tmp_path / name, nodes, {"a": torch.randn(3, 4), "b": torch.randn(4, 2)}, ["N", 3])

    with pytest.raises(ScaleGMNError, match=r"tanh: expected the architecture of .*relu; got 3-4-2 \[relu\] and 3-4-2"):
        Networks.from_files([mlp("relu", "Relu"), mlp("tanh", "Tanh")])


def test_more_operations(tmp_path: Path) -> None:
    torch.manual_seed(0)
    t = {"up": torch.randn(2, 3, 4, 4), "gain": torch.randn(3), "shift": torch.randn(3), "fc": torch.randn(3, 2),
         "low": torch.tensor(0.0), "high": torch.tensor(6.0)}  # fmt: skip
    node = onnx.helper.make_node
    nodes = [
        node("ConvTranspose", ["x", "up"], ["a"], kernel_shape=[4, 4], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Clip", ["a", "low", "high"], ["b"]),
        node("Transpose", ["b"], ["c"], perm=[0, 2, 3, 1]),
        node("LayerNormalization", ["c", "gain", "shift"], ["d"], axis=-1, epsilon=1e-5),
        node("HardSwish", ["d"], ["e"]),
        node("ReduceMean", ["e"], ["f"], axes=[1, 2], keepdims=0),
        node("MatMul", ["f", "fc"], ["y"]),
    ]
    networks = Networks.from_files([write(tmp_path / "net.onnx", nodes, t, ["N", 2, 3, 3])]).to(dtype=torch.float64)
    x = torch.randn(4, 2, 3, 3, dtype=torch.float64)
    d = {k: v.double() for k, v in t.items()}
    z = F.relu6(F.conv_transpose2d(x, d["up"], None, 2, 1)).permute(0, 2, 3, 1)
    z = F.hardswish(F.layer_norm(z, (3,), d["gain"], d["shift"])).mean((1, 2)) @ d["fc"]
    torch.testing.assert_close(networks.evaluate(x)[0], z, atol=1e-9, rtol=1e-9)
    moved = Transform.sample(networks.architecture, 1).apply(networks)
    torch.testing.assert_close(moved.evaluate(x)[0], z, atol=1e-9, rtol=1e-9)


EXPORTED = (
    "ResNet, padded shortcuts", "SE-ResNet", "EfficientNet", "U-Net, bilinear and GroupNorm", "TCN",
    "InstanceNorm and upsampling", "MultiheadAttention", "TransformerEncoder", "ViT", "GPT",
)  # fmt: skip
CASES = [(name, open_batch) for name in EXPORTED for open_batch in (False, True)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "open_batch"), [*CASES, ("Normalised input", False)])
def test_what_torch_exports(tmp_path: Path, name: str, open_batch: bool) -> None:
    example = GALLERY[name]
    module = build(example, 1)[0].float()
    x = example.inputs(1, torch.Generator().manual_seed(0))
    x = x if example.tokens else x.float()
    path = tmp_path / "net.onnx"
    names: dict[str, object] = {"input_names": ["x"], "dynamic_axes": {"x": {0: "batch"}}} if open_batch else {}
    logging.disable(logging.WARNING)
    torch.onnx.export(module, (x,), str(path), dynamo=False, **names)
    logging.disable(logging.NOTSET)
    networks = Networks.from_files([path])
    given = Networks.from_modules([module])
    assert str(networks.architecture).partition("[")[2] == str(given.architecture).partition("[")[2]  # activations
    expected, inputs = example.answers([module], x), example.moved(x)
    torch.testing.assert_close(networks.evaluate(inputs), expected, atol=1e-4, rtol=1e-4)
    moved = Transform.sample(networks.architecture, 1).apply(networks.to(dtype=torch.float64))
    double = inputs if example.tokens else inputs.double()
    torch.testing.assert_close(moved.evaluate(double).float(), expected, atol=1e-4, rtol=1e-4)


def test_normalisations_in_parts_are_put_together(tmp_path: Path) -> None:
    torch.manual_seed(0)
    t = {"w": torch.randn(4, 4), "two": torch.tensor(2.0), "eps": torch.tensor(0.1), "gain": torch.randn(4)}
    t |= {"root": torch.tensor(2.0).sqrt(), "one": torch.tensor(1.0), "half": torch.tensor(0.5)}
    node, last = onnx.helper.make_node, {"axes": [-1]}
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("ReduceMean", ["a"], ["mean"], **last), node("Sub", ["a", "mean"], ["d"]),
        node("Pow", ["d", "two"], ["s"]), node("ReduceMean", ["s"], ["var"], **last),
        node("Add", ["var", "eps"], ["v"]), node("Sqrt", ["v"], ["sd"]),
        node("Div", ["d", "sd"], ["n"]), node("Mul", ["n", "gain"], ["g"]),
        node("Div", ["g", "root"], ["q"]), node("Erf", ["q"], ["e"]), node("Add", ["e", "one"], ["f"]),
        node("Mul", ["g", "f"], ["h"]), node("Mul", ["h", "half"], ["k"]), node("MatMul", ["k", "w"], ["y"]),
    ]  # fmt: skip
    networks = Networks.from_files([write(tmp_path / "net.onnx", nodes, t, ["N", 4], opset=13)])
    x = torch.randn(6, 4)
    z = F.gelu(F.layer_norm(x @ t["w"], (4,), t["gain"], eps=0.1)) @ t["w"]
    torch.testing.assert_close(networks.evaluate(x)[0], z, atol=1e-5, rtol=1e-5)
    assert [layer.activation.name for layer in networks.architecture.layers][-2:] == ["gelu", "identity"]
    assert len(networks.architecture.shared) == 1


def test_sizes_that_are_open_are_refused_where_the_graph_computes_with_them(tmp_path: Path) -> None:
    node = onnx.helper.make_node
    nodes = [node("Shape", ["x"], ["s"]), node("Reshape", ["x", "s"], ["r"]), node("MatMul", ["r", "w"], ["y"])]
    path = write(tmp_path / "net.onnx", nodes, {"w": torch.randn(3, 2)}, ["N", "T", 3])
    with pytest.raises(ScaleGMNError, match="sizes that are open; export it with fixed ones but the batch"):
        Networks.from_files([path])
