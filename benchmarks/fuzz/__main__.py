"""Damaged inputs and signals against every command, in real processes with limits on time, memory and disk.

    python benchmarks/fuzz --seconds 60 --seed 0
    python benchmarks/fuzz --seed 0 --only 137        # one input again, with what it printed

A command may succeed (exit code 0) or refuse in one line (exit code 2). A traceback, an internal error, a signal, a
hang, a file left half-written and an input that was changed are failures. A command that is interrupted says so, and
run again it ends in the same bytes as one that was not. Input number i of a seed is always the same.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import multiprocessing
import os
import pkgutil
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import corpus
import mutate
from cases import CASES, ROUND, Case
from sandbox import Outcome, Sandbox, State, complaints, interruption, last

# Large modules that libraries load when they are first used.
AT_FIRST_USE = ("torch._dynamo", "sklearn.manifold", "onnx", "PIL.JpegImagePlugin", "safetensors.numpy")
# What differs from run to run although nothing was interrupted: times.
VOLATILE = ("results.json", "metrics.jsonl", "state.json", "sweep.json", "lock")


@dataclass(frozen=True)
class Trial:
    """One input: its number, the command, what was done to it, how it ended and what is wrong with that."""

    index: int
    case: str
    said: str
    words: list[str]
    outcome: Outcome
    failures: list[str]

    def line(self, seed: int) -> str:
        """For a person, with the command that repeats it."""
        told = f"{self.index}: scalegmn {' '.join(self.words)[:200]} [{self.said}]: {'; '.join(self.failures)}"
        return f"{told}\n    python benchmarks/fuzz --seed {seed} --only {self.index}"


class Fuzzer:
    """One process that tries inputs.

    Arguments:
        source: The corpus.
        folder: To work in.
        seed: Of everything random.
    """

    def __init__(self, source: Path, folder: Path, seed: int) -> None:
        names = {p.name for p in source.iterdir()}
        self.seed = seed
        self.boxes = {c.name: Sandbox(source, folder / str(i), c.needs(names)) for i, c in enumerate(CASES)}
        self.whole: dict[str, State] = {}

    def check(self, case: Case) -> str | None:
        """Undamaged inputs must work, or damage would show nothing; what they give is what interrupted ones must."""
        box = self.boxes[case.name]
        box.fresh()
        outcome = box.run(list(case.words))
        self.whole[case.name] = box.state()
        return None if outcome.code == 0 else f"exit code {outcome.code}: {last(outcome.stderr)}"

    def trial(self, index: int) -> Trial:
        """Damage something, or choose a moment for a signal; run the command; judge what happened."""
        case, rng = ROUND[index % len(ROUND)], random.Random(f"{self.seed} {index}")
        box = self.boxes[case.name]
        box.fresh()
        words = list(case.words)
        if case.signals and rng.random() < 0.25:
            said, outcome, failures = self._interrupted(case, box, rng)
            return Trial(index, case.name, said, words, outcome, failures)
        if not case.inputs or rng.random() < 0.3:
            words, said = mutate.other_words(words, rng)
        else:
            place = box.path / rng.choice(case.inputs)
            files = [p for p in sorted(place.rglob("*")) if p.is_file()] if place.is_dir() else [place]
            said = mutate.damage(rng.choice(files), rng)
        before = box.state()
        outcome = box.run(words)
        return Trial(index, case.name, said, words, outcome, complaints(outcome, before, box.state(), case.updates))

    def _interrupted(self, case: Case, box: Sandbox, rng: random.Random) -> tuple[str, Outcome, list[str]]:
        number = rng.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
        after = rng.random() ** 2
        words = list(case.words)
        first = box.run(words, (number, after))
        failures = [f"{number.name}: {text}" for text in interruption(first, number)]
        # A run that has a checkpoint wants to be told to go on; everything else goes on by itself.
        if words[0] == "train" and any((box.path / "new" / "checkpoints").glob("[0-9]*")):
            words = [*dict.fromkeys([*words, "--resume"])]
        # An import is there whole, or not at all; the signal may come after that, before the command ends.
        done = words[:2] == ["zoo", "import"] and (box.path / "new").exists()
        second = first if done else box.run(words)
        if second.code != 0 and not done:
            failures.append(f"again after {number.name}: exit code {second.code}: {last(second.stderr)}")
        elif _stable(box.state()) != _stable(self.whole[case.name]):
            failures.append(f"again after {number.name}: other bytes than without")
        return f"{number.name} after {after:.2f} s", second, failures


def _stable(state: State) -> State:
    return {name: found for name, found in state.items() if Path(name).name not in VOLATILE}


def main() -> None:
    """Read the command line, try inputs, print what was tried and what failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that try inputs")
    parser.add_argument("--only", type=int, help="one input of this seed, with its output")
    parser.add_argument("--cases", default="", help="only the commands whose name contains this")
    chosen = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    # What is in memory is quicker than a disk, where there is such a place.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="scalegmn-fuzz-", dir=memory) as folder:
        source = Path(folder, "corpus")
        source.mkdir()
        corpus.build(source)
        _load()
        if chosen.only is not None:
            _one(Fuzzer(source, Path(folder, "0"), chosen.seed), chosen.only)
        cases = [case.name for case in CASES if chosen.cases in case.name]
        sys.exit(_many(source, Path(folder), chosen.seed, chosen.seconds, chosen.jobs, cases))


def _one(fuzzer: Fuzzer, index: int) -> None:
    """Try one input, show everything, and end."""
    fuzzer.check(ROUND[index % len(ROUND)])
    found = fuzzer.trial(index)
    _say(found.line(fuzzer.seed) if found.failures else found.said)
    said = f"{found.outcome.stdout}{found.outcome.stderr}"
    _say(f"$ scalegmn {' '.join(found.words)}\n{said}exit {found.outcome.code}")
    sys.exit(1 if found.failures else 0)


def _many(source: Path, folder: Path, seed: int, seconds: float, jobs: int, cases: list[str]) -> int:
    tried: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    failures = 0
    for found in _trials(source, folder, seed, seconds, jobs, cases):
        tried[found.case] += 1
        codes[str(found.outcome.code)] += 1
        if found.failures:
            failures += 1
            _say(found.line(seed))
    for name in cases:
        _say(f"{name:{max(map(len, cases))}}  {tried[name]}")
    _say("exit codes: " + ", ".join(f"{code}: {count}" for code, count in sorted(codes.items())))
    _say(f"{tried.total()} inputs, {failures} failures")
    return 1 if failures else 0


def _trials(source: Path, folder: Path, seed: int, seconds: float, jobs: int, cases: list[str]) -> Iterator[Trial]:
    """Try inputs in several processes until the time is up."""
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    chosen = [i for i, case in enumerate(ROUND) if case.name in cases]

    def work(number: int) -> None:
        try:
            attempt(number)
        except BaseException as error:
            queue.put(f"the generator itself failed: {error!r}")
            raise

    def attempt(number: int) -> None:
        fuzzer = Fuzzer(source, folder / str(number), seed)
        end, turn = time.monotonic() + seconds, number
        while time.monotonic() < end:
            around, place = divmod(turn, len(chosen))
            case = ROUND[chosen[place]]
            problem = None if case.name in fuzzer.whole else fuzzer.check(case)
            if problem is not None:
                queue.put(f"{case.name}: undamaged inputs give {problem}")
                return
            queue.put(fuzzer.trial(around * len(ROUND) + chosen[place]))
            turn += jobs
        queue.put(None)

    workers = [context.Process(target=work, args=(number,)) for number in range(jobs)]
    for worker in workers:
        worker.start()
    for _ in workers:
        while (found := queue.get()) is not None:
            if isinstance(found, str):
                for worker in workers:
                    worker.terminate()
                sys.exit(found)
            yield found
    for worker in workers:
        worker.join()


def _load() -> None:
    """Load what commands load, once, so that every input costs a fork and no more."""
    import torch

    import scalegmn
    from scalegmn.native import library

    torch.set_num_threads(1)
    ours = [module.name for module in pkgutil.walk_packages(scalegmn.__path__, "scalegmn.")]
    for name in (*ours, *AT_FIRST_USE):
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    for name in ("net", "fit", "cnn"):
        library.load(name)
    gc.collect()
    gc.freeze()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
