"""Damaged inputs against every command, each in a process of its own, with limits on time, memory and disk.

    python benchmarks/fuzz --seconds 60 --seed 0
    python benchmarks/fuzz --seed 0 --only 137        # one input again, with what it printed

A command may succeed (exit code 0) or refuse in one line (exit code 2). A traceback, an internal error, a signal, a
hang, a file left half-written and an input that was changed are failures. Input number i of a seed is always the same.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import resource
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import corpus
import mutate

SECONDS = 30.0
MEMORY = 8 << 30
DISK = 256 << 20
LEFT_BEHIND = (".tmp", ".part", ".importing")


@dataclass(frozen=True)
class Case:
    """A command line that works, and the inputs it reads.

    Arguments:
        name: What is tried.
        words: The command line.
        inputs: Files or folders of the sandbox that may be damaged.
        updates: Folders that the command may change.
        signals: Whether to interrupt it and go on with `--resume` as well.
    """

    name: str
    words: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
    signals: bool = False


def _case(name: str, line: str, inputs: str = "", updates: str = "", *, signals: bool = False) -> Case:
    return Case(name, tuple(line.split()), tuple(inputs.split()), tuple(updates.split()), signals)


CASES = [
    _case("inspect", "inspect mine/net0.pt mine/net1.safetensors --activation tanh --json", "mine"),
    _case("models", "models --json"),
    _case("zoo info", "zoo info zoo --json", "zoo"),
    _case("zoo info plot", "zoo info zoo --plot out.png", "zoo"),
    _case("zoo verify", "zoo verify zoo", "zoo"),
    _case("zoo combine", "zoo combine zoo zoo --where label=0 --out both", "zoo"),
    _case(
        "zoo build inr",
        "zoo build inr --images npz:images.npz --out new --hidden 4 --steps 5 --count 20",
        "images.npz",
        "new",
        signals=True,
    ),
    _case("zoo build mnist", "zoo build inr --images mnist --root data --out new --hidden 4 --steps 3", "data/MNIST"),
    _case(
        "zoo build cifar", "zoo build cnn --images cifar10 --root data --grey --count 3 --steps 2,3 --out new", "data"
    ),
    _case("zoo build cnn", "zoo build cnn --images npz:images.npz --count 4 --steps 2,4 --out new", "images.npz"),
    _case("zoo import mnist-inr", "zoo import mnist-inr mnist-inrs new", "mnist-inrs"),
    _case("zoo import cnn-zoo", "zoo import cnn-zoo cnn-zoo new", "cnn-zoo"),
    _case(
        "zoo import checkpoints",
        "zoo import checkpoints mine new --labels labels.csv --activation tanh",
        "mine labels.csv",
    ),
    _case("train", "train classification.toml --out new", "classification.toml zoo", "new", signals=True),
    _case("resume", "train classification.toml --out classification-run --resume", "classification-run zoo",
          "classification-run"),
    _case("sweep", "sweep classification.toml --grid model.width=4 --set training.epochs=1 --out new",
          "classification.toml zoo", "new"),
    _case("evaluate", "evaluate classification-run --transform --json", "classification-run zoo"),
    _case("predict", "predict classification-run mine/net0.pt mine/net1.safetensors --json", "classification-run mine"),
    _case("embed", "embed classification-run mine/net0.pt -o out.npz", "classification-run mine"),
    _case("embed zoo", "embed classification-run zoo -o out.npz", "classification-run zoo"),
    _case("edit", "edit editing-run mine/net0.pt -o out.pt --render out.png", "editing-run mine"),
    _case("report", "report classification-run editing-run -o out.html --networks 8", "classification-run editing-run"),
    _case("reproduce", "reproduce inr-classification --table-only --results results --json", "results"),
]  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """How a process ended: its exit code (negative for a signal), or None after the time limit; what it wrote."""

    code: int | None
    stdout: str
    stderr: str


def main() -> None:
    """Read the command line, try inputs, print what was tried and what failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="one input of this seed, with its output")
    parser.add_argument("--cases", help="only the commands whose name contains this")
    chosen = parser.parse_args()
    cases = [c for c in CASES if chosen.cases is None or chosen.cases in c.name]
    os.environ["OMP_NUM_THREADS"] = "1"
    tried: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="scalegmn-fuzz-") as folder:
        source = Path(folder, "corpus")
        source.mkdir()
        corpus.build(source)
        _load()
        _check_corpus(source, Path(folder), cases)
        end = time.monotonic() + chosen.seconds
        index = 0 if chosen.only is None else chosen.only
        while chosen.only is not None or time.monotonic() < end:
            case = cases[index % len(cases)]
            rng = random.Random(f"{chosen.seed} {index}")
            said, words, outcome, complaints = _try(case, source, Path(folder, "sandbox"), rng)
            tried[case.name] += 1
            codes[str(outcome.code)] += 1
            if complaints:
                again = f"python benchmarks/fuzz --seed {chosen.seed} --only {index}"
                again += f" --cases {chosen.cases!r}" if chosen.cases else ""
                line = f"{index}: scalegmn {' '.join(words)[:200]} [{said}]: {'; '.join(complaints)}\n    {again}"
                failures.append(line)
                _say(line)
            if chosen.only is not None:
                _say(f"{said}\n$ scalegmn {' '.join(words)}\n{outcome.stdout}{outcome.stderr}exit {outcome.code}")
                break
            index += 1
    width = max(map(len, tried))
    for name, count in tried.items():
        _say(f"{name:{width}}  {count}")
    _say("exit codes: " + ", ".join(f"{code}: {count}" for code, count in sorted(codes.items())))
    _say(f"{sum(tried.values())} inputs, {len(failures)} failures")
    sys.exit(1 if failures else 0)


def _load() -> None:
    """Load what commands load, once, so that every input costs a fork and no more."""
    import importlib
    import pkgutil

    import torch

    import scalegmn

    torch.set_num_threads(1)
    for module in pkgutil.walk_packages(scalegmn.__path__, "scalegmn."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ImportError:
                continue


def _check_corpus(source: Path, folder: Path, cases: list[Case]) -> None:
    """Undamaged inputs must work, or damage would show nothing."""
    for case in cases:
        sandbox = _fresh(source, folder / "sandbox")
        outcome = _process(list(case.words), sandbox)
        if outcome.code != 0:
            sys.exit(f"{case.name}: undamaged inputs give exit code {outcome.code}: {outcome.stderr.strip()[-500:]}")


def _try(case: Case, source: Path, sandbox: Path, rng: random.Random) -> tuple[str, list[str], Outcome, list[str]]:
    """Damage something, run the command, judge what happened."""
    _fresh(source, sandbox)
    words = list(case.words)
    if case.signals and rng.random() < 0.25:
        return _interrupted(case, sandbox, rng)
    if not case.inputs or rng.random() < 0.3:
        words, said = mutate.other_words(words, rng)
    else:
        place = sandbox / rng.choice(case.inputs)
        files = [p for p in sorted(place.rglob("*")) if p.is_file()] if place.is_dir() else [place]
        said = mutate.damage(rng.choice(files), rng)
    before = _snapshot(sandbox)
    outcome = _process(words, sandbox)
    return said, words, outcome, _complaints(case, outcome, before, _snapshot(sandbox))


def _interrupted(case: Case, sandbox: Path, rng: random.Random) -> tuple[str, list[str], Outcome, list[str]]:
    """Send a signal at some moment, then run the command again until its end."""
    number = rng.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    after = rng.uniform(0, 1.5)
    first = _process(list(case.words), sandbox, (number, after))
    allowed = {0, 130, -signal.SIGKILL} if number == signal.SIGKILL else {0, 130}
    complaints = [] if first.code in allowed else [f"{number.name}: exit code {first.code}: {_last(first.stderr)}"]
    started = case.name == "train" and (sandbox / "new").is_dir() and any((sandbox / "new").iterdir())
    words = [*case.words, "--resume"] if started else list(case.words)
    second = _process(words, sandbox)
    if second.code != 0 and not (started and "nothing" in second.stderr):
        complaints.append(f"after {number.name}: exit code {second.code}: {_last(second.stderr)}")
    return f"{number.name} after {after:.2f} s", words, second, complaints


def _fresh(source: Path, sandbox: Path) -> Path:
    if sandbox.exists():
        shutil.rmtree(sandbox)
    shutil.copytree(source, sandbox)
    return sandbox


def _process(words: list[str], sandbox: Path, kick: tuple[signal.Signals, float] | None = None) -> Outcome:
    """Run a command line in a forked process inside the sandbox."""
    out, err = sandbox.parent / "stdout", sandbox.parent / "stderr"
    child = os.fork()
    if child == 0:
        _become(words, sandbox, out, err)
    started, end = time.monotonic(), time.monotonic() + SECONDS
    code: int | None = None
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            code = os.waitstatus_to_exitcode(status)
            break
        if kick is not None and time.monotonic() - started > kick[1]:
            os.kill(child, kick[0])
            kick = None
        time.sleep(0.005)
    else:
        _end(child)
    return Outcome(code, out.read_text(errors="replace"), err.read_text(errors="replace"))


def _end(child: int) -> None:
    """End a process that took too long, with its helpers."""
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _become(words: list[str], sandbox: Path, out: Path, err: Path) -> None:
    """Turn this process into `scalegmn words`; does not return."""
    code = 1
    try:
        os.setsid()
        os.chdir(sandbox)
        for number, path, flags in ((0, os.devnull, os.O_RDONLY), (1, out, None), (2, err, None)):
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC if flags is None else flags, 0o644)
            os.dup2(opened, number)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_FSIZE, (DISK, DISK))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        sys.argv = ["scalegmn", *words]
        from scalegmn.cli import main as command

        command()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _snapshot(sandbox: Path) -> dict[str, tuple[int, str]]:
    """Size and hash of every regular file."""
    found = {}
    for path in sandbox.rglob("*"):
        try:
            state = path.lstat()
        except OSError:
            continue
        if stat.S_ISREG(state.st_mode):
            digest = hashlib.sha256(path.read_bytes()).hexdigest() if state.st_size < DISK else "large"
            found[str(path.relative_to(sandbox))] = (state.st_size, digest)
    return found


def _complaints(
    case: Case, outcome: Outcome, before: dict[str, tuple[int, str]], after: dict[str, tuple[int, str]]
) -> list[str]:
    found = []
    if outcome.code is None:
        found.append(f"no end after {SECONDS:.0f} s")
    elif outcome.code < 0:
        found.append(f"ended by {signal.Signals(-outcome.code).name}")
    elif outcome.code not in (0, 2):
        found.append(f"exit code {outcome.code}: {_last(outcome.stderr)}")
    if "Traceback" in outcome.stderr:
        found.append("a traceback")
    if outcome.code == 2 and not outcome.stderr.strip().splitlines()[-1:][0:1]:
        found.append("refused without a word")
    for name, state in before.items():
        if after.get(name) != state and not name.startswith(case.updates or ("\0",)):
            found.append(f"input {name} was changed")
    if outcome.code not in (0, None):
        for name in after.keys() - before.keys():
            if name.endswith(LEFT_BEHIND) or (after[name][0] == 0 and "lock" not in name):
                found.append(f"left {name} behind")
    return found


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else "nothing on stderr"


if __name__ == "__main__":
    main()
