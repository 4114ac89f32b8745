"""Every supported pattern computes what the module computes, moves along its symmetry, and comes back."""

from __future__ import annotations

import pytest
import torch
from convert.examples import EXAMPLES, Example, randomise
from torch import nn

from scalegmn.core.networks import Networks
from scalegmn.core.transform import Transform


def build(example: Example, count: int = 3, seed: int = 0) -> list[nn.Module]:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    return [randomise(example.make(), generator) for _ in range(count)]


def outputs(modules: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return torch.stack([m(x) for m in modules])


@pytest.fixture(params=EXAMPLES.values(), ids=EXAMPLES)
def example(request: pytest.FixtureRequest) -> Example:
    found = request.param
    assert isinstance(found, Example)
    return found


def test_networks_compute_what_the_modules_compute(example: Example) -> None:
    modules = build(example)
    networks = Networks.from_modules(modules)
    x = 2 * torch.rand(5, *example.shape) - 1
    assert "-".join(str(layer.size) for layer in networks.architecture.layers) == example.sizes
    torch.testing.assert_close(networks.evaluate(x), outputs(modules, x), atol=1e-6, rtol=1e-6)


def test_unmodified_weights_come_back_bit_for_bit(example: Example) -> None:
    modules = build(example)
    networks = Networks.from_modules(modules)
    for module, state, copy in zip(modules, networks.to_state_dicts(), networks.to_modules(), strict=True):
        expected = module.state_dict()
        assert list(state) == list(expected)
        for key, tensor in expected.items():
            assert tensor.dtype == state[key].dtype
            assert torch.equal(tensor, state[key]), key
            assert torch.equal(tensor, copy.state_dict()[key]), key
        assert type(copy) is type(module)


def test_a_symmetry_preserves_the_function_and_returns_as_modules(example: Example) -> None:
    modules = [m.double() for m in build(example)]
    networks = Networks.from_modules(modules)
    generator = torch.Generator().manual_seed(1)
    moved = Transform.sample(networks.architecture, 3, generator).apply(networks)
    x = 2 * torch.rand(5, *example.shape, dtype=torch.float64) - 1
    expected = outputs(modules, x)
    torch.testing.assert_close(moved.evaluate(x), expected, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(outputs(moved.to_modules(), x), expected, atol=1e-9, rtol=1e-9)
    if any(slot is not None for slot in networks.architecture.slots):
        assert not torch.allclose(moved.parameters, networks.parameters)
    back = Networks.from_modules(moved.to_modules())
    torch.testing.assert_close(back.parameters, moved.parameters, atol=1e-12, rtol=1e-12)


def test_modules_are_left_alone(example: Example) -> None:
    (module,) = build(example, 1)
    module.train()
    before = {k: t.clone() for k, t in module.state_dict().items()}
    attributes = set(module.__dict__)
    Networks.from_modules([module])
    assert module.training
    assert set(module.__dict__) == attributes
    for key, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[key])
