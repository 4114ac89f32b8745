"""A large zoo: so many networks written, verified, described and trained on, each in a process of its own, in 2 GB.

    python benchmarks/load.py                 # 200,000 networks, of which 20,000 for validation; needs 1 GB of disk
    python benchmarks/load.py --networks 20000

Prints the seconds and the peak memory of every step, and ends with exit code 1 where a step needs more than 2 GB.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT = 2000
RECIPE = """\
zoo = "zoo"
task = "classification"

[model]
name = "scalegmn"
width = 32
layers = 2

[training]
steps = 100
batch = 64
validate_every = 100
device = "cpu"
"""


def main() -> None:
    """Run every step and tell its cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=200_000)
    parser.add_argument("--step", choices=["write", "validate"], help="run one step here, for the script itself")
    chosen = parser.parse_args()
    if chosen.step == "write":
        write(chosen.networks)
    elif chosen.step == "validate":
        validate()
    else:
        with tempfile.TemporaryDirectory(prefix="scalegmn-load-") as folder:
            Path(folder, "recipe.toml").write_text(RECIPE)
            sys.exit(measure(Path(folder), chosen.networks))


def measure(folder: Path, networks: int) -> int:
    """Run the steps; 1 where one needs too much memory."""
    here, command = [sys.executable, str(Path(__file__).resolve())], [sys.executable, "-m", "scalegmn"]
    steps = {
        "write": [*here, "--networks", str(networks), "--step", "write"],
        "zoo verify": [*command, "zoo", "verify", "zoo"],
        "zoo info": [*command, "zoo", "info", "zoo"],
        "train 100 steps": [*command, "train", "recipe.toml", "--out", "run"],
        "validate": [*here, "--step", "validate"],
    }
    worst = 0
    for name, words in steps.items():
        wall, processor, peak = cost(words, folder)
        worst = max(worst, peak)
        sys.stdout.write(f"{name:16s} {wall:7.1f} s, {processor:7.1f} s of the processor {peak:6d} MB\n")
        sys.stdout.flush()
    sys.stdout.write(f"{networks:,} networks, at most {worst} MB of {LIMIT}\n")
    return int(worst > LIMIT)


def cost(words: list[str], folder: Path) -> tuple[float, float, int]:
    """Seconds, seconds of the processor and peak memory in MB of a process; it is heard only if it fails."""
    watch = (
        "import resource, subprocess, sys; code = subprocess.run(sys.argv[1:]).returncode; "
        "used = resource.getrusage(resource.RUSAGE_CHILDREN); "
        "print(used.ru_utime + used.ru_stime, used.ru_maxrss // 1024); sys.exit(code)"
    )
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", watch, *words], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr.strip()[-500:]}")
    processor, peak = done.stdout.splitlines()[-1].split()
    return time.perf_counter() - began, float(processor), int(peak)


def write(networks: int) -> None:
    """A zoo of random SIRENs with ten labels: a tenth for validation, a twentieth for the test."""
    import torch

    from scalegmn.core.activations import activation
    from scalegmn.core.architecture import Architecture
    from scalegmn.zoo.store.writer import ZooWriter

    siren = Architecture.mlp([2, 32, 32, 1], activation("sine", 30.0))
    names = ["val", "val", "test", *["train"] * 17]
    writer = ZooWriter("zoo", kind="example", arguments={"networks": networks})
    generator = torch.Generator().manual_seed(0)
    for start in range(0, networks, 1024):
        numbers = torch.arange(start, min(start + 1024, networks))
        rows = 0.1 * torch.randn(len(numbers), siren.parameters, generator=generator)
        columns = {"label": numbers % 10, "split": [names[i % 20] for i in numbers.tolist()]}
        writer.append(siren, rows, columns)
    writer.finish()


def validate() -> None:
    """Ask the trained model about the validation networks."""
    from scalegmn.inference.trained import load

    load("run").evaluate("zoo", "val")


if __name__ == "__main__":
    main()
