# %% [markdown]
# # 5 · Compare, align and merge two networks
#
# You have two files with different weights: are they the same network in disguise, relatives, or strangers? You trained
# the same network twice: can you average the two? Comparing the weights as they are does not help, because hidden
# neurons have no order and ReLU neurons have no fixed scale. In this tutorial you compare four checkpoints, undo a
# disguise, look at what lies between two networks, merge them, and prepare a network for 8-bit weights. No model is
# trained for this: the library only uses the symmetry of the architecture.
#
# Running it takes a few seconds.

# %%
import os
from copy import deepcopy

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import scalegmn
from scalegmn import Networks, Transform

quick = "SCALEGMN_QUICK" in os.environ  # smaller numbers, for the tests that run this page
width, epochs = (32, 4) if quick else (128, 20)

images, classes = load_digits(return_X_y=True)
x, y = torch.tensor(images / 8 - 1, dtype=torch.float32), torch.tensor(classes)
train_x, train_y, test_x, test_y = x[:1400], y[:1400], x[1400:], y[1400:]

# %% [markdown]
# ## Four checkpoints
#
# `first` and `second` are trained in the same way from different random weights. `disguised` is `first` with its hidden
# neurons shuffled and rescaled: it computes the same function. `tuned` is `first`, trained a little longer and then
# disguised as well.


# %%
def train(model: nn.Module, seed: int, epochs: int, rate: float = 3e-3) -> nn.Module:
    draw = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(epochs):
        for rows in torch.randperm(len(train_x), generator=draw).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(train_x[rows]), train_y[rows]).backward()
            optimizer.step()
    return model


def classifier(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    first, middle, last = nn.Linear(64, width), nn.Linear(width, width), nn.Linear(width, 10)
    return nn.Sequential(first, nn.ReLU(), middle, nn.ReLU(), last)


first, second = (train(classifier(seed), seed, epochs) for seed in (0, 1))
tuned = train(deepcopy(first), seed=2, epochs=1, rate=1e-3)

a, b, c = (Networks.from_modules([model]) for model in (first, second, tuned))
draw = torch.Generator().manual_seed(0)
disguised, c = (Transform.sample(a.architecture, 1, draw).apply(network) for network in (a, c))


def error(networks: Networks) -> Tensor:
    """The share of test images that each network gets wrong."""
    return (networks.evaluate(test_x).argmax(-1) != test_y).double().mean(-1)


others = {"disguised": disguised, "tuned": c, "second": b}
for name, network in {"first": a, **others}.items():
    print(f"{name:10} wrong on {100 * error(network).item():.1f} % of the test images")

# %% [markdown]
# ## Are they the same network?
#
# `same` answers yes or no; `distance` is 0 for two disguises of the same network and about 1 for strangers. The last
# column is the relative distance of the weights as they are stored: it cannot tell a disguise from a stranger.

# %%
for name, network in others.items():
    found = scalegmn.same(a, network)
    after, before = float(found.alignment.distance), float(found.alignment.before)
    print(f"first and {name:10} same: {bool(found)!s:6} distance {after:.3f}  as stored {before:.2f}")

assert scalegmn.same(a, disguised)
assert scalegmn.distance(a, c) < scalegmn.distance(a, b)

# %% [markdown]
# On the command line, `scalegmn compare first.pt second.pt --activation relu` answers the same question, and `scalegmn
# dedupe FOLDER` finds the copies in a folder.
#
# ## Undo the disguise
#
# `align` finds the permutations and scales that bring one network as close as possible to another. The pictures show a
# part of the second weight matrix of `first`, of the disguised copy as it is stored, and of the copy after alignment.

# %%
alignment = scalegmn.align(a, disguised)
shown = {"first": a, "disguised": disguised, "aligned": alignment.aligned}

figure, axes = plt.subplots(1, 3, figsize=(8, 2.9))
limit = a.weights[1].abs().max() / 2
for axis, (name, network) in zip(axes, shown.items(), strict=True):
    axis.imshow(network.weights[1][0, :32, :32, 0], cmap="RdBu_r", vmin=-limit, vmax=limit)
    axis.set_title(name)
    axis.set_axis_off()

left = (alignment.aligned.parameters - a.parameters).abs().max()
print(f"largest difference of a weight after alignment: {left:.0e}")

# %% [markdown]
# ## What lies between two networks?
#
# Average the weights of `first` and `second`, and the result is much worse than both, because their neurons do not
# correspond. `barrier` measures a loss along the straight line from one network to the other: with the second network
# as it is stored, with its neurons permuted to match the first, and with their scales matched as well (aligned).
# `restored` also corrects the mean and deviation of every neuron along the line to those in the two networks.

# %%
way = scalegmn.barrier(a, b, error, points=5 if quick else 15, inputs=train_x)

figure, axis = plt.subplots(figsize=(5.2, 3.2))
for name, curve in way.curves.items():
    axis.plot(way.at, 100 * curve, marker=".", label=name)
axis.set_xlabel("from first (0) to second (1)")
axis.set_ylabel("test error in percent")
axis.legend(frameon=False)

for name, height in way.heights.items():
    print(f"{name:10} at most {100 * height:5.1f} points above the line between the ends")

# %% [markdown]
# ## Merge
#
# `merge` aligns and averages. The result is one network of the same size, here about as good as its two parents. On the
# command line: `scalegmn merge first.pt second.pt -o merged.pt --activation relu`.

# %%
plain = a.replace((a.parameters + b.parameters) / 2)
merged = scalegmn.merge([a, b])
for name, network in {"weights averaged": plain, "aligned and merged": merged}.items():
    print(f"{name:19} wrong on {100 * error(network).item():.1f} % of the test images")
if not quick:
    assert error(merged) < error(plain)

# %% [markdown]
# ## Prepare for 8 bits
#
# When a weight matrix is rounded to 8 bits with a single step size, neurons with small weights lose most of their
# precision. But the scales of ReLU neurons can be chosen freely: `balance` chooses them so that rounding
# changes the outputs least. It helps most where the scales are bad, as in the disguised copy.

# %%
balanced = scalegmn.balance(disguised, int8=True, inputs=test_x)
before, after = (float(value) for value in balanced.int8)
print("error of the outputs after rounding to 8 bits:")
print(f"{100 * before:.1f} % before balancing, {100 * after:.1f} % after")
assert after < before

figure, axis = plt.subplots(figsize=(5.2, 2.6))
for name, network in {"disguised": disguised, "balanced": balanced.networks}.items():
    ranges = network.weights[0][0].abs().amax((1, 2))
    axis.semilogy(ranges.sort().values, label=name)
axis.set_xlabel("neurons of the first hidden layer, sorted")
axis.set_ylabel("largest weight")
axis.legend(frameon=False)

# %% [markdown]
# ## Where to go from here
#
# - [Compare and align](../align.md) has the definitions, all commands, and measurements on residual CNNs with
#   BatchNorm, tanh networks and SIRENs.
# - `to_modules` and `to_state_dicts` ([networks](../networks.md)) convert the results back to modules and state dicts.
