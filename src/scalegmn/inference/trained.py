"""A trained model, ready for a user's networks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..convert.layout import Layout
from ..convert.trace.fx import trace
from ..core.canonical import Canonical, present
from ..core.html import html_table
from ..core.networks import Networks
from ..core.schema import architecture_from_json, from_json
from ..errors import ScaleGMNError
from ..files import believing, directory_for, write_json
from ..files.tensors import read_tensors, write_tensors
from ..models.heads import Editor, InvariantModel, Metanetwork
from ..tasks import Task, build_model, task_from_json
from ..training.distributed import World
from ..training.documents import read_config
from ..training.evaluation import Evaluation, evaluate
from ..training.state import weights_of
from ..zoo.inr.canvas import Canvas
from ..zoo.store.zoo import Zoo
from .familiar import Familiar
from .places import CONFIG, FAMILIAR, WEIGHTS, find_model
from .sources import Hints, Readable, Reader, Reading
from .spelling import check_points
from .strangers import look


def load(path: str | Path, *, device: str | torch.device = "cpu") -> Trained:
    """Load a trained model.

    Arguments:
        path: A run directory, one that `export` or `Trained.save_pretrained` wrote, or the name of a model that comes
            with the package, such as `mnist`; a directory of that name comes first if it holds a model.
        device: Where it computes.

    >>> load("mnist").task.name
    'classification'
    """
    if not isinstance(path, str | Path):
        raise ScaleGMNError(f"run: expected the path of a run directory, got {type(path).__name__}")
    path = find_model(path)
    if not (path / WEIGHTS).is_file():
        raise ScaleGMNError(f"run: {path} holds no {WEIGHTS} yet; train at least to the first validation")
    config, weights = read_config(path / CONFIG), read_tensors(path / WEIGHTS)
    familiar = None
    if (path / FAMILIAR).is_file():
        with believing(path / FAMILIAR):
            familiar = Familiar.from_tensors(read_tensors(path / FAMILIAR))
    with believing(path / CONFIG):
        return Trained.from_config(config, weights, familiar, device=device)


class Trained:
    """A trained model with its task.

    Arguments:
        model: With its weights.
        task: What it was trained for.
        config: The content of `config.json`.
        familiar: Statistics of its training networks, if available; then there are warnings about networks unlike them.
    """

    def __init__(
        self, model: Metanetwork, task: Task, config: Mapping[str, Any], familiar: Familiar | None = None
    ) -> None:
        self.model = model.eval()
        self.familiar = familiar
        self.task = task
        self.config = dict(config)
        self.canonical: Canonical = self.config["canonical"]
        # A directory that was written before runs remembered their files has none.
        self.layouts = tuple(from_json(Layout, way, "layouts") for way in self.config.get("layouts", ()))

    @staticmethod
    def from_config(
        config: Mapping[str, Any],
        weights: Mapping[str, Tensor],
        familiar: Familiar | None = None,
        *,
        device: str | torch.device = "cpu",
    ) -> Trained:
        """Build the model that a configuration describes and give it weights."""
        if config.get("format") != "scalegmn model" or config.get("version") != 1:
            raise ScaleGMNError(f"{CONFIG}: expected a scalegmn model of version 1, got {config.get('version')!r}")
        task = task_from_json(config["task"])
        architectures = [architecture_from_json(a) for a in config["architectures"]]
        options = {k: v for k, v in config["model"].items() if k != "name"}
        model = build_model(config["model"]["name"], options, task, architectures)
        try:
            model.load_state_dict(dict(weights))
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:300]
            raise ScaleGMNError(f"{WEIGHTS}: does not belong to this {CONFIG} ({reason})") from None
        return Trained(model.to(device), task, config, familiar)

    def __repr__(self) -> str:
        built = "; ".join(map(str, self.model.architectures))
        return f"Trained({self.config['model']['name']} for {self.task.name} of {built})"

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        parameters = sum(p.numel() for p in self.model.parameters())
        reads = "; ".join(map(str, self.model.architectures))
        rows = {"task": self.task.name, "reads": reads, "parameters": f"{parameters:,}", "device": self.device}
        return html_table(self.config["model"]["name"], rows)

    @property
    def device(self) -> torch.device:
        """The device on which it computes."""
        return next(self.model.parameters()).device

    def read(
        self,
        source: Readable,
        *,
        activation: str | None = None,
        likes: Sequence[nn.Module] = (),
        prefix: str = "",
        split: str | None = None,
        points: str | None = None,
    ) -> Reading:
        """Read networks for `predict`, `embed` and `edit`, with more options than these have.

        Arguments:
            source: A module, a state dict, `Networks`, a zoo, a file, a folder of files, a pattern such as `*.pt`, or
                a list of those. Files are read like those that the model was trained on.
            activation: For state dicts and files, if the model was built for several activations of the same shapes.
            likes: Modules with such state dicts, if the model was trained on others.
            prefix: Read only the entries under this name, such as `actor.`.
            split: Only this split of a zoo.
            points: What the two inputs of INRs in files are, `x,y` or `row,column`: a single file does not show it.
        """
        check_points(points)
        layouts = tuple(trace(module)[1] for module in likes)
        hints = Hints(activation, layouts, f"{prefix.rstrip('.')}." if prefix else "", split)
        found = Reader(self.model, self.layouts, restates=self.familiar is not None).read(source, hints)
        return look(found, self.model, self.familiar, self._canvas(), points)

    def predict(
        self, source: Readable | Reading, *, activation: str | None = None, top: int = 1
    ) -> list[dict[str, Any]]:
        """One answer per network: its label with a probability, or a number.

        Arguments:
            source, activation: As in `read`, or its result. Warns about an activation that had to be assumed, and about
                networks unlike those in training.
            top: For a classification, also return this many of the most probable labels.
        """
        model = self._invariant("predict")
        if top < 1:
            raise ScaleGMNError(f"top: expected at least 1, got {top}")
        found = self._reading(source, activation)
        return self.task.answers(self._run(found, lambda networks: self.task.respond(model, networks)), top=top)

    def embed(self, source: Readable | Reading, *, activation: str | None = None) -> Tensor:
        """The invariant embedding (B, d) of every network.

        Arguments:
            source, activation: As in `predict`.
        """
        return self._run(self._reading(source, activation), self._invariant("embed").embed)

    def edit(self, source: Readable | Reading, *, activation: str | None = None) -> Any:
        """Edited networks in the form in which they were given: modules, state dicts (also for files) or `Networks`.

        Arguments:
            source, activation: As in `predict`.
        """
        found = self._reading(source, activation)
        return found.hand_back(self.edited(found))

    def edited(self, found: Reading) -> list[Networks]:
        """The edited versions of networks that `read` returned, one batch for each source."""
        model = self.model
        if not isinstance(model, Editor):
            raise ScaleGMNError(f"edit: this model was trained for {self.task.name}; train one for task editing")
        if model.copies > 1:
            raise ScaleGMNError(
                f"edit: this model makes {model.copies} networks of each, whose outputs are averaged; "
                "train one with copies = 1 to get one network"
            )
        batches = [piece.networks for piece in found.pieces if isinstance(piece.networks, Networks)]
        if len(batches) < len(found.pieces):
            raise ScaleGMNError("edit: expected modules, state dicts, files or networks, got a zoo")
        with torch.no_grad():
            return [self._edit(model, networks) for networks in batches]

    def _edit(self, model: Editor, networks: Networks) -> Networks:
        edited: Networks = model(present(networks.to(dtype=self._dtype), self.canonical, self.device))
        return edited.to(networks.device, networks.dtype)

    def evaluate(self, zoo: Zoo | str | Path, split: str = "test", *, transform_seed: int | None = None) -> Evaluation:
        """Evaluate on a split of a zoo.

        Arguments:
            zoo: The zoo or its directory.
            split: `train`, `val` or `test`.
            transform_seed: If given, evaluate on randomly permuted and rescaled copies instead.
        """
        zoo = zoo if isinstance(zoo, Zoo) else Zoo.open(zoo)
        for architecture in zoo.architectures:
            reason = self.model.reads(architecture)
            if reason is not None:
                raise ScaleGMNError(f"zoo: {zoo.path}: {reason}")
        canvas = self._canvas()
        if None not in (canvas, zoo.canvas) and zoo.canvas != canvas:
            raise ScaleGMNError(f"zoo: {zoo.path} paints on {zoo.canvas}, training networks on {canvas}; use `predict`")
        return self.evaluate_on(zoo, zoo.split(split), transform_seed=transform_seed)

    def evaluate_on(self, zoo: Zoo, indices: Tensor, *, transform_seed: int | None = None) -> Evaluation:
        """Evaluate on some networks of a zoo that the model reads, by their numbers (N,)."""
        model, task, alone = self.model, self.task, World(0, 1, self.device)
        return evaluate(
            model, task, zoo, indices, world=alone, canonical=self.canonical, transform_seed=transform_seed
        )

    def _canvas(self) -> Canvas | None:
        """The canvas of the training networks, if it was stored."""
        return from_json(Canvas, self.config["canvas"], "canvas") if "canvas" in self.config else None

    def _invariant(self, wish: str) -> InvariantModel:
        if not isinstance(self.model, InvariantModel):
            raise ScaleGMNError(f"{wish}: this model was trained for {self.task.name}; use `edit`")
        return self.model

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype

    def _reading(self, source: Readable | Reading, activation: str | None) -> Reading:
        if isinstance(source, Reading):
            return source
        found = self.read(source, activation=activation)
        for text in found.notes():
            warnings.warn(text, stacklevel=3)
        return found

    def _run(self, found: Reading, ask: Callable[[Sequence[Networks]], Tensor]) -> Tensor:
        """The outputs of the model for networks (B, ...), in the given order."""
        with torch.no_grad():
            return torch.cat([self._ask(ask, chunk.networks)[chunk.places.argsort()] for chunk in found.chunks()])

    def _ask(self, ask: Callable[[Sequence[Networks]], Tensor], networks: Sequence[Networks]) -> Tensor:
        # Converted here and checked when they were read.
        converted = [batch.to(dtype=self._dtype) for batch in networks]
        return ask([present(batch, self.canonical, self.device) for batch in converted]).cpu()

    def save(self, directory: str | Path) -> None:
        """Write `config.json`, `model.safetensors` and the statistics of training networks; `load` reads them."""
        with directory_for(Path(directory)) as folder:
            write_tensors(folder / WEIGHTS, weights_of(self.model))
            if self.familiar is not None:
                write_tensors(folder / FAMILIAR, self.familiar.tensors())
            write_json(folder / CONFIG, self.config)

    def save_pretrained(self, directory: str | Path) -> None:
        """The same with a model card, as huggingface_hub does it (extra `hub`)."""
        from .hub import HubModel

        HubModel(self).save_pretrained(directory)

    @staticmethod
    def from_pretrained(name: str | Path) -> Trained:
        """Load from a directory or from a repository of the Hugging Face hub (extra `hub`)."""
        from .hub import HubModel

        return HubModel.from_pretrained(name).trained

    def push_to_hub(self, repository: str, *, private: bool = False) -> str:
        """Upload to a repository of the Hugging Face hub (extra `hub`) and return its address."""
        from .hub import HubModel

        return str(HubModel(self).push_to_hub(repository, private=private))
