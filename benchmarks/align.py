"""What alignment finds: planted symmetries, copies, merged networks, int8, and how long it takes.

    python benchmarks/align.py [--quick] [--json] [--images mnist --root DIR] [--only planted,copies,...]

Trains its own networks. The table in docs/align.md is what this prints; --figures DIR also draws its pictures.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from align_networks import Data, Family, families, load, sirens, train, trained
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn import functional as F

from scalegmn.alignment.align import align
from scalegmn.alignment.balance import balance, quantised, rounding_error
from scalegmn.alignment.barrier import barrier
from scalegmn.alignment.match import Search
from scalegmn.alignment.phases import turned, turns_towards
from scalegmn.alignment.structure import mirrors, split, turns
from scalegmn.core.activations import activation
from scalegmn.core.architecture import Architecture
from scalegmn.core.networks import Networks
from scalegmn.core.transform import Transform
from scalegmn.testing import random_networks, relative_error

Row = dict[str, Any]
LEVELS = (0.0, 0.01, 0.1)


def say(words: str) -> None:
    """One line on stderr: what is going on."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {words}\n")


def disguise(networks: Networks, draw: torch.Generator) -> tuple[Networks, Transform]:
    """Permutations, scales in [0.1, 10], signs, and phases of sines by up to four half turns."""
    a = networks.architecture
    counts: list[Tensor | None] = []
    for i, layer in enumerate(a.layers):
        count = torch.randint(-4, 5, (len(networks), layer.size), generator=draw)
        counts.append(None if turns(a, i) is None else count if mirrors(a, i) else 2 * count)
    planted = Transform.sample(a, len(networks), draw)
    return planted.apply(turned(networks, tuple(counts))), planted


def noisy(networks: Networks, level: float, draw: torch.Generator) -> Networks:
    """Noise relative to the root mean square of each tensor."""
    parameters = networks.parameters.clone()
    for s in networks.architecture.segments:
        part = parameters[:, s.start : s.start + s.size]
        noise = torch.randn(part.shape, generator=draw, dtype=part.dtype)
        part += level * part.square().mean(1, keepdim=True).sqrt() * noise
    return networks.replace(parameters)


# -- 1. planted symmetries -----------------------------------------------------------------------------------------


def recovered(orders: list[Tensor], planted: Transform) -> Tensor:
    """For which pairs the permutations found undo those planted."""
    return torch.stack(
        [
            (p.gather(1, q) == torch.arange(q.shape[1])).all(1)
            for p, q in zip(planted.permutations, orders, strict=True)
        ]
    ).all(0)


def planted_row(name: str, networks: Networks, copies: int) -> Row:
    """How often a planted symmetry is found, beside plain weight matching from the identity."""
    draw = torch.Generator().manual_seed(1)
    a = networks.architecture
    originals = networks[list(range(len(networks))) * copies].to(dtype=torch.float64)
    row: Row = {"family": name, "architecture": str(a), "pairs": len(originals)}
    for level in LEVELS:
        changed = noisy(originals, level, draw)
        moved, planted = disguise(changed, draw)
        found = align(originals, moved)
        undone = found.transform @ planted
        good = recovered(list(found.transform.permutations), planted)
        good &= torch.stack([(s > 0).all(1) for s in undone.scales]).all(0)
        if not any(g.scales for g in a.groups):  # nothing but the very parameters, whole turns of phases aside
            good &= relative_error(turned(found.aligned, turns_towards(changed, found.aligned)), changed) < 1e-6
        if level == 0:
            good &= found.exact
        plain = Search(originals, moved, signs=False)
        plain.weights = [torch.ones_like(w) for w in plain.weights]
        plain.refine()
        percent = f"{100 * level:g} %"
        row[f"found at {percent}"] = int(good.sum())
        row[f"plain at {percent}"] = int(recovered(plain.order, planted).sum())
    return row


def planted_part(data: Data, quick: bool) -> list[Row]:
    """All families, and sines that draw."""
    count, copies = (2, 3) if quick else (10, 10)
    rows = []
    for family in families(data):
        say(f"planted: {family.name}")
        networks = Networks.from_modules([trained(family, data, seed) for seed in range(count)])
        rows.append(planted_row(family.name, networks, copies))
    say("planted: SIREN")
    rows.append(planted_row("SIREN 2-32-32-1", sirens(data, count), copies))
    return rows


# -- 2. copy or not ------------------------------------------------------------------------------------------------


def file_hash(a: Networks, b: Networks) -> float:
    """0 where the bytes agree."""
    digests = {hashlib.sha256(n.parameters.numpy().tobytes()).hexdigest() for n in (a, b)}
    return float(len(digests) - 1)


def cosine(a: Networks, b: Networks) -> float:
    """One minus the cosine of the parameters."""
    return 1 - float(F.cosine_similarity(a.parameters, b.parameters))


def layer_norms(a: Networks, b: Networks) -> float:
    """How much the norms of tensors differ, in logarithms."""
    norms = [torch.stack([x.norm() for x in split(n)]).clamp_min(1e-12).log() for n in (a, b)]
    return float((norms[0] - norms[1]).norm())


def orbit(a: Networks, b: Networks) -> float:
    """Ours."""
    return float(align(a, b).distance)


SCORES: dict[str, Callable[[Networks, Networks], float]] = {
    "distance": orbit, "file hash": file_hash, "cosine": cosine, "layer norms": layer_norms,
}  # fmt: skip


def derived(family: Family, data: Data, seed: int) -> dict[str, Networks]:
    """What people make from a network."""
    networks = Networks.from_modules([trained(family, data, seed)])
    tuned = train(trained(family, data, seed), family, data, seed + 500, epochs=3)
    pruned = networks.parameters.clone()
    for s in networks.architecture.segments:
        part = pruned[:, s.start : s.start + s.size]
        if s.kind == "weight":
            part[part.abs() <= part.abs().quantile(0.3)] = 0
    return {
        "symmetry": networks,
        "fine-tuned": Networks.from_modules([tuned]),
        "pruned 30 %": networks.replace(pruned),
        "int8": quantised(networks),
    }


def copies_part(data: Data, quick: bool) -> list[Row]:
    """The area under the curve of each score for derived against independent pairs, as stored and disguised."""
    count = 3 if quick else 5
    rows = []
    for family in families(data):
        if "residual" in family.name and "relu" not in family.name:
            continue  # they take long to train
        say(f"copies: {family.name}")
        draw = torch.Generator().manual_seed(2)
        made = [derived(family, data, seed) for seed in range(count)]
        originals = [m["symmetry"] for m in made]
        pairs: list[tuple[str, Networks, Networks]] = []
        for m in made:
            pairs += [(kind, m["symmetry"], other) for kind, other in m.items()]
        pairs += [("independent", originals[i], originals[j]) for i in range(count) for j in range(i)]
        row: Row = {"family": family.name, "derived": 4 * count, "independent": count * (count - 1) // 2}
        hidden = [(kind, a, disguise(b, draw)[0]) for kind, a, b in pairs]
        for name, score in SCORES.items():
            for label, chosen in (("as stored", pairs), ("disguised", hidden)):
                values = [(kind, score(a, b)) for kind, a, b in chosen]
                row[f"{name}, {label}"] = roc_auc_score([k == "independent" for k, _ in values], [v for _, v in values])
                if name == "distance" and label == "disguised":
                    kinds = dict.fromkeys(k for k, _ in values)
                    row["distances"] = {k: statistics.mean(v for kind, v in values if kind == k) for k in kinds}
                    row["largest derived"] = max(v for k, v in values if k != "independent")
                    row["smallest independent"] = min(v for k, v in values if k == "independent")
        rows.append(row)
    return rows


# -- 3. merging ----------------------------------------------------------------------------------------------------


def errors_on(family: Family, data: Data) -> Callable[[Networks], Tensor]:
    """The share of test images that networks get wrong."""
    x = family.inputs(data.test_x)

    def loss(networks: Networks) -> Tensor:
        wrong = [n.evaluate(x).argmax(2) != data.test_y for n in networks]
        return torch.cat(wrong).double().mean(1)

    return loss


def merge_part(data: Data, quick: bool) -> list[Row]:
    """Barriers of the test error between networks from two seeds, for three widths."""
    rows = []
    kinds = {"relu MLP": (32, 128, 512), "tanh MLP": (32, 128, 512), "relu CNN": (8, 16, 32)}
    for family in families(data):
        if family.name not in kinds:
            continue
        for width in kinds[family.name][: 1 if quick else 3]:
            say(f"merge: {family.name}, width {width}")
            a, b = (Networks.from_modules([trained(family, data, seed, width)]) for seed in (0, 1))
            found = barrier(a, b, errors_on(family, data), inputs=family.inputs(data.x[:512]))
            rows.append(
                {
                    "family": family.name,
                    "width": width,
                    "error of the ends": float(found.curves["as stored"][[0, -1]].mean()),
                    **{f"barrier {name}": height for name, height in found.heights.items()},
                }
            )
    return rows


# -- 4. balance ----------------------------------------------------------------------------------------------------


def balance_part(data: Data, quick: bool) -> list[Row]:
    """The test error of int8 weights: of networks as trained, rescaled at random, and balanced after that."""
    rows = []
    for family in families(data):
        if not family.name.startswith("relu"):
            continue
        say(f"balance: {family.name}")
        count = 2 if quick else 40
        networks = Networks.from_modules([trained(family, data, seed) for seed in range(count)])
        draw = torch.Generator().manual_seed(3)
        scaled = Transform.sample(networks.architecture, count, draw, permute=False).apply(networks)
        loss = errors_on(family, data)
        variants = {"trained": networks, "rescaled": scaled, "balanced": balance(scaled).networks}
        row: Row = {"family": family.name, "networks": count, "error": float(loss(networks).mean())}
        for name, n in variants.items():
            row[f"error in int8, {name}"] = float(loss(quantised(n)).mean())
        every = family.inputs(torch.cat([data.x, data.test_x]))
        for name, n in variants.items():
            row[f"outputs off by, {name}"] = float(rounding_error(n, every).mean())
        for name, n in variants.items():
            pairs = zip(n, quantised(n), strict=True)
            changed = [(p.evaluate(every).argmax(2) != q.evaluate(every).argmax(2)).double().mean() for p, q in pairs]
            row[f"predictions changed, {name}"] = float(torch.stack(changed).mean())
        rows.append(row)
    return rows


# -- 5. speed ------------------------------------------------------------------------------------------------------


def timed(f: Callable[[], Any]) -> tuple[float, float]:
    """Seconds on the clock and of the processor."""
    wall, processor = time.perf_counter(), time.process_time()
    f()
    return time.perf_counter() - wall, time.process_time() - processor


def speed_part(quick: bool) -> list[Row]:
    """Large networks, many small ones, and a folder."""
    from scalegmn.cli.dedupe import search

    draw = torch.Generator().manual_seed(4)
    siren = Architecture.mlp([2, 32, 32, 1], activation("sine", 30.0))
    large = Architecture.mlp([784, 700, 512, 256, 10])
    rows = []
    for name, a, count in (("a million parameters", large, 1), ("SIREN pairs", siren, 100 if quick else 1000)):
        say(f"speed: {name}")
        one, two = (random_networks(a, count, generator=draw, dtype=torch.float32) for _ in range(2))
        changed = noisy(one, 0.1, draw)
        kinds = {"copies": disguise(one, draw)[0], "10 % noise": disguise(changed, draw)[0], "unrelated": two}
        for kind, other in kinds.items():
            wall, processor = timed(lambda one=one, other=other: align(one, other))  # type: ignore[misc]
            rows.append({"what": f"align {count} x {name}, {kind}", "seconds": wall, "processor seconds": processor})
    count = 500 if quick else 10_000
    say(f"speed: dedupe of {count} files")
    base = random_networks(siren, count * 8 // 10, generator=draw, dtype=torch.float32)
    copied, near = base[: count // 10], base[count // 10 : count // 5]
    everything = Networks.cat([base, disguise(copied, draw)[0], disguise(noisy(near, 0.05, draw), draw)[0]])
    with tempfile.TemporaryDirectory() as folder:
        everything.to_files([Path(folder) / f"{i:05d}.pt" for i in range(count)])
        answer: Row = {}
        wall, processor = timed(
            lambda: answer.update(search(Path(folder), [], activation("sine", 30.0), 0.35))
        )
    kinds_found = [g["kind"] for g in answer["groups"]]
    rows.append(
        {
            "what": f"dedupe of {count} SIREN files: {kinds_found.count('same')} of {count // 10} copies, "
            f"{kinds_found.count('near')} of {count // 10} near, {answer['compared']} pairs compared",
            "seconds": wall,
            "processor seconds": processor,
        }
    )
    return rows


# -- output --------------------------------------------------------------------------------------------------------


def table(rows: list[Row]) -> str:
    """Rows as a table in Markdown."""
    columns = [c for c in rows[0] if not isinstance(rows[0][c], dict)]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        cells = [f"{row[c]:.3g}" if isinstance(row[c], float) else str(row[c]) for c in columns]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few networks")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--images", default="digits", help="digits, mnist, cifar10")
    parser.add_argument("--root", type=Path, help="where the files of mnist and cifar10 are")
    parser.add_argument("--only", default="planted,copies,merge,balance,speed")
    parser.add_argument("--figures", type=Path, help="a folder for the pictures of docs/align.md")
    options = parser.parse_args()
    data = load(options.images, options.root)
    parts: dict[str, list[Row]] = {}
    for part in options.only.split(","):
        if part == "planted":
            parts[part] = planted_part(data, options.quick)
        elif part == "copies":
            parts[part] = copies_part(data, options.quick)
        elif part == "merge":
            parts[part] = merge_part(data, options.quick)
        elif part == "balance":
            parts[part] = balance_part(data, options.quick)
        elif part == "speed":
            parts[part] = speed_part(options.quick)
        else:
            parser.error(f"--only: expected planted, copies, merge, balance or speed, got {part}")
        if not options.json:
            sys.stdout.write(f"\n### {part}\n\n{table(parts[part])}\n")
            sys.stdout.flush()
    if options.figures is not None:
        from align_figures import draw_all

        draw_all(options.figures, data, parts.get("copies", []))
    if options.json:
        sys.stdout.write(json.dumps(parts, indent=2) + "\n")


if __name__ == "__main__":
    main()
