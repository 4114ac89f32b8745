"""The two forms of ScaleGMN-B after the same number of epochs: test metric and processor time, two seeds.

scalegmn zoo build inr --images digits --hidden 16,16 --count 1200 --out zoos/digits
scalegmn zoo build cnn --images mnist --root data --count 300 --steps 20,200 --test-images 1000 --out zoos/cnn
python benchmarks/forms.py zoos/digits zoos/cnn
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from scalegmn.native.memory import keep_memory
from scalegmn.training.loop import train
from scalegmn.training.progress import Progress
from scalegmn.training.recipe import make_recipe

SEEDS = (0, 1)
MODEL = {"name": "scalegmn-b", "width": 32, "layers": 2, "dropout": 0.1}
FORMS: dict[str, dict[str, Any]] = {
    "ours": {"form": "ours"},
    "paper": {"form": "paper"},
    "paper, neighbours only": {"form": "paper", "neighbours_only": True},
}


def run(zoo: Path, task: str | dict[str, Any], form: dict[str, Any], seed: int, epochs: int) -> dict[str, Any]:
    """The results of one training run."""
    training = {"epochs": epochs, "clock": "cpu", "batch": 32, "lr": 2e-3, "warmup": 20, "schedule": "cosine"}
    table = {"zoo": str(zoo), "task": task, "seed": seed, "model": MODEL | form, "training": training}
    with tempfile.TemporaryDirectory() as folder:
        return train(make_recipe(table), Path(folder) / "run", progress=Progress("forms", quiet=True))


def main() -> None:
    """Print rows of a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("digits", type=Path)
    parser.add_argument("cnn", type=Path)
    parser.add_argument("--epochs", type=int, default=10)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    regression = {"name": "regression", "column": "test_accuracy", "sigmoid": True}
    for zoo, task in ((chosen.digits, "classification"), (chosen.cnn, regression)):
        for name, form in FORMS.items():
            found = [run(zoo, task, form, seed, chosen.epochs) for seed in SEEDS]
            values = ", ".join(f"{r['test'][r['metric']]:.3f}" for r in found)
            seconds = statistics.mean(r["seconds"] for r in found)
            sys.stdout.write(f"| {zoo.name} | {name} | {values} | {found[0]['parameters']:,} | {seconds:.0f} s |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
