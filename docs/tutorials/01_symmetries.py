# %% [markdown]
# # 1 · Networks that hold pictures, and their symmetries
#
# A network can *be* a picture: give it the position of a pixel, and it answers with the brightness there. Such networks
# are called implicit neural representations (INRs). In this tutorial you fit some, change all of their weights without
# changing their pictures, train a model that recognises digits from weights and is not fooled by such changes, and let
# a model that comes with the package read networks that you fitted.
#
# Running it takes about a minute. Everything runs on the CPU.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.ndimage import zoom

import scalegmn
from scalegmn import Networks, Transform
from scalegmn.inference.trained import Trained
from scalegmn.training.loop import train
from scalegmn.training.progress import Progress
from scalegmn.training.recipe import make_recipe
from scalegmn.zoo.images.collections import Images, load_images
from scalegmn.zoo.inr.build import build_inr_zoo

torch.manual_seed(0)
quick = "SCALEGMN_QUICK" in os.environ  # smaller numbers, for the tests that run this page

# %% [markdown]
# ## A folder of networks
#
# `build_inr_zoo` fits one small network to each picture. Here the pictures are the 8x8 digits that come with
# scikit-learn, and the networks have two hidden layers of 32 sine neurons. The result is a *zoo*: a folder of networks
# with a table of what is known about them.

# %%
zoo = build_inr_zoo(load_images("digits"), "digits", count=80 if quick else 600)
print(zoo)
print("columns:", ", ".join(zoo.columns))
print("one network:", zoo.architecture)

# %% [markdown]
# Each network is a row of 1,185 numbers. To see its picture, evaluate it at every pixel; `zoo.canvas` knows where the
# pixels are.

# %%
networks = zoo.batch(zoo.split("test")[:8])
labels = zoo.column("label")[zoo.split("test")[:8]]
pictures = zoo.canvas.render(networks)

figure, axes = plt.subplots(1, 8, figsize=(9, 1.5))
for axis, picture, label in zip(axes, pictures, labels, strict=True):
    axis.imshow(picture[..., 0].clamp(0, 1).numpy(), cmap="gray")
    axis.set_title(int(label))
    axis.set_axis_off()

# %% [markdown]
# ## Other weights, the same picture
#
# The hidden neurons of a layer have no order: swap two of them together with their weights, and the network computes
# the same function. And since sin(-x) = -sin(x), you may flip the signs of all weights into a sine neuron (and of its
# bias) if you also flip those of the weights out of it. For a ReLU neuron any positive factor would do. The library
# derives these symmetries from the architecture:

# %%
print(zoo.architecture.groups)
moved = Transform.sample(zoo.architecture, len(networks)).apply(networks)

changed = (moved.parameters != networks.parameters).double().mean()
difference = (zoo.canvas.render(moved) - pictures).abs().max()
print(f"{100 * changed:.0f} % of the weights are different")
print(f"the largest difference of a pixel is {difference:.0e}")


# %%
def show(which: Networks, number: int, axes: list[plt.Axes]) -> None:
    weights = which.weights[1][number, :, :, 0]
    limit = weights.abs().max()
    axes[0].imshow(weights.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit)
    axes[1].imshow(zoo.canvas.render(which)[number, ..., 0].clamp(0, 1).numpy(), cmap="gray")
    for axis in axes:
        axis.set_axis_off()


figure, axes = plt.subplots(2, 2, figsize=(4, 4))
show(networks, 0, list(axes[0]))
show(moved, 0, list(axes[1]))
axes[0][0].set_title("weights of layer 2")
axes[0][1].set_title("picture")

# %% [markdown]
# ## Models that read weights
#
# Now train two models to say which digit a network draws, from its weights alone. The MLP takes the 1,185 numbers as
# they are. ScaleGMN passes messages along the connections of the network, and its layers respect permutations and sign
# flips by construction. A *recipe* describes how a model is trained; the two recipes differ only in the model.


# %%
def fit(name: str, **options: object) -> Trained:
    recipe = make_recipe(
        {
            "zoo": str(zoo.path),
            "task": "classification",
            "model": {"name": name, **options},
            "training": {"epochs": 1 if quick else 10, "batch": 32, "lr": 2e-3, "device": "cpu"},
        }
    )
    results = train(recipe, f"runs/{name}", progress=Progress(name, quiet=True))
    print(f"{name}: test accuracy {100 * results['test']['accuracy']:.1f} %")
    return scalegmn.load(f"runs/{name}")


readers = {
    "mlp": fit("mlp", width=64),
    "scalegmn": fit("scalegmn", width=16, layers=2, probes=32, edge_updates=False),
}

# %% [markdown]
# ## The same pictures again
#
# The transformed networks draw the same digits, so a good model gives the same answers about them.

# %%
for name, reader in readers.items():
    before = [answer["label"] for answer in reader.predict(networks)]
    after = [answer["label"] for answer in reader.predict(moved)]
    print(f"{name:9} before {before}\n{'':9} after  {after}")

# %% [markdown]
# ScaleGMN gives the same answers because it cannot do otherwise: these symmetries change its outputs only by rounding.
# `evaluate` with a `transform_seed` applies random symmetries to a whole split:

# %%
for name, reader in readers.items():
    before, after = (reader.evaluate(zoo, transform_seed=seed).outputs for seed in (None, 0))
    print(f"{name:9} largest change of an output: {(before - after).abs().max():.1e}")

# %% [markdown]
# ## A model that comes with the package
#
# You need not train anything to read networks. `scalegmn models --pretrained` lists the trained models in the package;
# `mnist` reads INRs of handwritten digits of 28x28 pixels. Let it read new ones: take one 8x8 digit of each class,
# enlarge it to the size of MNIST, and fit a network to it. The model has seen neither these writers nor such blurred
# pictures, so do not expect it to be right every time.

# %%
digits = load_images("digits")
chosen = [int(np.flatnonzero(digits.labels == label)[1]) for label in range(10)]
enlarged = [np.pad(zoom(digits.pixels[i].astype(float), 20 / 8), 4).clip(0, 255) for i in chosen]
pixels, for_test = np.stack(enlarged).astype(np.uint8), np.zeros(10, dtype=bool)
source = Images("enlarged", pixels, digits.labels[chosen], for_test)
own = build_inr_zoo(source, "enlarged", count=2 if quick else None)

shipped = scalegmn.load("mnist")
print(shipped)
found = shipped.read(own)
for note in found.notes():
    print("note:", note)  # what you should know before you believe the answers
answers = shipped.predict(found)

# %% [markdown]
# Above each picture is the model's answer from the weights of its network. On the command line, with a file of your
# own: `scalegmn predict mnist mine.pt`.

# %%
figure, axes = plt.subplots(1, len(own), figsize=(9, 1.5))
for axis, picture, answer in zip(axes, own.canvas.render(own.batch()), answers, strict=True):
    axis.imshow(picture[..., 0].clamp(0, 1).numpy(), cmap="gray")
    axis.set_title(f"{answer['label']} ({100 * answer['probability']:.0f} %)", fontsize=8)
    axis.set_axis_off()

# %% [markdown]
# Shuffle the neurons of these networks, and the answers stay the same:

# %%
disguised = Transform.sample(own.architecture, len(own)).apply(own.batch())
again = shipped.predict(shipped.read(disguised))
print("before", [answer["label"] for answer in answers])
print("after ", [answer["label"] for answer in again])
assert [answer["label"] for answer in again] == [answer["label"] for answer in answers]

# %% [markdown]
# ## Where to go from here
#
# - [Tutorial 2](02_checkpoints.py): predict something about your own checkpoints.
# - [Tutorial 3](03_editing.py): change a picture by changing weights.
# - [Symmetry](../symmetry.md) has the rules for every activation.
