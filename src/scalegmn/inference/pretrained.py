"""Trained models that come with the package, and how a finished run becomes one."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from ..core.schema import strict, to_json
from ..errors import ScaleGMNError
from ..files import make_directory, read_object, write_atomically, write_json
from ..files.tensors import Tensors, write_tensors
from ..tasks import Classification, Task
from ..training.data import unchanged_zoo
from ..training.run import Run
from ..training.state import weights_of
from .familiar import Familiar
from .places import CARD, CONFIG, FAMILIAR, PRETRAINED, WEIGHTS
from .trained import load

_WARNS = "A network unlike those in training gets an answer with a warning; the warning misses some of them."
_PACKED = {CARD, CONFIG, FAMILIAR, WEIGHTS}


def describe(name: str) -> dict[str, Any]:
    """What is known about a model that comes with the package, as plain values."""
    folder = PRETRAINED / name
    config = read_object(folder / CONFIG)
    card = config["card"]
    return {
        "name": name,
        "task": config["task"]["name"],
        "metric": card["metric"],
        "value": card["value"],
        "networks": card["networks"],
        "parameters": card["parameters"],
        "bytes": sum(path.stat().st_size for path in folder.iterdir()),
        "about": card["about"],
    }


def export(
    run: str | Path,
    out: str | Path,
    *,
    about: str = "",
    data: str = "",
    limits: Sequence[str] = (),
    titles: Sequence[str] = (),
) -> Path:
    """Pack a finished run into a directory that `scalegmn.load` reads, with a model card.

    Besides the weights it holds statistics of the training networks (`Familiar`), for which the zoo of the run must
    still be there. Parameters are kept in half precision; the results on the card are those of the packed model. A
    model that was packed into the directory before is replaced; other files there are an error.

    Arguments:
        run: The run directory.
        out: The directory to write.
        about: One sentence for the card: what it reads and what it answers.
        data: A sentence about the networks that it was trained on.
        limits: Further sentences: what it cannot do.
        titles: What people call the classes, in the order of their labels, for a classifier of numbers.
    """
    finished, directory = Run(Path(run)), Path(out)
    others = {path.name for path in directory.iterdir()} - _PACKED if directory.is_dir() else set()
    if others:
        raise ScaleGMNError(f"out: {directory} holds {min(others)}, which is not of a packed model; use another one")
    results, trained = finished.results(), load(run)
    config = trained.config
    zoo = unchanged_zoo(config["recipe"]["zoo"], config["zoo"]["sha256"])
    if "test" not in results:
        raise ScaleGMNError(f"export: {zoo.path} has no test networks, so nothing can be said about {run}")
    metric, weights = results["metric"], halved(trained.model)
    trained.model.load_state_dict(weights)
    card = {
        "about": about,
        "data": data,
        "limits": list(limits),
        "metric": metric,
        "value": trained.evaluate(zoo).metrics[metric],
        "val": trained.evaluate(zoo, "val").metrics[metric],
        "networks": {name: len(zoo.split(name)) for name in zoo.splits},
        "parameters": results["parameters"],
        "epochs": results["epochs"],
        "seconds": results["seconds"],
        "built_with": zoo.header["arguments"],
    }
    # Where a zoo lay means nothing elsewhere.
    recipe = {**config["recipe"], "zoo": Path(config["recipe"]["zoo"]).name}
    canvas = {} if zoo.canvas is None else {"canvas": to_json(zoo.canvas)}
    task = _titled(trained.task, titles)
    told = strict({**config, **canvas, "task": task.to_json(), "recipe": recipe, "card": card})
    familiar = Familiar.measure(trained.task, zoo)
    make_directory(directory)
    write_tensors(directory / WEIGHTS, weights)
    write_tensors(directory / FAMILIAR, familiar.tensors())
    write_atomically(directory / CARD, card_text(directory.name, told).encode())
    write_json(directory / CONFIG, told)
    return directory


def halved(model: nn.Module) -> Tensors:
    """A model's parameters in half precision, where that changes no entry by more than a thousandth of the largest.

    Buffers, which may hold constants of any size, stay as they are.

    >>> [t.dtype for t in halved(nn.BatchNorm1d(3)).values()][:3]
    [torch.float16, torch.float16, torch.float32]
    """
    found = weights_of(model)
    for name in dict(model.named_parameters()):
        t = found[name]
        change = (t.half().to(t) - t).abs()
        if t.numel() and t.is_floating_point() and bool(change.amax() <= 1e-3 * t.abs().amax()):
            found[name] = t.half()
    return found


def _titled(task: Task, titles: Sequence[str]) -> Task:
    if not titles:
        return task
    if not isinstance(task, Classification):
        raise ScaleGMNError(f"titles: expected a classifier, got a run of task {task.name!r}")
    return replace(task, titles=tuple(titles))


def card_text(name: str, config: Mapping[str, Any]) -> str:
    """The model card as Markdown.

    Arguments:
        name: Of the model.
        config: The content of its `config.json`.
    """
    card, zoo = config["card"], config["zoo"]
    counts = ", ".join(f"{count:,} {split}" for split, count in card["networks"].items())
    options = ", ".join(f"{k} = {v}" for k, v in config["model"].items() if k != "name")
    training = ", ".join(f"{k} = {v}" for k, v in config["recipe"]["training"].items())
    lines = [
        f"# {name}",
        *([card["about"]] if card["about"] else []),
        "## Result",
        f"Test {card['metric']} {card['value']:.4f} on {card['networks']['test']:,} networks, read once at the end; "
        f"validation {card['val']:.4f}. One run, seed {config['recipe']['seed']}.",
        "## Data",
        *([card["data"]] if card["data"] else []),
        f"A zoo of {zoo['networks']:,} networks ({counts}), SHA-256 `{zoo['sha256']}`, built with "
        f"`{_told(card['built_with'])}`.",
        "## Recipe",
        f"{config['model']['name']} ({card['parameters']:,} parameters; {options}); {training}. "
        f"{card['epochs']:g} epochs, {card['seconds'] / 60:.0f} minutes.",
        "## Limits",
        *(limit for limit in card["limits"] if limit != _WARNS),
        _WARNS,
    ]
    return "\n\n".join(lines) + "\n"


def _told(arguments: Mapping[str, Any]) -> str:
    """Arguments of a zoo in words, without checksums."""
    return ", ".join(f"{k}={v}" for k, v in arguments.items() if v not in (None, {}) and len(str(v)) < 60)
