"""The product of the compiled code against the BLAS that torch has, on the sizes that occur; one thread each.

python benchmarks/products.py [SECONDS]

`products.h` is compiled with two functions that multiply packed matrices as `net.cpp` does and rows as `fit.cpp`
does. Both take turns with `torch.mm` in one process; the figures are billions of operations a second, medians of turns.
"""

from __future__ import annotations

import ctypes
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from scalegmn.native.build import FOLDER, find_compiler, flags

SOURCE = """
#include "products.h"
extern "C" void packed(Index rows, Index columns, Index depth, const float *a, const float *w, float *c, int times) {
    Packed<float> b;
    b.pack(w, columns, depth, true);
    for (int i = 0; i < times; ++i) product<Into::set>(rows, columns, depth, a, depth, 1, b.matrix(), c, columns);
}
extern "C" void plain(Index rows, Index columns, Index depth, const float *a, const float *b, float *c, int times) {
    for (int i = 0; i < times; ++i)
        with_width(columns, [&](auto wide) {
            product<Into::set>(rows, wide, depth, a, depth, 1, rows_of(b, wide), c, wide);
        });
}
"""
# Rows of a tile, columns, depth: as in the net at h = 32, 64 and 128, and in the fit of a 2-32-32-1 network.
SIZES = [(96, 64, 32), (48, 128, 64), (24, 256, 128), (66, 32, 32), (4096, 128, 128)]


def load(folder: Path) -> ctypes.CDLL:
    """The function, compiled as the package is."""
    source, library = folder / "one.cpp", folder / "one.so"
    source.write_text(SOURCE)
    words = [find_compiler(), *flags(), f"-I{FOLDER}", "-shared", str(source), "-o", str(library)]
    subprocess.run(words, check=True)
    return ctypes.CDLL(str(library))


def rate(work: Callable[[int], object], operations: int) -> float:
    """Billions of operations a second over some calls."""
    times = max(1, 20_000_000 // operations)
    start = time.perf_counter()
    work(times)
    return operations * times / (time.perf_counter() - start) / 1e9


def compare(library: ctypes.CDLL, sizes: tuple[int, int, int], seconds: float) -> list[float]:
    """Medians for torch, packed and rows."""
    rows, columns, depth = sizes
    a, b = torch.randn(rows, depth), torch.randn(depth, columns)
    c, out = torch.empty(rows, columns), torch.empty(rows, columns)

    def own(name: str, right: torch.Tensor, times: int) -> None:
        places = (ctypes.c_void_p(t.data_ptr()) for t in (a, right, c))
        getattr(library, name)(*map(ctypes.c_int64, sizes), *places, ctypes.c_int(times))

    def blas(times: int) -> None:
        for _ in range(times):
            torch.mm(a, b, out=out)

    ways = [blas, partial(own, "packed", b.T.contiguous()), partial(own, "plain", b)]
    for way in ways[1:]:
        way(1)
        torch.testing.assert_close(c, a @ b, rtol=1e-4, atol=1e-4)
    found: list[list[float]] = [[] for _ in ways]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for way, rates in zip(ways, found, strict=True):
            rates.append(rate(way, 2 * rows * columns * depth))
    return [statistics.median(rates) for rates in found]


def main(seconds: float) -> None:
    torch.set_num_threads(1)
    sys.stdout.write("| rows x columns x depth | torch.mm | ours, packed | ours, rows |\n|---|---|---|---|\n")
    with tempfile.TemporaryDirectory() as folder:
        library = load(Path(folder))
        for sizes in SIZES:
            figures = " | ".join(f"{n:.0f}" for n in compare(library, sizes, seconds))
            sys.stdout.write(f"| {' x '.join(map(str, sizes))} | {figures} |\n")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
