"""Files that hold several networks: one of them is read, the rest rides along."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from scalegmn.convert.layout import Layout
from scalegmn.core.networks import Networks
from scalegmn.core.schema import from_json, to_json
from scalegmn.core.transform import Transform
from scalegmn.errors import ScaleGMNError


def mlp(*sizes: int) -> nn.Sequential:
    parts = [p for a, b in pairwise(sizes) for p in (nn.Linear(a, b), nn.BatchNorm1d(b), nn.Tanh())]
    return nn.Sequential(*parts[:-2])


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = mlp(3, 8, 2), mlp(3, 5, 1)


class Actor(nn.Module):
    """Declares its part and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = mlp(3, 8, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.actor(x)
        return y


@pytest.mark.parametrize("prefix", ["actor", "actor."])
@pytest.mark.parametrize("suffix", ["th", "safetensors", ""])
def test_a_part_is_read_and_the_rest_rides_along(tmp_path: Path, prefix: str, suffix: str) -> None:
    agent = Agent().eval()
    path = tmp_path / f"agent.{suffix}"
    (save_file if suffix == "safetensors" else torch.save)(agent.state_dict(), path)
    x = torch.rand(4, 3)
    networks = Networks.from_files([path], like=mlp(3, 8, 2), prefix=prefix)
    torch.testing.assert_close(networks.evaluate(x)[0], agent.actor(x))
    declared = Networks.from_files([path], like=Actor())
    assert torch.equal(declared.parameters, networks.parameters)
    for read in (networks, declared):
        moved = Transform.sample(read.architecture, 1, generator=torch.Generator().manual_seed(0)).apply(read)
        (state,) = moved.to_state_dicts()
        assert state.keys() == agent.state_dict().keys()
        assert all(torch.equal(state[k], t) for k, t in agent.state_dict().items() if k.startswith("critic."))
        assert not torch.equal(state["actor.0.weight"], agent.actor[0].weight)
        again = Agent().eval()
        again.load_state_dict(state)
        torch.testing.assert_close(again.actor(x), agent.actor(x))
        torch.testing.assert_close(moved.to_modules()[0].eval()(x), agent.actor(x))


def test_a_longer_network_is_not_a_part(tmp_path: Path) -> None:
    long, short = mlp(3, 8, 2, 4).state_dict(), mlp(3, 8, 2)
    with pytest.raises(ScaleGMNError, match="which the architecture has not"):
        Networks.from_state_dicts([long], like=short)
    with pytest.raises(ScaleGMNError, match=r"no entry begins with 'critik\.'; names begin with actor, critic"):
        Networks.from_state_dicts([Agent().state_dict()], like=short, prefix="critik")


def test_a_layout_survives_json() -> None:
    networks = Networks.from_state_dicts([Agent().state_dict()], like=mlp(3, 8, 2), prefix="actor.")
    layout = networks.layout
    assert layout is not None
    assert from_json(Layout, to_json(layout), "layout") == layout
    broken = {**to_json(layout), "shapes": [["actor.0.weight"]]}
    with pytest.raises(ScaleGMNError, match=r"layout\.shapes\[0\]: expected"):
        from_json(Layout, broken, "layout")
