"""INRs as a person might write them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scalegmn.zoo.store.zoo import Zoo


class Sine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(30.0 * x)


class Siren(nn.Module):
    """A person's own INR, with names of its own."""

    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.seq = nn.Sequential(nn.Linear(2, hidden), Sine(), nn.Linear(hidden, hidden), Sine(), nn.Linear(hidden, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.seq(x) + 0.5


def sirens(zoo: Zoo, count: int) -> list[Siren]:
    """Networks of the zoo as such modules."""
    modules = []
    for state in zoo.batch(list(range(count))).to_state_dicts():
        module = Siren()
        module.load_state_dict(dict(zip(module.state_dict(), state.values(), strict=True)))
        modules.append(module)
    return modules
