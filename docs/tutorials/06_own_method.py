# %% [markdown]
# # 6 · Your own method and dataset, in the tables
#
# You have an idea for a model that reads networks, or a collection of networks of your own. How does it compare with
# the rest? In this tutorial you write one Python file with a method, a dataset and a table, check the method's
# symmetries, and let `scalegmn reproduce` train your method and its competitors and print the table. The package itself
# stays unchanged.
#
# Running it takes about two minutes, mostly for training.

# %%
import os
import shlex
import subprocess
import sys
from pathlib import Path

quick = "SCALEGMN_QUICK" in os.environ  # smaller numbers, for the tests that run this page


def shell(line: str) -> None:
    """Run a command and show what it prints."""
    print(f"$ {line}")
    words = [sys.executable, "-m", *shlex.split(line)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    print(done.stdout)


# %% [markdown]
# ## A method
#
# The idea of this tutorial: do not read the weights at all. *Peek* at what a network computes at a few fixed points,
# and let a perceptron read the outputs. A change of the weights that preserves the function cannot change what it sees.
#
# A method has two parts. The *trunk* turns networks into states; here `networks.evaluate` gives the outputs of a whole
# batch. Its `pooling` says how states become one vector per network; here they already are one. The *specification* is
# a dataclass with the options and their defaults. `Method` combines the two and declares the symmetries, and `register`
# makes the method available by name. Put this into a file `mine.py`:

# %%
Path("mine.py").write_text('''\
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scalegmn import Networks
from scalegmn.core.spec import Count
from scalegmn.models.method import Method
from scalegmn.models.parts.dense import DenseSpec, rectified
from scalegmn.models.registry import register
from scalegmn.models.trunk import Pooling, Trunk


@dataclass(frozen=True, repr=False)
class PeekSpec(DenseSpec):
    """The options of Peek.

    Arguments:
        points: How many inputs the networks are evaluated at.
    """

    points: Count = 64


class PeekTrunk(Trunk):
    """A perceptron that reads what a network computes at fixed random points."""

    spec: PeekSpec

    def build(self) -> None:
        spec = self.spec
        first, last = self.architectures[0].layers[0].size, self.architectures[0].layers[-1].size
        draw = torch.Generator().manual_seed(0)
        self.register_buffer("points", 2 * torch.rand(spec.points, first, generator=draw) - 1)
        sizes = [spec.points * last, *[spec.width] * (spec.layers - 1)]
        self.maps = rectified(sizes, dropout=spec.dropout)

    def forward(self, networks: Networks) -> Tensor:
        return self.maps(networks.evaluate(self.points).flatten(1))

    def pooling(self) -> Pooling:
        return Pooling(nn.Identity(), nn.Identity(), self.spec.width)


Peek = register(
    Method(
        name="peek",
        title="Peek",
        paper="A tutorial, 2026",
        symmetries=("permutation", "scale"),
        trunk=PeekTrunk,
        spec=PeekSpec(128),
        convolutions=False,
    )
)
''')

# %% [markdown]
# `--plugin mine.py` before a command loads the file first. Your method is then listed like the others, with its
# options:

# %%
shell("scalegmn --plugin mine.py models peek")

# %% [markdown]
# Does it have the symmetries that it declares? `check` tests them on small models in both precisions, on networks that
# are permuted and rescaled by factors between 0.001 and 1,000; the last test requires that different networks get
# different answers. [Tutorial 4](04_own_layer.py) shows what to do when a test fails.

# %%
shell("scalegmn --plugin mine.py check --model peek")

# %% [markdown]
# ## A dataset
#
# A dataset is a zoo with something to learn from it. This one holds the digits of scikit-learn as networks; to use your
# own, replace the body of `build`, for instance by `import_checkpoints` from [tutorial 2](02_checkpoints.py). `Dataset`
# says which metric is shown, and in which folders its recipes are: `inr` has recipes for all methods that classify
# implicit representations. A table has columns (datasets) and rows (methods). Add to `mine.py`:

# %%
Path("mine.py").write_text(Path("mine.py").read_text() + '''

import os
from pathlib import Path

from scalegmn.reproduce.experiments import Dataset
from scalegmn.reproduce.extend import add_dataset, add_method, add_table
from scalegmn.reproduce.tables import ResultTable
from scalegmn.training.recipe import add_recipes
from scalegmn.zoo.images.collections import load_images
from scalegmn.zoo.inr.build import build_inr_zoo

COUNT = 60 if "SCALEGMN_QUICK" in os.environ else 600


def build(name, place):
    return build_inr_zoo(load_images("digits"), place.zoos / name, count=COUNT)


digits = Dataset(
    "digits", "Digits", zoo="digits", metric="accuracy", unit=100.0, digits=1, recipes=("inr",)
)
add_dataset(digits, build)
add_recipes(Path(__file__).with_name("recipes"))
add_method("peek", "Peek", tables=["inr-classification"])
rows = ("mlp", "gmn", "scalegmn", "scalegmn-128", "peek")
add_table(ResultTable("mine", "Digits: test accuracy in percent", ("digits",), rows))
''')

# %% [markdown]
# ## A recipe
#
# Every row of a table is trained with the recipe of its name, here `small/inr/peek`. It builds on `common`, which has
# the settings that all methods of the table share, so that the comparison is fair, and adds its own.

# %%
Path("recipes/small/inr").mkdir(parents=True)

# %%
Path("recipes/small/inr/peek.toml").write_text('''\
base = "small/inr/common"

[model]
name = "peek"
dropout = 0.2
''')

# %% [markdown]
# ## The table
#
# `reproduce` builds the zoo, trains every row that has no record yet, one process per core, and prints the table. Every
# run gets the same processor time: four minutes with these recipes, and only twelve seconds here, which favours small
# models and those that evaluate networks, such as yours and ScaleGMN with probes. If you interrupt the command and
# start it again, it continues. If you add a method later, only its row is trained.

# %%
budget = "--minutes 0.01 --methods mlp,peek" if quick else "--minutes 0.2"
shell(f"scalegmn --plugin mine.py reproduce mine {budget}")

# %% [markdown]
# One JSON file per run records what a reader of your paper might ask for: recipe, seed, versions, the checksum of the
# zoo, the machine, and also the result on permuted and rescaled copies of the test networks. `--seeds 3` trains every
# row with three seeds; `--markdown` and `--json` print the table in other formats.

# %%
print(*sorted(path.name for path in Path("results", "small").iterdir()), sep="\n")

# %% [markdown]
# `add_method` has also added Peek to the paper's first table. If you have the image files, this trains the missing row
# on the same networks as all others:
#
#     scalegmn --plugin mine.py reproduce inr-classification --methods peek --images DIR
#
# ## Where to go from here
#
# - To make your method part of the package, put the trunk into `src/scalegmn/models/peers/`, its `Method` into
#   `models/registry.py`, recipes into `src/scalegmn/recipes/`, and the row into `reproduce/experiments.py` and
#   `reproduce/tables.py`. [Contributing](../../CONTRIBUTING.md) has the rest.
# - [Zoos](../zoos.md) says how to make a zoo from anything that trains networks.
# - [Peers](../baselines.md) and [recipes](../recipes.md) describe the methods that yours is compared with.
# - With `SCALEGMN_PLUGINS=mine.py` in the environment you can leave out `--plugin`. In Python, `import mine` does the
#   same.
