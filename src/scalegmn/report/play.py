"""The interactive figure: permute and rescale a network by hand, and see how models change their answers.

The page holds the weights of a few networks and the models as programs (`browser`), so that the browser evaluates
everything itself. There is no server and no other file.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.architecture import Architecture, Linear
from ..core.networks import Networks
from ..errors import ScaleGMNError
from ..inference.trained import Trained
from ..tasks import Classification
from ..zoo.inr.canvas import Canvas
from ..zoo.store.zoo import Zoo
from . import browser

NETWORKS = 6
# Models with more constants than this would make the page heavy.
LARGEST = 400_000


def playable(zoo: Zoo, task: object) -> bool:
    """Whether the figure can show a zoo: pictures drawn by plain perceptrons of one architecture, in classes."""
    if zoo.canvas is None or not isinstance(task, Classification) or len(zoo.architectures) != 1:
        return False
    (a,) = zoo.architectures
    hidden = range(1, len(a.layers) - 1)
    chain = all((c.source, c.target) == (i, i + 1) for i, c in enumerate(a.connections))
    plain = all(isinstance(c.map, Linear) and not c.map.positions for c in a.connections)
    return chain and plain and all(a.phis[i].is_identity for i in hidden)


def one_of_each(zoo: Zoo, indices: Tensor, column: str, count: int = NETWORKS) -> Tensor:
    """The first network of each class among some networks, at most `count` of them.

    Arguments:
        zoo: The networks.
        indices: Which of them may be chosen (N,).
        column: The column with the class.
        count: How many.
    """
    first: dict[Any, int] = {}
    for i, label in zip(indices.tolist(), zoo.column(column)[indices].tolist(), strict=True):
        first.setdefault(label, i)
    return torch.tensor([first[label] for label in sorted(first)][:count])


def playground(models: Mapping[str, Trained], zoo: Zoo, indices: Tensor) -> str:
    """The figure for some networks of a zoo, with a line about models that it leaves out; empty if it is not possible.

    Arguments:
        models: By the name to show.
        zoo: The networks.
        indices: The networks to choose from (N,).
    """
    task = next(iter(models.values())).task
    if not playable(zoo, task):
        return ""
    assert isinstance(task, Classification)
    assert zoo.canvas is not None
    shown: dict[str, dict[str, Any]] = {}
    missing: list[str] = []
    for name, trained in models.items():
        try:
            shown[name] = classifier(trained, zoo.architecture)
        except ScaleGMNError as error:
            missing.append(f"{name} ({str(error).removeprefix('browser: ')})")
    if not shown:
        return ""
    chosen = one_of_each(zoo, indices, task.column)
    labels = [str((task.names or task.classes)[i]) for i in task.targets(zoo, chosen).tolist()]
    left_out = f'<p class="note">Left out: {escape("; ".join(missing))}.</p>' if missing else ""
    classes = [str(c) for c in task.names or task.classes]
    return figure(shown, classes, zoo.batch(chosen), labels, zoo.canvas) + left_out


def figure(
    models: Mapping[str, dict[str, Any]],
    classes: Sequence[str],
    networks: Networks,
    labels: Sequence[str],
    canvas: Canvas,
) -> str:
    """The figure as one piece of HTML, with everything that it needs.

    Arguments:
        models: The programs that `classifier` made, by the name to show.
        classes: The names of their outputs.
        networks: The networks to choose from, of the architecture that the models read.
        labels: What each of them shows.
        canvas: Their canvas.
    """
    a = networks.architecture
    data = {
        "networks": [
            {"label": label, "parameters": _floats(row)}
            for label, row in zip(labels, networks.parameters, strict=True)
        ],
        "layers": [
            {
                "size": layer.size,
                "permuted": a.slots[i] is not None,
                "signs": a.groups[i].signs,
                "scales": a.groups[i].scales,
            }
            for i, layer in enumerate(a.layers)
        ],
        "tensors": _tensors(a),
        "classes": list(classes),
        "picture": browser.program(lambda t: canvas.render(Networks(a, t)), networks.parameters[:1]),
        "pictureShape": [canvas.height, canvas.width, canvas.channels],
        "models": [{"name": name, "program": program} for name, program in models.items()],
    }
    here = Path(__file__)
    style, engine, script = (here.with_name(n).read_text("utf-8") for n in ("play.css", "programs.js", "play.js"))
    # A closing tag inside the data would end the script.
    content = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    return (
        f'<div class="play"></div><style>{style}</style>'
        f"<script>(() => {{\n{engine}\n{script}\n"
        f"play(document.currentScript.parentNode.querySelector('.play'), {content});\n}})();</script>"
    )


def classifier(trained: Trained, architecture: Architecture) -> dict[str, Any]:
    """The program from the parameters (1, P) of a network to the scores (1, classes) of a model.

    Arguments:
        trained: The model.
        architecture: Of the network.
    """
    if trained.canonical != "none":
        raise ScaleGMNError(f"browser: expected a model that reads networks as they are, got {trained.canonical}")
    model = trained.model.cpu()
    example = torch.zeros(1, architecture.parameters)
    found = browser.program(lambda t: trained.task.respond(model, Networks(architecture, t)), example)
    if len(found["numbers"]) > LARGEST * 16 // 3:
        raise ScaleGMNError(f"browser: expected at most {LARGEST:,} constants, got a larger model")
    return found


def _tensors(a: Architecture) -> list[dict[str, int | None]]:
    """Where each weight (n_t, n_s) and bias (n_t,) begins in the parameters of a network."""
    sources = (a.connections[s.index].source if s.kind == "weight" else None for s in a.segments)
    places = zip(a.segments, sources, strict=True)
    return [{"start": s.start, "source": source, "target": a.owner(s)} for s, source in places]


def _floats(x: Tensor) -> str:
    return base64.b64encode(x.detach().float().numpy().astype("<f4").tobytes()).decode()
