"""The tables of `scalegmn zoo info`."""

from collections.abc import Mapping
from typing import Any

from ..console import stdout, table

_BAR = 40
# A zoo with varied architectures has hundreds of layers.
_ARCHITECTURES = 4


def print_info(found: Mapping[str, Any]) -> None:
    """Write what `scalegmn.zoo.store.stats.info` found as tables."""
    console = stdout()
    size = found["bytes"] / 1e6
    console.print(
        f"{found['path']}: {found['networks']:,} {found['kind']} networks in {found['shards']} shard(s), {size:.1f} MB",
        markup=False,
    )
    for a in found["architectures"][: 3 * _ARCHITECTURES]:
        console.print(f"  {a['networks']:,} x {a['text']}, {a['parameters']:,} parameters", markup=False)
    for name in ("splits", "labels"):
        if found[name]:
            counts = ", ".join(f"{key} {value:,}" for key, value in found[name].items())
            console.print(f"{name}: {counts}", markup=False)
    for name, counts in found["categories"].items():
        console.print(f"{name}: " + ", ".join(f"{key} {value:,}" for key, value in counts.items()), markup=False)
    metrics = table("metric", "mean", "std", "min", "median", "max", header_style="bold")
    for name, m in found["metrics"].items():
        if m["count"]:
            metrics.add_row(name, *(f"{m[key]:.4g}" for key in ("mean", "std", "min", "median", "max")))
    if metrics.row_count:
        console.print()
        console.print(metrics)
    if found["tau_cap"]:
        caps = ", ".join(f"{name} {value:.4f}" for name, value in found["tau_cap"].items())
        console.print(f"\nlargest tau of test_accuracy that ties allow: {caps}", markup=False)
    for name in ("psnr", "accuracy", "test_accuracy"):
        if found["metrics"].get(name, {}).get("count"):
            _print_histogram(name, found["metrics"][name]["histogram"])
    _print_layers(found)


def _print_histogram(name: str, histogram: Mapping[str, Any]) -> None:
    """A histogram of characters, in ten rows."""
    console = stdout()
    console.print(f"\n{name}", style="bold")
    counts, edges = histogram["counts"], histogram["edges"]
    step = len(counts) // 10
    rows = [sum(counts[i : i + step]) for i in range(0, len(counts), step)]
    for i, count in enumerate(rows):
        bar = "#" * round(_BAR * count / max(rows))
        console.print(f"{edges[i * step]:10.4g} {bar:<{_BAR}} {count:,}", markup=False)


def _print_layers(found: Mapping[str, Any]) -> None:
    several = len(found["architectures"]) > 1
    columns = [*(["architecture"] if several else []), "layer", "mean", "std", "negative", "norm", "norm spread"]
    rows = table(*columns, header_style="bold")
    shown = [layer for layer in found["layers"] if layer["architecture"] < _ARCHITECTURES]
    for layer in shown:
        first = [found["architectures"][layer["architecture"]]["text"]] if several else []
        numbers = [f"{layer['mean']:.4g}", f"{layer['std']:.4g}", f"{layer['negative']:.1%}"]
        rows.add_row(*first, layer["name"], *numbers, f"{layer['norm']:.4g}", f"{layer['norm_spread']:.2f}")
    console = stdout()
    console.print()
    console.print(rows)
    if len(shown) < len(found["layers"]):
        console.print(f"the first {_ARCHITECTURES} architectures; --json has all", markup=False)
    console.print(f"negative weights in all: {found['negative']:.1%}", markup=False)
