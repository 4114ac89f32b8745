# %% [markdown]
# # 4 · Write your own equivariant layer, and let the test kit find its mistake
#
# Suppose you have an idea for a layer that reads networks. Does it respect their symmetries? It is easy to think so and
# be wrong. `scalegmn.testing` applies random symmetries and compares the results. In this tutorial you build a small
# layer, get it wrong twice, and repair it. Running it takes a few seconds.

# %%
import os

import torch
from torch import Tensor, nn

from scalegmn import Architecture, Networks
from scalegmn.testing import (
    assert_equivariant,
    assert_invariant,
    equivariance_error,
    random_networks,
)

torch.manual_seed(0)
quick = "SCALEGMN_QUICK" in os.environ  # smaller numbers, for the tests that run this page
count = 4 if quick else 16

relu = Architecture.mlp([2, 16, 16, 1], "relu")
print(relu, relu.groups)
networks = random_networks(relu, count)  # in float64, where mistakes and rounding are far apart

# %% [markdown]
# ## A first layer
#
# The layer should compute a vector for every neuron of layer 1. Such a neuron has two incoming weights and a bias. A
# linear map of them treats all neurons alike, so permuting the neurons permutes the vectors. A ReLU neuron can also be
# scaled: multiply its incoming weights and its bias by q > 0, and its outgoing weights by 1/q. Its vector should then
# be multiplied by q as well.


# %%
class Neurons(nn.Module):
    """A vector (B, 16, width) for every neuron of layer 1."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.map = nn.Linear(3, width, bias=True)

    def forward(self, networks: Networks) -> Tensor:
        incoming = networks.weights[0][..., 0]  # (B, 16, 2)
        bias = networks.biases[1].unsqueeze(-1)  # (B, 16, 1)
        vectors: Tensor = self.map(torch.cat([incoming, bias], -1))
        return vectors


# %% [markdown]
# A `Transform` g holds one symmetry for each network. `g.vertex(1, x)` permutes and scales the vectors x of layer 1
# like the neurons themselves, so that is what should happen to the output of the layer: `act` tells the test kit.


# %%
def check(layer: nn.Module) -> None:
    try:
        assert_equivariant(layer.double(), networks, act=lambda g, x: g.vertex(1, x))
        print("equivariant")
    except AssertionError as error:
        print("not equivariant:", error)


check(Neurons())

# %% [markdown]
# ## Which symmetry is broken?
#
# `Transform.sample` can leave out scales or permutations, which tells the two apart.

# %%
from scalegmn import Transform  # noqa: E402

layer = Neurons().double()
for name, options in (("permutations", {"scale": False}), ("scales", {"permute": False})):
    g = Transform.sample(relu, count, **options)
    error = equivariance_error(layer, networks, g, act=lambda g, x: g.vertex(1, x))
    print(f"{name:13} error {error.max():.1e}")

# %% [markdown]
# Permutations are fine, scales are not: the linear map adds its own bias, whatever the scale of the neuron. Without
# that bias the layer is right.


# %%
class Scaled(Neurons):
    """The same without a constant."""

    def __init__(self, width: int = 8) -> None:
        super().__init__(width)
        self.map = nn.Linear(3, width, bias=False)


check(Scaled())

# %% [markdown]
# ## A nonlinear layer
#
# A linear layer alone cannot do much. But apply a SiLU to its output, and the symmetry is broken again, since SiLU(q x)
# is not q SiLU(x):


# %%
class Curved(Scaled):
    """With a nonlinearity that depends on the scale."""

    def forward(self, networks: Networks) -> Tensor:
        return nn.functional.silu(super().forward(networks))


check(Curved())

# %% [markdown]
# The paper's solution: multiply the vector by a function that does *not* see the scale, because it reads the vector
# divided by its length. `ScaleEquivariant` is this layer, and you can apply it to the output of your own.

# %%
from scalegmn.nn.scale import ScaleEquivariant  # noqa: E402


class Gated(Scaled):
    """Gamma x times a net of x / |x|."""

    def __init__(self, width: int = 8) -> None:
        super().__init__(width)
        self.net = ScaleEquivariant([relu.groups[1]], width, width)

    def forward(self, networks: Networks) -> Tensor:
        vectors: Tensor = self.net(relu.groups[1], super().forward(networks))
        return vectors


check(Gated())

# %% [markdown]
# ## From neurons to one answer
#
# A model that answers a question about the whole network must be invariant. Dividing each vector by its length removes
# the scale, and a sum over neurons removes the order.


# %%
class Answer(nn.Module):
    """One number per network."""

    def __init__(self, keep_scales: bool) -> None:
        super().__init__()
        self.layer, self.keep_scales = Gated(), keep_scales
        self.last = nn.Linear(8, 1)

    def forward(self, networks: Networks) -> Tensor:
        x = self.layer(networks)
        x = x if self.keep_scales else x / x.norm(dim=-1, keepdim=True)
        answer: Tensor = self.last(x.square().sum(1))
        return answer


for keep_scales in (True, False):
    try:
        assert_invariant(Answer(keep_scales).double(), networks)
        print(f"keep_scales={keep_scales}: invariant")
    except AssertionError as error:
        print(f"keep_scales={keep_scales}:", error)

# %% [markdown]
# ## Is it too symmetric?
#
# A model that always answers 0 passes every test above. So test the opposite too: networks that compute different
# functions should get different answers.

# %%
model = Answer(keep_scales=False).double()
answers = model(networks).squeeze(-1)
print(f"{len(answers.detach().unique())} different answers about {count} networks")
assert len(answers.unique()) == count

# %% [markdown]
# In a test file you need just two lines, `assert_equivariant(layer, networks, act=...)` and `assert_invariant(model,
# networks)`. They raise an AssertionError that names the network and the size of the error. `scalegmn check` runs the
# same tests on every model of the library.
#
# ## Where to go from here
#
# - [Tutorial 6](06_own_method.py): turn your layer into a method, and compare it with the others.
# - [Symmetry](../symmetry.md) has the groups of all activations, and [the model](../model.md) the layers of ScaleGMN.
