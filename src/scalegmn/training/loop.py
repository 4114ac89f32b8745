"""The training loop: from a recipe to a run directory."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..core.canonical import present
from ..core.networks import Networks
from ..errors import ScaleGMNError
from ..models.heads import Metanetwork
from ..native.memory import keep_memory
from ..tasks import Task, build_model, task_class
from ..zoo.store.zoo import Zoo
from .augment import Augment, MirrorAugment, MoveAugment, NoiseAugment, ScaleAugment
from .compiled import Compiled
from .data import AUGMENT, DROPOUT, PREPARE, Stream, batch_of, broken, listed, seed_for, some
from .distributed import World, world
from .evaluation import Evaluation, evaluate
from .precision import Precision
from .progress import Progress
from .recipe import Recipe, Training
from .run import Run
from .state import (
    Counters,
    State,
    keep_latest,
    load_state,
    optimizer_tensors,
    restore_optimizer,
    save_state,
    weights_of,
)

# Validations in quick succession need no checkpoint each: what is lost is done again in a moment, and the same.
SECONDS_BETWEEN_CHECKPOINTS = 2.0


class DivergedError(ScaleGMNError):
    """The loss of a run became infinite or NaN."""


class Objective(nn.Module):
    """Model and loss as one module, so that DistributedDataParallel or a compiler can wrap its forward pass."""

    def __init__(self, model: Metanetwork, task: Task) -> None:
        super().__init__()
        self.model = model
        self.task = task

    def forward(self, networks: Networks | Sequence[Networks], targets: Tensor) -> Tensor:
        """The mean loss of a batch."""
        return self.task.loss(self.task.respond(self.model, networks), targets)


def train(recipe: Recipe, out: str | Path, *, resume: bool = False, progress: Progress | None = None) -> dict[str, Any]:
    """Train according to a recipe and write everything to a directory.

    Arguments:
        recipe: The experiment.
        out: The run directory.
        resume: Continue an interrupted run; the result is the same as without the interruption.
        progress: What to show; plain lines on stderr if omitted.

    Returns:
        The content of `results.json`.
    """
    keep_memory()
    run = Run(Path(out))
    with ExitStack() as held, world(recipe.training.device) as together:
        zoo = Zoo.open(recipe.zoo)
        # Better now than at the first validation.
        zoo.split("val")
        task = task_class(recipe.task.name).from_zoo(zoo, **recipe.task.options)
        together.once(lambda: run.check(recipe, zoo, resume=resume))
        if together.once(lambda: run.finished):
            return together.once(run.results)
        together.once(lambda: held.enter_context(run.alone()))
        together.once(lambda: run.begin(recipe, task, zoo))
        quiet = progress is None and not together.main
        with progress or Progress(recipe.model.name, quiet=quiet) as shown:
            return Trainer(recipe, run, zoo, task, together, shown).run()


def learning_rate(settings: Training, step: int, fraction: float) -> float:
    r"""The learning rate of a step: linear warm-up, then constant, or \(\frac{1}{2}(1 + \cos \pi f)\) of it.

    Arguments:
        settings: Of the recipe.
        step: Number of the step, from 0.
        fraction: How much of the training is done, 0 to 1.

    >>> [learning_rate(Training(lr=1.0, warmup=4), step, 0) for step in (0, 3, 100)]
    [0.25, 1.0, 1.0]
    """
    rate = settings.lr * min(1.0, (step + 1) / settings.warmup) if settings.warmup else settings.lr
    return rate * (1 + math.cos(math.pi * min(fraction, 1.0))) / 2 if settings.schedule == "cosine" else rate


def _augments(settings: Training) -> list[Augment]:
    found: list[Augment] = []
    if settings.augment == "scale":
        found.append(ScaleAugment(settings.augment_rate))
    if settings.noise:
        found.append(NoiseAugment(settings.noise))
    if settings.move:
        found.append(MoveAugment(settings.move))
    if settings.mirror is not None:
        found.append(MirrorAugment(settings.mirror))
    return found


class Trainer:
    """A training run in one process, perhaps one of several.

    Arguments:
        recipe: The experiment.
        run: Where it is written.
        zoo: The networks.
        task: What to learn from them.
        together: The processes that train together.
        progress: Shows the progress.
    """

    def __init__(self, recipe: Recipe, run: Run, zoo: Zoo, task: Task, together: World, progress: Progress) -> None:
        self.recipe, self.settings, self.seed = recipe, recipe.training, recipe.seed
        self.run_directory, self.zoo, self.task, self.world, self.progress = run, zoo, task, together, progress
        self.stream = Stream(some(zoo.split("train"), self.settings.networks), self.settings.batch, recipe.seed)
        self.steps = self.settings.steps or self.settings.epochs * self.stream.epoch_steps
        self.every = self.settings.validate_every or self.stream.epoch_steps
        torch.manual_seed(seed_for(recipe.seed, PREPARE))
        self.model = build_model(recipe.model.name, recipe.model.options, task, zoo.architectures)
        # Processor time does not run while the machine is busy with something else.
        self._clock = time.process_time if self.settings.clock == "cpu" else time.perf_counter
        self.counters = Counters(seconds=self._prepare())
        self.model.to(together.device)
        # On the CPU one function updates all weights; elsewhere torch chooses.
        fused = True if together.device.type == "cpu" else None
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=self.settings.lr, weight_decay=self.settings.weight_decay, fused=fused
        )
        self.precision = Precision(self.settings.precision, together.device)
        self.objective = self._objective()
        self.augments = _augments(self.settings)
        self.best = weights_of(self.model)
        self.loss = torch.zeros((), device=together.device)
        self._saved, self._written = 0.0, 0

    def _prepare(self) -> float:
        """Show the model a sample of the training networks. Some models train on it, so the time counts.

        This happens on the CPU, for the same result on every device.
        """
        began = self._clock()
        generator = torch.Generator().manual_seed(seed_for(self.seed, PREPARE))
        chosen = torch.randperm(len(self.stream.indices), generator=generator)[: self.settings.prepare or None]
        networks = batch_of(self.zoo, self.stream.indices[chosen]).networks
        self.model.prepare(listed(present(networks, self.recipe.canonical)))
        return self._clock() - began

    def _objective(self) -> nn.Module:
        objective: nn.Module = Objective(self.model, self.task)
        if self.settings.compile:
            objective = Compiled(objective)
        if self.world.size > 1:
            # A batch may lack an architecture, and a readout may not see every neuron: some weights then go unused.
            objective = DistributedDataParallel(objective, find_unused_parameters=True)
        return objective

    # -- the run -----------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """Train to the end, then read the test split."""
        self._restore()
        self.model.train()
        self.progress.begin(self.steps, self.counters.step, self.stream.epoch_steps)
        self._saved = time.perf_counter()
        self._began = self._clock() - self.counters.seconds
        self._read_clock()
        while self.counters.step < self.steps and not self.counters.stopped:
            self._step()
            step = self.counters.step
            self._check_time()
            last = step == self.steps or bool(self.counters.stopped)
            if step % self.every == 0 or last:
                self._validate()
            elif self.settings.checkpoint_every and step % self.settings.checkpoint_every == 0:
                self._save()
        return self._finish()

    def _step(self) -> None:
        settings, step = self.settings, self.counters.step
        torch.manual_seed(seed_for(self.seed, DROPOUT, step, self.world.rank))
        indices = self.stream.indices_of(step)
        mine = self.world.part(indices)
        # The processes' gradients are averaged; weights make that the mean over the whole batch.
        weight = len(mine) * self.world.size / len(indices)
        networks, numbers = batch_of(self.zoo, mine if len(mine) else indices[:1])
        targets = self.task.targets(self.zoo, numbers).to(self.world.device)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(settings, step, self._fraction())
        self.optimizer.zero_grad(set_to_none=True)
        with self.precision.autocast():
            loss = self.objective(self._inputs(networks, step), targets)
        self._check("loss", self.world.mean(loss))
        norm = self.precision.step(weight * loss, self.optimizer, self.model.parameters(), settings.clip)
        self._check("norm of the gradient", norm)
        self.counters.step += 1
        self.counters.networks += len(mine)
        self.loss += loss.detach() * len(mine)
        self.progress.step(self.counters.step, len(indices))

    def _check(self, what: str, value: float, indices: Tensor | None = None) -> None:
        """Stop at the first loss or gradient that is NaN or infinite, and say why; all processes see the same value."""
        if math.isfinite(value):
            return
        spoilt = broken(self.zoo, self.stream.indices if indices is None else indices)
        if spoilt:
            shown = ", ".join(map(str, spoilt[:10])) + (f" and {len(spoilt) - 10} more" if len(spoilt) > 10 else "")
            raise ScaleGMNError(
                f"zoo: {self.zoo.path} has networks with NaN or infinite weights: {shown}; build it again without them"
            )
        raise DivergedError(
            f"training: the {what} became {value} at step {self.counters.step}; "
            f"try a smaller training.lr than {self.settings.lr:g}, or more training.warmup"
        )

    def _inputs(self, networks: Networks | Sequence[Networks], step: int) -> Networks | list[Networks]:
        generator = torch.Generator().manual_seed(seed_for(self.seed, AUGMENT, step, self.world.rank))
        batches = listed(networks)
        for augment in self.augments:
            batches = [augment(batch, generator) for batch in batches]
        one = isinstance(networks, Networks)
        return present(batches[0] if one else batches, self.recipe.canonical, self.world.device)

    def _fraction(self) -> float:
        """How much of the training is done: by steps, or by time if that ends first."""
        fraction = self.counters.step / self.steps
        if self.settings.minutes is None:
            return fraction
        return max(fraction, min(1.0, self.counters.seconds / (60 * self.settings.minutes)))

    def _read_clock(self) -> None:
        self.counters.seconds = self._clock() - self._began
        if self.settings.minutes is not None:
            # Time then decides learning rates and the end: all processes must see the same clock, or they would part.
            self.counters.seconds = self.world.once(lambda: self.counters.seconds)

    def _check_time(self) -> None:
        self._read_clock()
        if self.settings.minutes is not None and self.counters.seconds >= 60 * self.settings.minutes:
            self.counters.stopped = "minutes"

    # -- validation and checkpoints ----------------------------------------------------------------------------

    def _validate(self) -> None:
        self._count_loss()
        c = self.counters
        loss = self.world.total(c.loss) / max(self.world.total(c.networks), 1)
        found = self._evaluate("val")
        value, surprise = found.metrics[self.task.metric], found.metrics["loss"]
        self._check("loss on the validation split", surprise, self.zoo.split("val"))
        # A small split gives the same accuracy again and again: of equals, the one with the lower loss.
        tie = value == c.best and c.best_loss is not None and surprise < c.best_loss
        improved = c.best is None or tie or self.task.better(value, c.best)
        if improved:
            c.best, c.best_step, c.stale = (None if math.isnan(value) else value), c.step, 0
            c.best_loss = surprise if math.isfinite(surprise) else None
            self.best = weights_of(self.model)
        else:
            c.stale += 1
        if self.settings.patience is not None and c.stale >= self.settings.patience:
            c.stopped = c.stopped or "patience"
        c.loss, c.networks, c.validated = 0.0, 0, c.step
        self._report({"train_loss": loss, **found.metrics}, improved)
        if time.perf_counter() - self._saved >= SECONDS_BETWEEN_CHECKPOINTS or c.step == self.steps or c.stopped:
            self._save()

    def _evaluate(self, split: str) -> Evaluation:
        indices, canonical = self.zoo.split(split), self.recipe.canonical
        return evaluate(self.model, self.task, self.zoo, indices, world=self.world, canonical=canonical)

    def _count_loss(self) -> None:
        self.counters.loss += self.loss.item()
        self.loss.zero_()

    def _report(self, values: dict[str, float], improved: bool) -> None:
        self._read_clock()
        if not self.world.main:
            return
        c = self.counters
        record = {"step": c.step, "epoch": c.step / self.stream.epoch_steps, **values, "best": improved}
        rate = {"lr": self.optimizer.param_groups[0]["lr"], "networks_per_second": round(self.progress.rate, 1)}
        self.run_directory.log({**record, **rate, "seconds": round(c.seconds, 3)})
        self.progress.validated(c.step, values, seconds=c.seconds, fraction=self._fraction(), best=improved)
        if self.settings.tensorboard:
            self.run_directory.tensorboard(c.step, values)

    def _save(self) -> None:
        self._count_loss()
        if not self.world.main:
            return
        if self.counters.best_step > self._written:
            self.run_directory.write_model(self.best)
            self._written = self.counters.best_step
        tensors = optimizer_tensors(self.optimizer)
        state = State(self.counters, weights_of(self.model), self.best, tensors, self.precision.state())
        save_state(self.run_directory.checkpoints, state)
        self._saved = time.perf_counter()

    def _restore(self) -> None:
        state = self.world.once(lambda: load_state(self.run_directory.checkpoints))
        if state is None:
            if self.world.main:
                self.run_directory.forget_after(-1)
            return
        self.counters, self.best = state.counters, state.best
        try:
            self.model.load_state_dict(state.model)
            restore_optimizer(self.optimizer, state.optimizer)
            self.precision.restore(state.scaler)
        except (RuntimeError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())[:200]
            where = self.run_directory.checkpoints
            raise ScaleGMNError(f"{where}: the checkpoint does not belong to this recipe ({reason})") from error
        if self.world.main:
            keep_latest(self.run_directory.checkpoints)
            self.run_directory.forget_after(state.counters.step)
            self.progress.note(f"continuing at step {state.counters.step} of {self.steps}")

    def _finish(self) -> dict[str, Any]:
        self.model.load_state_dict(self.best)
        results: dict[str, Any] = {
            "model": self.recipe.model.name,
            "task": self.task.name,
            "metric": self.task.metric,
            "seed": self.seed,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "steps": self.counters.step,
            "epochs": round(self.counters.step / self.stream.epoch_steps, 3),
            "best_step": self.counters.best_step,
            "stopped": self.counters.stopped or "finished",
            "seconds": round(self.counters.seconds, 3),
        }
        for name in ("val", "test"):
            if name in self.zoo.splits:
                results[name] = self._evaluate(name).metrics
        if self.world.main:
            self.run_directory.write_results(results)
        return results
