# %% [markdown]
# # 6 · Your own method and dataset, in the tables
#
# You have an idea for a model that reads networks, or networks that nobody else has. How does it compare with
# the rest? In this tutorial you write one Python file with a method, a dataset and a table, check the method's
# symmetries, and let `scalegmn reproduce` train your method and its competitors and print the table. The package itself
# stays as it is.
#
# It takes about four minutes on a laptop, most of them for training.

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
    done = subprocess.run([sys.executable, "-m", *shlex.split(line)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    print(done.stdout)


# %% [markdown]
# ## A method
#
# The idea of this tutorial: do not read the weights at all. *Peek* at what a network computes at a few fixed points,
# and let a perceptron read the answers. Whatever leaves the function as it is cannot change what it sees.
#
# A method has three parts. The *trunk* turns networks into states; here `networks.evaluate` gives the answers of a
# whole batch. `pooling` says how states become one vector per network: here they are one already. The
# *specification* is a dataclass with the options and their defaults. `Method` ties them together and declares the
# symmetries, and `register` makes the name known. Put this into a file `mine.py`:

# %%
Path("mine.py").write_text('''\
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scalegmn import Networks
from scalegmn.core.spec import Count
from scalegmn.models.method import Method
from scalegmn.models.parts import DenseSpec, rectified
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

    def __init__(self, method, architectures, spec):
        super().__init__(method, architectures, spec)
        first, last = self.architectures[0].layers[0].size, self.architectures[0].layers[-1].size
        draw = torch.Generator().manual_seed(0)
        self.register_buffer("points", 2 * torch.rand(spec.points, first, generator=draw) - 1)
        self.maps = rectified([spec.points * last, *[spec.width] * (spec.layers - 1)], dropout=spec.dropout)

    def forward(self, networks: Networks) -> Tensor:
        return self.maps(networks.evaluate(self.points).flatten(1))

    def pooling(self) -> Pooling:
        return Pooling(nn.Identity(), nn.Identity(), self.spec.width)


Peek = register(
    Method("peek", "Peek", "A tutorial, 2026", ("permutation", "scale"), PeekTrunk, PeekSpec(128), convolutions=False)
)
''')

# %% [markdown]
# With `--plugin` in front of a command, the file is run first. Your method is now one of the others, with its options:

# %%
shell("scalegmn --plugin mine.py models peek")

# %% [markdown]
# Are the declared symmetries true? `check` tries every law on small models, in both precisions, on networks that are
# permuted and rescaled by factors between 0.001 and 1,000; the last law asks that different networks get different
# answers. [Tutorial 4](04_own_layer.py) shows what to do when something fails.

# %%
shell("scalegmn --plugin mine.py check --model peek")

# %% [markdown]
# ## A dataset
#
# A dataset is a zoo with something to learn from it. This one holds the digits of scikit-learn as networks; replace
# `build` by what makes yours, for instance `import_checkpoints` of [tutorial 2](02_checkpoints.py). `Dataset` says
# which metric is shown, and in which folders its recipes are: `inr` has those of all methods that classify implicit
# representations. A table has columns (datasets) and rows (methods). Add to `mine.py`:

# %%
Path("mine.py").write_text(Path("mine.py").read_text() + '''

import os
from pathlib import Path

from scalegmn.reproduce.experiments import Dataset
from scalegmn.reproduce.extend import add_dataset, add_method, add_table
from scalegmn.reproduce.tables import Table
from scalegmn.training.recipe import add_recipes
from scalegmn.zoo.images.collections import load_images
from scalegmn.zoo.inr.build import build_inr_zoo

COUNT = 60 if "SCALEGMN_QUICK" in os.environ else 800


def build(name, place):
    return build_inr_zoo(load_images("digits"), place.zoos / name, count=COUNT)


digits = Dataset("digits", "Digits", zoo="digits", metric="accuracy", unit=100.0, digits=1, recipes=("inr",))
add_dataset(digits, build)
add_recipes(Path(__file__).with_name("recipes"))
add_method("peek", "Peek", tables=["inr-classification"])
add_table(Table("mine", "Digits: test accuracy in percent", ("digits",), ("mlp", "gmn", "scalegmn", "peek")))
''')

# %% [markdown]
# ## A recipe
#
# Every row of a table is trained with the recipe of its name, `small/inr/peek` here. It builds on `common`, which
# holds what all methods of the table share, so that the comparison is fair, and lists what is its own.

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
# `reproduce` builds the zoo, trains what has no record yet, one process per core, and shows the table. Each run gets
# the same processor time: four minutes with these recipes, less here. Interrupt it and start it again: it continues. A
# second method later trains only its own row.

# %%
shell(f"scalegmn --plugin mine.py reproduce mine {'--minutes 0.01 --methods mlp,peek' if quick else '--minutes 0.5'}")

# %% [markdown]
# One JSON file per run remembers everything that a reader of your paper may ask: recipe, seed, versions, the checksum
# of the zoo, the machine. It also has the result on permuted and rescaled copies of the test networks. `--seeds 3`
# repeats every row, `--markdown` and `--json` print the table for other programs.

# %%
print(*sorted(path.name for path in Path("results", "small").iterdir()), sep="\n")

# %% [markdown]
# `add_method` has put Peek into the paper's first table as well. With the image files at hand, this trains the missing
# row on the same networks as all others:
#
#     scalegmn --plugin mine.py reproduce inr-classification --methods peek --images DIR
#
# ## Where to go from here
#
# - To make it part of the package, put the trunk into `src/scalegmn/models/`, its `Method` into `models/registry.py`,
#   recipes into `src/scalegmn/recipes/`, and the row into `reproduce/experiments.py` and `reproduce/tables.py`.
#   [Contributing](../../CONTRIBUTING.md) has the rest.
# - [Zoos](../zoos.md) says how to make a zoo of anything that trains networks.
# - [Peers](../baselines.md) and [recipes](../recipes.md) describe what your method is compared with.
# - Set `SCALEGMN_PLUGINS=mine.py` in the environment to leave out `--plugin`. In Python, `import mine` does the same.
