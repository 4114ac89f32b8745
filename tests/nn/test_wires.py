"""Models read concatenation, groups, products, attention and shared weights, exactly."""

from __future__ import annotations

import pytest
import torch
from convert.gallery import GALLERY, build
from torch import nn

from scalegmn.audit import violation
from scalegmn.core.networks import Networks
from scalegmn.core.transform import Transform
from scalegmn.errors import ScaleGMNError
from scalegmn.models.heads import Editor
from scalegmn.models.method import Method
from scalegmn.models.peers.ng_gnn import NGGNN
from scalegmn.models.scalegmn import GMN, ScaleGMN, ScaleGMNB
from scalegmn.nn.kernels import apart, together

NAMES = ("DenseNet", "ResNeXt", "SE-ResNet", "ResNet, padded shortcuts", "ViT", "GPT, tied tokens")


def joined() -> nn.Module:
    """A grouped convolution with two sources and one target per group."""
    return nn.Sequential(nn.Conv1d(2, 8, 1), nn.Tanh(), nn.Conv1d(8, 4, 3, groups=4), nn.ReLU(), nn.Conv1d(4, 2, 1))


def networks_of(name: str) -> Networks:
    return Networks.from_modules([joined().double() for _ in range(2)] if name == "joined" else build(GALLERY[name]))


@pytest.mark.parametrize("name", [*NAMES, "joined"])
@pytest.mark.parametrize("method", [ScaleGMN, ScaleGMNB, GMN], ids=lambda m: m.name)
def test_invariant_and_equivariant(method: Method, name: str) -> None:
    networks = networks_of(name)
    a = networks.architecture
    torch.manual_seed(0)
    g = Transform.sample(a, 2, torch.Generator().manual_seed(0), spread=100, scale="scale" in method.symmetries)
    model = method([a], 3, width=8, layers=2).double().eval()
    model.prepare([networks])
    assert violation(model, networks, g) < 1e-10
    editor = Editor(method([a], width=8, layers=2)).double().eval()
    assert violation(editor, networks, g) < 1e-10
    with torch.no_grad():
        first, second = model(networks)
    assert not torch.allclose(first, second, rtol=1e-3)


@pytest.mark.parametrize("name", ["SE-ResNet", "ViT"])
def test_what_is_tied_may_not_move_alone(name: str) -> None:
    networks = networks_of(name)
    a = networks.architecture
    torch.manual_seed(0)
    model = ScaleGMNB([a], 3, width=8, layers=2).double().eval()
    g = Transform.identity(a, 2)
    layer = next(i for i, slot in enumerate(a.slots) if slot is not None and a.slots.count(slot) > 1)
    order = list(g.permutations)
    order[layer] = torch.arange(a.layers[layer].size).flip(0).expand(2, -1)
    alone = Transform(a, tuple(order), g.scales)
    assert violation(model, networks, alone) > 1e-6


def test_queries_reach_the_answer() -> None:
    """A change of the queries' weights is seen, though they send no messages of their own."""
    networks = networks_of("MultiheadAttention")
    a = networks.architecture
    torch.manual_seed(0)
    model = ScaleGMN([a], 3, width=8, layers=4).double().eval()
    changed = networks.replace(networks.parameters.clone())
    weight = changed.weights[1]
    assert weight is not None
    weight[:, :8] = weight[:, :8].roll(1, 1)
    with torch.no_grad():
        assert not torch.allclose(model(networks), model(changed), rtol=1e-6)


def test_others_refuse_in_one_line() -> None:
    with pytest.raises(ScaleGMNError, match=r"ng-gnn: expected layers that are complete.*use gmn or scalegmn"):
        NGGNN([networks_of("DenseNet").architecture], 3)


def test_groups_apart_and_together() -> None:
    w = torch.randn(2, 6, 2, 5)
    wide = apart(w, 3)
    assert wide.shape == (2, 6, 6, 5)
    assert torch.equal(together(wide, 3), w)
    assert wide.count_nonzero() == w.count_nonzero()
