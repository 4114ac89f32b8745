"""What is tried: for every command a line that works, the inputs that may be damaged, and whether it is interrupted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """A command line that works on the undamaged corpus.

    Arguments:
        name: What is tried.
        words: The command line.
        inputs: Files or folders that may be damaged.
        updates: Folders that the command may change.
        signals: Whether it is also interrupted, and then run again until its end.
        turns: How often it comes up before all have had their turn.
    """

    name: str
    words: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
    signals: bool = False
    turns: int = 1

    def needs(self, names: set[str]) -> list[str]:
        """What of the corpus, by the names at its top, the command sees."""
        parts = {part for word in (*self.words, *self.inputs) for part in (word.partition(":")[2], word)}
        return sorted({part.partition("/")[0] for part in parts} & names)


def _case(
    name: str, line: str, inputs: str = "", updates: str = "", *, signals: bool = False, turns: int = 1
) -> Case:
    return Case(name, tuple(line.split()), tuple(inputs.split()), tuple(updates.split()), signals, turns)


_TRAIN = "train classification.toml --out new"
_SWEEP = "sweep classification.toml --grid model.width=4 --set training.epochs=1 --out new"
_INR = "zoo build inr --images npz:images.npz --out new --hidden 4 --steps 5 --count 20"
_CNN = "zoo build cnn --images npz:images.npz --count 4 --steps 2,4 --out new"
_OWN = "zoo import checkpoints mine new --labels labels.csv --activation tanh"

CASES = [
    _case("inspect", "inspect mine/net0.pt mine/net1.safetensors --activation tanh --json", "mine"),
    _case("inspect --arch", "inspect mine/net0.pt --arch nets.py:make --plot out.png", "mine nets.py"),
    _case("inspect onnx", "inspect net.onnx --json", "net.onnx"),
    _case("models", "models --json"),
    _case("check", "check --model mlp --json"),
    _case("compare", "compare mine/net0.pt mine/net1.safetensors --activation tanh --json", "mine"),
    _case("align", "align mine/net0.pt mine/net1.pt -o out.pt --activation tanh --data inputs.npy", "mine inputs.npy"),
    _case("merge", "merge mine/net0.pt mine/net1.pt -o out.pt --activation tanh --data inputs.npy", "mine inputs.npy"),
    _case("balance", "balance mine/net0.pt -o out.pt --activation tanh --int8 --data inputs.npy", "mine inputs.npy"),
    _case("dedupe", "dedupe mine --activation tanh --json", "mine"),
    _case("zoo info", "zoo info zoo --json", "zoo", turns=8),
    _case("zoo info --plot", "zoo info zoo --plot out.png", "zoo"),
    _case("zoo show", "zoo show zoo --plot out.png --count 4", "zoo"),
    _case("zoo verify", "zoo verify zoo", "zoo", turns=8),
    _case("zoo combine", "zoo combine zoo zoo --where label=0 --out new", "zoo"),
    _case("zoo build inr", _INR, "images.npz", "new", signals=True),
    _case("zoo build inr mnist", "zoo build inr --images mnist --root data --out new --hidden 4 --steps 3 --count 9",
          "data/MNIST"),
    _case("zoo build cnn cifar", "zoo build cnn --images cifar10 --root data --grey --count 3 --steps 2,3 --out new",
          "data"),
    _case("zoo build cnn pickled", "zoo build cnn --images cifar10 --root pickled --count 3 --steps 2,3 --out new",
          "pickled"),
    _case("zoo build inr svhn", "zoo build inr --images svhn --root svhn --out new --hidden 4 --steps 3 --count 9",
          "svhn"),
    _case("zoo build cnn", _CNN, "images.npz", "new", signals=True),
    _case("zoo import mnist-inr", "zoo import mnist-inr mnist-inrs new", "mnist-inrs", signals=True),
    _case("zoo import mnist-inr zip", "zoo import mnist-inr mnist-inrs.zip new", "mnist-inrs.zip"),
    _case("zoo import mnist-inr tar", "zoo import mnist-inr mnist-inrs.tar.gz new", "mnist-inrs.tar.gz"),
    _case("zoo import fmnist-inr", "zoo import fmnist-inr fmnist-inrs new", "fmnist-inrs"),
    _case("zoo import cifar10-inr", "zoo import cifar10-inr cifar-inrs new", "cifar-inrs"),
    _case("zoo import cnn-zoo", "zoo import cnn-zoo cnn-zoo new", "cnn-zoo"),
    _case("zoo import checkpoints", _OWN, "mine labels.csv"),
    _case("train", _TRAIN, "classification.toml zoo", "new", signals=True),
    _case("train --resume", "train classification.toml --out half-run --resume", "half-run zoo", "half-run",
          signals=True, turns=8),
    _case("sweep", _SWEEP, "classification.toml zoo", "new", signals=True),
    _case("evaluate", "evaluate classification-run --transform --json", "classification-run zoo"),
    _case("predict", "predict classification-run mine/net0.pt mine/net1.safetensors --json", "classification-run mine"),
    _case("predict folder", "predict classification-run mine --csv", "classification-run mine"),
    _case("embed", "embed classification-run mine/net0.pt -o out.npz", "classification-run mine"),
    _case("embed zoo", "embed classification-run zoo -o out.npz", "classification-run zoo"),
    _case("edit", "edit editing-run mine/net0.pt -o out.pt --render out.png", "editing-run mine", turns=8),
    _case("export", "export classification-run packed", "classification-run zoo", "packed"),
    _case("report", "report classification-run -o out.html --networks 4", "classification-run zoo"),
    _case("reproduce", "reproduce inr-classification --table-only --results results --json", "results"),
]  # fmt: skip

# The order in which they come: those with more turns again and again.
ROUND = [case for turn in range(max(case.turns for case in CASES)) for case in CASES if turn < case.turns]
