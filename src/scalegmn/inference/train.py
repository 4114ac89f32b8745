"""Training from Python in one call, for notebooks and programs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ScaleGMNError
from ..training.loop import train as run
from ..training.progress import Progress
from ..training.recipe import Recipe, make_recipe, read_recipe
from ..zoo.store.zoo import Zoo
from .trained import Trained, load

Choice = str | Mapping[str, Any]


def train(
    recipe: Recipe | str | Path | None = None,
    *,
    zoo: Zoo | str | Path | None = None,
    task: Choice | None = None,
    model: Choice | None = None,
    training: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Trained:
    """Train as a recipe or these arguments say, and return the model of the best validation.

    Arguments:
        recipe: A recipe, its file, or the name of a shipped one; what follows replaces its entries.
        zoo: The networks.
        task: `classification`, `regression` or `editing`, or a table with its `name` and options.
        model: The name of a model (`scalegmn models`), or a table with its `name` and options.
        training: Entries of the table `training`, such as `{"epochs": 10}`.
        out: The run directory; `runs/` and the name of the recipe or of model and zoo, if omitted.
        resume: Continue what is there.
        progress: What to show; if omitted, a progress bar in terminals and notebooks, plain lines elsewhere.

    `scalegmn.train(zoo="zoos/digits", task="classification", model="scalegmn", training={"epochs": 10})`
    """
    read = read_recipe(recipe) if isinstance(recipe, str | Path) else recipe
    if read is not None and not isinstance(read, Recipe):
        raise ScaleGMNError(f"train: expected a recipe, its file or its name, got {type(recipe).__name__}")
    table: dict[str, Any] = {} if read is None else read.to_dict()
    path = zoo.path if isinstance(zoo, Zoo) else zoo
    changes = {"zoo": None if path is None else str(path), "task": task, "model": model}
    table |= {key: value for key, value in changes.items() if value is not None}
    table["training"] = {**table.get("training", {}), **(training or {})}
    missing = [key for key in ("zoo", "task", "model") if key not in table]
    if missing:
        raise ScaleGMNError(f"train: expected a recipe, or zoo, task and model; got no {' and no '.join(missing)}")
    made = make_recipe(table)
    name = Path(recipe).stem if isinstance(recipe, str | Path) else f"{made.model.name}-{Path(made.zoo).name}"
    directory = Path("runs") / name if out is None else Path(out)
    run(made, directory, resume=resume, progress=progress)
    return load(directory)
