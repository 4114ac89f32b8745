# %% [markdown]
# # 3 · Edit a picture by editing weights
#
# In [tutorial 1](01_symmetries.py) networks held pictures. Here you change such a picture by changing only weights: a
# model reads the weights of a network and returns new weights, whose picture is *dilated*, that is, its strokes are
# thicker. You train a small editor on tiny digits, look at what it does, and use one that comes with the package on
# larger ones.
#
# Running it takes about a minute.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.ndimage import zoom

import scalegmn
from scalegmn import Transform
from scalegmn.tasks.editing import dilate
from scalegmn.training.loop import train
from scalegmn.training.progress import Progress
from scalegmn.training.recipe import make_recipe
from scalegmn.zoo.images.collections import Images, load_images
from scalegmn.zoo.inr.build import build_inr_zoo

torch.manual_seed(0)
quick = "SCALEGMN_QUICK" in os.environ  # smaller numbers, for the tests that run this page

zoo = build_inr_zoo(load_images("digits"), "digits", count=60 if quick else 600)
print(zoo)

# %% [markdown]
# ## The goal
#
# The zoo keeps the picture that each network was fitted to. Dilation replaces each pixel by the brightest of the 3x3
# pixels around it.

# %%
test = zoo.split("test")[:6]
before = zoo.images(test)
wanted = dilate(before.numpy())


def sheet(**rows: torch.Tensor) -> None:
    _, axes = plt.subplots(len(rows), len(test), figsize=(6, 1.1 * len(rows)))
    for line, (name, pictures) in zip(axes, rows.items(), strict=True):
        for axis, picture in zip(line, pictures, strict=True):
            axis.imshow(picture[..., 0].numpy(), cmap="gray")
            axis.set_xticks([])
            axis.set_yticks([])
        line[0].set_ylabel(name, rotation=0, ha="right", va="center")


# On pictures of 8x8 pixels this is a strong effect: most holes are filled.
sheet(picture=before, dilated=torch.from_numpy(wanted))

# %% [markdown]
# ## Train an editor
#
# The editor sees weights only. Its loss is the difference between the picture of the new network and the dilated
# picture. It is equivariant: shuffle the neurons of a network, and the edited network is shuffled in the same way.

# %%
training = {"batch": 32, "lr": 3e-3, "schedule": "cosine", "device": "cpu"}
recipe = make_recipe(
    {
        "zoo": str(zoo.path),
        "task": {"name": "editing", "target": "dilation"},
        "model": {"name": "scalegmn-b", "width": 24, "layers": 3, "edge_updates": False},
        "training": {"epochs": 1 if quick else 12, **training},
    }
)
results = train(recipe, "run", progress=Progress("editor", quiet=True))
print(f"mean squared error on test networks: {results['test']['mse']:.4f}")

# %% [markdown]
# For comparison, the error of doing nothing:

# %%
networks = zoo.batch(zoo.split("test"))
targets = torch.from_numpy(dilate(zoo.images(zoo.split("test")).numpy())).float() / 255
print(f"without an edit: {(zoo.canvas.render(networks) - targets).square().mean():.4f}")

# %% [markdown]
# ## Look at it
#
# `edit` takes networks (or modules, state dicts, files) and returns the same kind of object. On the command line:
# `scalegmn edit run mine.pt --out edited.pt`.

# %%
editor = scalegmn.load("run")
networks = zoo.batch(test)
edited = editor.edit(networks)
after = zoo.canvas.render(edited).clamp(0, 1)
sheet(
    before=zoo.canvas.render(networks).clamp(0, 1),
    after=after,
    wanted=torch.from_numpy(wanted),
)

# %% [markdown]
# ## The edit depends on the picture alone
#
# Apply random symmetries to the networks and edit the results. You get the first edits with the same symmetries
# applied: other weights, but the same pictures.

# %%
g = Transform.sample(zoo.architecture, len(networks))
again = editor.edit(g.apply(networks))
difference = (zoo.canvas.render(again) - zoo.canvas.render(edited)).abs().max()
print(f"largest difference of a pixel: {difference:.0e}")
assert difference < 1e-2

# %% [markdown]
# ## Larger pictures
#
# An editor for digits of 28x28 pixels comes with the package: `mnist-dilation`. Here it edits networks that you fit to
# enlarged digits. On the command line: `scalegmn edit mnist-dilation mine.pt --out edited.pt`.

# %%
digits = load_images("digits")
enlarged = [np.pad(zoom(x.astype(float), 20 / 8), 4).clip(0, 255) for x in digits.pixels[:6]]
pixels, for_test = np.stack(enlarged).astype(np.uint8), np.zeros(6, dtype=bool)
large = build_inr_zoo(Images("large", pixels, digits.labels[:6], for_test), "large")

shipped = scalegmn.load("mnist-dilation")
sheet(
    before=large.canvas.render(large.batch()).clamp(0, 1),
    after=large.canvas.render(shipped.edit(large.batch())).clamp(0, 1),
    wanted=torch.from_numpy(dilate(large.images().numpy())),
)

# %% [markdown]
# ## Where to go from here
#
# - An editor with `copies = 4` in its recipe writes four networks, whose pictures are averaged; the result is much
#   better ([results](../results.md)).
# - `target = "contrast"` is the other edit that comes with the library. A task of your own is a class with a loss and
#   metrics ([training](../training.md)).
