"""Whether alignment finds planted symmetries, and tells copies from other networks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from align_networks import Data, Family, Row, families, say, sirens, trained
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn import functional as F

from scalegmn.alignment.align import align
from scalegmn.alignment.balance import quantised
from scalegmn.alignment.compare import distance
from scalegmn.alignment.match import Search
from scalegmn.alignment.phases import turned, turns_towards
from scalegmn.alignment.structure import half_turn, mirrors, split
from scalegmn.core.networks import Networks
from scalegmn.core.transform import Transform
from scalegmn.testing import relative_error

LEVELS = (0.0, 0.01, 0.1)


def disguise(networks: Networks, draw: torch.Generator) -> tuple[Networks, Transform]:
    """Permutations, scales in [0.1, 10], signs, and phases of sines by up to four half turns."""
    a = networks.architecture
    counts: list[Tensor | None] = []
    for i, layer in enumerate(a.layers):
        count = torch.randint(-4, 5, (len(networks), layer.size), generator=draw)
        counts.append(None if half_turn(a, i) is None else count if mirrors(a, i) else 2 * count)
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
    if data.only in "SIREN 2-32-32-1":
        say("planted: SIREN")
        rows.append(planted_row("SIREN 2-32-32-1", sirens(data, count), copies))
    return rows


def file_hash(a: Networks, b: Networks) -> Tensor:
    """0 where the bytes agree."""
    digests = [[hashlib.sha256(row.numpy().tobytes()).hexdigest() for row in n.parameters] for n in (a, b)]
    return torch.tensor([float(x != y) for x, y in zip(*digests, strict=True)])


def cosine(a: Networks, b: Networks) -> Tensor:
    """One minus the cosine of the parameters."""
    return 1 - F.cosine_similarity(a.parameters, b.parameters)


def layer_norms(a: Networks, b: Networks) -> Tensor:
    """How much the norms of tensors differ, in logarithms."""
    norms = [torch.stack([x.flatten(1).norm(dim=1) for x in split(n)], dim=1).clamp_min(1e-12).log() for n in (a, b)]
    return (norms[0] - norms[1]).norm(dim=1)


SCORES: dict[str, Callable[[Networks, Networks], Tensor]] = {
    "distance": distance, "file hash": file_hash, "cosine": cosine, "layer norms": layer_norms,
}  # fmt: skip


def derived(family: Family, data: Data, count: int) -> dict[str, Networks]:
    """What people make from networks."""
    networks = Networks.from_modules([trained(family, data, seed) for seed in range(count)])
    pruned = networks.parameters.clone()
    for s in networks.architecture.segments:
        part = pruned[:, s.start : s.start + s.size]
        if s.kind == "weight":
            part[part.abs() <= part.abs().quantile(0.3, dim=1, keepdim=True)] = 0
    return {
        "symmetry": networks,
        "fine-tuned": Networks.from_modules([trained(family, data, seed, tuned=3) for seed in range(count)]),
        "pruned 30 %": networks.replace(pruned),
        "int8": quantised(networks),
    }


def copies_part(data: Data, quick: bool) -> list[Row]:
    """The area under the curve of each score for derived against independent pairs, as stored and disguised."""
    count, rows = 3 if quick else 10, []
    every: dict[str, list[Tensor]] = {}
    for family in families(data):
        say(f"copies: {family.name}")
        made = derived(family, data, count)
        originals = made["symmetry"]
        left, right = zip(*((i, j) for i in range(count) for j in range(i)), strict=True)
        kinds = [kind for kind in made for _ in range(count)] + ["independent"] * len(left)
        a = Networks.cat([originals] * len(made) + [originals[list(left)]])
        b = Networks.cat([*made.values(), originals[list(right)]])
        hidden, _ = disguise(b, torch.Generator().manual_seed(2))
        other = torch.tensor([kind == "independent" for kind in kinds])
        row: Row = {"family": family.name, "derived": 4 * count, "independent": len(left)}
        for label, second in (("disguised", hidden), ("as stored", b)):
            for name, score in SCORES.items():
                every.setdefault(f"{name}, {label}", []).append(score(a, second).double())
                row[f"{name}, {label}"] = roc_auc_score(other, every[f"{name}, {label}"][-1])
        every.setdefault("other", []).append(other)
        found = every["distance, disguised"][-1]
        row["distances"] = {kind: float(found[[k == kind for k in kinds]].mean()) for kind in dict.fromkeys(kinds)}
        row["distances"] |= {"largest derived": float(found[~other].max())}
        row["distances"] |= {"smallest independent": float(found[other].min())}
        rows.append(row)
    together = {name: torch.cat(parts) for name, parts in every.items()}
    other = together.pop("other")
    return [
        *rows,
        {"family": "all", "derived": int((~other).sum()), "independent": int(other.sum())}
        | {name: roc_auc_score(other, values) for name, values in together.items()},
    ]
