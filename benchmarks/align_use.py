"""What aligned networks are good for: averages, and weights of eight bits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from align_networks import Data, Family, Row, families, say, trained, vgg
from torch import Tensor

from scalegmn.alignment.balance import balance, imbalance, quantised, rounding_error
from scalegmn.alignment.barrier import barrier
from scalegmn.alignment.scales import RoundingNoise, equalising
from scalegmn.alignment.structure import Term
from scalegmn.core.networks import Networks
from scalegmn.core.transform import Transform


def errors_on(family: Family, data: Data) -> Callable[[Networks], Tensor]:
    """The share of test images that networks get wrong."""
    x = family.inputs(data.test_x)

    def loss(networks: Networks) -> Tensor:
        wrong = [n.evaluate(x).argmax(2) != data.test_y for n in networks]
        return torch.cat(wrong).double().mean(1)

    return loss


def spread(values: Tensor, digits: int = 3) -> str:
    """A mean, with its standard error where there are several."""
    error = f" ± {float(values.std()) / len(values) ** 0.5:.{digits}f}" if len(values) > 1 else ""
    return f"{float(values.mean()):.{digits}f}{error}"


def merge_part(data: Data, quick: bool) -> list[Row]:
    """Barriers of the test error between networks from two seeds, for three widths."""
    rows = []
    mlp, cnn = (32, 128, 512), (8, 16, 32)
    kinds = {"relu MLP": mlp, "relu CNN": cnn, "tanh MLP": mlp}
    for family in families(data):
        for width in kinds.get(family.name, ())[: 1 if quick else 3]:
            say(f"merge: {family.name}, width {width}")
            ends, heights = [], []
            for seed in range(0, 2 if quick else 10, 2):
                a, b = (Networks.from_modules([trained(family, data, s, width)]) for s in (seed, seed + 1))
                found = barrier(a, b, errors_on(family, data), inputs=family.inputs(data.x[:512]))
                ends.append(found.curves["as stored"][[0, -1]].mean())
                heights.append(found.heights)
            rows.append(
                {"family": family.name, "width": width, "error of the ends": spread(torch.stack(ends))}
                | {name: spread(torch.tensor([h[name] for h in heights])) for name in heights[0]}
            )
    return rows


class Ranges(RoundingNoise):
    """Cross-layer equalisation (Nagel et al. 2019): equal largest weights into and out of every neuron."""

    power = 64.0

    def sizes(self, term: Term, square: Tensor) -> dict[float, Tensor]:
        """Sums of high powers of entries are their maxima; relative to the range of the tensor."""
        now = square * self._factor(term)
        return {self.power: (now / now.amax((1, 2), keepdim=True)) ** self.power}


def equalised(networks: Networks) -> Networks:
    """What others do instead of `balance`."""
    start = equalising(networks)
    ranges = Ranges(start.apply(networks.to(dtype=torch.float64)))
    ranges.settle(60)
    scales = tuple((s * u.exp()).abs() for s, u in zip(start.scales, ranges.logs, strict=True))
    return Transform(start.architecture, start.permutations, scales).apply(networks)


def balance_part(data: Data, count: int) -> list[Row]:
    """What int8 weights do to networks: as trained, rescaled at random, and balanced after that."""
    rows = []
    relu = [f for f in families(data) if f.name.startswith("relu")]
    for family in (*relu, *([vgg(data)] if data.only in vgg(data).name else [])):
        say(f"balance: {family.name}")
        networks = Networks.from_modules([trained(family, data, seed) for seed in range(count)])
        draw = torch.Generator().manual_seed(3)
        scaled = Transform.sample(networks.architecture, count, draw, permute=False).apply(networks)
        loss, every = errors_on(family, data), family.inputs(torch.cat([data.x, data.test_x]))
        before, rounded = loss(networks), loss(quantised(networks))
        members = {"trained": networks, "rescaled": scaled}
        members |= {"balanced": balance(scaled).networks, "equal ranges": equalised(scaled)}
        for name, n in members.items():
            pairs = zip(n, quantised(n), strict=True)
            changed = [(p.evaluate(every).argmax(2) != q.evaluate(every).argmax(2)).double().mean() for p, q in pairs]
            rows.append(
                {
                    "family": family.name,
                    "member": name,
                    "error": float(before.mean()),
                    "int8 adds": spread(loss(quantised(n)) - before, 4),
                    "more than trained": spread(loss(quantised(n)) - rounded, 4),
                    "outputs off by": spread(rounding_error(n, every), 4),
                    "predictions changed": spread(torch.stack(changed), 4),
                    "bits wasted": float(imbalance(n).mean()),
                }
            )
    return rows
