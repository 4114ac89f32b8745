"""A trained model, ready for a person's own networks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.networks import Networks
from ..core.schema import architecture_from_json
from ..errors import ScaleGMNError
from ..models.base import Editor, InvariantModel, Metanetwork
from ..tasks import Task, task_from_json
from ..training.build import build_model
from ..training.data import Canonical, present
from ..training.distributed import World
from ..training.evaluation import Evaluation, evaluate, evaluating
from ..training.state import read_json, read_tensors, weights_of, write_json, write_tensors
from ..zoo.store.zoo import Zoo
from .sources import Read, Source, read

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def load(path: str | Path, *, device: str | torch.device = "cpu") -> Trained:
    """Load a trained model.

    Arguments:
        path: A run directory, or one that `Trained.save_pretrained` wrote.
        device: Where it shall compute.
    """
    path = Path(path)
    if not (path / CONFIG).is_file():
        raise ScaleGMNError(f"run: {path} holds no {CONFIG}; expected a directory that `scalegmn train` made")
    if not (path / WEIGHTS).is_file():
        raise ScaleGMNError(f"run: {path} holds no {WEIGHTS} yet; train at least to the first validation")
    return Trained.from_config(read_json(path / CONFIG), read_tensors(path / WEIGHTS), device=device)


class Trained:
    """A trained model with its task.

    Arguments:
        model: With its weights.
        task: What it was trained for.
        config: The content of `config.json`.
    """

    def __init__(self, model: Metanetwork, task: Task, config: Mapping[str, Any]) -> None:
        self.model = model.eval()
        self.task = task
        self.config = dict(config)
        self.canonical: Canonical = self.config["canonical"]

    @staticmethod
    def from_config(
        config: Mapping[str, Any], weights: Mapping[str, Tensor], *, device: str | torch.device = "cpu"
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
            reason = " ".join(str(error).split())
            raise ScaleGMNError(f"{WEIGHTS}: does not belong to this {CONFIG} ({reason})") from None
        return Trained(model.to(device), task, config)

    def __repr__(self) -> str:
        built = "; ".join(map(str, self.model.architectures))
        return f"Trained({self.config['model']['name']} for {self.task.name} of {built})"

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return next(self.model.parameters()).device

    # -- use ---------------------------------------------------------------------------------------------------

    def predict(self, source: Source, *, activation: str | None = None) -> list[dict[str, Any]]:
        """One answer per network: its label with a probability, or a number.

        Arguments:
            source: A module, a state dict, the path of a file, `Networks`, or a list of those.
            activation: For state dicts and files, where the model was built for several of the same shapes.
        """
        self._invariant("predict")
        with evaluating(self.model):
            batches = self._batches(read(source, self.model.architectures, activation=activation))
            return [answer for b in batches for answer in self.task.answers(self.task.respond(self.model, b).cpu())]

    def embed(self, source: Source, *, activation: str | None = None) -> Tensor:
        """The invariant embedding (B, d) of every network.

        Arguments:
            source, activation: As in `predict`.
        """
        model = self._invariant("embed")
        with evaluating(model):
            batches = self._batches(read(source, model.architectures, activation=activation))
            return torch.cat([model.embed(b).cpu() for b in batches])

    def edit(self, source: Source, *, activation: str | None = None) -> Any:
        """Edited networks in the form in which they came: modules, state dicts (also for files) or `Networks`.

        Arguments:
            source, activation: As in `predict`.
        """
        model = self.model
        if not isinstance(model, Editor):
            raise ScaleGMNError(f"edit: this model was trained for {self.task.name}; train one for task editing")
        if model.copies > 1:
            raise ScaleGMNError(
                f"edit: this model makes {model.copies} networks of each, whose outputs are averaged; "
                "train one with copies = 1 to get one network"
            )
        found = read(source, model.architectures, activation=activation)
        with evaluating(model):
            edited = [self._edit(model, batch) for batch in found.networks]
        return found.hand_back(edited)

    def _edit(self, model: Editor, networks: Networks) -> Networks:
        dtype = next(model.parameters()).dtype
        edited: Networks = model(present(networks.to(dtype=dtype), self.canonical, self.device))
        return edited.to(networks.device, networks.dtype)

    def evaluate(self, zoo: Zoo | str | Path, split: str = "test", *, transform_seed: int | None = None) -> Evaluation:
        """Ask about a split of a zoo and compare with the truth.

        Arguments:
            zoo: The zoo or its directory.
            split: `train`, `val` or `test`.
            transform_seed: Ask about randomly permuted and rescaled copies instead, if given.
        """
        zoo = zoo if isinstance(zoo, Zoo) else Zoo.open(zoo)
        strange = [a for a in zoo.architectures if a not in self.model.architectures]
        if strange:
            known = "; ".join(map(str, self.model.architectures))
            raise ScaleGMNError(f"zoo: this model was built for {known}; {zoo.path} has {strange[0]}")
        alone = World(0, 1, self.device)
        return evaluate(
            self.model,
            self.task,
            zoo,
            zoo.split(split),
            world=alone,
            canonical=self.canonical,
            transform_seed=transform_seed,
        )

    def _invariant(self, wish: str) -> InvariantModel:
        if not isinstance(self.model, InvariantModel):
            raise ScaleGMNError(f"{wish}: this model was trained for {self.task.name}; use `edit`")
        return self.model

    def _batches(self, found: Read, size: int = 256) -> Iterator[Networks | Sequence[Networks]]:
        dtype = next(self.model.parameters()).dtype
        group: list[Networks] = []
        for batch in found.networks:
            self.model.accepts(batch)
            for start in range(0, len(batch), size):
                group.append(batch[start : start + size].to(dtype=dtype))
                if sum(map(len, group)) >= size:
                    yield present(group, self.canonical, self.device)
                    group = []
        if group:
            yield present(group, self.canonical, self.device)

    # -- sharing -----------------------------------------------------------------------------------------------

    def save(self, directory: str | Path) -> None:
        """Write `config.json` and `model.safetensors`, which `load` reads."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        write_tensors(directory / WEIGHTS, weights_of(self.model))
        write_json(directory / CONFIG, self.config)

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
