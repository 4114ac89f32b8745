"""States are computed once, and let go of when nobody will read them again."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from scalegmn.core.architecture import Architecture
from scalegmn.models.heads import Editor
from scalegmn.models.scalegmn import ScaleGMN
from scalegmn.nn.body import MessagePassing, Start
from scalegmn.nn.layers import Iteration
from scalegmn.nn.spec import PassingSpec
from scalegmn.nn.states import States
from scalegmn.testing import random_networks

FLOWS = [("relu", "none"), ("relu", "dual"), ("relu", "reciprocal"), ("tanh", "shared")]
CASES = [(*flow, {"edge_updates": updates}) for flow in FLOWS for updates in (True, False)]
CASES += [(*flow, {"form": "paper"}) for flow in FLOWS if "dual" not in flow]


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, str, int]]:
    """How often each state of each iteration was computed."""
    count: Counter[tuple[int, str, int]] = Counter()
    alive: list[States] = []  # no two states share an id

    def watch(kind: type[States]) -> None:
        settle = kind.settle

        def counted(self: States, name: str, index: int) -> None:
            alive.append(self)
            count[id(self), name, index] += 1
            settle(self, name, index)

        monkeypatch.setattr(kind, "settle", counted)

    for kind in (Start, Iteration):
        watch(kind)
    return count


@pytest.mark.parametrize(("activation", "backward", "options"), CASES)
def test_no_state_is_computed_twice(
    activation: str, backward: str, options: dict[str, object], computed: Counter[tuple[int, str, int]]
) -> None:
    a = Architecture.mlp([3, 6, 5, 4, 2], activation)
    networks = random_networks(a, 2)
    trunk = ScaleGMN([a], width=8, layers=4, backward=backward, **options).double().eval()
    model = Editor(trunk).double().eval()
    with torch.no_grad():
        without = model(networks).parameters
    assert computed
    assert max(computed.values()) == 1
    torch.testing.assert_close(model(networks).parameters.detach(), without, rtol=0, atol=0)


def test_edges_are_let_go_of_where_no_gradient_needs_them() -> None:
    a = Architecture.mlp([3, 6, 5, 2], "relu")
    networks = random_networks(a, 2)
    body = MessagePassing([a], PassingSpec(width=8, layers=4, backward="none")).double()

    def held() -> list[int]:
        """How many states of edges each iteration holds after all vertices were read, the last iteration first."""
        states = body(networks)
        for layer in range(4):
            states.x(layer)
        counts = []
        while isinstance(states, Iteration):
            states = states.old
            counts.append(sum(name == "e" for name, _ in states.found))
        return counts

    assert held() == [3, 3, 3, 3]
    with torch.no_grad():
        assert held() == [3, 0, 0, 0]
