"""The demonstration: a shipped model, a zoo of digits, four models with the same small budget, and a report.

The recipes stay beside the runs and can be changed and run again.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from ..core.networks import Networks
from ..inference.places import find_pretrained
from ..inference.trained import load
from ..training.recipe import Recipe, make_recipe
from ..zoo.images.collections import load_images
from ..zoo.inr.build import Report, build_inr_zoo
from ..zoo.inr.conventions import Fit, coordinates
from ..zoo.inr.fit import fit_inrs
from ..zoo.store.zoo import Zoo
from .build import write_report

EPOCHS = 20
QUICK_NETWORKS, QUICK_EPOCHS = 600, 10
TITLE = "Digits, read from the weights that draw them"

_GRAPH = {"width": 32, "layers": 3, "readout": "output", "edge_updates": False, "dropout": 0.2}
MODELS: dict[str, dict[str, Any]] = {
    "scalegmn": {"name": "scalegmn", **_GRAPH, "probes": 128},
    "scalegmn-no-probes": {"name": "scalegmn", **_GRAPH},
    "gmn": {"name": "gmn", **_GRAPH},
    "mlp": {"name": "mlp", "width": 128},
}


@dataclass(frozen=True)
class Fresh:
    """The answers of a shipped model about newly fitted networks.

    Arguments:
        answers, labels: Its answers, and what the images show, one per network.
        far: How many it called far from training.
    """

    answers: tuple[int, ...]
    labels: tuple[int, ...]
    far: int

    @property
    def right(self) -> int:
        """How many answers are right."""
        return sum(a == b for a, b in zip(self.answers, self.labels, strict=True))


def ask_shipped(count: int) -> Fresh:
    """Fit networks to images from another source than those of the model `mnist`, and let it read them.

    The images are scikit-learn's digits, which other people wrote, enlarged to the size of those of MNIST.

    Arguments:
        count: How many networks.
    """
    digits = load_images("digits")
    small = torch.from_numpy(digits.pixels[:count]).float()[:, None] / 255
    images = F.pad(F.interpolate(small, (20, 20), mode="bicubic").clamp(0, 1), (4, 4, 4, 4))
    fitted = fit_inrs(images.reshape(count, -1, 1), coordinates(28, 28), Fit(), seed=count)
    model = load(find_pretrained("mnist"))
    found = model.read(Networks(model.model.architectures[0], fitted.parameters))
    labels = tuple(int(label) for label in digits.labels[:count])
    distances = found.pieces[0].distances
    far = 0 if distances is None else int((distances > 1).sum())
    return Fresh(tuple(answer["label"] for answer in model.predict(found)), labels, far)


def demo_zoo(out: Path, *, networks: int | None = None, report: Report | None = None) -> Zoo:
    """The SIRENs of the digits of scikit-learn; built, continued or just opened.

    Arguments:
        out: The directory of the zoo.
        networks: Their number; all 1,797 if omitted.
        report: As in `build_inr_zoo`.
    """
    return build_inr_zoo(load_images("digits"), out, count=networks, report=report)


def demo_recipes(zoo: Path, epochs: int = EPOCHS) -> dict[str, Recipe]:
    """One recipe per model; they differ only in the model.

    Arguments:
        zoo: The digits.
        epochs: For all of them.

    >>> {name: recipe.training.epochs for name, recipe in demo_recipes(Path("zoo"), 3).items()}
    {'scalegmn': 3, 'scalegmn-no-probes': 3, 'gmn': 3, 'mlp': 3}
    """
    training = {
        "epochs": epochs,
        "batch": 32,
        "lr": 1e-3,
        "weight_decay": 0.1,
        "schedule": "cosine",
        "warmup": 50,
        "device": "cpu",
    }
    shared = {"zoo": str(zoo), "task": "classification", "training": training}
    return {name: make_recipe({**shared, "model": model}) for name, model in MODELS.items()}


def demo_report(recipes: Iterable[str], out: Path, page: Path) -> dict[str, dict[str, float]]:
    """Evaluate the trained models on the test networks and on transformed copies, and write the page.

    Arguments:
        recipes: Their names.
        out: As in `scalegmn.training.lanes.train_all`.
        page: Where to write.

    Returns:
        By name: `accuracy`, `accuracy_transformed`, `answers_changed` (fractions of the test networks),
        `largest_change` (of a logit), `seconds` (of training) and `parameters`.
    """
    found: dict[str, dict[str, float]] = {}
    (finding,) = write_report([out / name for name in recipes], page, title=TITLE)
    for series, (audit,) in zip(finding.section.series, finding.audits, strict=True):
        (run,) = series.runs
        found[run.path.name] = {
            "accuracy": audit.plain.metrics["accuracy"],
            "accuracy_transformed": audit.transformed.metrics["accuracy"],
            "answers_changed": audit.changed or 0.0,
            "largest_change": audit.change.max().item(),
            "seconds": run.results["seconds"],
            "parameters": run.results["parameters"],
        }
    return found
