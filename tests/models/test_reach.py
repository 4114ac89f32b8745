"""Networks of sizes that a model has never seen: the laws hold, and what cannot be read is refused."""

from __future__ import annotations

import copy

import pytest
import torch

from scalegmn.core.architecture import Architecture
from scalegmn.core.networks import Networks
from scalegmn.errors import ScaleGMNError
from scalegmn.models.heads import Editor, Metanetwork
from scalegmn.models.peers.statnn import StatNN
from scalegmn.models.reach import unreadable
from scalegmn.models.scalegmn import GMN, ScaleGMN
from scalegmn.testing import assert_equivariant, assert_invariant, equivariance_error, random_networks

KNOWN = {
    "relu": [Architecture.mlp([4, 16, 8, 2], "relu")],
    "sine": [Architecture.mlp([4, 6, 6, 2], "sine"), Architecture.mlp([4, 9, 2], "sine")],
    "cnn": [Architecture.cnn([1, 4, 6], 3, "relu", kernel=5), Architecture.cnn([1, 4, 6], 3, "tanh", kernel=3)],
}
UNSEEN = {
    "relu": [Architecture.mlp([4, 24, 3, 2], "relu"), Architecture.mlp([4, 5, 2], "relu"), Architecture.mlp([3, 5, 1])],
    "sine": [Architecture.mlp([4, 1, 13, 2], "sine")],
    "cnn": [Architecture.cnn([1, 7, 2], 3, "relu", kernel=3), Architecture.cnn([1, 9], 3, "tanh", kernel=4)],
}


@pytest.mark.parametrize("backward", ["none", "auto"])
@pytest.mark.parametrize("kind", KNOWN)
def test_the_laws_hold_on_unseen_sizes(kind: str, backward: str) -> None:
    torch.manual_seed(0)
    options = {"width": 8, "layers": 2, "backward": backward, "edge_positions": True}
    reader = ScaleGMN(KNOWN[kind], 3, **options).double()  # type: ignore[arg-type]
    editor = Editor(ScaleGMN(KNOWN[kind], **options)).double()  # type: ignore[arg-type]
    for architecture in UNSEEN[kind]:
        assert reader.reads(architecture) is None
        networks = random_networks(architecture, 3)
        assert_invariant(reader, networks)
        assert_equivariant(editor, networks)
        # A negative control: other networks get other answers.
        assert (reader(networks)[0] - reader(networks)[1]).abs().max() > 1e-6
    if kind == "relu":
        permuted = GMN(KNOWN[kind], 3, width=8, layers=2).double()
        assert equivariance_error(permuted, random_networks(UNSEEN[kind][0], 3)).max() > 1e-3


def test_an_unseen_network_is_read_as_if_it_had_been_in_the_list() -> None:
    """The weights of a model do not depend on widths, so a longer list gives the same function."""
    known, unseen = KNOWN["relu"], Architecture.mlp([4, 12, 7, 2], "relu")
    short = ScaleGMN(known, 3, width=8, layers=2, probes=4).double()
    full = ScaleGMN([*known, unseen], 3, width=8, layers=2, probes=4).double()
    full.load_state_dict(short.state_dict())
    networks = random_networks(unseen, 4)
    assert torch.equal(short(networks), full(networks))
    assert torch.equal(copy.deepcopy(short)(networks), full(networks))


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [
        (Architecture.mlp([4, 8, 8, 8, 2]), "at most 4 layers"),
        (Architecture.mlp([5, 8, 2]), "at most 4 inputs"),
        (Architecture.mlp([4, 8, 3]), "at most 2 outputs"),
        (Architecture.mlp([4, 8, 8, 2], "tanh"), "activation tanh is not among identity, relu"),
        (Architecture.cnn([1, 4], 2, kernel=3), "kernels of at most 1x1"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(architecture: Architecture, reason: str) -> None:
    found = unreadable(architecture, KNOWN["relu"])
    assert found is not None
    assert f"built for 4-16-8-2 [relu]; got {architecture} ({reason})" in found
    model = Editor(GMN(KNOWN["relu"], width=8, layers=2))
    with pytest.raises(ScaleGMNError, match=f"architecture: .*{reason}"):
        model(random_networks(architecture, 1, dtype=torch.float32))


def test_probes_need_the_same_inputs() -> None:
    model: Metanetwork = ScaleGMN(KNOWN["relu"], 3, width=8, layers=2, probes=4)
    assert "another shape than the probes" in str(model.reads(Architecture.mlp([3, 8, 2])))
    assert model.reads(Architecture.mlp([4, 9, 2])) is None
    with pytest.raises(ScaleGMNError, match=r"probes: networks with different inputs .* use probes = 0"):
        ScaleGMN([Architecture.mlp([2, 3, 1]), Architecture.mlp([3, 3, 1])], 1, probes=2)


def test_models_of_fixed_size_refuse_other_sizes() -> None:
    model = StatNN(KNOWN["relu"], 1)
    other = Architecture.mlp([4, 16, 9, 2])
    with pytest.raises(ScaleGMNError, match=r"built for 4-16-8-2 \[relu\]; got 4-16-9-2 \[relu\]"):
        model(Networks(other, torch.randn(1, other.parameters)))
