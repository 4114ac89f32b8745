"""Compiled iterations: layers of one kind share one compilation, and batches of any size use it."""

from __future__ import annotations

import pytest
import torch
from strategies import generator
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from scalegmn.core.architecture import Architecture
from scalegmn.core.networks import Networks
from scalegmn.errors import ScaleGMNError
from scalegmn.models.heads import Classifier, Editor
from scalegmn.models.peers.flat import FlatMLP
from scalegmn.models.scalegmn import ScaleGMN
from scalegmn.training.compiled import Compiled

# torch's compiler looks at gradients of tensors that have none.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")

SIREN = Architecture.mlp([2, 3, 3, 1], "sine")


def build(kind: str) -> Classifier | Editor:
    torch.manual_seed(0)
    if kind == "invariant":
        return ScaleGMN([SIREN], 3, width=8, layers=4).double()
    return Editor(ScaleGMN([SIREN], width=8, layers=4, backward="shared")).double()


def values_and_gradients(model: Classifier | Editor, count: int) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    parameters = torch.randn(count, SIREN.parameters, generator=generator(count), dtype=torch.float64)
    y = model(Networks(SIREN, parameters))
    y = y.parameters if isinstance(y, Networks) else y
    y.square().sum().backward()
    # Compiled layers compute states that nothing reads: their gradients are zeros instead of missing.
    named = model.named_parameters()
    return y.detach(), {n: p.grad.clone() for n, p in named if p.grad is not None and p.grad.abs().max() > 0}


@pytest.mark.parametrize(("kind", "compilations"), [("editor", 1), ("invariant", 2)])
def test_layers_share_compilations_and_other_batch_sizes_add_none(kind: str, compilations: int) -> None:
    """The last layer of an invariant model has no edge update and so is of another kind."""
    torch._dynamo.reset()
    plain, compiled, counter = build(kind), build(kind), CompileCounter()
    compiled.trunk.body.compile_layers(backend=counter)
    for count in (4, 7, 2, 5, 4):
        y, gradients = values_and_gradients(plain, count)
        found, also = values_and_gradients(compiled, count)
        torch.testing.assert_close(found, y, rtol=1e-9, atol=1e-12)
        assert also.keys() == gradients.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(also[name], gradient, rtol=1e-7, atol=1e-9)
        assert counter.frame_count == compilations


def test_corrections_are_compiled_around_or_refused() -> None:
    with pytest.raises(ScaleGMNError, match="compile: expected a model whose loss can be traced, got corrections"):
        Compiled(Editor(FlatMLP([SIREN], width=8), corrections=1, points=4))
    # Iterations are compiled one by one, so that nothing has to be traced.
    Compiled(Editor(ScaleGMN([SIREN], width=8, layers=1), corrections=1, points=4), backend="eager")
    Compiled(Editor(FlatMLP([SIREN], width=8)))
