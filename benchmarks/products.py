"""The product of the compiled code against the BLAS that torch has, on the sizes that occur; one thread each.

python benchmarks/products.py [SECONDS]

`products.h` is compiled with one more function, which multiplies packed matrices as `net.cpp` does and rows as `fit.cpp`
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


def main(seconds: float) -> None:
    torch.set_num_threads(1)
    print("| rows x columns x depth | torch.mm | ours, packed | ours, rows |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        library = load(Path(folder))
        for rows, columns, depth in SIZES:
            a, b = torch.randn(rows, depth), torch.randn(depth, columns)
            w, c, out = b.T.contiguous(), torch.empty(rows, columns), torch.empty(rows, columns)

            def own(name: str, right: torch.Tensor, times: int) -> None:
                sizes = (ctypes.c_int64(n) for n in (rows, columns, depth))  # noqa: B023
                places = (ctypes.c_void_p(t.data_ptr()) for t in (a, right, c))  # noqa: B023
                getattr(library, name)(*sizes, *places, ctypes.c_int(times))

            def blas(times: int) -> None:
                for _ in range(times):
                    torch.mm(a, b, out=out)  # noqa: B023

            ways = [blas, lambda n: own("packed", w, n), lambda n: own("plain", b, n)]  # noqa: B023
            for way in ways[1:]:
                way(1)
                torch.testing.assert_close(c, a @ b, rtol=1e-4, atol=1e-4)
            found: list[list[float]] = [[] for _ in ways]
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                for way, rates in zip(ways, found, strict=True):
                    rates.append(rate(way, 2 * rows * columns * depth))
            figures = " | ".join(f"{statistics.median(rates):.1f}" for rates in found)
            print(f"| {rows} x {columns} x {depth} | {figures} |", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
