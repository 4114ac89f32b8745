# %% [markdown]
# # 2 · From a folder of your own checkpoints to accuracy predictions
#
# How good is a network? Usually you run it on a test set. A metanetwork, a network that reads networks, can estimate it
# from the weights alone. In this tutorial you make a folder of checkpoints like those that pile up in any project, turn
# it into a zoo, and train a model that predicts the test accuracy of a checkpoint it has not seen, without running it.
#
# If you already have a folder of checkpoints, skip the first part. Running it takes about a minute.

# %%
import csv
import os
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import scalegmn
from scalegmn.training.loop import train
from scalegmn.training.progress import Progress
from scalegmn.training.recipe import make_recipe
from scalegmn.zoo.imports.checkpoints import Ways, import_checkpoints

quick = "SCALEGMN_QUICK" in os.environ  # smaller numbers, for the tests that run this page
count = 40 if quick else 400

# %% [markdown]
# ## A folder of checkpoints
#
# These are small classifiers of digits with different learning rates, different scales of their initial weights, and
# different numbers of training images: some are good, some are not. Each is saved as a plain state dict, and a table
# holds the test accuracies.

# %%
images, classes = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(classes)
train_x, train_y, test_x, test_y = x[:1200], y[:1200], x[1200:], y[1200:]


def classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))


def trained(seed: int) -> tuple[nn.Module, float]:
    torch.manual_seed(seed)
    model = classifier()
    low, span = torch.tensor([-0.5, -2.5, 1.5]), torch.tensor([1.0, 1.5, 1.2])
    size, rate, examples = 10 ** (low + span * torch.rand(3))
    for parameter in model.parameters():
        parameter.data *= size
    optimizer = torch.optim.Adam(model.parameters(), lr=float(rate))
    for _ in range(30):
        chosen = torch.randint(int(examples), (64,))
        loss = nn.functional.cross_entropy(model(train_x[chosen]), train_y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    accuracy = (model(test_x).argmax(1) == test_y).double().mean()
    return model, accuracy.item()


folder = Path("checkpoints")
folder.mkdir()
rows = []
for seed in range(count):
    model, accuracy = trained(seed)
    torch.save(model.state_dict(), folder / f"{seed:03}.pt")
    rows.append((f"{seed:03}.pt", accuracy))
with open("labels.csv", "w", newline="") as file:
    csv.writer(file).writerows([("file", "label"), *rows])

accuracies = [accuracy for _, accuracy in rows]
print(f"{count} checkpoints, test accuracies {min(accuracies):.2f} to {max(accuracies):.2f}")

# %% [markdown]
# ## A zoo
#
# `import_checkpoints` reads the folder and the table. A state dict does not contain the activation, so you say which it
# is. For anything but a plain perceptron, give the module instead: `Ways(likes={"classifier": classifier()})`. Nothing
# in the files is executed. On the command line:
#
#     scalegmn zoo import checkpoints checkpoints zoos/mine --labels labels.csv --activation relu

# %%
zoo = import_checkpoints(folder, "labels.csv", "zoo", ways=Ways(activation="relu"))
print(zoo)
print({name: len(zoo.split(name)) for name in zoo.splits})
print("symmetries of the hidden layer:", zoo.architecture.groups[1])

# %% [markdown]
# ## Train a predictor
#
# The task is regression of the column `label`; `scalegmn-b` passes messages in both directions through the networks.
# The metric is Kendall's tau, which tells how often the predictions put two networks in the right order (1 is always, 0
# is chance). On the command line, with the same recipe as a file:
#
#     scalegmn train RECIPE.toml --out runs/mine

# %%
training = {"batch": 32, "lr": 3e-3, "schedule": "cosine", "device": "cpu"}
recipe = make_recipe(
    {
        "zoo": "zoo",
        "task": {"name": "regression", "column": "label"},
        "model": {"name": "scalegmn-b", "width": 16, "layers": 2, "edge_updates": False},
        "training": {"epochs": 2 if quick else 30, **training},
    }
)
results = train(recipe, "run", progress=Progress("predictor", quiet=True))
print({name: round(value, 3) for name, value in results["test"].items()})

# %% [markdown]
# ## Look at it
#
# Each point is a test checkpoint, which was not used for training.

# %%
predictor = scalegmn.load("run")
found = predictor.evaluate(zoo, "test")
figure, axis = plt.subplots(figsize=(4, 4))
axis.plot([0, 1], [0, 1], color="lightgray")
axis.scatter(found.targets, found.outputs, s=12)
axis.set_xlabel("true test accuracy")
axis.set_ylabel("predicted from the weights")

# %% [markdown]
# ## Ask about a file
#
# `predict` takes a path, a module, a state dict, or a list of these. On the command line: `scalegmn predict run new.pt
# --activation relu`.

# %%
model, accuracy = trained(seed=100_000)
torch.save(model.state_dict(), "new.pt")
(answer,) = predictor.predict("new.pt", activation="relu")
print(f"predicted {answer['label']:.3f}, true {accuracy:.3f}")

# %% [markdown]
# The answer depends on the function, not on how it is written down. Multiply the incoming weights and the bias of a
# ReLU neuron by a factor and divide its outgoing weights by it: the network computes the same function, and the
# prediction stays the same.

# %%
with torch.no_grad():
    model[0].weight[3] *= 100
    model[0].bias[3] *= 100
    model[2].weight[:, 3] /= 100
(again,) = predictor.predict(model)
print(f"predicted {again['label']:.3f} after rescaling a neuron by 100")

# %% [markdown]
# ## Where to go from here
#
# - Your networks are not perceptrons? [Networks](../networks.md) lists what can be read: convolutions, residual
#   connections, BatchNorm, attention and more.
# - `scalegmn report run -o report.html` writes a page about the run, with a map of the checkpoints.
# - [Zoos](../zoos.md) describes the columns of the table, splits, and zoos of several architectures.
