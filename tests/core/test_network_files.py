"""Networks in files: one in each, in the order that the file or its names tell."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from convert.examples import EXAMPLES
from modules import assert_same_states, mlp, resnets
from torch import nn

from scalegmn.convert.formats.files import write
from scalegmn.core.networks import Networks
from scalegmn.errors import ScaleGMNError
from scalegmn.testing import random_networks


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".safetensors"])
def test_files_hold_one_network_each(tmp_path: Path, suffix: str) -> None:
    modules = resnets(3)
    networks = Networks.from_modules(modules)
    paths = [tmp_path / f"{i}{suffix}" for i in range(3)]
    networks.to_files(paths)
    again = Networks.from_files(paths, like=modules[0])
    assert torch.equal(again.parameters, networks.parameters)
    assert_same_states(again.to_state_dicts(), [dict(m.state_dict()) for m in modules])
    with pytest.raises(ScaleGMNError, match="expected one for each of 3"):
        networks.to_files(paths[:2])
    with pytest.raises(ScaleGMNError, match="got one of them twice"):
        networks.to_files([*paths[:2], paths[0]])
    before = paths[0].read_bytes()
    with pytest.raises(ScaleGMNError, match="expected a name that ends in"):
        networks[[2, 1, 0]].to_files([*paths[:2], tmp_path / "2.txt"])
    assert paths[0].read_bytes() == before
    assert sorted(tmp_path.iterdir()) == paths


def test_a_deep_chain_in_safetensors_keeps_its_order(tmp_path: Path) -> None:
    module = mlp(4, *[4] * 7, 4)
    Networks.from_modules([module]).to_files([tmp_path / "deep.safetensors"])
    networks = Networks.from_files([tmp_path / "deep.safetensors"], activation="relu")
    x = torch.rand(5, 4)
    torch.testing.assert_close(networks.evaluate(x)[0], module(x).detach())


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("name", ["layer norm", "scaled layer norm", "prelu", "residual mlp"])
def test_files_are_read_again_by_architecture(tmp_path: Path, name: str, suffix: str) -> None:
    a = Networks.from_modules([EXAMPLES[name].make()]).architecture
    networks = random_networks(a, 1)
    networks.to_files([tmp_path / f"a{suffix}"])
    assert torch.equal(Networks.from_files([tmp_path / f"a{suffix}"], like=a).parameters, networks.parameters)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_list_of_parameters_keeps_its_order(tmp_path: Path, suffix: str) -> None:
    shapes = [(8, 2), (8,), (8, 8), (8,), (8, 8), (8,), (1, 8), (1,)]
    values = nn.ParameterList(nn.Parameter(torch.randn(*shape)) for shape in shapes)
    write(nn.ModuleDict({"params": values}).state_dict(), tmp_path / f"a{suffix}")
    networks = Networks.from_files([tmp_path / f"a{suffix}"], activation="relu")
    assert torch.equal(networks.parameters[0], torch.cat([v.detach().flatten() for v in values]))


def named(**layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (
            named(first=nn.Linear(2, 8), second=nn.Linear(8, 8), last=nn.Linear(8, 8), top=nn.Linear(8, 1)),
            "first.bias and last.bias",
        ),
        (named(encode=nn.Linear(4, 2), decode=nn.Linear(2, 4)), "decode.weight and encode.weight"),
        (named(hidden=nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 8)), out=nn.Linear(8, 1)), None),
    ],
)
def test_safetensors_ordered_by_words_need_the_module(tmp_path: Path, module: nn.Module, words: str | None) -> None:
    expected = Networks.from_modules([module]).parameters
    for suffix in (".pt", ".safetensors"):
        write(module.state_dict(), tmp_path / f"a{suffix}")
        assert torch.equal(Networks.from_files([tmp_path / f"a{suffix}"], like=module).parameters, expected)
    assert torch.equal(Networks.from_files([tmp_path / "a.pt"], activation="relu").parameters, expected)
    if words is None:
        assert torch.equal(Networks.from_files([tmp_path / "a.safetensors"], activation="relu").parameters, expected)
        return
    with pytest.raises(ScaleGMNError, match=f"safetensors keeps no order, and the names {words} do not tell"):
        Networks.from_files([tmp_path / "a.safetensors"], activation="relu")
